package mail_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"opencode-mesh/hub/mail"
	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

func TestAMailCostsOneCommitThatIsWaitedForAndOneLater(t *testing.T) {
	g := newRig(t)
	alpha, beta := &target{}, &target{}
	g.attach("alpha", alpha)
	g.attach("beta", beta)
	before := g.disk.commits()
	for n := range 10 {
		g.mustAccept("alpha", letter(n, "beta", ""))
	}
	eventually(t, "the receipts", func() bool { return len(alpha.told()) == 10 })
	g.write()
	if n := g.disk.commits() - before; n != 11 {
		t.Errorf("10 mails took %d commits", n)
	}
	g.counts(0, 0)
	m := beta.mails[0]
	if m.From != "alpha" || m.FromID != "id-alpha" || m.SentMS != start.UnixMilli() || m.Kind != "test.text" {
		t.Errorf("delivered as %+v", m)
	}
	if h := g.restart(); h != nil {
		h.counts(0, 0)
	}
}

func TestALaneKeepsItsOrderAndHoldsUpNoOther(t *testing.T) {
	g := newRig(t)
	beta := &target{}
	stuck := true
	beta.mail = func(m api.Mail) error {
		beta.mu.Lock()
		defer beta.mu.Unlock()
		if m.From == "alpha" && m.Lane == "one" && stuck {
			return api.Errorf(api.CodeNodeFull, "full")
		}
		return nil
	}
	g.attach("beta", beta)
	g.mustAccept("alpha", letter(1, "beta", "one"), letter(2, "beta", "one"), letter(3, "beta", "two"))
	g.mustAccept("gamma", letter(4, "beta", "one"))
	eventually(t, "the other lanes", func() bool { return len(beta.bodies()) == 2 })
	beta.change(func() { stuck = false })
	eventually(t, "the lane that was stuck", func() bool { return len(beta.bodies()) == 4 })
	if got := beta.bodies()[2:]; !slices.Equal(got, []string{"1", "2"}) {
		t.Errorf("got %v", got)
	}
}

func TestATargetThatIsAwayHoldsUpNobody(t *testing.T) {
	g := newRig(t)
	gamma := &target{}
	g.attach("gamma", gamma)
	g.mustAccept("alpha", letter(1, "beta", ""), letter(2, "gamma", ""))
	eventually(t, "the mail of the one that is there", func() bool { return len(gamma.bodies()) == 1 })
	beta := &target{}
	g.attach("beta", beta)
	eventually(t, "the other, when it comes", func() bool { return len(beta.bodies()) == 1 })
}

func TestARepeatIsAnsweredWithTheStateAndAnotherContentRefused(t *testing.T) {
	g := newRig(t)
	m := letter(1, "beta", "")
	g.mustAccept("alpha", m)
	rc, fresh, err := g.office.Accept(t.Context(), identity("alpha"), m)
	if err != nil || fresh || rc.State != api.MailQueued {
		t.Errorf("%+v %v %v", rc, fresh, err)
	}
	other := m
	other.Body = []byte(`"other"`)
	g.refused("alpha", other, api.CodeConflict)
	g.mustAccept("gamma", other) // an id is its sender's
	g.attach("beta", &target{})
	eventually(t, "the deliveries", func() bool { w, _ := g.office.Counts(); return w == 0 })
	if rc, _, err := g.office.Accept(t.Context(), identity("alpha"), m); err != nil || rc.State != api.MailDelivered {
		t.Errorf("%+v %v", rc, err)
	}
	g.counts(0, 2)
}

func TestOneMailThatComesTwiceAtOnceIsTakenOnce(t *testing.T) {
	g := newRig(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	taken := 0
	for range 8 {
		wg.Go(func() {
			_, fresh, err := g.office.Accept(t.Context(), identity("alpha"), letter(1, "beta", ""))
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
			}
			if fresh {
				taken++
			}
		})
	}
	wg.Wait()
	if taken != 1 {
		t.Errorf("taken %d times", taken)
	}
	g.counts(1, 0)
}

func TestOnlyANodeThatIsThereGetsMail(t *testing.T) {
	g := newRig(t)
	g.refused("alpha", letter(1, "nobody", ""), api.CodeUnknownTarget)
	who := store.Identity{ID: "id-ctl", Name: "ctl", Role: api.RoleController, CreatedAt: start}
	cred := store.Credential{ID: "cred-ctl", IdentityID: "id-ctl", Name: "ctl", Role: api.RoleController, CreatedAt: start}
	if err := g.store.CreateIdentity(t.Context(), who, cred); err != nil {
		t.Fatal(err)
	}
	g.refused("alpha", letter(1, "ctl", ""), api.CodeUnknownTarget)
	g.counts(0, 0)
}

func TestWhatHasNoRoomIsRefusedAndTakenLater(t *testing.T) {
	for name, limit := range map[string]func(*mail.Config){
		"per target":           func(c *mail.Config) { c.MaxPerTarget = 2 },
		"per target, in bytes": func(c *mail.Config) { c.MaxBytesPerTarget = 2*api.MailOverhead + 10 },
		"per sender":           func(c *mail.Config) { c.MaxPerSender = 2 },
		"in all":               func(c *mail.Config) { c.MaxBytes = 2*api.MailOverhead + 10 },
	} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, limit)
			g.mustAccept("alpha", letter(1, "beta", ""), letter(2, "beta", ""))
			g.refused("alpha", letter(3, "beta", ""), api.CodeQueueFull)
			err := g.accept("gamma", letter(4, "alpha", ""))
			if wants := name == "in all"; wants != (err != nil) {
				t.Errorf("another sender to another target: %v", err)
			}
			g.attach("beta", &target{})
			g.attach("alpha", &target{})
			eventually(t, "room", func() bool {
				g.write()
				return g.accept("alpha", letter(3, "beta", "")) == nil
			})
		})
	}
}

func TestARefusedMailIsReturnedOnceThatIsOnDisk(t *testing.T) {
	g := newRig(t)
	alpha, beta := &target{}, &target{}
	beta.mail = func(m api.Mail) error {
		switch string(m.Body) {
		case "1":
			return api.Errorf(api.CodeNotSupported, "what is \x1b[31mthat")
		case "2":
			return api.Errorf(api.CodeNotFound, "a node has nothing at this path")
		case "3":
			return api.Errorf("made_up", "x")
		}
		return nil
	}
	g.attach("alpha", alpha)
	g.attach("beta", beta)
	g.mustAccept("alpha", letter(1, "beta", ""), letter(2, "beta", ""), letter(4, "beta", ""))
	eventually(t, "the one that is delivered", func() bool { return len(alpha.told()) == 1 })
	g.write()
	eventually(t, "the others", func() bool { return len(alpha.told()) == 3 })
	for _, r := range alpha.told()[1:] {
		if r.State != api.MailReturned || r.Code != string(api.CodeNotSupported) || r.MayHaveArrived || r.Message == "" || slices.Contains([]byte(r.Message), 0x1b) {
			t.Errorf("%+v", r)
		}
	}
	g.write()
	g.counts(0, 0)
}

func TestWhatIsTooOldIsReturnedWhenAnythingMayExpire(t *testing.T) {
	g := newRig(t)
	g.mustAccept("alpha", letter(1, "beta", ""))
	g.clock.pass(api.MailAge)
	g.mustAccept("alpha", letter(2, "beta", ""))
	g.clock.pass(time.Second)
	g.clock.freeze(true)
	g.office.Sweep(t.Context())
	g.counts(2, 0)
	alpha, beta := &target{}, &target{}
	g.attach("alpha", alpha)
	g.attach("beta", beta)
	g.mustAccept("gamma", letter(3, "beta", ""))
	eventually(t, "a mail that is not behind it", func() bool { return slices.Equal(beta.bodies(), []string{"3"}) })
	g.clock.freeze(false)
	g.office.Sweep(t.Context())
	eventually(t, "what was behind it", func() bool { return slices.Equal(beta.bodies(), []string{"3", "2"}) })
	g.write()
	eventually(t, "its receipt", func() bool { return len(alpha.told()) == 2 })
	if !slices.ContainsFunc(alpha.told(), func(r api.MailReceipt) bool { return r.Code == api.MailExpired && !r.MayHaveArrived }) {
		t.Errorf("%+v", alpha.told())
	}
}

func TestAnExpiredMailSaysWhetherItMayHaveArrived(t *testing.T) {
	g := newRig(t)
	beta := &target{mail: func(m api.Mail) error {
		if string(m.Body) == "1" {
			return errors.New("the answer was lost")
		}
		return api.Errorf(api.CodeNodeFull, "full")
	}}
	detach := g.attach("beta", beta)
	g.mustAccept("alpha", letter(1, "beta", "a"), letter(2, "beta", "b"))
	eventually(t, "attempts", func() bool { beta.mu.Lock(); defer beta.mu.Unlock(); return beta.calls > 3 })
	detach()
	g.clock.pass(api.MailAge + time.Second)
	g.office.Sweep(t.Context())
	g.write()
	alpha := &target{}
	g.attach("alpha", alpha)
	eventually(t, "the receipts", func() bool { return len(alpha.told()) == 2 })
	for _, r := range alpha.told() {
		if r.Code != api.MailExpired || r.MayHaveArrived != (r.ID == letter(1, "", "").ID) {
			t.Errorf("%+v", r)
		}
	}
}

func TestTheAgeOfAMailCountsFromItsFirstOffer(t *testing.T) {
	g := newRig(t)
	m := letter(1, "beta", "")
	m.SentMS = start.Add(-api.MailAge - time.Second).UnixMilli()
	g.refused("alpha", m, api.CodeTooOld)
	g.clock.freeze(true)
	g.refused("alpha", m, api.CodeUnavailable)
	m.SentMS = start.Add(time.Hour).UnixMilli() // a clock that ran ahead
	g.mustAccept("alpha", m)
	old := letter(2, "beta", "")
	old.SentMS = start.Add(-time.Hour).UnixMilli()
	g.mustAccept("alpha", old)
	beta := &target{}
	g.attach("beta", beta)
	eventually(t, "both", func() bool { return len(beta.bodies()) == 2 })
	if beta.mails[0].SentMS != start.UnixMilli() || beta.mails[1].SentMS != old.SentMS {
		t.Errorf("stamped %d and %d", beta.mails[0].SentMS, beta.mails[1].SentMS)
	}
}

func TestAReceiptIsToldOnEachConnectionUntilItIsSettled(t *testing.T) {
	g := newRig(t)
	g.attach("beta", &target{})
	alpha := &target{lost: errors.New("the answer was lost")}
	detach := g.attach("alpha", alpha)
	for n := range 3 {
		g.mustAccept("alpha", letter(n, "beta", ""))
	}
	eventually(t, "the deliveries", func() bool { _, r := g.office.Counts(); return r == 3 })
	detach()
	again := &target{settle: func(r api.MailReceipt) bool { return r.ID != letter(1, "", "").ID }}
	g.attach("alpha", again)
	eventually(t, "the two that it takes", func() bool { return len(again.told()) == 2 })
	again.change(func() { again.settle = nil })
	eventually(t, "the third", func() bool { return len(again.told()) == 3 })
	g.write()
	g.counts(0, 0)
}

func TestAReceiptThatNobodyComesForIsForgotten(t *testing.T) {
	g := newRig(t)
	detach := g.attach("beta", &target{})
	g.mustAccept("alpha", letter(1, "beta", ""))
	eventually(t, "the delivery", func() bool { _, r := g.office.Counts(); return r == 1 })
	detach()
	g.clock.pass(api.MailReceiptAge)
	g.office.Sweep(t.Context())
	g.counts(0, 1)
	g.clock.pass(time.Second)
	g.office.Sweep(t.Context())
	g.write()
	g.counts(0, 0)
}

func TestARevokedNodesMailIsReturnedAndItsOwnDropped(t *testing.T) {
	g := newRig(t)
	g.mustAccept("alpha", letter(1, "beta", ""), letter(2, "gamma", ""))
	g.mustAccept("beta", letter(3, "gamma", ""))
	g.leave("beta")
	g.office.Retire("beta")
	g.write()
	alpha, gamma := &target{}, &target{}
	g.attach("alpha", alpha)
	g.attach("gamma", gamma)
	eventually(t, "the receipts", func() bool { return len(alpha.told()) == 2 })
	if r := alpha.told(); !slices.ContainsFunc(r, func(r api.MailReceipt) bool {
		return r.ID == letter(1, "", "").ID && r.State == api.MailReturned && r.Code == api.MailTargetRevoked && !r.MayHaveArrived
	}) {
		t.Errorf("%+v", r)
	}
	if got := gamma.bodies(); !slices.Equal(got, []string{"2"}) {
		t.Errorf("gamma got %v", got)
	}
	g.refused("alpha", letter(4, "beta", ""), api.CodeUnknownTarget)
	g.write()
	g.counts(0, 0)
}

func TestWhoWasRevokedBesideTheHubIsFoundByTheSweep(t *testing.T) {
	g := newRig(t)
	g.mustAccept("alpha", letter(1, "beta", ""))
	g.leave("beta")
	h := g.restart()
	h.office.Sweep(t.Context())
	h.write()
	alpha := &target{}
	h.attach("alpha", alpha)
	eventually(t, "the receipt", func() bool { return len(alpha.told()) == 1 })
	if r := alpha.told()[0]; r.Code != api.MailTargetRevoked || !r.MayHaveArrived {
		t.Errorf("%+v", r)
	}
}

func TestMailIsForTheNameAndItsNewOwnerGetsIt(t *testing.T) {
	g := newRig(t)
	g.mustAccept("alpha", letter(1, "beta", ""))
	g.mustAccept("beta", letter(2, "alpha", ""))
	old, err := g.store.IdentityByName(t.Context(), "beta")
	if err != nil {
		t.Fatal(err)
	}
	fresh := store.Identity{ID: "id-new", Name: "beta", Role: api.RoleNode, CreatedAt: start}
	if err := g.store.ReplaceIdentity(t.Context(), old, fresh, store.Credential{ID: "cred-new", IdentityID: "id-new", Name: "beta", Role: api.RoleNode, CreatedAt: start}); err != nil {
		t.Fatal(err)
	}
	g.office.Sweep(t.Context())
	beta, alpha := &target{}, &target{}
	detach := g.office.Attach(context.Background(), fresh, beta)
	defer detach()
	g.attach("alpha", alpha)
	eventually(t, "the mail, and the receipt of the one before", func() bool { return len(beta.bodies()) == 1 && len(beta.told()) == 1 })
	if len(g.office.Known(fresh, []string{letter(9, "", "").ID}).Unknown) != 1 {
		t.Error("an id that never was is known")
	}
}

func TestANewerConnectionTakesOverWhatIsUnderWay(t *testing.T) {
	g := newRig(t)
	hold := make(chan struct{})
	older := &target{mail: func(api.Mail) error { <-hold; return nil }}
	detach := g.office.Attach(context.Background(), identity("beta"), older)
	g.mustAccept("alpha", letter(1, "beta", ""), letter(2, "beta", ""))
	eventually(t, "the first delivery", func() bool { older.mu.Lock(); defer older.mu.Unlock(); return older.calls == 1 })
	newer := &target{}
	g.attach("beta", newer)
	close(hold)
	eventually(t, "the second over the new connection", func() bool { return slices.Contains(newer.bodies(), "2") })
	detach()
	if got := older.bodies(); !slices.Equal(got, []string{"1"}) {
		t.Errorf("the older got %v", got)
	}
	g.attach("alpha", &target{})
	eventually(t, "the end", func() bool { w, _ := g.office.Counts(); return w == 0 })
}

func TestAHubThatDiesLosesNothingThatItTook(t *testing.T) {
	g := newRig(t)
	for n := range 5 {
		g.mustAccept("alpha", letter(n, "beta", "lane"))
	}
	beta := &target{}
	detach := g.attach("beta", beta)
	eventually(t, "the deliveries", func() bool { return len(beta.bodies()) == 5 })
	detach()
	h := g.restart() // before that is written
	h.counts(5, 0)
	beta = &target{}
	h.attach("beta", beta)
	eventually(t, "the deliveries again", func() bool { return len(beta.bodies()) == 5 })
	if got := beta.bodies(); !slices.Equal(got, []string{"0", "1", "2", "3", "4"}) {
		t.Errorf("got %v", got)
	}
	h.write()
	i := h.restart()
	i.counts(0, 5)
	if unknown := i.office.Known(identity("alpha"), []string{letter(0, "", "").ID, letter(7, "", "").ID}).Unknown; !slices.Equal(unknown, []string{letter(7, "", "").ID}) {
		t.Errorf("unknown: %v", unknown)
	}
	alpha := &target{}
	i.attach("alpha", alpha)
	eventually(t, "the receipts", func() bool { return len(alpha.told()) == 5 })
}

func TestAFullDiskTakesNoMailAndStillEndsThose(t *testing.T) {
	g := newRig(t)
	g.mustAccept("alpha", letter(1, "beta", ""))
	g.disk.fail(syscall.ENOSPC)
	for range 2 {
		if err := g.accept("alpha", letter(2, "beta", "")); !errors.Is(err, store.ErrFull) {
			t.Fatalf("taken on a full disk: %v", err)
		}
	}
	g.counts(1, 0)
	g.attach("beta", &target{})
	alpha := &target{}
	g.attach("alpha", alpha)
	eventually(t, "the receipt", func() bool { return len(alpha.told()) == 1 })
	if err := g.office.Write(t.Context()); err == nil {
		t.Fatal("written on a disk that takes nothing")
	}
	g.disk.fail(nil)
	eventually(t, "the disk", func() bool { return g.office.Write(t.Context()) == nil })
	g.mustAccept("alpha", letter(2, "beta", ""))
}

func TestRunWritesSweepsAndEndsWithItsContext(t *testing.T) {
	g := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	var ran sync.WaitGroup
	ran.Go(func() { g.office.Run(ctx) })
	g.attach("alpha", &target{})
	g.attach("beta", &target{})
	for n := range 3 {
		g.mustAccept("alpha", letter(n, "beta", fmt.Sprint(n)))
	}
	eventually(t, "all to be written", func() bool { w, r := g.office.Counts(); return w+r == 0 })
	cancel()
	ran.Wait()
	h := g.restart()
	h.counts(0, 0)
}
