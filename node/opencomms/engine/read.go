package engine

import (
	"cmp"
	"slices"
	"strings"

	"opencode-mesh/protocol/opencomms"
)

// Bounds of what one read returns.
const (
	// DefaultRead is how many messages an inbox or a history shows.
	DefaultRead = 20
	// MaxRead is the most that may be asked for.
	MaxRead = 100
)

// Inbox shows what waits for the caller in all its channels, without taking it.
// The caller has to be a member of the named one. An operator looks into the inbox
// of the member that Caller.Session names. limit is DefaultRead for zero, and
// MaxRead at most.
func (e Engine) Inbox(s *opencomms.State, c Caller, channel string, limit int) (Inbox, error) {
	ch, err := find(s, channel)
	if err != nil {
		return Inbox{}, err
	}
	if member(ch, c.Session) == nil {
		return Inbox{}, notMember(ch)
	}
	queue, _ := s.Queues.Get(c.Session)
	in := Inbox{Pending: len(queue), Messages: []Message{}}
	names := ChannelNames(s)
	for _, id := range queue[:min(len(queue), readLimit(limit))] {
		if row, ok := s.Messages.Get(id); ok && row.Recipient == c.Session {
			m := View(id, row)
			m.Channel = names[row.ChannelID]
			m.RecipientRole = ""
			in.Messages = append(in.Messages, m)
		}
	}
	return in, nil
}

// History shows what was said in a channel of the caller, newest first.
func (e Engine) History(s *opencomms.State, c Caller, channel string, limit int) (History, error) {
	ch, _, err := enter(s, c, channel)
	if err != nil {
		return History{}, err
	}
	var rows []*opencomms.Envelope
	ids := map[*opencomms.Envelope]string{}
	for id, row := range s.Messages.All() {
		if row.ChannelID == ch.ID {
			rows = append(rows, row)
			ids[row] = id
		}
	}
	newestFirst(rows)
	h := History{Messages: []Message{}}
	for _, row := range rows[:min(len(rows), readLimit(limit))] {
		h.Messages = append(h.Messages, View(ids[row], row))
	}
	return h, nil
}

// Status is an overview of the caller's channels, of all for an operator, or of
// the named one. A channel of which the caller is no member is not shown.
func (e Engine) Status(s *opencomms.State, c Caller, channel string) (Status, error) {
	if err := MemberSomewhere(s, c); err != nil {
		return Status{}, err
	}
	var named *opencomms.Channel
	if opencomms.Trim(channel) != "" {
		var err error
		if named, err = find(s, channel); err != nil && c.Operator {
			return Status{}, err
		}
	}
	last := map[string]int64{}
	for _, row := range s.Messages.All() {
		last[row.ChannelID] = max(last[row.ChannelID], row.Timestamp)
	}
	st := Status{Channels: []ChannelStatus{}, TotalMessages: s.Messages.Len(), Errors: []ErrorEntry{}}
	for _, queue := range s.Queues.All() {
		st.PendingMessages += len(queue)
	}
	for _, ch := range s.Channels.All() {
		if (c.Operator || member(ch, c.Session) != nil) && (opencomms.Trim(channel) == "" || ch == named) {
			st.Channels = append(st.Channels, viewChannel(s, ch, last[ch.ID]))
		}
	}
	hidden := hiddenNames(s, c)
	for _, entry := range s.Errors {
		if !slices.ContainsFunc(hidden, func(name string) bool { return strings.Contains(entry.Message, name) }) {
			st.Errors = append(st.Errors, ErrorEntry{At: entry.At, Message: entry.Message})
		}
	}
	return st, nil
}

// hiddenNames are the names of channels and the session ids that a caller has
// nothing to do with. Lines of the trouble list that name one are not shown.
func hiddenNames(s *opencomms.State, c Caller) []string {
	if c.Operator {
		return nil
	}
	known, hidden := map[string]bool{}, map[string]bool{}
	for _, ch := range s.Channels.All() {
		into := hidden
		if member(ch, c.Session) != nil {
			into = known
		}
		into[`"`+ch.Name+`"`] = true
		for _, m := range ch.Members {
			into[m.SessionID] = true
		}
	}
	var out []string
	for name := range hidden {
		if !known[name] {
			out = append(out, name)
		}
	}
	return out
}

func viewChannel(s *opencomms.State, ch *opencomms.Channel, last int64) ChannelStatus {
	v := ChannelStatus{
		ID: ch.ID, Name: ch.Name, ProjectID: ch.ProjectID, Worktree: ch.Worktree, CreatedAt: ch.CreatedAt,
		Paused: ch.Paused, MaxMembers: ch.MaxMembers, DeliveredTotal: ch.DeliveredTotal,
		Budgets:       Budgets{MaxRuntime: orNull(ch.Budgets.MaxRuntime), MaxDelivered: orNull(ch.Budgets.MaxDelivered)},
		Members:       []MemberStatus{},
		QueueLengths:  map[string]int{},
		LastMessageAt: orNull(last),
	}
	for _, m := range ch.Members {
		endpoint := opencomms.DerivedEndpoint(m.Mode)
		if m.Endpoint != nil {
			endpoint = *m.Endpoint
		}
		v.Members = append(v.Members, MemberStatus{
			SessionID: m.SessionID, Role: m.Role, Stale: m.Stale, JoinedAt: m.JoinedAt,
			Host: m.Host, Surface: m.Surface, Mode: m.Mode, Endpoint: EndpointView(endpoint),
		})
		queue, _ := s.Queues.Get(m.SessionID)
		n := 0
		for _, id := range queue {
			if row, ok := s.Messages.Get(id); ok && row.ChannelID == ch.ID {
				n++
			}
		}
		v.QueueLengths[m.SessionID] = n
	}
	return v
}

// View is a message as reads show it, under its key in the file: a row may lack an id
// of its own.
func View(id string, row *opencomms.Envelope) Message {
	return Message{
		ID: id, SenderRole: row.SenderRole, RecipientRole: row.RecipientRole, Type: row.Type,
		Content: row.Content, Timestamp: row.Timestamp, ReplyTo: orNull(row.ReplyTo), Hops: row.Hops, Status: row.Status,
	}
}

// newestFirst sorts rows; those of one time stay in the order of the file.
func newestFirst(rows []*opencomms.Envelope) {
	slices.SortStableFunc(rows, func(a, b *opencomms.Envelope) int { return cmp.Compare(b.Timestamp, a.Timestamp) })
}

// ChannelNames are the names of channels by their ids.
func ChannelNames(s *opencomms.State) map[string]string {
	names := make(map[string]string, s.Channels.Len())
	for _, ch := range s.Channels.All() {
		names[ch.ID] = ch.Name
	}
	return names
}

func readLimit(limit int) int {
	if limit <= 0 {
		return DefaultRead
	}
	return min(limit, MaxRead)
}
