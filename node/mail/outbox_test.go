package mail_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	bolt "go.etcd.io/bbolt"

	"opencode-mesh/node/mail"
	"opencode-mesh/protocol/api"
)

func TestAMailIsOnItsWayOnceTheCommitThatItBelongsToIs(t *testing.T) {
	g := newRig(t)
	g.box.Attach(g.hub)
	boom := errors.New("boom")
	err := g.box.Update(context.Background(), func(tx *bolt.Tx) error {
		return errors.Join(g.box.Send(tx, text("beta", "", "never")), boom)
	})
	if !errors.Is(err, boom) {
		t.Fatal(err)
	}
	g.mustSend(text("beta", "", "1"), text("beta", "", "2"), text("gamma", "", "3"))
	eventually(t, "three mails", func() bool { return len(g.hub.got()) == 3 })
	if got := g.hub.got(); slices.Index(got, `beta"1"`) > slices.Index(got, `beta"2"`) || slices.Contains(got, `beta"never"`) {
		t.Errorf("the hub got %v", got)
	}
	if n := g.box.Outstanding("beta", ""); n != 2 {
		t.Errorf("%d of the lane have no receipt", n)
	}
	for _, m := range g.hub.has {
		if m.SentMS < hubStart || m.From != "" {
			t.Errorf("%+v", m)
		}
	}
}

func TestWhatTheHubDoesNotKnowIsSentAgainInOrderAtEachTunnelAndNothingElse(t *testing.T) {
	g := newRig(t)
	mails := []api.Mail{text("beta", "", "0"), text("beta", "", "1"), text("beta", "", "2"), text("beta", "", "3")}
	g.mustSend(mails...)
	g.box.Attach(g.hub)
	eventually(t, "all of them", func() bool { return len(g.hub.got()) == 4 })
	g.box.Detach()
	g.hub.change(func() { // restored to a time before the last three
		g.hub.order = nil
		for _, m := range mails[1:] {
			delete(g.hub.has, m.ID)
		}
	})
	g.box.Attach(g.hub)
	eventually(t, "the three that it lost", func() bool { return len(g.hub.got()) >= 3 })
	g.box.Detach()
	g.box.Attach(g.hub)
	eventually(t, "the question of the third tunnel", func() bool { g.hub.mu.Lock(); defer g.hub.mu.Unlock(); return g.hub.asked == 3 })
	g.box.Detach()
	if got := g.hub.got(); !slices.Equal(got, []string{`beta"1"`, `beta"2"`, `beta"3"`}) {
		t.Errorf("sent again: %v", got)
	}
}

func TestTheTimeOfTheFirstOfferIsKeptThroughRestarts(t *testing.T) {
	g := newRig(t)
	m := text("beta", "", "x")
	g.mustSend(m)
	g.hub.change(func() { g.hub.refuse = func(api.Mail) error { return errors.New("lost") } })
	g.box.Attach(g.hub)
	eventually(t, "an attempt", func() bool { g.hub.mu.Lock(); defer g.hub.mu.Unlock(); return g.hub.puts > 0 })
	g.box.Detach()
	h := g.crash()
	h.hub.change(func() { h.hub.refuse, h.hub.nowMS = nil, hubStart+1_000_000 })
	h.box.Attach(h.hub)
	eventually(t, "the mail", func() bool { return len(h.hub.got()) == 1 })
	if at := h.hub.has[m.ID].SentMS; at != hubStart {
		t.Errorf("stamped %d ms after the first offer", at-hubStart)
	}
}

func TestATargetThatIsFullHoldsUpNothingButWhatIsForIt(t *testing.T) {
	g := newRig(t)
	full := true
	g.hub.refuse = func(m api.Mail) error {
		if m.To == "beta" && full {
			return api.Errorf(api.CodeQueueFull, "full")
		}
		return nil
	}
	g.box.Attach(g.hub)
	g.mustSend(text("beta", "a", "1"), text("beta", "b", "2"), text("gamma", "", "3"))
	eventually(t, "the other target's", func() bool { return len(g.hub.got()) == 1 })
	if s := g.box.Snapshot(); s.Waiting != 3 || s.Unsent != 2 {
		t.Errorf("%+v", s)
	}
	g.hub.change(func() { full = false })
	eventually(t, "the rest", func() bool { return len(g.hub.got()) == 3 })
	if got := g.hub.got(); !slices.Equal(got, []string{`gamma"3"`, `beta"1"`, `beta"2"`}) {
		t.Errorf("the hub got %v", got)
	}
}

func TestARefusalForGoodReturnsTheMail(t *testing.T) {
	for _, code := range []api.Code{api.CodeUnknownTarget, api.CodeTooOld, api.CodeTooLarge, api.CodeBadRequest, api.CodeConflict, api.CodeForbidden} {
		g := newRig(t)
		g.hub.refuse = func(m api.Mail) error {
			if string(m.Body) == `"1"` {
				return api.Errorf(code, "no")
			}
			return nil
		}
		g.box.Attach(g.hub)
		g.mustSend(text("beta", "", "1"), text("beta", "", "2"))
		eventually(t, "the next one", func() bool { return len(g.hub.got()) == 1 })
		if got := g.all("test.settled"); !slices.Equal(got, []string{fmt.Sprintf(`"1" returned %s false`, code)}) {
			t.Errorf("settled: %v", got)
		}
	}
}

func TestAMailWhoseAnswerWasLostMayHaveArrivedWhenItIsRefused(t *testing.T) {
	g := newRig(t)
	g.hub.lose = func(api.Mail) bool { return true }
	first := true
	g.hub.refuse = func(api.Mail) error {
		if first {
			first = false
			return nil
		}
		return api.Errorf(api.CodeUnknownTarget, "gone")
	}
	g.box.Attach(g.hub)
	g.mustSend(text("beta", "", "1"))
	eventually(t, "the receipt", func() bool { return len(g.all("test.settled")) == 1 })
	if got := g.all("test.settled"); got[0] != `"1" returned unknown_target true` {
		t.Errorf("settled: %v", got)
	}
}

func TestOtherRefusalsLeaveTheMailWaiting(t *testing.T) {
	refusals := []error{
		errors.New("the tunnel broke"), api.Errorf(api.CodeDiskFull, "x"), api.Errorf(api.CodeReadOnly, "x"), api.Errorf(api.CodeInternal, "x"),
		api.Errorf(api.CodeUnavailable, "x"), api.Errorf(api.CodeShuttingDown, "x"), api.Errorf(api.CodeSuperseded, "x"),
		api.Errorf(api.CodeNotFound, "a hub that knows nothing of mail"), api.Errorf(api.CodeRateLimited, "x"),
	}
	g := newRig(t)
	n := 0
	g.hub.refuse = func(api.Mail) error {
		if n++; n <= len(refusals) {
			return refusals[n-1]
		}
		return nil
	}
	g.box.Attach(g.hub)
	g.mustSend(text("beta", "", "1"))
	eventually(t, "the mail", func() bool { return len(g.hub.got()) == 1 })
	if got := g.all("test.settled"); len(got) != 0 {
		t.Errorf("settled: %v", got)
	}
}

func TestAHubThatKnowsNothingOfMailIsAskedAgain(t *testing.T) {
	g := newRig(t)
	g.hub.mute = api.Errorf(api.CodeNotFound, "there is no /v1/mail/known here")
	g.mustSend(text("beta", "", "1"))
	g.box.Attach(g.hub)
	eventually(t, "three questions", func() bool { g.hub.mu.Lock(); defer g.hub.mu.Unlock(); return g.hub.asked >= 3 })
	if g.hub.puts != 0 {
		t.Error("a mail was sent before the hub said what it has")
	}
	g.hub.change(func() { g.hub.mute = nil })
	eventually(t, "the mail", func() bool { return len(g.hub.got()) == 1 })
}

func TestTheOutboxIsBoundedPerTargetAndInAll(t *testing.T) {
	g := newRig(t, func(c *mail.Config) { c.MaxPerTarget, c.MaxBytes = 2, 3*api.MailOverhead+100 })
	g.mustSend(text("beta", "", "1"))
	a := text("beta", "", "2")
	g.mustSend(a)
	if err := g.send(text("beta", "", "3")); !errors.Is(err, mail.ErrFull) {
		t.Errorf("a third: %v", err)
	}
	g.mustSend(text("gamma", "", "4"))
	if err := g.send(text("delta", "", "5")); !errors.Is(err, mail.ErrFull) {
		t.Errorf("too many bytes: %v", err)
	}
	if _, err := g.receipts(delivered(a.ID)); err != nil {
		t.Fatal(err)
	}
	g.mustSend(text("beta", "", "6"))
	h := g.crash()
	if s := h.box.Snapshot(); s.Waiting != 3 {
		t.Errorf("%+v", s)
	}
}

func TestSendRefusesWhatCannotTravel(t *testing.T) {
	g := newRig(t)
	good := text("beta", "", "x")
	for name, edit := range map[string]func(*api.Mail){
		"id":       func(m *api.Mail) { m.ID = "mail_1" },
		"kind":     func(m *api.Mail) { m.Kind = "Not A Kind" },
		"target":   func(m *api.Mail) { m.To = "../x" },
		"lane":     func(m *api.Mail) { m.Lane = "a\x00b" },
		"no JSON":  func(m *api.Mail) { m.Body = []byte("{") },
		"escaping": func(m *api.Mail) { m.Body = []byte(`"` + strings.Repeat("<", api.MaxMailBody/2) + `"`) },
	} {
		m := good
		edit(&m)
		if err := g.send(m); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	g.mustSend(good)
	if err := g.send(good); err == nil {
		t.Error("the same id twice")
	}
}

func TestABoxOfAnotherHubIsRefused(t *testing.T) {
	g := newRig(t)
	if err := g.box.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := mail.Open(mail.Config{Path: g.path, HubID: "other"}); err == nil || !strings.Contains(err.Error(), "belongs to hub hub") {
		t.Errorf("opened: %v", err)
	}
	if mail.Path("data", "h1") != filepath.Join("data", "mail-h1.db") {
		t.Error(mail.Path("data", "h1"))
	}
}

func TestDetachEndsWhatIsUnderWay(t *testing.T) {
	g := newRig(t)
	g.hub.block = make(chan struct{})
	g.box.Attach(g.hub)
	g.mustSend(text("beta", "", "1"))
	g.box.Detach()
	if s := g.box.Snapshot(); s.Unsent != 1 {
		t.Errorf("%+v", s)
	}
	close(g.hub.block)
	g.box.Attach(g.hub)
	eventually(t, "the mail", func() bool { return len(g.hub.got()) == 1 })
}

func TestAFullDiskOfTheSenderTakesReceiptsAndNoMail(t *testing.T) {
	g := newRig(t)
	m := text("beta", "", "1")
	g.mustSend(m)
	g.disk.set(0, syscall.ENOSPC)
	if err := g.send(text("beta", "", "2")); err == nil {
		t.Fatal("sent on a full disk")
	}
	g.disk.set(-1, nil) // the room of the retention
	if ids, err := g.receipts(delivered(m.ID)); err != nil || len(ids) != 1 {
		t.Fatalf("%v %v", ids, err)
	}
	if s := g.box.Snapshot(); s.Waiting != 0 {
		t.Errorf("%+v", s)
	}
}
