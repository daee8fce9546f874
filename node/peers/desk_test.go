package peers

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"opencode-mesh/node/peers/spool"
	"opencode-mesh/protocol/peers"
)

func TestTheDeskIsThereForAsLongAsThereIsAReason(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	var offset atomic.Int64
	clock := func(c *Config) {
		c.now = func() time.Time { return time.Now().Add(time.Duration(offset.Load())) }
		c.Options.Stale = 24 * time.Hour // the clock jumps
		c.Options.MaxMessageAge = 24 * time.Hour
		c.Options.HeldExpiry = 24 * time.Hour
	}
	a, b := m.start("alpha", clock), m.start("beta", clock)
	box := newInbox()
	open := make(chan struct{})
	box.answer = func(context.Context, spool.Record) error { <-open; return nil }
	to := b.agent("b", "", box)
	desk, err := a.Desk(t.Context())
	if err != nil || desk.Name != "alpha" || desk.Policy != peers.PolicyHold || desk.Session != "mesh-desk-alpha" {
		t.Fatalf("%+v %v", desk, err)
	}
	published := func() bool { _, ok := a.Own(desk.ID); return ok }
	sent := a.send(desk.ID, to, "from a person")
	offset.Add(int64(2 * deskGrace))
	if err := a.desk.decide(t.Context()); err != nil || !published() {
		t.Errorf("it is gone before its acknowledgement: %v", err)
	}
	close(open)
	if r := a.awaitFinal(sent); r.FinalStatus != peers.Delivered {
		t.Errorf("final %q", r.FinalStatus)
	}
	eventually(t, "the end of the desk", func() bool { return !published() })
	t.Run("held mail", func(t *testing.T) {
		if _, err := a.Desk(t.Context()); err != nil {
			t.Fatal(err)
		}
		sent := b.send(to, desk.ID, "for a person")
		offset.Add(int64(2 * deskGrace))
		if err := a.desk.decide(t.Context()); err != nil || sent.ReceiptStatus != peers.Held || !published() {
			t.Errorf("receipt %q, published %v, %v", sent.ReceiptStatus, published(), err)
		}
		list, err := a.Inbox(t.Context())
		if err != nil || len(list) != 1 {
			t.Fatalf("%+v %v", list, err)
		}
		if err := a.Accept(t.Context(), ref(list[0])); err != nil {
			t.Fatal(err)
		}
		if r := b.awaitFinal(sent); r.FinalStatus != peers.Delivered {
			t.Errorf("final %q", r.FinalStatus)
		}
		eventually(t, "the end of the desk", func() bool { return !published() })
	})
}

func TestADeskWithANameIsThereFromTheStartOn(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	data := t.TempDir()
	here := func(c *Config) { c.DataDir = data }
	a := m.start("alpha", here)
	if err := a.Name(t.Context(), "no/name"); err == nil {
		t.Error("a bad name was taken")
	}
	if err := a.Name(t.Context(), "Ada at work"); err != nil {
		t.Fatal(err)
	}
	a.stop()
	b := m.start("alpha", here)
	// It is the node's own a moment before others find it.
	eventually(t, "the desk", func() bool {
		list, err := b.Agents(t.Context())
		return err == nil && len(list) > 0
	})
	if p := b.peer(b.desk.id); p.Name != "Ada at work" || !p.Alive || !p.Own {
		t.Errorf("%+v", p)
	}
	if err := b.Name(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	if p := b.peer(b.desk.id); p.Name != "alpha" {
		t.Errorf("%+v", p)
	}
	if err := os.WriteFile(filepath.Join(data, DeskFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Desk(t.Context()); err == nil {
		t.Error("a damaged file was taken for no name")
	}
}

func TestConfigsThatCannotBe(t *testing.T) {
	t.Parallel()
	short := peers.DefaultOptions()
	short.Stale = short.Heartbeat
	for _, c := range []Config{
		{Show: "some"}, {Show: ShowNames}, {Show: ShowAll, ShowNames: []string{"x"}}, {ShowNames: []string{"x"}},
		{Show: ShowNames, ShowNames: []string{"["}}, {Show: ShowNames, ShowNames: []string{""}},
		{Policy: "maybe"}, {Permissions: "maybe"}, {PermissionsRemote: "maybe"}, {Options: short},
	} {
		c.Node, c.DataDir = "n", t.TempDir()
		if _, err := New(c); err == nil {
			t.Errorf("taken: %+v", c)
		}
	}
	c := Config{Show: ShowNames, ShowNames: []string{"api-*", "exact"}}
	if !c.Shows("api-1") || !c.Shows("exact") || c.Shows("exactly") || (Config{Show: ShowOff}).Shows("x") || !(Config{Show: ShowAll}).Shows("x") {
		t.Error("the wrong agents are shown")
	}
}

func TestNoMoreEndpointsThanMayBe(t *testing.T) {
	t.Parallel()
	s := newMachine(t).start("alpha")
	id := s.agent("a", "", newInbox())
	s.mu.Lock()
	for i := len(s.endpoints); i < MaxEndpoints; i++ {
		s.endpoints[peers.NewToken()] = s.endpoints[id]
	}
	s.mu.Unlock()
	e := Endpoint{ID: "session-more", Session: "more", Directory: "/", Receiver: newInbox()}
	if err := s.Publish(t.Context(), e); err == nil {
		t.Error("one more was published")
	}
	e.ID = id
	if err := s.Publish(t.Context(), e); err != nil {
		t.Errorf("one that is there cannot be changed: %v", err)
	}
}

func TestTheDeskWaitsForNothingThatDoesNotCome(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	var offset atomic.Int64
	s, o := m.start("alpha", func(c *Config) {
		c.now = func() time.Time { return time.Now().Add(time.Duration(offset.Load())) }
		c.Options.Stale = 24 * time.Hour
	}), m.original()
	o.serve = func(w http.ResponseWriter, _ *http.Request, _ []byte) {
		w.WriteHeader(http.StatusAccepted)
		_, _ = w.Write(peers.EncodeReceipt(peers.Queued))
	}
	o.v1("8caabdbb")
	desk, err := s.Desk(t.Context())
	if err != nil || desk.Directory != "alpha:" {
		t.Fatalf("%+v %v", desk, err)
	}
	r, err := s.Send(t.Context(), desk.ID, s.peer("8caabdbb"), "to one that acknowledges nothing")
	if err != nil || r.ReceiptStatus != peers.Queued || r.Awaits() {
		t.Errorf("%+v %v", r, err)
	}
	offset.Add(int64(2 * deskGrace))
	if err := s.desk.decide(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, published := s.Own(desk.ID); published {
		t.Error("it is there still")
	}
}
