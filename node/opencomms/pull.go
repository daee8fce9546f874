package opencomms

import (
	"context"

	"opencode-mesh/node/opencomms/engine"
	"opencode-mesh/protocol/opencomms"
)

const (
	// MaxPull bounds what one pull hands over, in bytes of content with its frames.
	// One message is always handed over; the rest waits for the next pull.
	MaxPull = 1 << 20
	// frameRoom is about what a frame adds to a message.
	frameRoom = 1 << 10
)

// Pull takes what waits for a member in all its channels: drained, marked as
// delivered and framed in one locked step, so that nobody ever finds it between.
func (p *Project) Pull(ctx context.Context, c engine.Caller) (Pulled, error) {
	return change(ctx, p, func(s *opencomms.State) (Pulled, error) {
		if err := engine.MemberSomewhere(s, c); err != nil {
			return Pulled{}, err
		}
		out := Pulled{Messages: []PulledMessage{}, UntrustedNotice: opencomms.UntrustedNotice}
		size := 0
		rows := p.eng.Drain(s, c.Session, engine.DrainOptions{Only: func(row *opencomms.Envelope) bool {
			n := len(row.Content) + frameRoom
			// What comes later does not overtake, however short it is.
			if out.Remaining > 0 || size > 0 && size+n > MaxPull {
				out.Remaining++
				return false
			}
			size += n
			return true
		}})
		names := engine.ChannelNames(s)
		for _, row := range rows {
			name := names[row.ChannelID]
			out.MessageIDs = append(out.MessageIDs, row.ID)
			out.Messages = append(out.Messages, PulledMessage{Channel: name, MessageID: row.ID, Framed: opencomms.Frame(row, name)})
			if ch, ok := s.Channels.Get(name); ok && out.Remaining > 0 {
				// The pause after a delivery is not meant for the rest of it.
				ch.Cooldowns.Delete(c.Session)
			}
		}
		p.eng.Commit(s, c.Session, out.MessageIDs, opencomms.ModePull)
		return out, nil
	})
}
