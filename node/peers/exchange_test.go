package peers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"opencode-mesh/node/peers/registry"
	"opencode-mesh/node/peers/spool"
	"opencode-mesh/protocol/peers"
)

func TestTwoNodesOfOneMachineExchangeWithFinalAcknowledgements(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Config){
		"by the socket": func(*Config) {},
		"by the port":   func(c *Config) { c.RuntimeDir = filepath.Join(c.RuntimeDir, strings.Repeat("x", 120)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			a, b := m.start("alpha", change), m.start("beta", change)
			boxA, boxB := newInbox(), newInbox()
			idA, idB := a.agent("a", "", boxA), b.agent("b", "", boxB)
			if tr := a.peer(idB).Transport.Type; (tr == "tcp") != (name == "by the port") {
				t.Errorf("the transport is %s", tr)
			}
			sent := a.send(idA, idB, "hello")
			if sent.ReceiptStatus != peers.Queued {
				t.Errorf("receipt %q", sent.ReceiptStatus)
			}
			got := await(t, "the message", boxB.got).Message
			want := peers.Sender{InstanceID: idA, Name: "a", Directory: "/srv/a"}
			if got.Text != "hello" || got.From != want || len(got.Via) != 1 || got.Via[0] != idA {
				t.Errorf("got %+v", got)
			}
			if r := a.awaitFinal(sent); r.FinalStatus != peers.Delivered || r.ReceiptStatus != peers.Queued || r.Error != "" {
				t.Errorf("record %+v", r)
			}
			back := b.send(idB, idA, "and back")
			await(t, "the answer", boxA.got)
			if r := b.awaitFinal(back); r.FinalStatus != peers.Delivered {
				t.Errorf("record %+v", r)
			}
			eventually(t, "the mark of the acknowledgement", func() bool {
				done, err := b.Records(idB, spool.StateDone)
				return err == nil && len(done) == 1 && done[0].AckSentAt > 0
			})
		})
	}
}

func TestPoliciesDecideWhatBecomesOfAMessage(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	a, b := m.start("alpha"), m.start("beta", func(c *Config) { c.Options.HeldExpiry = time.Second })
	from := a.agent("a", "", newInbox())
	for _, c := range []struct{ session, policy, receipt, final string }{
		{"accepts", peers.PolicyAccept, peers.Queued, peers.Delivered},
		{"unknown", "sometimes", peers.Queued, peers.Delivered},
		{"refuses", peers.PolicyRefuse, peers.Refused, peers.Refused},
		{"holds", peers.PolicyHold, peers.Held, peers.Expired},
		{"elsewhere", peers.PolicyAuto, peers.Held, peers.Expired},
	} {
		sent := a.send(from, b.agent(c.session, c.policy, newInbox()), "to "+c.session)
		if sent.ReceiptStatus != c.receipt {
			t.Errorf("%s: receipt %q", c.session, sent.ReceiptStatus)
		}
		if r := a.awaitFinal(sent); r.FinalStatus != c.final {
			t.Errorf("%s: final %q", c.session, r.FinalStatus)
		}
	}
	here := Endpoint{
		ID: peers.EndpointID("here"), Session: "here", Directory: "/srv/x/../a/", Policy: peers.PolicyAuto, Receiver: newInbox(),
	}
	if err := b.Publish(t.Context(), here); err != nil {
		t.Fatal(err)
	}
	if sent := a.send(from, here.ID, "from the same directory"); sent.ReceiptStatus != peers.Queued {
		t.Errorf("receipt %q", sent.ReceiptStatus)
	}
}

func TestAPersonAcceptsAndDropsWhatWasHeld(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	a, b := m.start("alpha"), m.start("beta")
	box := newInbox()
	from, to := a.agent("a", "", newInbox()), b.agent("b", peers.PolicyHold, box)
	one, two := a.send(from, to, "one"), a.send(from, to, "two")
	held, err := b.Inbox(t.Context())
	if err != nil || len(held) != 2 || held[0].Record.Message.Text != "one" || held[1].Name != "b" {
		t.Fatalf("inbox %+v %v", held, err)
	}
	if err := b.Drop(t.Context(), ref(held[0])); err != nil {
		t.Fatal(err)
	}
	if err := b.Accept(t.Context(), ref(held[1])); err != nil {
		t.Fatal(err)
	}
	if r := await(t, "the message", box.got); r.Message.Text != "two" {
		t.Errorf("got %q", r.Message.Text)
	}
	if r := a.awaitFinal(one); r.FinalStatus != peers.Dropped {
		t.Errorf("final %q", r.FinalStatus)
	}
	if r := a.awaitFinal(two); r.FinalStatus != peers.Delivered {
		t.Errorf("final %q", r.FinalStatus)
	}
	var state *spool.StateError
	if err := b.Accept(t.Context(), ref(held[0])); !errors.As(err, &state) {
		t.Errorf("what was dropped was accepted: %v", err)
	}
}

func TestFiftySendersAtOnceFillAnInboxAndNothingOfItIsLost(t *testing.T) {
	t.Parallel()
	const room, senders = 20, 50
	m := newMachine(t)
	s := m.start("alpha", func(c *Config) { c.Options.MaxQueue = room })
	open := make(chan struct{})
	box := newInbox()
	box.answer = func(ctx context.Context, _ spool.Record) error {
		select {
		case <-open:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	id := s.agent("busy", "", box)
	d := s.doors()["port"]
	var taken, full atomic.Int32
	var all sync.WaitGroup
	for i := range senders {
		all.Go(func() {
			n := fmt.Sprint("sender-", i)
			switch code, answer := d.raw(t, "POST", "/message", s.token(id), letter("m", n, id, n, time.Now().UnixMilli())); code {
			case http.StatusAccepted:
				taken.Add(1)
			case http.StatusTooManyRequests:
				full.Add(1)
			default:
				t.Errorf("%s: %d %s", n, code, answer)
			}
		})
	}
	all.Wait()
	if taken.Load() != room || full.Load() != senders-room {
		t.Errorf("%d were taken, %d were told that it is full", taken.Load(), full.Load())
	}
	close(open)
	seen := map[string]bool{}
	for range room {
		r := await(t, "a message", box.got)
		if seen[r.Message.Text] {
			t.Errorf("%s came twice", r.Message.Text)
		}
		seen[r.Message.Text] = true
	}
	eventually(t, "the end of all", func() bool {
		done, err := s.Records(id, spool.StateDone)
		return err == nil && len(done) == room
	})
}

func TestAFailureKeepsThisMessageAndAllLaterOnesInOrder(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	a, b := m.start("alpha"), m.start("beta")
	box := newInbox()
	var ready atomic.Bool
	box.answer = func(context.Context, spool.Record) error {
		if ready.Load() {
			return nil
		}
		return fmt.Errorf("the host is not up: %w", ErrLater)
	}
	from, to := a.agent("a", "", newInbox()), b.agent("b", "", box)
	one, two := a.send(from, to, "one"), a.send(from, to, "two")
	attempts := []spool.Record{await(t, "an attempt", box.got), await(t, "another attempt", box.got)}
	ready.Store(true)
	a.awaitFinal(one)
	a.awaitFinal(two)
	// The second attempt may have been the one that was taken.
	order := []string{attempts[0].Message.Text}
	if attempts[1].Message.Text != "one" {
		t.Errorf("the second attempt was %q", attempts[1].Message.Text)
	}
	for len(box.got) > 0 {
		if text := (<-box.got).Message.Text; len(order) == 0 || order[len(order)-1] != text {
			order = append(order, text)
		}
	}
	if got := strings.Join(order, " "); got != "one two" {
		t.Errorf("in the order %s", got)
	}
}

func TestAReceiverThatSettlesLaterIsNotAskedAgainUnlessTheProcessEnds(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	a, b := m.start("alpha"), m.start("beta")
	box := newInbox()
	box.answer = func(context.Context, spool.Record) error { return ErrPending }
	from, to := a.agent("a", "", newInbox()), b.agent("b", "", box)
	one, two := a.send(from, to, "one"), a.send(from, to, "two")
	first := await(t, "the first", box.got)
	await(t, "the second", box.got)
	if err := b.Settle(t.Context(), to, first.Key(), "whatever"); err == nil {
		t.Error("settled with no final status")
	}
	if err := b.Settle(t.Context(), to, first.Key(), peers.Expired); err != nil {
		t.Fatal(err)
	}
	if r := a.awaitFinal(one); r.FinalStatus != peers.Expired {
		t.Errorf("final %q", r.FinalStatus)
	}
	if len(box.got) > 0 {
		t.Error("it was asked again")
	}
	b.stop()
	c := m.start("beta")
	again := newInbox()
	c.agent("b", "", again)
	if r := await(t, "the second again", again.got); r.Message.ID != two.MessageID {
		t.Errorf("got %+v", r)
	}
	if r := a.awaitFinal(two); r.FinalStatus != peers.Delivered {
		t.Errorf("final %q", r.FinalStatus)
	}
	if len(again.got) > 0 {
		t.Error("more than the second came")
	}
	t.Run("and what is withdrawn can be settled, too", func(t *testing.T) {
		three := a.send(from, c.agent("c", "", box), "three")
		r := await(t, "the third", box.got)
		to := peers.EndpointID("c")
		if err := c.Withdraw(t.Context(), to); err != nil {
			t.Fatal(err)
		}
		if err := c.Settle(t.Context(), to, r.Key(), peers.Dropped); err != nil {
			t.Fatal(err)
		}
		if r := a.awaitFinal(three); r.FinalStatus != peers.Dropped {
			t.Errorf("final %q", r.FinalStatus)
		}
	})
}

func TestARestartInTheMiddleOfADeliveryDeliversAgain(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	a, b := m.start("alpha"), m.start("beta")
	box := newInbox()
	box.answer = func(ctx context.Context, _ spool.Record) error {
		<-ctx.Done()
		return ctx.Err()
	}
	from, to := a.agent("a", "", newInbox()), b.agent("b", "", box)
	sent := a.send(from, to, "one")
	await(t, "the message", box.got)
	b.stop()
	again := newInbox()
	m.start("beta").agent("b", "", again)
	if r := await(t, "the message again", again.got); r.Message.ID != sent.MessageID {
		t.Errorf("got %+v", r)
	}
	if r := a.awaitFinal(sent); r.FinalStatus != peers.Delivered {
		t.Errorf("final %q", r.FinalStatus)
	}
	if len(again.got) > 0 {
		t.Error("it came more than once")
	}
}

func TestAnAcknowledgementWaitsForItsSenderToComeBack(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	a, b := m.start("alpha"), m.start("beta")
	box := newInbox()
	open := make(chan struct{})
	box.answer = func(context.Context, spool.Record) error { <-open; return nil }
	from, to := a.agent("a", "", newInbox()), b.agent("b", "", box)
	sent := a.send(from, to, "one")
	await(t, "the message", box.got)
	a.stop()
	close(open)
	eventually(t, "the end of the message", func() bool {
		done, err := b.Records(to, spool.StateDone)
		return err == nil && len(done) == 1 && done[0].AckSentAt == 0
	})
	c := m.start("alpha")
	c.agent("a", "", newInbox())
	if r := c.awaitFinal(sent); r.FinalStatus != peers.Delivered {
		t.Errorf("final %q", r.FinalStatus)
	}
}

func TestTheEndTakesEverythingOfOursAwayAndAnswersWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	s := m.start("alpha")
	id := s.agent("a", "", newInbox())
	d, token := s.doors()["port"], s.token(id)
	var all sync.WaitGroup
	began := make(chan struct{}, 100)
	for i := range 8 {
		all.Go(func() {
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: awaitTimeout}
			for n := 0; ; n++ {
				sender := fmt.Sprint(i, "-", n)
				req, _ := http.NewRequest(http.MethodPost, "http://"+d.addr+"/message", strings.NewReader(letter("m", sender, id, sender, time.Now().UnixMilli())))
				req.Header.Set("Authorization", token)
				resp, err := client.Do(req)
				if err != nil {
					return // it is gone
				}
				b, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err == nil && resp.StatusCode != http.StatusAccepted && resp.StatusCode != http.StatusTooManyRequests {
					t.Errorf("%d %s", resp.StatusCode, b)
				}
				select {
				case began <- struct{}{}:
				default:
				}
			}
		})
	}
	await(t, "a message", began)
	s.stop()
	all.Wait()
	for _, dir := range []string{filepath.Join(m.storage, registry.Dir), m.runtime} {
		left, err := os.ReadDir(dir)
		if err != nil || len(left) > 0 {
			t.Errorf("%s: %v %v", dir, left, err)
		}
	}
	if _, err := s.Desk(t.Context()); !errors.Is(err, errStopping) {
		t.Errorf("published after the end: %v", err)
	}
	if got, err := s.receive(t.Context(), nil, peers.Message{}); got != peers.Dropped || err != nil {
		t.Errorf("a message at the end: %s %v", got, err)
	}
}

func TestNothingIsMadeBeforeSomethingIsPublished(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	s := m.start("alpha")
	if list, err := s.Agents(t.Context()); len(list) > 0 || err != nil {
		t.Errorf("%v %v", list, err)
	}
	if list, err := s.Inbox(t.Context()); len(list) > 0 || err != nil {
		t.Errorf("%v %v", list, err)
	}
	s.stop()
	for _, dir := range []string{m.storage, m.runtime} {
		if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is there: %v", dir, err)
		}
	}
}
