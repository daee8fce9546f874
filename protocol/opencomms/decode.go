package opencomms

import "strconv"

// Decode reads a state file. It fails with *InvalidError where the programs that
// share the file would reject it, and takes the rest as they do: what a channel,
// member or message lacks gets its default, the last of two equal keys counts, bytes
// that are no UTF-8 become U+FFFD. Numbers are cut to integers of 53 bits.
//
// Keys keep the order of the file. A JavaScript program moves those that are whole
// numbers before the others, for example of a channel "7"; we do not.
//
// The strings of the state share memory with each other: strings.Clone what
// outlives it.
func Decode(data []byte) (*State, error) { return decode(data, SchemaVersion) }

func decode(data []byte, version int) (*State, error) {
	s := newScanner(data, version)
	d := decoder{s: s, state: &State{size: len(data)}}
	if s.kind() != '{' {
		s.value()
		s.end()
		if s.err != nil {
			return nil, s.err
		}
		return nil, &InvalidError{Reason: "no object"}
	}
	for ok := s.enter('{', '}'); ok; ok = s.more('}') {
		d.member(s.key())
	}
	s.end()
	if s.err != nil {
		return nil, s.err
	}
	for i, name := range topLevel {
		if _, ok := d.state.members.Get(name); !ok {
			return nil, &InvalidError{name, "is missing"}
		}
		if d.faults[i] != nil {
			return nil, d.faults[i]
		}
	}
	d.countDelivered()
	return d.state, nil
}

// topLevel are the members of a file, all of which must be there, in the order in
// which they are looked at and written.
var topLevel = [...]string{"schema_version", "channels", "messages", "queues", "delivered_to", "errors"}

// decoder reads a file. What breaks a rule is kept for the end: a later member of
// the same key may take its place, and broken syntax comes first.
type decoder struct {
	s      *scanner
	state  *State
	faults [len(topLevel)]*InvalidError // of the members in topLevel
	// uncounted are channels that do not say how much they delivered.
	uncounted []*Channel
	block     []Envelope // room for the next envelopes
}

func (d *decoder) member(name string) {
	st := d.state
	text := ""
	switch name {
	case "schema_version":
		d.faults[0] = d.schema()
	case "channels":
		st.Channels, d.faults[1] = readObject(d, name, d.channel)
	case "messages":
		st.Messages, d.faults[2] = readObject(d, name, d.envelope)
	case "queues":
		st.Queues, d.faults[3] = readObject(d, name, d.lists())
	case "delivered_to":
		st.DeliveredTo, d.faults[4] = readObject(d, name, d.lists())
	case "errors":
		d.faults[5] = d.errors()
	default:
		text = d.s.value()
	}
	st.members.Set(name, text)
}

func (d *decoder) schema() *InvalidError {
	c := d.s.kind()
	text := d.s.value()
	if c == '-' || isDigit(c) {
		if f, err := strconv.ParseFloat(text, 64); err == nil && f == float64(d.s.version) {
			return nil
		}
	}
	return &InvalidError{"schema_version", "is not " + strconv.Itoa(d.s.version)}
}

// readObject reads an object of records. read takes the value of a key.
func readObject[V any](d *decoder, name string, read func(key string) (V, *InvalidError)) (out Ordered[V], fault *InvalidError) {
	s := d.s
	if s.kind() != '{' {
		s.value()
		return out, &InvalidError{name, "is no object"}
	}
	var bad map[string]*InvalidError
	for ok := s.enter('{', '}'); ok; ok = s.more('}') {
		key := s.key()
		v, err := read(key)
		out.Set(key, v)
		switch {
		case err != nil:
			if bad == nil {
				bad = make(map[string]*InvalidError)
			}
			bad[key] = err
		case bad != nil:
			delete(bad, key)
		}
	}
	for key := range out.All() {
		if err := bad[key]; err != nil {
			return out, err.under(name + quoteKey(key))
		}
	}
	return out, nil
}

func (d *decoder) channel(name string) (*Channel, *InvalidError) {
	s := d.s
	c := defaultChannel()
	if s.kind() != '{' {
		s.value()
		return c, &InvalidError{"", "is no object"}
	}
	s.fault = nil
	text, bad, _ := readRecord(s, channelFields, c)
	if err := missing(s, channelFields, bad); err != nil {
		return c, err
	}
	switch {
	case s.fault != nil:
		return c, s.fault
	case len(c.Members) == 0 && bad&channelMembers != 0:
		return c, &InvalidError{"members", "no list"}
	case len(c.Members) == 0 && bad&channelLifecycle != 0:
		return c, &InvalidError{"members", "none, in a channel that does not say that it is active"}
	}
	if err := c.check(name); err != nil {
		return c, err
	}
	c.kept = kept{text: text}
	c.convertTimer()
	if bad&channelDelivered != 0 {
		d.uncounted = append(d.uncounted, c)
	}
	return c, nil
}

// readMembers reads the members of a channel; the error is of the first that breaks
// a rule. clean is false if one has to be written with what it lacks.
func readMembers(s *scanner) (members []*Member, fault *InvalidError, clean bool) {
	if s.kind() != '[' {
		s.value()
		return nil, nil, false
	}
	clean = true
	for ok := s.enter('[', ']'); ok; ok = s.more(']') {
		m, err := readMember(s)
		if err != nil && fault == nil {
			fault = err.under("members" + quoteIndex(len(members)))
		}
		members = append(members, m)
		clean = clean && !m.kept.fill
	}
	return members, fault, clean
}

func readMember(s *scanner) (*Member, *InvalidError) {
	m := &Member{}
	if s.kind() != '{' {
		s.value()
		return m, &InvalidError{"", "is no object"}
	}
	text, bad, _ := readRecord(s, memberFields, m)
	if err := missing(s, memberFields, bad); err != nil {
		return m, err
	}
	m.kept = kept{text: text, fill: toFill(memberFields, bad)}
	if m.Endpoint == nil {
		derived := DerivedEndpoint(m.Mode)
		m.Endpoint = &derived
	}
	return m, m.check()
}

func (d *decoder) envelope(string) (*Envelope, *InvalidError) {
	s := d.s
	if s.kind() != '{' {
		s.value()
		return nil, &InvalidError{"", "is no object"}
	}
	if len(d.block) == 0 {
		d.block = make([]Envelope, 64)
	}
	e := &d.block[0]
	d.block = d.block[1:]
	return e, e.read(s)
}

func (e *Envelope) read(s *scanner) *InvalidError {
	text, bad, _ := readRecord(s, envelopeFields, &e.EnvelopeFields)
	if err := missing(s, envelopeFields, bad); err != nil {
		return err
	}
	e.before = e.EnvelopeFields
	e.kept = kept{text: text, fill: toFill(envelopeFields, bad)}
	return nil
}

// lists returns a reader of lists of strings, which take their room together.
func (d *decoder) lists() func(string) ([]string, *InvalidError) {
	var all []string
	return func(string) ([]string, *InvalidError) {
		from := len(all)
		var isList, clean bool
		if all, isList, clean = readStrings(d.s, all); !isList || !clean {
			return nil, &InvalidError{"", "is no list of strings"}
		}
		return all[from:len(all):len(all)], nil
	}
}

func (d *decoder) errors() *InvalidError {
	s := d.s
	d.state.Errors = nil
	if s.kind() != '[' {
		s.value()
		return &InvalidError{"errors", "is no list"}
	}
	for ok := s.enter('[', ']'); ok; ok = s.more(']') {
		d.state.Errors = append(d.state.Errors, readError(s))
	}
	return nil
}

// readError reads an entry of the list of errors; what is none is kept as text.
func readError(s *scanner) (e ErrorEntry) {
	if s.kind() == '{' {
		e.kept.text, _, _ = readRecord(s, errorFields, &e)
	} else {
		e.kept.text = s.value()
	}
	return e
}

// countDelivered gives channels from before there were budgets their total.
func (d *decoder) countDelivered() {
	for _, c := range d.uncounted {
		for _, e := range d.state.Messages.All() {
			if e.ChannelID == c.ID && (e.Status == StatusDelivered || e.Status == StatusInFlight) {
				c.DeliveredTotal++
			}
		}
	}
}
