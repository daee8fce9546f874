package peers

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"opencode-mesh/node/peers/registry"
	"opencode-mesh/node/peers/spool"
	"opencode-mesh/protocol/peers"
)

// inTheWay puts something in the place of a path that no write and no removal gets past;
// what it returns puts back what was there.
func inTheWay(t *testing.T, path string) (clear func()) {
	t.Helper()
	if err := errors.Join(os.Rename(path, path+".aside"), os.MkdirAll(filepath.Join(path, "x"), 0o700)); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := errors.Join(os.RemoveAll(path), os.Rename(path+".aside", path)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAnEndpointThatCannotBePublishedIsNoneAndOneThatCannotBeChangedStays(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	s := m.start("alpha")
	id := s.agent("a", "", newInbox())
	dir := filepath.Join(m.storage, registry.Dir)
	if err := os.Rename(dir, dir+".aside"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	change := func(session, title string) error {
		return s.Publish(t.Context(), Endpoint{
			ID: peers.EndpointID(session), Session: session, Title: title, Directory: "/srv", Policy: peers.PolicyHold, Receiver: newInbox(),
		})
	}
	if err := change("b", ""); err == nil {
		t.Error("what nobody can find is published")
	}
	if err := change("a", "changed"); err == nil {
		t.Error("a change that nobody sees is made")
	}
	if got := s.Endpoints(); len(got) != 1 || got[0] != id {
		t.Errorf("there are %q", got)
	}
	if e, _ := s.Own(id); e.Policy != peers.PolicyAccept || e.Title != "" {
		t.Errorf("it is %+v", e)
	}
	if err := errors.Join(os.RemoveAll(dir), os.Rename(dir+".aside", dir)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(change("b", ""), change("a", "changed")); err != nil {
		t.Fatal(err)
	}
	if e, _ := s.Own(id); e.Policy != peers.PolicyHold || s.peer(id).Title != "changed" || !s.peer(peers.EndpointID("b")).Alive {
		t.Errorf("it is %+v", e)
	}
}

func TestAnEndpointThatCannotBeWithdrawnIsWithdrawnByAnotherCall(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	s := m.start("alpha")
	box := newInbox()
	id := s.agent("a", "", box)
	to := s.peer(id)
	clear := inTheWay(t, filepath.Join(m.storage, registry.Dir, s.find(id).process+".json"))
	if err := s.Withdraw(t.Context(), id); err == nil {
		t.Error("it is said to be withdrawn")
	}
	from := s.agent("b", "", newInbox())
	if r, err := s.Send(t.Context(), from, to, "still there"); err != nil || r.ReceiptStatus != peers.Queued {
		t.Errorf("%+v, %v", r, err)
	}
	await(t, "the message", box.got)
	clear()
	for range 2 {
		if err := s.Withdraw(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	if _, own := s.Own(id); own {
		t.Error("it is there still")
	}
	list, err := s.Agents(t.Context())
	if err != nil || len(list) != 1 || list[0].EndpointID != from {
		t.Errorf("the registry has %+v, %v", list, err)
	}
}

func TestWhatWaitsForAnAbandonedEndpointIsDroppedAndItsSendersTold(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	a, b := m.start("alpha"), m.start("beta")
	box := newInbox()
	box.answer = func(_ context.Context, r spool.Record) error {
		if r.Message.Text == "under way" {
			return ErrPending
		}
		return ErrLater
	}
	from, to := a.agent("a", "", newInbox()), b.agent("b", peers.PolicyHold, box)
	held := a.send(from, to, "held")
	b.agent("b", peers.PolicyAccept, box)
	pending := a.send(from, to, "under way")
	await(t, "the message", box.got)
	queued := a.send(from, to, "queued")
	clear := inTheWay(t, filepath.Join(m.storage, registry.Dir, b.find(to).process+".json"))
	if err := b.Abandon(t.Context(), to); err == nil {
		t.Error("it is said to be abandoned")
	}
	clear()
	for range 2 {
		if err := b.Abandon(t.Context(), to); err != nil {
			t.Error(err)
		}
	}
	for _, r := range []string{held.MessageID, pending.MessageID, queued.MessageID} {
		rec, err := a.Outbox().Get(from, r)
		if err != nil {
			t.Fatal(err)
		}
		if got := a.awaitFinal(rec); got.FinalStatus != peers.Dropped {
			t.Errorf("%q ended as %q", got.Text, got.FinalStatus)
		}
	}
	if open, err := b.Records(to, spool.StateHeld, spool.StateQueued, spool.StateInflight); err != nil || len(open) > 0 {
		t.Errorf("there waits %+v, %v", open, err)
	}
}

func TestAMessageThatComesWhileItsEndpointIsWithdrawnIsKeptOrRefused(t *testing.T) {
	t.Parallel()
	t.Run("refused, once nobody would deliver it", func(t *testing.T) {
		m := newMachine(t)
		s := m.start("alpha")
		id := s.agent("a", "", newInbox())
		body := letter("m1", "f", id, "too late", time.Now().UnixMilli())
		c := s.doors()["port"].dial(t)
		// The server asks for the body when it has looked up who it is for.
		_, _ = fmt.Fprintf(c, "POST /message HTTP/1.1\r\nHost: localhost\r\nAuthorization: %s\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n", s.token(id), len(body))
		in := bufio.NewReader(c)
		if line, err := in.ReadString('\n'); err != nil || !strings.Contains(line, "100") {
			t.Fatalf("%q, %v", line, err)
		}
		if _, err := in.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		if err := s.Withdraw(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(c, body)
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		answer, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusNotFound || string(answer) != `{"error":"endpoint not found"}` {
			t.Errorf("%d %s, %v", resp.StatusCode, answer, err)
		}
		if kept, err := s.Records(id); err != nil || len(kept) > 0 {
			t.Errorf("kept: %+v, %v", kept, err)
		}
	})
	t.Run("kept before the end, if it was being kept", func(t *testing.T) {
		m := newMachine(t)
		s := m.start("alpha")
		box := newInbox()
		box.answer = func(context.Context, spool.Record) error { return ErrLater }
		id := s.agent("a", "", box)
		<-s.find(id).ready
		claim := m.claim(id, 0)
		d, token := s.doors()["port"], s.token(id)
		code := make(chan int, 1)
		go func() {
			c, _ := d.raw(t, http.MethodPost, "/message", token, letter("m1", "f", id, "in time", time.Now().UnixMilli()))
			code <- c
		}()
		eventually(t, "the message at the lock", func() bool {
			list, err := os.ReadDir(filepath.Dir(claim))
			return err == nil && len(list) > 1
		})
		e := s.find(id)
		gone := make(chan error, 1)
		go func() { gone <- s.Withdraw(t.Context(), id) }()
		eventually(t, "the withdrawal", func() bool { return s.find(id) == nil })
		select {
		case <-e.ended:
			t.Error("it is over before the message is kept")
		default:
		}
		if err := os.Remove(claim); err != nil {
			t.Fatal(err)
		}
		if got := await(t, "the answer", code); got != http.StatusAccepted {
			t.Errorf("got %d", got)
		}
		if err := await(t, "the end", gone); err != nil {
			t.Error(err)
		}
		if kept, err := s.Records(id); err != nil || len(kept) != 1 {
			t.Errorf("kept: %+v, %v", kept, err)
		}
	})
}

func TestWhatIsSettledWhileAnotherIsDeliveredDoesNotComeAgain(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	a, b := m.start("alpha"), m.start("beta")
	box := newInbox()
	goOn := make(chan struct{})
	box.answer = func(_ context.Context, r spool.Record) error {
		if r.Message.Text == "first" {
			<-goOn
		}
		return ErrPending
	}
	from, to := a.agent("a", "", newInbox()), b.agent("b", peers.PolicyHold, box)
	first := a.send(from, to, "first")
	b.agent("b", peers.PolicyAccept, box)
	second := a.send(from, to, "second")
	taken := await(t, "the second", box.got)
	// The first comes before the second in what there is to deliver, of which the second
	// was a part when the look was taken.
	if err := b.Accept(t.Context(), Ref{to, spool.Key{From: from, ID: first.MessageID}}); err != nil {
		t.Fatal(err)
	}
	await(t, "the first", box.got)
	if err := b.Settle(t.Context(), to, taken.Key(), peers.Delivered); err != nil {
		t.Fatal(err)
	}
	close(goOn)
	if r := a.awaitFinal(second); r.FinalStatus != peers.Delivered {
		t.Errorf("it ended as %q", r.FinalStatus)
	}
	third := a.send(from, to, "third")
	if r := await(t, "the third", box.got); r.Message.ID != third.MessageID {
		t.Errorf("%q came again", r.Message.Text)
	}
}

func TestWhatWasSettledBeforeItsDeliveryReturnedIsForgotten(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	a, b := m.start("alpha"), m.start("beta")
	box := newInbox()
	to := peers.EndpointID("b")
	box.answer = func(ctx context.Context, r spool.Record) error {
		// Not through the endpoint, as news that come after a restart do.
		return errors.Join(b.spool.Queue(to).Finish(ctx, r.Key(), peers.Delivered), ErrPending)
	}
	from := a.agent("a", "", newInbox())
	b.agent("b", "", box)
	a.send(from, to, "one")
	await(t, "the message", box.got)
	eventually(t, "that it is under way no more", func() bool { return len(b.find(to).allPending()) == 0 })
}

func TestAReceiptThatCannotBeNotedMayHaveArrived(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	a, o := m.start("alpha"), m.original()
	from := a.agent("a", "", newInbox())
	o.v2("session-o", nil)
	o.serve = func(w http.ResponseWriter, _ *http.Request, _ []byte) {
		if err := os.RemoveAll(filepath.Join(m.storage, "outbox", peers.Safe(from))); err != nil {
			t.Error(err)
		}
		w.WriteHeader(http.StatusAccepted)
		_, _ = io.WriteString(w, `{"status":"delivered"}`)
	}
	if _, err := a.Send(t.Context(), from, a.peer("session-o"), "hello"); err == nil || !MayHaveArrived(err) {
		t.Errorf("%v", err)
	}
}

func TestWhoAsksForTheDeskWaitsNoLongerThanTheyWant(t *testing.T) {
	t.Parallel()
	s := newMachine(t).start("alpha")
	s.desk.deciding <- struct{}{} // somebody is at it for long
	defer s.desk.give()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Desk(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
