package engine

import (
	"slices"
	"strings"

	"opencode-mesh/protocol/mesh"
	"opencode-mesh/protocol/opencomms"
)

// message is what Send and Relay have in common.
type message struct {
	channel           *opencomms.Channel
	sender, role      string
	kind, content     string
	id, replyTo       string
	correlation, root string // "" where the parent or chance decides
	hops              int    // at least
	now               int64
	to                []*opencomms.Member
	copied            bool // of a broadcast whose rate and content were judged
	visible           func(*opencomms.Envelope) bool
}

// Send queues a message, one copy for each recipient. The order of the checks is
// the original's.
func (e Engine) Send(s *opencomms.State, c Caller, r SendRequest) (Sent, error) {
	ch, sender, err := enter(s, c, r.Channel)
	if err != nil {
		return Sent{}, err
	}
	m := message{channel: ch, sender: opencomms.OperatorSession, role: opencomms.OperatorRole, content: r.Content, replyTo: r.ReplyTo, now: e.now()}
	m.visible = func(*opencomms.Envelope) bool { return true }
	if sender != nil {
		m.sender, m.role = sender.SessionID, sender.Role
		m.visible = func(parent *opencomms.Envelope) bool { return party(s, parent, sender.SessionID) }
	}
	if m.kind, err = admit(ch, r.Content, r.Type, m.now); err != nil {
		return Sent{}, err
	}
	if c.Operator && (r.Broadcast || opencomms.Trim(r.To) == "") {
		return Sent{}, refuse(AmbiguousRecipient, "an operator's message names one recipient, by session id or role; members of channel %q: %s", ch.Name, roster(ch.Members))
	}
	if m.to, err = recipients(ch, m.sender, r.To, r.Broadcast); err != nil {
		return Sent{}, err
	}
	rows, err := e.post(s, m)
	if err != nil {
		return Sent{}, err
	}

	sent := Sent{Status: opencomms.StatusPending}
	for _, row := range rows {
		sent.MessageIDs = append(sent.MessageIDs, row.ID)
		sent.Recipients = append(sent.Recipients, row.Recipient)
	}
	if ch.Description == "" {
		ch.Description = description(r.Description)
		sent.Description = ch.Description
	}
	e.Retain(s)
	return sent, nil
}

// Relay queues a message that a member on another machine sent through the one
// that stands for it here. The checks are those of Send, in the same order.
func (e Engine) Relay(s *opencomms.State, r RelayRequest) (*opencomms.Envelope, error) {
	for _, id := range []struct{ prefix, id string }{
		{opencomms.PrefixMessage, orElse(r.ID, "-")},
		{opencomms.PrefixMessage, r.ReplyTo},
		{opencomms.PrefixMessage, r.Root},
		{opencomms.PrefixCorrelation, r.Correlation},
	} {
		if id.id != "" && !isID(id.prefix, id.id) {
			return nil, refuse(InvalidID, "a relayed message has an id that is not %s and 32 hex digits", id.prefix)
		}
	}
	if _, ok := s.Messages.Get(r.ID); ok {
		return nil, refuse(MessageExists, "there is a message %s already", r.ID)
	}
	ch, sender, err := enter(s, Caller{Session: r.From}, r.Channel)
	if err != nil {
		return nil, err
	}
	m := message{
		channel: ch, sender: sender.SessionID, role: sender.Role, content: r.Content,
		id: r.ID, replyTo: r.ReplyTo, correlation: r.Correlation, root: r.Root, hops: max(0, r.Hops), now: e.now(),
	}
	// The far side decided what its sender may reply to.
	m.visible = func(*opencomms.Envelope) bool { return true }
	if m.kind, err = admit(ch, r.Content, r.Type, m.now); err != nil {
		return nil, err
	}
	if opencomms.Trim(r.To) == "" {
		return nil, refuse(AmbiguousRecipient, "a relayed message names its recipient")
	}
	if m.to, err = recipients(ch, m.sender, r.To, false); err != nil {
		return nil, err
	}
	if first, ok := s.Messages.Get(r.CopyOf); ok && first.ChannelID == ch.ID && first.Sender == m.sender && first.Correlation == m.correlation && first.Content == m.content {
		if copied(s, first, m.to[0].SessionID) {
			return nil, refuse(Duplicate, "%s has a copy of this broadcast already", m.to[0].Role)
		}
		m.copied = true
	}
	rows, err := e.post(s, m)
	if err != nil {
		return nil, err
	}
	e.Retain(s)
	return rows[0], nil
}

// copied reports whether a recipient has the broadcast whose first copy here is given.
// Copies carry the time of their own arrival, which is when they begin to grow old.
func copied(s *opencomms.State, first *opencomms.Envelope, recipient string) bool {
	for _, row := range s.Messages.All() {
		if row.Recipient == recipient && row.ChannelID == first.ChannelID && row.Sender == first.Sender && row.Timestamp >= first.Timestamp &&
			row.Correlation == first.Correlation && row.Content == first.Content {
			return true
		}
	}
	return false
}

// Notice queues a row of type system for one member and returns its id. from is
// the session that the notice is about, or opencomms.OperatorSession. The text has
// to be ours: what a peer wrote does not belong into it. Rate, duplicates and a
// pause do not hold it up.
func (e Engine) Notice(s *opencomms.State, channel, recipient, from, text string) (string, error) {
	ch, err := find(s, channel)
	if err != nil {
		return "", err
	}
	to := member(ch, recipient)
	if to == nil {
		return "", refuse(TargetUnknown, "no member of channel %q has the session id %q", ch.Name, recipient)
	}
	if opencomms.Trim(text) == "" {
		return "", refuse(ContentRequired, "a notice needs a text")
	}
	role := opencomms.OperatorRole
	if m := member(ch, from); m != nil {
		role = m.Role
	}
	row := e.notice(s, ch, to, from, role, text)
	e.Retain(s)
	return row.ID, nil
}

func (e Engine) notice(s *opencomms.State, ch *opencomms.Channel, to *opencomms.Member, from, role, text string) *opencomms.Envelope {
	row := &opencomms.Envelope{EnvelopeFields: opencomms.EnvelopeFields{
		ID:            opencomms.NewID(opencomms.PrefixMessage),
		ChannelID:     ch.ID,
		Sender:        from,
		SenderRole:    role,
		Recipient:     to.SessionID,
		RecipientRole: to.Role,
		Timestamp:     e.now(),
		Type:          opencomms.TypeSystem,
		Content:       opencomms.Cut(text, opencomms.MaxContent),
		Status:        opencomms.StatusPending,
		Correlation:   opencomms.NewID(opencomms.PrefixCorrelation),
	}}
	enqueue(s, row)
	return row
}

// admit are the checks of a message that come before its recipients. It returns
// the message's type.
func admit(ch *opencomms.Channel, content, kind string, now int64) (string, error) {
	if err := active(ch); err != nil {
		return "", err
	}
	if ch.Paused {
		return "", refuse(Paused, "channel %q is paused; it takes messages again once it is resumed", ch.Name)
	}
	if err := spent(ch, now); err != nil {
		return "", err
	}
	if opencomms.Trim(content) == "" {
		return "", refuse(ContentRequired, "a message needs content")
	}
	if n := opencomms.Length(content); n > opencomms.MaxContent {
		return "", refuse(ContentTooLarge, "the message has %d characters, and at most %d are allowed: put it into a file and name the file", n, opencomms.MaxContent)
	}
	switch kind {
	case "":
		return opencomms.TypeManual, nil
	case opencomms.TypeManual, opencomms.TypeReviewRequest, opencomms.TypeReviewResponse:
		return kind, nil
	case opencomms.TypeSystem:
		return "", refuse(InvalidMessageType, "the type %q is for notices of OpenComms itself", kind)
	}
	return "", refuse(InvalidMessageType, "there is no message type %q; use %s, %s or %s",
		opencomms.Cut(kind, 32), opencomms.TypeManual, opencomms.TypeReviewRequest, opencomms.TypeReviewResponse)
}

// spent refuses what a channel's budgets do not allow any more.
func spent(ch *opencomms.Channel, now int64) error {
	if most := ch.Budgets.MaxRuntime; most != 0 && now-ch.CreatedAt > most {
		return refuse(RuntimeExhausted, "channel %q has used up its time (%d min)", ch.Name, most/60_000)
	}
	if most := ch.Budgets.MaxDelivered; most != 0 && ch.DeliveredTotal >= most {
		return refuse(DeliveredExhausted, "channel %q has used up its messages (%d delivered)", ch.Name, most)
	}
	return nil
}

// recipients are whom a sender means. Nobody is ever guessed.
func recipients(ch *opencomms.Channel, sender, to string, broadcast bool) ([]*opencomms.Member, error) {
	rest := others(ch, sender)
	alone := func() error {
		return refuse(NoOtherMember, "channel %q has no other member", ch.Name)
	}
	switch {
	case broadcast:
		if len(rest) == 0 {
			return nil, alone()
		}
		live := slices.DeleteFunc(rest, func(m *opencomms.Member) bool { return m.Stale })
		if len(live) == 0 {
			return nil, refuse(NoLiveRecipient, "all other members of channel %q are stale", ch.Name)
		}
		return live, nil
	case opencomms.Trim(to) != "":
		m := match(rest, to)
		if m == nil {
			return nil, refuse(RecipientUnknown, "no other member of channel %q is named %q; there is: %s", ch.Name, opencomms.Cut(opencomms.Trim(to), 64), roster(rest))
		}
		return fresh(m)
	case len(rest) == 0:
		return nil, alone()
	case len(rest) > 1:
		return nil, refuse(AmbiguousRecipient, "channel %q has %d other members: name one by session id or role, or broadcast; there is: %s", ch.Name, len(rest), roster(rest))
	}
	return fresh(rest[0])
}

func fresh(m *opencomms.Member) ([]*opencomms.Member, error) {
	if m.Stale {
		return nil, refuse(RecipientStale, "%s (%s) is stale: its session is gone", m.Role, m.SessionID)
	}
	return []*opencomms.Member{m}, nil
}

// post are the checks that come after the recipients, and then the message.
func (e Engine) post(s *opencomms.State, m message) ([]*opencomms.Envelope, error) {
	ch := m.channel
	rate := ch.Rate
	key := opencomms.SeenKey(m.sender, m.content)
	if !m.copied {
		// A window that begins in the future is one of a clock that was put back.
		if age := m.now - rate.WindowStart; age > millis(opencomms.RateWindow) || age < 0 {
			rate = opencomms.Rate{WindowStart: m.now}
		}
		rate.Count++
		if most := orDefault(ch.RateLimit, opencomms.DefaultRate); rate.Count > most {
			return nil, refuse(RateLimited, "channel %q takes %d messages a minute, of all its members together; wait", ch.Name, most)
		}
		if last, ok := ch.SeenContent.Get(key); ok && m.now-last < ch.StaleAfter {
			return nil, refuse(Duplicate, "this session sent the same content on channel %q %d s ago; it was taken then", ch.Name, max(0, m.now-last)/1000)
		}
	}
	if m.replyTo != "" && !opencomms.ValidMember(m.replyTo) {
		return nil, refuse(InvalidID, "reply_to is no message id: leave it out, or take the message_id of what you answer")
	}
	correlation, root, hops := m.correlation, m.root, m.hops
	if parent, ok := s.Messages.Get(m.replyTo); ok && m.visible(parent) {
		hops = max(hops, parent.Hops+1)
		correlation = orElse(correlation, parent.Correlation)
		root = orElse(root, orElse(parent.Root, parent.ID))
	}
	if most := orDefault(ch.MaxHops, opencomms.DefaultHops); hops > most {
		return nil, refuse(HopLimit, "this chain of replies on channel %q has reached its end (%d hops); a person has to begin a new one", ch.Name, most)
	}

	// From here on nothing is refused.
	correlation = orElse(correlation, opencomms.NewID(opencomms.PrefixCorrelation))
	if !m.copied {
		ch.Rate = rate
		for seen, at := range ch.SeenContent.All() {
			if m.now-at >= ch.StaleAfter {
				ch.SeenContent.Delete(seen)
			}
		}
		ch.SeenContent.Set(key, m.now)
		if m.replyTo == "" {
			begun := append(slices.Clone(ch.ProcessedCorrelations), correlation)
			ch.ProcessedCorrelations = begun[max(0, len(begun)-opencomms.MaxCorrelations):]
		}
	}
	rows := make([]*opencomms.Envelope, len(m.to))
	for i, to := range m.to {
		rows[i] = &opencomms.Envelope{EnvelopeFields: opencomms.EnvelopeFields{
			ID:            orElse(m.id, opencomms.NewID(opencomms.PrefixMessage)),
			ChannelID:     ch.ID,
			Sender:        m.sender,
			SenderRole:    m.role,
			Recipient:     to.SessionID,
			RecipientRole: to.Role,
			Timestamp:     m.now,
			Type:          m.kind,
			Content:       m.content,
			ReplyTo:       m.replyTo,
			Root:          root,
			Hops:          hops,
			Status:        opencomms.StatusPending,
			Correlation:   correlation,
		}}
		enqueue(s, rows[i])
	}
	if !m.copied {
		handOver(&ch.Timer, m.to[0].SessionID, m.now)
	}
	return rows, nil
}

// enqueue adds a row and puts it at the end of its recipient's queue.
func enqueue(s *opencomms.State, row *opencomms.Envelope) {
	s.Messages.Set(row.ID, row)
	queue, _ := s.Queues.Get(row.Recipient)
	s.Queues.Set(row.Recipient, append(slices.Clone(queue), row.ID))
}

// party reports whether a session can know of a message: it sent or received it,
// or is a member of its channel. What it cannot know it cannot reply to.
func party(s *opencomms.State, row *opencomms.Envelope, session string) bool {
	if row.Sender == session || row.Recipient == session {
		return true
	}
	ch := channelByID(s, row.ChannelID)
	return ch != nil && member(ch, session) != nil
}

func channelByID(s *opencomms.State, id string) *opencomms.Channel {
	for _, ch := range s.Channels.All() {
		if ch.ID == id {
			return ch
		}
	}
	return nil
}

// description makes one line of what a sender says about the channel.
func description(text string) string {
	return opencomms.Cut(strings.Join(strings.Fields(mesh.CleanLine(text)), " "), opencomms.MaxDescription)
}

// orDefault is for the numbers that the program that shares the file may have left
// out; for it they are at least one.
func orDefault(n, byDefault int) int {
	if n <= 0 {
		return byDefault
	}
	return n
}

// isID reports whether s is prefix and 32 hex digits.
func isID(prefix, s string) bool {
	digits, ok := strings.CutPrefix(s, prefix)
	return ok && len(digits) == 32 && strings.Trim(digits, "0123456789abcdef") == ""
}
