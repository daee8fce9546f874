package spool

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"opencode-mesh/node/peers/files"
	"opencode-mesh/protocol/peers"
)

func TestMain(m *testing.M) {
	if job := os.Getenv(childJob); job != "" {
		child(job)
		return
	}
	goleak.VerifyTestMain(m)
}

const endpoint = "session-demo"

// world is a spool whose clock stands until a test moves it.
type world struct {
	*Spool
	*Queue
	t   testing.TB
	mu  sync.Mutex
	at  time.Time
	log *logBuffer
}

func newWorld(t testing.TB, cfg Config) *world {
	t.Helper()
	w := &world{t: t, at: time.UnixMilli(1795989734602), log: &logBuffer{}}
	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}
	cfg.Now = w.now
	cfg.Log = slog.New(slog.NewTextHandler(w.log, nil))
	w.Spool = New(cfg)
	w.Queue = w.Spool.Queue(endpoint)
	return w
}

func (w *world) now() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.at
}

func (w *world) pass(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at = w.at.Add(d)
}

// reopen is what a new process sees.
func (w *world) reopen() {
	sys := w.Spool.sys
	w.Spool = New(w.Spool.cfg)
	w.Spool.sys = sys
	w.Queue = w.Spool.Queue(endpoint)
}

// fast makes it one whose disk is not waited for.
func (w *world) fast() *world {
	w.Spool.sys = noSync{files.OS{}}
	w.reopen()
	return w
}

// message is one whose text is its own.
func message(id string) peers.Message {
	return peers.Message{
		ID: id, FromEndpoint: "session-s", ToEndpoint: endpoint, From: peers.Sender{InstanceID: "session-s", Name: "n", Directory: "/d"},
		Text: id, Via: []string{"session-s"}, SentAt: 1795989734599,
	}
}

func key(id string) Key { return Key{From: "session-s", ID: id} }

// accept takes a message and says what was answered.
func (w *world) accept(m peers.Message, d Decision) (string, bool) {
	w.t.Helper()
	status, fresh, err := w.Accept(w.t.Context(), m, d)
	if err != nil {
		w.t.Fatal(err)
	}
	return status, fresh
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// drain makes what is queued inflight and says what is.
func (w *world) drain() []string {
	w.t.Helper()
	records, err := w.Drain(w.t.Context())
	w.must(err)
	return ids(records)
}

func ids(records []Record) []string {
	list := []string{}
	for _, r := range records {
		list = append(list, r.Message.ID)
	}
	return list
}

// ids are those of the messages in some states, in order.
func (w *world) ids(states ...State) []string {
	w.t.Helper()
	records, err := w.Records(states...)
	w.must(err)
	return ids(records)
}

// states says where each message is, "id:state" or "id:status", sorted.
func (w *world) states() []string {
	w.t.Helper()
	records, err := w.Records()
	w.must(err)
	list := []string{}
	for _, r := range records {
		list = append(list, r.Message.ID+":"+where(r))
	}
	slices.Sort(list)
	return list
}

func where(r Record) string {
	if r.State == StateDone {
		return r.Ack.Status
	}
	return string(r.State)
}

func want(t testing.TB, got, wanted []string) {
	t.Helper()
	if g, w := fmt.Sprintf("%q", got), fmt.Sprintf("%q", wanted); g != w && len(got)+len(wanted) > 0 {
		t.Errorf("got  %s\nwant %s", g, w)
	}
}

// tree lists the files below a directory, without those of the lock's directory unless
// there are any.
func tree(t testing.TB, dir string) (list []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(dir, path)
			list = append(list, filepath.ToSlash(rel))
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return list
}

func read(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func put(t testing.TB, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// age makes a file older.
func age(t testing.TB, path string, by time.Duration) {
	t.Helper()
	at := time.Now().Add(-by)
	if err := os.Chtimes(path, at, at); err != nil {
		t.Fatal(err)
	}
}

// ageClaims makes all that is in the lock's directory left behind.
func (w *world) ageClaims() {
	w.t.Helper()
	dir := filepath.Join(w.Queue.dir, lockDir)
	for _, name := range tree(w.t, dir) {
		age(w.t, filepath.Join(dir, name), LockStale+time.Second)
	}
}

type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *logBuffer) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), text)
}
