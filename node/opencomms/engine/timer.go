package engine

import (
	"opencode-mesh/protocol/opencomms"
)

// fold adds the running segment to whom it belongs. A clock that was put back
// takes nothing away.
func fold(t *opencomms.Timer, now int64) {
	if t.Active == "" || t.SegmentStart == 0 {
		return
	}
	t.Elapsed.Set(t.Active, elapsed(t, t.Active, now))
}

// elapsed is the time of one member, with the running segment.
func elapsed(t *opencomms.Timer, session string, now int64) int64 {
	sum, _ := t.Elapsed.Get(session)
	if t.Active == session && t.SegmentStart != 0 {
		sum += max(0, now-t.SegmentStart)
	}
	return sum
}

// handOver lets the clock run for a session.
func handOver(t *opencomms.Timer, session string, now int64) {
	fold(t, now)
	t.Active, t.SegmentStart = session, now
}

// halt stops the clock.
func halt(t *opencomms.Timer, now int64) {
	fold(t, now)
	t.Active, t.SegmentStart = "", 0
}

// Timer does one action of the chess clock of a channel and returns how it
// stands then.
func (e Engine) Timer(s *opencomms.State, c Caller, r TimerRequest) (TimerView, error) {
	ch, me, err := enter(s, c, r.Channel)
	if err != nil {
		return TimerView{}, err
	}
	t, now := &ch.Timer, e.now()
	changed := false
	switch r.Action {
	case TimerStatus:
	case TimerStart:
		if t.Active != "" {
			break
		}
		if me == nil {
			return TimerView{}, refuse(TargetRequired, "an operator has no clock of its own: use %s and name a member", TimerSwitch)
		}
		handOver(t, me.SessionID, now)
		changed = true
	case TimerStop:
		changed = t.Active != ""
		halt(t, now)
	case TimerSwitch:
		to, err := switchTo(ch, me, r.To)
		if err != nil {
			return TimerView{}, err
		}
		handOver(t, to.SessionID, now)
		changed = true
	case TimerReset:
		changed = t.Active != "" || t.Elapsed.Len() > 0
		t.Active, t.SegmentStart, t.Elapsed = "", 0, opencomms.Ordered[int64]{}
	case TimerSetLimit:
		if r.Limit <= 0 {
			return TimerView{}, refuse(InvalidTimerLimit, "the limit of the timer is a positive number of milliseconds")
		}
		limited := ""
		if opencomms.Trim(r.To) != "" {
			m := match(ch.Members, r.To)
			if m == nil {
				return TimerView{}, unknownTarget(ch, ch.Members)
			}
			limited = m.SessionID
		}
		changed = t.Limit != r.Limit || t.LimitMember != limited
		t.Limit, t.LimitMember = r.Limit, limited
	case TimerClearLimit:
		changed = t.Limit != 0
		t.Limit, t.LimitMember = 0, ""
	default:
		return TimerView{}, refuse(UnknownTimerAction, "the timer knows %s, %s, %s, %s, %s, %s and %s",
			TimerStart, TimerStop, TimerSwitch, TimerReset, TimerStatus, TimerSetLimit, TimerClearLimit)
	}
	view := viewTimer(ch, now)
	view.Changed = changed
	return view, nil
}

// switchTo is whom the clock is handed to. As with messages, nobody is guessed.
func switchTo(ch *opencomms.Channel, me *opencomms.Member, to string) (*opencomms.Member, error) {
	rest := ch.Members
	if me != nil {
		rest = others(ch, me.SessionID)
	}
	var m *opencomms.Member
	switch {
	case opencomms.Trim(to) != "":
		if m = match(rest, to); m == nil {
			return nil, unknownTarget(ch, rest)
		}
	case len(rest) == 0:
		return nil, refuse(NoOtherMember, "channel %q has no other member", ch.Name)
	case len(rest) > 1:
		return nil, refuse(AmbiguousRecipient, "channel %q has %d members to switch to: name one by session id or role; there is: %s", ch.Name, len(rest), roster(rest))
	default:
		m = rest[0]
	}
	if m.Stale {
		return nil, refuse(RecipientStale, "%s (%s) is stale: its session is gone", m.Role, m.SessionID)
	}
	return m, nil
}

func viewTimer(ch *opencomms.Channel, now int64) TimerView {
	t := &ch.Timer
	v := TimerView{
		Active:      orNull(t.Active),
		ByMember:    map[string]int64{},
		ByRole:      map[string]int64{},
		Limit:       orNull(t.Limit),
		LimitMember: orNull(t.LimitMember),
	}
	for session := range t.Elapsed.All() {
		v.ByMember[session] = elapsed(t, session, now)
	}
	if t.Active != "" && t.SegmentStart != 0 {
		v.ByMember[t.Active] = elapsed(t, t.Active, now)
	}
	for _, ms := range v.ByMember {
		v.Total += ms
	}
	for _, m := range ch.Members {
		v.ByRole[m.Role] = v.ByMember[m.SessionID]
	}
	if t.Limit > 0 {
		used := v.Total
		if t.LimitMember != "" {
			used = elapsed(t, t.LimitMember, now)
		}
		v.LimitReached = used >= t.Limit
	}
	return v
}
