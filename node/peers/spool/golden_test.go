package spool

import (
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"testing"
	"time"

	"opencode-mesh/protocol/peers"
)

// The samples are those of the original, observed.
func TestRecordsAreWrittenAsTheOriginalWritesThem(t *testing.T) {
	w := newWorld(t, Config{})
	file := func(s State, id string) string {
		return read(t, w.path(s, peers.RecordName("session-s", id)))
	}
	same := func(what, got, wanted string) {
		t.Helper()
		if got != wanted {
			t.Errorf("%s\ngot  %s\nwant %s", what, got, wanted)
		}
	}
	w.accept(message("m1"), Enqueue)
	const m1 = `"message":{"id":"m1","from":{"instanceId":"session-s","name":"n","directory":"/d"},"text":"m1","via":["session-s"],"sentAt":1795989734599}`
	same("queued", file(StateQueued, "m1"), `{"version":2,"state":"queued",`+m1+`,"acceptedAt":1795989734602,"sequence":1}`)
	w.drain()
	same("inflight", file(StateInflight, "m1"), `{"version":2,"state":"inflight",`+m1+`,"acceptedAt":1795989734602,"sequence":1}`)
	w.pass(47 * time.Millisecond)
	w.must(w.Finish(t.Context(), key("m1"), peers.Delivered))
	w.pass(17 * time.Millisecond)
	w.must(w.AckSent(t.Context(), key("m1")))
	const ack1 = `"ack":{"version":2,"messageId":"m1","fromEndpointId":"session-s","toEndpointId":"session-demo","status":"delivered","acknowledgedAt":1795989734649}`
	same("done", file(StateDone, "m1"), `{"version":2,"state":"done",`+m1+`,"acceptedAt":1795989734602,"sequence":1,`+ack1+`,"ackSentAt":1795989734666}`)

	w.accept(message("m2"), Refuse)
	w.at = time.UnixMilli(1795989734619)
	m3 := message("m3")
	m3.Text, m3.Via = "<&>\u00e9", nil
	w.accept(m3, Hold)
	same("held", file(StateHeld, "m3"), `{"version":2,"state":"held","message":{"id":"m3","from":{"instanceId":"session-s","name":"n","directory":"/d"},"text":"<&>`+"\u00e9"+`","via":[],"sentAt":1795989734599,"heldAt":1795989734619,"expiresAt":1795990034619},"heldAt":1795989734619,"expiresAt":1795990034619,"acceptedAt":1795989734619,"sequence":3}`)
	m4 := m3
	m4.ID = "m4"
	w.accept(m4, Enqueue)
	same("duplicate", file(StateDone, "m4"), `{"version":2,"state":"done","message":{"id":"m4","from":{"instanceId":"session-s","name":"n","directory":"/d"},"text":"<&>`+"\u00e9"+`","via":[],"sentAt":1795989734599},"acceptedAt":1795989734619,"sequence":4,"ack":{"version":2,"messageId":"m4","fromEndpointId":"session-s","toEndpointId":"session-demo","status":"duplicate","acknowledgedAt":1795989734619},"duplicateOfMessageId":"m3"}`)
	same("sequence", read(t, filepath.Join(w.Queue.dir, "sequence")), `{"value":4}`)

	m := message("0123456789abcdef")
	m.FromEndpoint = "session-sender"
	w.accept(m, Enqueue)
	files := []string{
		"spool/session-demo/done/" + peers.RecordName("session-s", "m1"),
		"spool/session-demo/done/" + peers.RecordName("session-s", "m4"),
		"spool/session-demo/done/" + peers.RecordName("session-s", "m2"),
		"spool/session-demo/held/" + peers.RecordName("session-s", "m3"),
		"spool/session-demo/queued/238da08b06d3afae4711f373cc9803579b7e6d6991bb0614edbe893d4df3432c.json",
		"spool/session-demo/sequence",
	}
	slices.Sort(files)
	want(t, tree(t, w.cfg().Dir), files)
}

func (w *world) cfg() Config { return w.Spool.cfg }

func TestFilesAndDirectoriesAreForTheOwner(t *testing.T) {
	if runtime.GOOS == "windows" {
		return // it has no modes
	}
	w := newWorld(t, Config{Dir: filepath.Join(t.TempDir(), "share", "opencode-plugin-peers")})
	w.accept(message("m1"), Enqueue)
	for _, path := range []string{w.cfg().Dir, filepath.Dir(w.cfg().Dir), w.Queue.dir, filepath.Join(w.Queue.dir, lockDir), filepath.Join(w.Queue.dir, "queued")} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o700 {
			t.Error(path, info.Mode(), err)
		}
	}
	for _, path := range []string{w.path(StateQueued, peers.RecordName("session-s", "m1")), filepath.Join(w.Queue.dir, sequenceName)} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Error(path, info.Mode(), err)
		}
	}
}

// While it is held, the lock is one ticket, and afterwards nothing.
func TestClaimsHaveTheNamesThatOthersLookFor(t *testing.T) {
	w := newWorld(t, Config{})
	w.accept(message("m1"), Enqueue)
	dir := filepath.Join(w.Queue.dir, lockDir)
	want(t, tree(t, dir), nil)
	w.must(w.change(t.Context(), func(*view) error {
		files := tree(t, dir)
		if len(files) != 1 || !regexp.MustCompile(`^ticket-0000000000000001-[0-9a-f]{32}\.json$`).MatchString(files[0]) {
			t.Error("while it is held:", files)
		} else if text := read(t, filepath.Join(dir, files[0])); !regexp.MustCompile(`^\{"kind":"ticket","ticket":1,"token":"[0-9a-f]{32}","pid":\d+,"createdAt":\d{13},"process":\{"pid":\d+,"start":".*","space":".*"\}\}$`).MatchString(text) {
			t.Error(text)
		}
		return nil
	}))
	want(t, tree(t, dir), nil)
}

func TestNothingIsMadeBeforeThereIsAMessage(t *testing.T) {
	w := newWorld(t, Config{Dir: filepath.Join(t.TempDir(), "storage")})
	ctx := t.Context()
	w.must(w.Load(ctx))
	if _, err := w.Expire(ctx); err != nil {
		t.Error(err)
	}
	want(t, w.drain(), nil)
	if acks, err := w.Acks(ctx); err != nil || len(acks) != 0 {
		t.Error(acks, err)
	}
	if gone, err := w.Clear(ctx, endpoint); err != nil || !gone {
		t.Error(gone, err)
	}
	if n, err := w.DropAll(ctx); err != nil || n != 0 {
		t.Error(n, err)
	}
	_ = w.AckSent(ctx, key("m1"))
	_ = w.Finish(ctx, key("m1"), peers.Delivered)
	if _, err := os.Lstat(w.cfg().Dir); !os.IsNotExist(err) {
		t.Error("it was made:", err)
	}
}
