package opencomms

// Encode writes the state as a file, as JSON.stringify would with two blanks of
// indentation. It fails with *InvalidError, and gives nothing, where Decode or the
// programs that share the file would reject it. What nobody changed since Decode
// has the bytes that it had; what was changed keeps the members that we do not know.
// The state is not changed.
func (s *State) Encode() ([]byte, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	dst := make([]byte, 0, s.size+s.size/16+8<<10)
	dst = append(dst, '{')
	first := true
	for name, text := range s.members.All() {
		dst = appendKey(dst, first, 1, name)
		dst = s.appendMember(dst, name, text)
		first = false
	}
	for _, name := range topLevel {
		if _, ok := s.members.Get(name); !ok {
			dst = appendKey(dst, first, 1, name)
			dst = s.appendMember(dst, name, "")
			first = false
		}
	}
	return appendClose(dst, false, 0, '}'), nil
}

// appendMember writes what the file has under name; text if we do not know it.
func (s *State) appendMember(dst []byte, name, text string) []byte {
	switch name {
	case "schema_version":
		return appendNumber(dst, SchemaVersion)
	case "channels":
		return appendObject(dst, &s.Channels, func(dst []byte, c *Channel) []byte {
			return appendRecord(dst, channelFields, c, c.kept.text, 2)
		})
	case "messages":
		return appendObject(dst, &s.Messages, appendEnvelope)
	case "queues":
		return appendObject(dst, &s.Queues, appendList)
	case "delivered_to":
		return appendObject(dst, &s.DeliveredTo, appendList)
	case "errors":
		return appendErrors(dst, s.Errors)
	}
	return append(dst, text...)
}

func appendObject[V any](dst []byte, o *Ordered[V], value func([]byte, V) []byte) []byte {
	dst = append(dst, '{')
	first := true
	for key, v := range o.All() {
		dst = appendKey(dst, first, 2, key)
		dst = value(dst, v)
		first = false
	}
	return appendClose(dst, first, 1, '}')
}

// appendEnvelope has a short way for the many envelopes that nobody touched.
func appendEnvelope(dst []byte, e *Envelope) []byte {
	if e.kept.text != "" && !e.kept.fill && e.EnvelopeFields == e.before {
		return append(dst, e.kept.text...)
	}
	return appendRecord(dst, envelopeFields, &e.EnvelopeFields, e.kept.text, 2)
}

func appendList(dst []byte, list []string) []byte { return appendStrings(dst, list, 2) }

func appendMembers(dst []byte, members []*Member, depth int) []byte {
	dst = append(dst, '[')
	for i, m := range members {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendLine(dst, depth+1)
		if m.Endpoint == nil {
			whole, derived := *m, DerivedEndpoint(m.Mode)
			whole.Endpoint = &derived
			m = &whole
		}
		dst = appendRecord(dst, memberFields, m, m.kept.text, depth+1)
	}
	return appendClose(dst, len(members) == 0, depth, ']')
}

// appendErrors writes the newest entries.
func appendErrors(dst []byte, entries []ErrorEntry) []byte {
	entries = entries[max(0, len(entries)-MaxErrors):]
	dst = append(dst, '[')
	for i := range entries {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendLine(dst, 2)
		e := &entries[i]
		if e.kept.text != "" && !isObject(e.kept.text) && e.At == 0 && e.Message == "" {
			dst = append(dst, e.kept.text...)
			continue
		}
		dst = appendRecord(dst, errorFields, e, e.kept.text, 2)
	}
	return appendClose(dst, len(entries) == 0, 1, ']')
}
