package engine

import (
	"cmp"
	"slices"

	"opencode-mesh/protocol/opencomms"
)

// taken are the states of messages that no queue holds any more.
var taken = map[string]bool{
	opencomms.StatusInFlight:  true,
	opencomms.StatusDelivered: true,
	opencomms.StatusFailed:    true,
	opencomms.StatusRejected:  true,
	opencomms.StatusStale:     true,
}

// Drain takes from a recipient's queue what may be delivered now. Each message
// that it returns is in_flight and belongs to the caller, who has to save the
// state before the message leaves the process, and then Commit or Requeue it.
//
// On the way it ends what cannot be delivered any more: the state may have changed
// although nothing is returned.
func (e Engine) Drain(s *opencomms.State, recipient string, opt DrainOptions) []*opencomms.Envelope {
	queue, ok := s.Queues.Get(recipient)
	if !ok {
		return nil
	}
	now := e.now()
	channels := make(map[string]*opencomms.Channel, s.Channels.Len())
	for _, ch := range s.Channels.All() {
		if channels[ch.ID] == nil {
			channels[ch.ID] = ch
		}
	}
	var drained []*opencomms.Envelope
	waits := map[*opencomms.Channel]bool{}
	rest := make([]string, 0, len(queue))
	for _, id := range queue {
		row, ok := s.Messages.Get(id)
		if !ok || row.Recipient != recipient || taken[row.Status] {
			continue
		}
		ch := channels[row.ChannelID]
		var m *opencomms.Member
		if ch != nil {
			m = member(ch, recipient)
		}
		switch {
		case row.Status != opencomms.StatusPending:
			rest = append(rest, id) // of a kind that is newer than we are
		case m == nil:
			row.Status = opencomms.StatusRejected
		case ch.Paused:
			rest = append(rest, id)
		case expired(ch, m, row, now):
			row.Status = opencomms.StatusStale
		case len(drained) == 0 && cooling(ch, recipient, now), waits[ch]:
			waits[ch] = true // what comes later in the channel does not overtake
			rest = append(rest, id)
		case opt.Only != nil && !opt.Only(row),
			spent(ch, now) != nil:
			rest = append(rest, id)
		default:
			row.ID = id // a valid row may lack its id or have another; its key counts
			row.Status = opencomms.StatusInFlight
			row.Attempts++
			ch.DeliveredTotal++
			ch.Cooldowns.Set(recipient, now+ch.DeliveryCooldown)
			to, _ := s.DeliveredTo.Get(id)
			if !slices.Contains(to, recipient) {
				s.DeliveredTo.Set(id, append(slices.Clone(to), recipient))
			}
			drained = append(drained, row)
		}
	}
	if len(rest) != len(queue) {
		s.Queues.Set(recipient, rest)
	}
	if len(drained) > 0 {
		e.Retain(s)
	}
	return drained
}

// expired says whether mail waited too long for a member. A member without a
// policy has the channel's window; zero is no window at all.
func expired(ch *opencomms.Channel, m *opencomms.Member, row *opencomms.Envelope, now int64) bool {
	window := ch.StaleAfter
	if m.Policy != nil {
		if m.Policy.Mode != opencomms.StaleWindow && m.Policy.Mode != "" {
			return false
		}
		if m.Policy.Window != 0 {
			window = m.Policy.Window
		}
	}
	return window != 0 && now-row.Timestamp > window
}

// cooling says whether the pause after the last delivery to a recipient lasts. It
// never lasts longer than the channel says: an end beyond that is one of a clock
// that was put back.
func cooling(ch *opencomms.Channel, recipient string, now int64) bool {
	until, _ := ch.Cooldowns.Get(recipient)
	return now < until && until-now <= ch.DeliveryCooldown
}

// Commit marks messages that recipient's host accepted, or that it read, as
// delivered. It returns how many were in_flight; others are not touched.
func (e Engine) Commit(s *opencomms.State, recipient string, ids []string, method string) (committed int) {
	now := e.now()
	for _, id := range ids {
		if row, ok := s.Messages.Get(id); ok && row.Recipient == recipient && row.Status == opencomms.StatusInFlight {
			row.Status, row.DeliveredAt, row.Method = opencomms.StatusDelivered, now, method
			committed++
		}
	}
	return committed
}

// Requeue puts messages whose delivery failed back to the head of the queue, in
// the order of ids, or ends them as failed after the last attempt. It returns the
// ids that wait again. What was delivered is never put back.
func (e Engine) Requeue(s *opencomms.State, recipient string, ids []string) []string {
	var back []string
	for _, id := range ids {
		row, ok := s.Messages.Get(id)
		if !ok || row.Recipient != recipient {
			continue
		}
		switch {
		case row.Status == opencomms.StatusInFlight && row.Attempts >= opencomms.MaxAttempts:
			row.Status, row.DeliveredAt = opencomms.StatusFailed, 0
		case row.Status == opencomms.StatusInFlight, row.Status == opencomms.StatusPending:
			if e.release(s, row) {
				back = append(back, id)
			}
		}
	}
	atHead(s, recipient, back)
	return back
}

// Sweep puts messages that were in_flight when whoever delivered them ended back
// to the head of their queues, oldest first, and returns their ids. filter says
// which: those of somebody else must not be touched.
func (e Engine) Sweep(s *opencomms.State, filter func(*opencomms.Envelope) bool) []string {
	var found opencomms.Ordered[[]*opencomms.Envelope]
	for id, row := range s.Messages.All() {
		if row.Status == opencomms.StatusInFlight && filter(row) && e.release(s, row) {
			row.ID = id // as in Drain
			rows, _ := found.Get(row.Recipient)
			found.Set(row.Recipient, append(rows, row))
		}
	}
	var swept []string
	for recipient, rows := range found.All() {
		slices.SortStableFunc(rows, func(a, b *opencomms.Envelope) int { return cmp.Compare(a.Timestamp, b.Timestamp) })
		ids := make([]string, len(rows))
		for i, row := range rows {
			ids[i] = row.ID
		}
		atHead(s, recipient, ids)
		swept = append(swept, ids...)
	}
	return swept
}

// release makes a message pending again, or rejects it if its recipient left the
// channel meanwhile: nobody would ever end it.
func (e Engine) release(s *opencomms.State, row *opencomms.Envelope) bool {
	row.DeliveredAt = 0
	if ch := channelByID(s, row.ChannelID); ch == nil || member(ch, row.Recipient) == nil {
		row.Status = opencomms.StatusRejected
		return false
	}
	row.Status = opencomms.StatusPending
	return true
}

// atHead puts those of ids that are not queued yet in front of a queue.
func atHead(s *opencomms.State, recipient string, ids []string) {
	queue, _ := s.Queues.Get(recipient)
	queued := make(map[string]bool, len(queue))
	for _, id := range queue {
		queued[id] = true
	}
	var head []string
	for _, id := range ids {
		if !queued[id] {
			queued[id] = true
			head = append(head, id)
		}
	}
	if len(head) > 0 {
		s.Queues.Set(recipient, append(head, queue...))
	}
}

// Pending are the session ids whose queue has something pending, in the order of
// the file.
func (e Engine) Pending(s *opencomms.State) []string {
	var out []string
	for session, queue := range s.Queues.All() {
		if slices.ContainsFunc(queue, func(id string) bool {
			row, ok := s.Messages.Get(id)
			return ok && row.Status == opencomms.StatusPending
		}) {
			out = append(out, session)
		}
	}
	return out
}

// RecordError appends a line to the file's trouble list, which keeps the newest.
func (e Engine) RecordError(s *opencomms.State, message string) {
	all := append(slices.Clone(s.Errors), opencomms.ErrorEntry{At: e.now(), Message: message})
	s.Errors = all[max(0, len(all)-opencomms.MaxErrors):]
}

// Retain forgets the oldest messages beyond opencomms.MaxMessages, whatever their
// status.
func (e Engine) Retain(s *opencomms.State) {
	excess := s.Messages.Len() - opencomms.MaxMessages
	if excess <= 0 {
		return
	}
	rows := make([]*opencomms.Envelope, 0, s.Messages.Len())
	ids := make(map[*opencomms.Envelope]string, s.Messages.Len())
	for id, row := range s.Messages.All() {
		rows = append(rows, row)
		ids[row] = id
	}
	slices.SortStableFunc(rows, func(a, b *opencomms.Envelope) int { return cmp.Compare(a.Timestamp, b.Timestamp) })
	doomed := make(map[string]bool, excess)
	for _, row := range rows[:excess] {
		doomed[ids[row]] = true
	}
	forget(s, doomed)
}

// forget removes messages and every reference to them.
func forget(s *opencomms.State, doomed map[string]bool) {
	for id := range doomed {
		s.Messages.Delete(id)
		s.DeliveredTo.Delete(id)
	}
	for session, queue := range s.Queues.All() {
		rest := slices.DeleteFunc(slices.Clone(queue), func(id string) bool { return doomed[id] })
		if len(rest) != len(queue) {
			s.Queues.Set(session, rest)
		}
	}
}
