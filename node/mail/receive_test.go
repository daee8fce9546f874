package mail_test

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"testing"

	bolt "go.etcd.io/bbolt"

	"opencode-mesh/node/mail"
	"opencode-mesh/protocol/api"
)

func TestAMailThatComesAgainIsTakenOnce(t *testing.T) {
	g := newRig(t)
	g.mustDeliver(inbound(1, "a"))
	commits := g.disk.commits()
	g.mustDeliver(inbound(1, "a"))
	if n := g.disk.commits(); n != commits {
		t.Error("a repeat cost a commit")
	}
	h := g.crash()
	h.mustDeliver(inbound(1, "a"))
	h.mustDeliver(inbound(2, "b"))
	if got := h.all("test.got"); !slices.Equal(got, []string{`"a"`, `"b"`}) {
		t.Errorf("got %v", got)
	}
	if !slices.Equal(g.app.woken, []string{`"a"`}) || !slices.Equal(h.app.woken, []string{`"b"`}) {
		t.Errorf("woken by %v and %v", g.app.woken, h.app.woken)
	}
}

func TestAMailThatComesOverTwoTunnelsAtOnceIsTakenOnce(t *testing.T) {
	g := newRig(t)
	for n := range 20 {
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() { g.deliver(inbound(n+1, fmt.Sprint(n))) })
		}
		wg.Wait()
	}
	if got := g.all("test.got"); len(got) != 20 || len(g.app.woken) != 20 {
		t.Errorf("%d mails were taken %d times, and woke %d times", 20, len(got), len(g.app.woken))
	}
}

func TestIdsAreThoseOfTheirSender(t *testing.T) {
	g := newRig(t)
	g.mustDeliver(inbound(1, "of alpha"))
	other := inbound(1, "of beta")
	other.From = "beta"
	g.mustDeliver(other)
	if got := g.all("test.got"); len(got) != 2 {
		t.Errorf("got %v", got)
	}
}

func TestWhatAHandlerDoesNotTakeLeavesNothing(t *testing.T) {
	for name, tc := range map[string]struct {
		err    error
		status int
		code   api.Code
	}{
		"not supported": {&mail.Unsupported{Reason: "what is that"}, http.StatusNotImplemented, api.CodeNotSupported},
		"refused":       {api.Errorf(api.CodeRefused, "no"), http.StatusForbidden, api.CodeRefused},
		"no room":       {fmt.Errorf("answer: %w", mail.ErrFull), http.StatusInsufficientStorage, api.CodeNodeFull},
		"a failure":     {errors.New("secret detail"), http.StatusInternalServerError, api.CodeInternal},
	} {
		g := newRig(t)
		g.app.receive = func(tx *bolt.Tx, _ api.Mail) error {
			if err := put(tx, "test.half", "a", "b"); err != nil {
				return err
			}
			return tc.err
		}
		status, err := g.deliver(inbound(1, "a"))
		if status != tc.status || err.Code != tc.code || err.Message == "secret detail" {
			t.Errorf("%s: %d %v", name, status, err)
		}
		if len(g.all("test.half")) != 0 || len(g.app.woken) != 0 {
			t.Errorf("%s: left something", name)
		}
		g.app.receive = nil
		g.mustDeliver(inbound(1, "a"))
	}
}

func TestAKindThatNobodyKnowsIsNotSupported(t *testing.T) {
	g := newRig(t)
	m := inbound(1, "a")
	m.Kind = "other.kind"
	if status, err := g.deliver(m); status != http.StatusNotImplemented || err.Code != api.CodeNotSupported {
		t.Errorf("%d %v", status, err)
	}
	special := &app{}
	g.box.Handle("test.text", special)
	g.mustDeliver(inbound(2, "b"))
	if len(special.woken) != 1 || len(g.app.woken) != 0 {
		t.Error("the longer prefix does not win")
	}
}

func TestADeliveryNeedsWhatTheHubAdds(t *testing.T) {
	g := newRig(t)
	for name, edit := range map[string]func(*api.Mail){
		"sender": func(m *api.Mail) { m.From = "" },
		"stamp":  func(m *api.Mail) { m.SentMS = 0 },
	} {
		m := inbound(1, "a")
		edit(&m)
		if status, err := g.deliver(m); status != http.StatusBadRequest {
			t.Errorf("without %s: %d %v", name, status, err)
		}
	}
	m := inbound(1, "a")
	if status, _ := g.request(http.MethodPut, "/v1/mail/"+inbound(2, "").ID, m, nil); status != http.StatusBadRequest {
		t.Errorf("at another path: %d", status)
	}
}

func TestADiskInTroubleTakesNoMail(t *testing.T) {
	for errno, want := range map[error]api.Code{syscall.ENOSPC: api.CodeNodeFull, syscall.EROFS: api.CodeReadOnly} {
		g := newRig(t)
		g.disk.set(0, errno)
		for range 2 {
			if _, err := g.deliver(inbound(1, "a")); err == nil || err.Code != want {
				t.Errorf("%v: %v", errno, err)
			}
		}
		if g.box.Snapshot().Disk == "" {
			t.Error("nobody is told of the disk")
		}
		g.disk.set(-1, nil)
		h := g.crash()
		h.mustDeliver(inbound(1, "a"))
		if got := h.all("test.got"); len(got) != 1 {
			t.Errorf("got %v", got)
		}
	}
}

func TestAnIdIsRememberedForTheWindowAndWhatIsOlderIsRefused(t *testing.T) {
	g := newRig(t)
	window := api.MailWindow.Milliseconds()
	g.mustDeliver(inbound(1, "old"))
	g.mustDeliver(inbound(2, "old too"))
	edge := inbound(3, "edge")
	edge.SentMS = inbound(1, "").SentMS + window // the first is exactly as old as is remembered
	g.mustDeliver(edge)
	g.mustDeliver(inbound(1, "old"))
	late := inbound(4, "late")
	late.SentMS = inbound(2, "").SentMS + window + 1
	g.mustDeliver(late)
	for n := 1; n <= 2; n++ {
		if status, err := g.deliver(inbound(n, "old")); status != http.StatusGone || err.Code != api.CodeTooOld {
			t.Errorf("mail %d again: %d %v", n, status, err)
		}
	}
	g.mustDeliver(edge)
	if got := g.all("test.got"); len(got) != 4 {
		t.Errorf("got %v", got)
	}
}

func TestAReceiptSettlesOnceAndAnUnknownOneIsSettled(t *testing.T) {
	g := newRig(t)
	m := text("beta", "", "1")
	g.mustSend(m)
	unknown := delivered(inbound(9, "").ID)
	for range 2 {
		ids, err := g.receipts(delivered(m.ID), unknown)
		if err != nil || !slices.Equal(ids, []string{m.ID, unknown.ID}) {
			t.Fatalf("%v %v", ids, err)
		}
	}
	h := g.crash()
	if ids, err := h.receipts(api.MailReceipt{ID: m.ID, State: api.MailReturned}); err != nil || len(ids) != 1 {
		t.Fatalf("%v %v", ids, err)
	}
	if got := h.all("test.settled"); !slices.Equal(got, []string{`"1" delivered  false`}) {
		t.Errorf("settled %v", got)
	}
	if h.box.Outstanding("beta", "") != 0 || h.box.Snapshot().Waiting != 0 {
		t.Error("something waits")
	}
}

func TestAReceiptThatAnApplicationDoesNotTakeHoldsUpNoOther(t *testing.T) {
	g := newRig(t)
	a, b := text("beta", "", "a"), text("beta", "", "b")
	g.mustSend(a, b)
	g.app.settle = func(r api.MailReceipt) error {
		if r.ID == a.ID {
			return errors.New("not now")
		}
		return nil
	}
	ids, err := g.receipts(delivered(a.ID), delivered(b.ID))
	if err != nil || !slices.Equal(ids, []string{b.ID}) {
		t.Fatalf("%v %v", ids, err)
	}
	if _, err := g.receipts(delivered(a.ID)); err == nil || err.Code != api.CodeInternal {
		t.Fatalf("%v", err)
	}
	g.app.settle = nil
	if ids, _ := g.receipts(delivered(a.ID)); len(ids) != 1 || g.box.Snapshot().Waiting != 0 {
		t.Errorf("%v", ids)
	}
}

func TestReceiptsAreChecked(t *testing.T) {
	g := newRig(t)
	m := text("beta", "", "1")
	g.mustSend(m)
	if _, err := g.receipts(api.MailReceipt{ID: m.ID, State: api.MailQueued}); err == nil || err.Code != api.CodeBadRequest {
		t.Errorf("%v", err)
	}
	if _, err := g.receipts(make([]api.MailReceipt, api.MaxMailReceipts+1)...); err == nil || err.Code != api.CodeTooLarge {
		t.Errorf("%v", err)
	}
}
