package node_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"opencode-mesh/node"
	"opencode-mesh/node/link/linktest"
	"opencode-mesh/node/peers"
	"opencode-mesh/node/peers/registry"
	"opencode-mesh/node/peers/spool"
	proto "opencode-mesh/protocol/peers"
	"opencode-mesh/tunnel"
)

// taker takes messages, or keeps them for later.
type taker struct {
	got  chan spool.Record
	take bool
}

func (r *taker) Deliver(_ context.Context, rec spool.Record) error {
	select {
	case r.got <- rec:
	default:
	}
	if r.take {
		return nil
	}
	return peers.ErrLater
}

func (r *taker) Acked(context.Context, proto.Ack) (bool, error) { return false, nil }

func publish(t *testing.T, s *peers.Service, session string, r peers.Receiver) string {
	t.Helper()
	id := proto.EndpointID(session)
	if err := s.Publish(t.Context(), peers.Endpoint{ID: id, Session: session, Directory: "/work", Receiver: r}); err != nil {
		t.Fatal(err)
	}
	return id
}

// listed are the names of the files in a directory.
func listed(t *testing.T, dir string) (names []string) {
	t.Helper()
	found, err := os.ReadDir(dir)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for _, e := range found {
		names = append(names, e.Name())
	}
	return names
}

func TestANodeTakesItsPeersAwayWhenItStopsAndKeepsWhatWasSentToThem(t *testing.T) {
	hub := linktest.New(t, tunnel.Config{})
	dir, storage := t.TempDir(), filepath.Join(t.TempDir(), "peers")
	runtime, err := os.MkdirTemp("", "np") // sockets need short paths
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(runtime) })
	with := func(c *node.Config) {
		c.Peers = peers.Config{StorageDir: storage, RuntimeDir: runtime, Show: peers.ShowAll}
	}
	entries := filepath.Join(storage, "peers.d")

	p := launch(t, hub, dir, with)
	if got := listed(t, storage); len(got) != 0 {
		t.Errorf("there is nothing to show, and yet %q", got)
	}
	s := p.node.Peers()
	box := &taker{got: make(chan spool.Record, 1)}
	from, to := publish(t, s, "ses_from", &taker{got: make(chan spool.Record, 1)}), publish(t, s, "ses_to", box)
	all, err := s.Agents(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(all, func(p registry.Peer) bool { return p.EndpointID == to })
	if at < 0 || !all[at].Alive || len(listed(t, entries)) == 0 {
		t.Fatalf("not published: %+v", all)
	}
	sent, err := s.Send(t.Context(), from, all[at], "hello")
	if err != nil || sent.ReceiptStatus != proto.Queued {
		t.Fatalf("%+v, %v", sent, err)
	}
	linktest.Await(t, box.got, "an attempt to deliver it")
	p.quit()
	if files, sockets := listed(t, entries), listed(t, runtime); len(files)+len(sockets) != 0 {
		t.Errorf("left in the registry %q, sockets %q", files, sockets)
	}

	p = launch(t, hub, dir, with)
	s = p.node.Peers()
	again := &taker{got: make(chan spool.Record, 1), take: true}
	publish(t, s, "ses_to", again)
	if r := linktest.Await(t, again.got, "the message"); r.Message.ID != sent.MessageID || r.Message.Text != "hello" {
		t.Errorf("%+v", r)
	}
	p.quit()
	done, err := s.Records(to, spool.StateDone)
	if err != nil || len(done) != 1 {
		t.Errorf("%+v, %v", done, err)
	}
}

func TestANodeWithoutPeersHasNone(t *testing.T) {
	hub := linktest.New(t, tunnel.Config{})
	p := launch(t, hub, t.TempDir(), func(c *node.Config) { c.NoPeers = true })
	if p.node.Peers() != nil || p.node.Relay() != nil {
		t.Error("it takes part")
	}
	p.quit()
}
