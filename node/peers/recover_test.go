package peers

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"opencode-mesh/node/peers/spool"
	"opencode-mesh/protocol/peers"
)

// claim puts a claim on the lock of an endpoint's spool, as a process leaves it that is
// killed with the lock, some time ago.
func (m *machine) claim(id string, age time.Duration) (path string) {
	m.t.Helper()
	dir := filepath.Join(m.storage, "spool", id, ".lock-tickets")
	path = filepath.Join(dir, "ticket-0000000000000001-"+strings.Repeat("a", 32)+".json")
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = os.WriteFile(path, []byte(`{"kind":"ticket","ticket":1,"pid":1}`), 0o600)
	}
	when := time.Now().Add(-age)
	if err == nil {
		err = os.Chtimes(path, when, when)
	}
	if err != nil {
		m.t.Fatal(err)
	}
	return path
}

func TestAMessageThatCannotBeKeptIsAnsweredWith500AndAnotherEndpointGoesOn(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	s := m.start("alpha")
	box, other := newInbox(), newInbox()
	id, healthy := s.agent("a", "", box), s.agent("b", "", other)
	d := s.doors()["port"]
	post := func(id, message string) (int, string) {
		return d.raw(t, http.MethodPost, "/message", s.token(id), letter(message, "f", id, message, time.Now().UnixMilli()))
	}
	if code, answer := post(id, "before"); code != http.StatusAccepted {
		t.Fatalf("%d %s", code, answer)
	}
	await(t, "the message", box.got)
	done := func(want int) func() bool {
		return func() bool {
			list, err := s.Records(id, spool.StateDone)
			return err == nil && len(list) == want
		}
	}
	eventually(t, "the end of it", done(1))
	claim := m.claim(id, 0)
	if code, answer := post(id, "lost"); code != http.StatusInternalServerError || answer != `{"error":"internal error"}` {
		t.Errorf("%d %s", code, answer)
	}
	if code, answer := post(healthy, "meanwhile"); code != http.StatusAccepted {
		t.Errorf("another endpoint: %d %s", code, answer)
	}
	await(t, "the other message", other.got)
	if err := os.Remove(claim); err != nil {
		t.Fatal(err)
	}
	// It was not kept: the same message is a new one.
	if code, answer := post(id, "lost"); code != http.StatusAccepted || answer != `{"status":"queued"}` {
		t.Errorf("%d %s", code, answer)
	}
	if r := await(t, "the message again", box.got); r.Message.ID != "lost" {
		t.Errorf("got %+v", r)
	}
	eventually(t, "the end of that", done(2))
}

func TestALockOfAKilledProcessDelaysAnEndpointAndNothingOfItIsLost(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	a, b := m.start("alpha"), m.start("beta")
	box := newInbox()
	box.answer = func(context.Context, spool.Record) error { return ErrPending }
	from, to := a.agent("a", "", newInbox()), b.agent("b", "", box)
	sent := a.send(from, to, "one")
	await(t, "the message", box.got)
	b.stop()
	// It lasts for longer than one attempt waits for it.
	m.claim(to, spool.LockStale-spool.LockTimeout-time.Second)
	c := m.start("beta")
	again, other := newInbox(), newInbox()
	c.agent("b", "", again)
	if p := a.peer(to); !p.Alive || p.ProcessID != c.find(to).process {
		t.Errorf("it is not published again: %+v", p)
	}
	healthy := c.agent("c", "", other)
	if r := a.awaitFinal(a.send(from, healthy, "meanwhile")); r.FinalStatus != peers.Delivered {
		t.Errorf("another endpoint: %+v", r)
	}
	if len(again.got) > 0 {
		t.Error("it was delivered although the spool is locked")
	}
	if r := await(t, "the message again", again.got); r.Message.ID != sent.MessageID {
		t.Errorf("got %+v", r)
	}
	if r := a.awaitFinal(sent); r.FinalStatus != peers.Delivered || len(again.got) > 0 {
		t.Errorf("final %q, and %d more came", r.FinalStatus, len(again.got))
	}
}

func TestAnEndpointThatCannotBeReadHoldsUpNoAcknowledgementOfAnother(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	s, o := m.idle("alpha"), m.original()
	o.v2("session-orig", nil)
	id := peers.EndpointID("a")
	refused := peers.Message{ID: "m", FromEndpoint: "session-orig", ToEndpoint: id, Text: "x", Via: []string{"session-orig"}, SentAt: 1,
		From: peers.Sender{InstanceID: "session-orig", Name: "n", Directory: "/d"}}
	if _, _, err := s.spool.Queue(id).Accept(t.Context(), refused, spool.Refuse); err != nil {
		t.Fatal(err)
	}
	if err := s.acks.round(t.Context(), []string{"..", id}); err == nil {
		t.Error("what cannot be the name of an endpoint was read")
	}
	s.work.Wait()
	if got := await(t, "the acknowledgement", o.took); !strings.HasPrefix(got, "POST /ack ") {
		t.Errorf("got %s", got)
	}
}

func TestWhatArrivesIsDeliveredAndAcknowledgedWithoutWaitingForASweep(t *testing.T) {
	t.Parallel()
	rare := func(c *Config) { c.Options.Sweep = time.Hour }
	m := newMachine(t)
	a, b := m.start("alpha", rare), m.start("beta", rare)
	box := newInbox()
	from, to := a.agent("a", "", newInbox()), b.agent("b", "", box)
	held := b.agent("h", peers.PolicyHold, box)
	for _, text := range []string{"one", "two"} {
		sent := a.send(from, to, text)
		await(t, "the message", box.got)
		if r := a.awaitFinal(sent); r.FinalStatus != peers.Delivered {
			t.Errorf("final %q", r.FinalStatus)
		}
	}
	sent := a.send(from, held, "three")
	list, err := b.Inbox(t.Context())
	if err != nil || len(list) != 1 {
		t.Fatalf("%+v %v", list, err)
	}
	if err := b.Accept(t.Context(), ref(list[0])); err != nil {
		t.Fatal(err)
	}
	await(t, "what was accepted", box.got)
	a.awaitFinal(sent)
}
