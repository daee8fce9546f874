package engine_test

import (
	"maps"
	"testing"

	"opencode-mesh/node/opencomms/engine"
)

func (w *world) clock(c engine.Caller, action string, limit int64, to string) engine.TimerView {
	w.t.Helper()
	v, err := w.e.Timer(w.s, c, engine.TimerRequest{Channel: "review", Action: action, Limit: limit, To: to})
	w.must(err)
	return v
}

func TestEverySendHandsTheClockToTheFirstRecipient(t *testing.T) {
	w := newWorld(t)
	ch := w.channel("review", 3)
	w.must(sendAs(w, "ses_a", engine.SendRequest{Content: "1", Broadcast: true}))
	if ch.Timer.Active != "ses_b" || ch.Timer.SegmentStart != w.now {
		t.Fatalf("the clock is %+v", ch.Timer)
	}
	w.now += 10
	w.must(sendAs(w, "ses_b", engine.SendRequest{Content: "2", To: "C"}))
	w.now += 7
	w.must(sendAs(w, "ses_a", engine.SendRequest{Content: "3", To: "B"}))
	w.now += 5
	v := w.clock(as("ses_a"), engine.TimerStatus, 0, "")
	if want := map[string]int64{"ses_b": 15, "ses_c": 7}; !maps.Equal(v.ByMember, want) || v.Total != 22 || *v.Active != "ses_b" {
		t.Errorf("%+v, not %v", v, want)
	}
	if want := map[string]int64{"A": 0, "B": 15, "C": 7}; !maps.Equal(v.ByRole, want) {
		t.Errorf("by role %v, not %v", v.ByRole, want)
	}
	// Looking at it changes nothing, nor does a clock that is put back.
	if got, _ := ch.Timer.Elapsed.Get("ses_b"); got != 10 || v.Changed {
		t.Errorf("elapsed %d", got)
	}
	w.now -= 100
	w.must(sendAs(w, "ses_b", engine.SendRequest{Content: "4", To: "C"}))
	if got, _ := ch.Timer.Elapsed.Get("ses_b"); got != 10 {
		t.Errorf("elapsed %d after the clock was put back", got)
	}
}

func TestTheTimerStartsStopsSwitchesAndResets(t *testing.T) {
	w := newWorld(t)
	ch := w.channel("review", 2)
	if v := w.clock(as("ses_b"), engine.TimerStop, 0, ""); v.Changed {
		t.Error("it stopped what did not run")
	}
	if v := w.clock(as("ses_b"), engine.TimerStart, 0, ""); !v.Changed || *v.Active != "ses_b" {
		t.Errorf("start: %+v", v)
	}
	w.now += 3
	if v := w.clock(as("ses_a"), engine.TimerStart, 0, ""); v.Changed || *v.Active != "ses_b" || v.ByMember["ses_b"] != 3 {
		t.Errorf("start again: %+v", v)
	}
	if v := w.clock(as("ses_b"), engine.TimerSwitch, 0, ""); !v.Changed || *v.Active != "ses_a" || v.ByMember["ses_b"] != 3 {
		t.Errorf("switch: %+v", v)
	}
	w.now += 4
	if v := w.clock(operator, engine.TimerSwitch, 0, "b"); *v.Active != "ses_b" || v.ByMember["ses_a"] != 4 {
		t.Errorf("operator's switch: %+v", v)
	}
	w.now += 5
	if v := w.clock(as("ses_a"), engine.TimerStop, 0, ""); !v.Changed || v.Active != nil || v.Total != 12 {
		t.Errorf("stop: %+v", v)
	}
	w.now += 6
	if v := w.clock(as("ses_a"), engine.TimerStatus, 0, ""); v.Total != 12 {
		t.Errorf("it goes on: %+v", v)
	}
	ch.Timer.Limit = 9
	if v := w.clock(as("ses_a"), engine.TimerReset, 0, ""); !v.Changed || v.Total != 0 || len(v.ByMember) != 0 || *v.Limit != 9 {
		t.Errorf("reset: %+v", v)
	}
}

func TestALimitIsReachedByOneMemberOrByAllTogether(t *testing.T) {
	w := newWorld(t)
	w.channel("review", 2)
	if v := w.clock(as("ses_a"), engine.TimerSetLimit, 10, ""); *v.Limit != 10 || v.LimitMember != nil || v.LimitReached {
		t.Errorf("%+v", v)
	}
	w.clock(as("ses_a"), engine.TimerStart, 0, "")
	w.now += 4
	w.clock(as("ses_a"), engine.TimerSwitch, 0, "")
	w.now += 5
	if v := w.clock(as("ses_a"), engine.TimerStatus, 0, ""); v.LimitReached {
		t.Errorf("after 9: %+v", v)
	}
	w.now++
	if v := w.clock(as("ses_a"), engine.TimerStatus, 0, ""); !v.LimitReached {
		t.Errorf("after 10: %+v", v)
	}
	if v := w.clock(as("ses_a"), engine.TimerSetLimit, 5, "a"); *v.LimitMember != "ses_a" || v.LimitReached {
		t.Errorf("of one member: %+v", v)
	}
	if v := w.clock(as("ses_a"), engine.TimerSetLimit, 4, "A"); !v.LimitReached {
		t.Errorf("of one member: %+v", v)
	}
	if v := w.clock(as("ses_b"), engine.TimerClearLimit, 0, ""); !v.Changed || v.Limit != nil || v.LimitMember != nil || v.LimitReached {
		t.Errorf("clear: %+v", v)
	}
}

func TestTheClockOfWhoLeavesStops(t *testing.T) {
	for name, leave := range map[string]func(w *world) error{
		"disconnect": func(w *world) error { _, err := w.e.Disconnect(w.s, as("ses_b"), "review"); return err },
		"kick": func(w *world) error {
			_, err := w.e.Kick(w.s, as("ses_a"), engine.KickRequest{Channel: "review", TargetRole: "B"})
			return err
		},
		"stale": func(w *world) error { w.e.SetStale(w.s, "ses_b"); return nil },
	} {
		w := newWorld(t)
		ch := w.channel("review", 2)
		w.send("x")
		w.now += 8
		w.must(leave(w))
		if got, _ := ch.Timer.Elapsed.Get("ses_b"); got != 8 || ch.Timer.Active != "" || ch.Timer.SegmentStart != 0 {
			t.Errorf("%s: %+v", name, ch.Timer)
		}
	}
}
