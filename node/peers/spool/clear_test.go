package spool

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"opencode-mesh/node/peers/files"
	"opencode-mesh/protocol/peers"
)

func (w *world) clear(want bool) {
	w.t.Helper()
	gone, err := w.Clear(w.t.Context(), endpoint)
	if err != nil || gone != want {
		w.t.Errorf("gone: %v, %v", gone, err)
	}
	if _, err := os.Lstat(w.Queue.dir); os.IsNotExist(err) != want {
		w.t.Errorf("its directory: %v", err)
	}
}

func TestTheDirectoriesOfAnEndpointGoWithTheLastThatIsKnownOfIt(t *testing.T) {
	w := newWorld(t, Config{})
	w.accept(message("h"), Hold)
	w.accept(message("m"), Enqueue)
	w.clear(false)
	if n, err := w.DropAll(t.Context()); n != 2 || err != nil {
		t.Errorf("%d dropped, %v", n, err)
	}
	want(t, w.states(), []string{"h:dropped", "m:dropped"})
	w.pass(peers.DoneRetention)
	w.clear(false) // senders may ask again
	bad := filepath.Join(w.Queue.dir, "queued", peers.RecordName("session-s", "bad"))
	w.must(os.WriteFile(bad, []byte("{"), 0o600))
	w.pass(time.Millisecond)
	w.clear(false) // somebody may want to look at what is not valid
	w.must(os.Remove(bad))
	w.clear(true)
	if w.Spool.Queue(endpoint) == w.Queue {
		t.Error("it is remembered")
	}
	w.clear(true)
	if status, fresh := w.accept(message("m"), Enqueue); status != peers.Queued || !fresh {
		t.Errorf("%s, %v", status, fresh)
	}
}

func TestWhatComesWhileAnEndpointIsClearedAwayIsKept(t *testing.T) {
	w := newWorld(t, Config{}).fast()
	other := New(w.Spool.cfg) // another process
	other.sys = w.Spool.sys
	const n = 100
	stop := make(chan struct{})
	var work sync.WaitGroup
	work.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := other.Clear(t.Context(), endpoint); err != nil {
				t.Error(err)
			}
		}
	})
	for i := range n {
		id := fmt.Sprint("m", i)
		if status, fresh := w.accept(message(id), Enqueue); status != peers.Queued || !fresh {
			t.Errorf("%s: %s, %v", id, status, fresh)
		}
		w.must(w.Finish(t.Context(), key(id), peers.Delivered))
		if status, fresh := w.accept(message(id), Enqueue); status != peers.Delivered || fresh {
			t.Errorf("%s again: %s, %v", id, status, fresh)
		}
		w.pass(peers.DoneRetention + time.Millisecond)
	}
	close(stop)
	work.Wait()
	w.clear(true)
}

// vanishing is a system whose directory of claims goes at the first attempt to use it.
type vanishing struct {
	files.FS
	once sync.Once
}

func (v *vanishing) Create(path string, mode fs.FileMode) (files.File, error) {
	v.once.Do(func() { _ = os.Remove(filepath.Dir(path)) })
	return v.FS.Create(path, mode)
}

func TestTheLockIsTakenWhoseDirectoryWasClearedAwayAtThatMoment(t *testing.T) {
	w := newWorld(t, Config{})
	w.Spool.sys = &vanishing{FS: files.OS{}}
	w.reopen()
	if status, _ := w.accept(message("m"), Enqueue); status != peers.Queued {
		t.Errorf("got %s", status)
	}
}
