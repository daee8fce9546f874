//go:build !windows

package peers

import (
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"opencode-mesh/protocol/peers"
)

func TestASocketTakesThePlaceOfADeadOneAndOfNothingElse(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(shortDir(t), "r")
	path := filepath.Join(dir, "x.sock")
	first, err := listenUnix(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]os.FileMode{dir: 0o700 | os.ModeDir, path: 0o600 | os.ModeSocket} {
		if info, err := os.Lstat(name); err != nil || info.Mode() != want {
			t.Errorf("%s: %v %v", name, info.Mode(), err)
		}
	}
	if _, err := listenUnix(t.Context(), path); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("one in use: %v", err)
	}
	first.(*net.UnixListener).SetUnlinkOnClose(false)
	first.Close()
	again, err := listenUnix(t.Context(), path)
	if err != nil {
		t.Fatalf("a dead one: %v", err)
	}
	again.Close()
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("it is there after its end: %v", err)
	}
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := listenUnix(t.Context(), path); err == nil || !strings.Contains(err.Error(), "no socket") {
		t.Errorf("a file: %v", err)
	}
	if b, _ := os.ReadFile(path); string(b) != "mine" {
		t.Errorf("the file has %q", b)
	}
}

func TestASocketThatCannotBeLeavesThePort(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	link := filepath.Join(dir, "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{link, filepath.Join(dir, strings.Repeat("x", maxSocketPath()))} {
		l, err := listen(t.Context(), at, http.NotFoundHandler(), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if tr := l.transport(); tr.Type != "tcp" || tr.Host != "127.0.0.1" || tr.Port != l.port || tr.Path != "" {
			t.Errorf("%s: %+v", at, tr)
		}
		l.stop()
	}
	longest := filepath.Join(dir, strings.Repeat("x", maxSocketPath()-len(dir)-1-len("/00000000.sock")))
	l, err := listen(t.Context(), longest, http.NotFoundHandler(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer l.stop()
	if tr := l.transport(); tr.Type != "unix" || len(tr.Path) != maxSocketPath() {
		t.Errorf("the longest path: %+v", tr)
	}
}

func TestTheDirectoriesAreTheOriginals(t *testing.T) {
	t.Setenv("XDG_DATA_HOME", "/data")
	t.Setenv("XDG_RUNTIME_DIR", "/run/me")
	storage, err := storageDir()
	if err != nil || storage != "/data/opencode-plugin-peers" || runtimeDir() != "/run/me/opencode-plugin-peers" {
		t.Errorf("%s %v %s", storage, err, runtimeDir())
	}
	t.Setenv("XDG_DATA_HOME", " ")
	t.Setenv("XDG_RUNTIME_DIR", "")
	t.Setenv("HOME", "/home/me")
	t.Setenv("TMPDIR", "/tmp/x")
	storage, err = storageDir()
	if err != nil || storage != "/home/me/.local/share/opencode-plugin-peers" || !strings.HasPrefix(runtimeDir(), "/tmp/x/ocp-") {
		t.Errorf("%s %v %s", storage, err, runtimeDir())
	}
}

func TestAMessageWaitsUntilTheSpoolWasRead(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	s := m.start("alpha")
	id := peers.EndpointID("a")
	// Another program has the lock.
	locks := filepath.Join(m.storage, "spool", id, ".lock-tickets")
	ticket := filepath.Join(locks, "ticket-0000000000000001-"+strings.Repeat("0", 32)+".json")
	if err := os.MkdirAll(locks, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(ticket, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	box := newInbox()
	s.agent("a", "", box)
	e := s.find(id)
	select {
	case <-e.ready:
		t.Error("it was read under the lock of another")
	default:
	}
	code := make(chan int, 1)
	go func() {
		c, _ := s.doors()["port"].raw(t, "POST", "/message", s.token(id), letter("m", "f", id, "x", s.cfg.now().UnixMilli()))
		code <- c
	}()
	if err := os.Remove(ticket); err != nil {
		t.Fatal(err)
	}
	if c := await(t, "the answer", code); c != http.StatusAccepted {
		t.Errorf("got %d", c)
	}
	await(t, "the message", box.got)
}
