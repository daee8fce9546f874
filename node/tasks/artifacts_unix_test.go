//go:build unix

package tasks_test

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"opencode-mesh/protocol/api"
)

func TestArtifactsThatAreNoFiles(t *testing.T) {
	ws, _ := places(t)
	if err := syscall.Mkfifo(filepath.Join(ws, "pipe"), 0o644); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(ws, "sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	link(t, "pipe", filepath.Join(ws, "to-pipe"))
	link(t, "/dev/zero", filepath.Join(ws, "to-device"))
	if err := os.WriteFile(filepath.Join(ws, "closed"), []byte(inside), 0); err != nil {
		t.Fatal(err)
	}
	closed := api.Artifact{Path: "closed", Problem: "not readable"}
	if os.Geteuid() == 0 { // root may read everything
		closed = api.Artifact{Path: "closed", Size: int64(len(inside)), SHA256: sum(inside)}
	}
	want := []api.Artifact{
		{Path: "pipe", Problem: "not a file"}, {Path: "to-pipe", Problem: "not a file"}, {Path: "sock", Problem: "not a file"},
		{Path: "to-device", Problem: "outside the workspace"}, closed,
	}
	var paths []string
	for _, f := range want {
		paths = append(paths, f.Path)
	}
	g := newRig(t, newAgent(true, naming(api.StateDone, paths...)), in(ws))
	g.take("t1")
	for i, f := range g.result().Outcome.Files {
		if f != want[i] {
			t.Errorf("in the result %+v, wanted %+v", f, want[i])
		}
		if w := g.fetch(http.MethodGet, "", f.Path, nil); w.Code != http.StatusNotFound && f.Problem != "" {
			t.Errorf("%s: %d %q", f.Path, w.Code, w.Body)
		}
	}
}

func TestAPipeThatTakesTheFilesPlaceDoesNotHangTheNode(t *testing.T) {
	ws, _ := places(t)
	g := newRig(t, newAgent(true, done), in(ws))
	at, spare := filepath.Join(ws, "out", "x"), filepath.Join(ws, "out", "y")
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			_ = syscall.Mkfifo(spare, 0o644)
			_ = os.Rename(spare, at)
			_ = os.WriteFile(spare, []byte(inside), 0o644)
			_ = os.Rename(spare, at)
		}
	}()
	fetched := make(chan struct{})
	go func() {
		defer close(fetched)
		for range 2000 {
			if w := g.fetch(http.MethodGet, "", "out/x", nil); w.Code != http.StatusOK && w.Code != http.StatusNotFound {
				t.Errorf("%d %s", w.Code, w.Body)
				return
			}
		}
	}()
	select {
	case <-fetched:
	case <-time.After(patience):
		t.Error("a request hangs")
	}
	close(stop)
	<-stopped
}
