package engine

import (
	"fmt"
	"slices"

	"opencode-mesh/protocol/opencomms"
)

// Pause stops a channel: it takes no messages and delivers none. false says that
// it was paused already.
func (e Engine) Pause(s *opencomms.State, c Caller, channel string) (bool, error) {
	ch, _, err := enter(s, c, channel)
	if err != nil || ch.Paused {
		return false, err
	}
	ch.Paused, ch.PausedAt = true, e.now()
	return true, nil
}

// Resume lets a channel go on. false says that it was not paused.
func (e Engine) Resume(s *opencomms.State, c Caller, channel string) (bool, error) {
	ch, _, err := enter(s, c, channel)
	if err != nil || !ch.Paused {
		return false, err
	}
	ch.Paused, ch.PausedAt = false, 0
	return true, nil
}

// UpdateRole replaces the caller's role prompt, or that of a member whom an
// operator names, and returns the member's role.
func (e Engine) UpdateRole(s *opencomms.State, c Caller, r UpdateRoleRequest) (string, error) {
	ch, m, err := enter(s, c, r.Channel)
	if err != nil {
		return "", err
	}
	if m == nil {
		if opencomms.Trim(r.Member) == "" {
			return "", refuse(TargetRequired, "an operator names the member, by session id or role; there is: %s", roster(ch.Members))
		}
		if m = match(ch.Members, r.Member); m == nil {
			return "", unknownTarget(ch, ch.Members)
		}
	}
	if err := rolePrompt(r.RolePrompt); err != nil {
		return "", err
	}
	m.RolePrompt = r.RolePrompt
	return m.Role, nil
}

// Disconnect takes the caller out of a channel; the last one takes the channel
// with it. Mail of the channel that waits for the caller is rejected.
func (e Engine) Disconnect(s *opencomms.State, c Caller, channel string) (Left, error) {
	ch, m, err := enter(s, c, channel)
	if err != nil {
		return Left{}, err
	}
	if m == nil {
		return Left{}, refuse(TargetRequired, "an operator is no member; remove one with a kick")
	}
	left := Left{Rejected: e.remove(s, ch, m.SessionID), Remaining: len(ch.Members)}
	if len(ch.Members) == 0 {
		s.Channels.Delete(ch.Name)
		left.ChannelRemoved = true
	}
	return left, nil
}

// Kick takes another member out of a channel, which the first member and an
// operator may do, and queues a notice for those who stay.
func (e Engine) Kick(s *opencomms.State, c Caller, r KickRequest) (Kicked, error) {
	ch, me, err := enter(s, c, r.Channel)
	if err != nil {
		return Kicked{}, err
	}
	if me != nil && ch.Members[0] != me {
		return Kicked{}, refuse(NotCoordinator, "only the first member of channel %q (%s) may remove others, whatever their roles are called", ch.Name, ch.Members[0].Role)
	}
	if opencomms.Trim(r.TargetSession) == "" && opencomms.Trim(r.TargetRole) == "" {
		return Kicked{}, refuse(TargetRequired, "name whom to remove, by session id or role")
	}
	target := bySession(ch.Members, r.TargetSession)
	if target == nil {
		target = byRole(ch.Members, r.TargetRole)
	}
	if target == nil {
		return Kicked{}, unknownTarget(ch, ch.Members)
	}
	if target == me {
		return Kicked{}, refuse(KickSelf, "nobody removes itself: disconnect from channel %q instead", ch.Name)
	}

	e.remove(s, ch, target.SessionID)
	by, role := opencomms.OperatorSession, opencomms.OperatorRole
	if me != nil {
		by, role = me.SessionID, me.Role
	}
	kicked := Kicked{SessionID: target.SessionID, Role: target.Role, Remaining: []string{}}
	for _, m := range ch.Members {
		e.notice(s, ch, m, by, role, fmt.Sprintf("%s (%s) was removed from the channel by %s. Everything else goes on as before; it may join again.", target.Role, target.SessionID, role))
		if !m.Stale {
			kicked.Remaining = append(kicked.Remaining, m.SessionID)
		}
	}
	e.Retain(s)
	return kicked, nil
}

func unknownTarget(ch *opencomms.Channel, among []*opencomms.Member) error {
	return refuse(TargetUnknown, "no such member on channel %q; there is: %s", ch.Name, roster(among))
}

// remove takes a member out of a channel and rejects the mail of that channel
// that waits for it. It returns how much that was.
func (e Engine) remove(s *opencomms.State, ch *opencomms.Channel, session string) (rejected int) {
	ch.Members = others(ch, session)
	if queue, ok := s.Queues.Get(session); ok {
		rest := slices.DeleteFunc(slices.Clone(queue), func(id string) bool {
			row, ok := s.Messages.Get(id)
			if !ok || row.ChannelID != ch.ID {
				return !ok
			}
			if row.Status == opencomms.StatusPending {
				row.Status = opencomms.StatusRejected
				rejected++
			}
			return true
		})
		if len(rest) == 0 {
			s.Queues.Delete(session)
		} else {
			s.Queues.Set(session, rest)
		}
	}
	if ch.Timer.Active == session {
		halt(&ch.Timer, e.now())
	}
	return rejected
}

// SetStale marks a session as gone in every channel and stops its clock there. It
// returns how many marks are new.
func (e Engine) SetStale(s *opencomms.State, session string) (marked int) {
	now := e.now()
	for _, ch := range s.Channels.All() {
		if m := member(ch, session); m != nil && !m.Stale {
			m.Stale, m.StaleAt = true, now
			marked++
		}
		if ch.Timer.Active == session {
			halt(&ch.Timer, now)
		}
	}
	return marked
}

// ClearStale takes the marks of a session back and returns how many there were.
func (e Engine) ClearStale(s *opencomms.State, session string) (cleared int) {
	for _, ch := range s.Channels.All() {
		if m := member(ch, session); m != nil && m.Stale {
			m.Stale, m.StaleAt = false, 0
			cleared++
		}
	}
	return cleared
}

// Remove takes a member out of a channel for whoever made it one, as when it stands
// for somebody who is gone. Mail of the channel that waits for it is rejected; the
// channel stays, even without members, and nobody is told. It returns how much mail
// that was.
func (e Engine) Remove(s *opencomms.State, channel, session string) (rejected int) {
	ch, err := find(s, channel)
	if err != nil || member(ch, session) == nil {
		return 0
	}
	return e.remove(s, ch, session)
}
