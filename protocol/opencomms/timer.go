package opencomms

var timerFields = []field[Timer]{
	nullTextOf("active_member_id", filled, func(t *Timer) *string { return &t.Active }),
	nullNumberOf("segment_started_at", filled, func(t *Timer) *int64 { return &t.SegmentStart }),
	numbersOf("elapsed_ms", filled, func(t *Timer) *Ordered[int64] { return &t.Elapsed }),
	nullNumberOf("limit_ms", filled, func(t *Timer) *int64 { return &t.Limit }),
	nullTextOf("limit_member_id", filled, func(t *Timer) *string { return &t.LimitMember }),
}

// timerField rebuilds the timer from its five fields, as the other programs do
// whenever they load the file: it is the one object in which others do not stay.
var timerField = field[Channel]{
	name: "timer", rule: filled,
	read: func(s *scanner, c *Channel) bool {
		c.Timer, c.timerRole = Timer{}, ""
		if s.kind() != '{' {
			s.value()
			return false
		}
		old, bad, unknown := readRecord(s, timerFields, &c.Timer)
		if bad == 0 && unknown == 0 {
			return true
		}
		if old != "" {
			c.timerRole = oldTimerRole(old)
		}
		return false
	},
	write: func(dst []byte, c *Channel, _ string, depth int) []byte {
		return appendRecord(dst, timerFields, &c.Timer, "", depth)
	},
}

// oldTimerRole returns the active_role of a timer from the time when timers knew
// two roles and no members; "" of any other.
func oldTimerRole(text string) string {
	members := splitMembers(text)
	_, active := members.Get("active_member_id")
	_, elapsed := members.Get("elapsed_ms")
	role, _ := members.Get("active_role")
	if active && elapsed || role == "" || role[0] != '"' {
		return ""
	}
	return (&scanner{text: role}).str()
}

// convertTimer gives what a role had on its clock to the first member of that role.
func (c *Channel) convertTimer() {
	role := c.timerRole
	if role == "" {
		return
	}
	c.timerRole = ""
	old := c.Timer
	c.Timer = Timer{SegmentStart: old.SegmentStart, Limit: old.Limit}
	for _, m := range c.Members {
		if m.Role == role {
			c.Timer.Active, c.Timer.LimitMember = m.SessionID, m.SessionID
			break
		}
	}
	for key, ms := range old.Elapsed.All() {
		if key == role && c.Timer.Active != "" {
			key = c.Timer.Active
		}
		before, _ := c.Timer.Elapsed.Get(key)
		c.Timer.Elapsed.Set(key, before+ms)
	}
}
