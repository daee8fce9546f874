package opencode_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"opencode-mesh/node/agent/opencode"
)

// lives collects what Watch tells.
type lives struct {
	mu     sync.Mutex
	signs  []string
	missed int
	dirs   []string // the answer to missed
	news   chan struct{}
}

// watch begins to watch and ends with the test.
func watch(t *testing.T, a *opencode.Agent, dirs ...string) *lives {
	t.Helper()
	w := &lives{dirs: dirs, news: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.Watch(ctx, func(id string) { w.note(func() { w.signs = append(w.signs, id) }) }, func() []string {
			w.note(func() { w.missed++ })
			return w.dirs
		})
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return w
}

func (w *lives) note(fn func()) {
	w.mu.Lock()
	fn()
	w.mu.Unlock()
	select {
	case w.news <- struct{}{}:
	default:
	}
}

// await waits until cond, which is called with mu held, is true.
func (w *lives) await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	limit := time.After(testLimit)
	for {
		w.mu.Lock()
		ok := cond()
		w.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-w.news:
		case <-limit:
			t.Fatalf("never happened: %s (%q)", what, w.signs)
		}
	}
}

func (w *lives) told(id string) func() bool {
	return func() bool { return slices.Contains(w.signs, id) }
}

func TestTheLivesOfSessionsOfAllDirectoriesAreTold(t *testing.T) {
	f, a, s := visited(t)
	var far, farBusy, unseen *fakeSession
	f.locked(func() {
		far, farBusy = f.add(&fakeSession{Dir: "/far"}), f.add(&fakeSession{Dir: "/far"})
		unseen = f.add(&fakeSession{Dir: "/unseen"})
		for _, x := range []*fakeSession{s, farBusy, unseen} {
			f.busy[x.ID] = map[string]any{"type": "busy"}
		}
	})
	w := watch(t, a, "/far")
	w.await(t, "what works in a workspace", w.told(s.ID))
	w.await(t, "what works in a directory that was asked for", w.told(farBusy.ID))
	f.locked(func() {
		f.event(far.ID, "session.updated", map[string]any{"info": map[string]any{"id": far.ID}})
		f.event(unseen.ID, "message.updated", map[string]any{"info": map[string]any{"role": "assistant"}})
	})
	w.await(t, "a change in another directory", w.told(far.ID))
	w.mu.Lock()
	if w.missed != 1 || slices.Contains(w.signs, unseen.ID) {
		t.Errorf("%d gaps, signs %q", w.missed, w.signs)
	}
	w.mu.Unlock()

	// What happens while the stream is cut is not told, but that it was cut.
	f.locked(func() {
		f.dropStreams()
		f.idle(s.ID)
	})
	w.await(t, "the gap", func() bool { return w.missed == 2 })
	f.locked(func() { f.event(s.ID, "server.instance.disposed", nil) })
	w.await(t, "the end of what ran", func() bool { return w.missed == 3 })
}

func TestAWatchBeginsAnewWhenTheStateOfSessionsCannotBeRead(t *testing.T) {
	f, a, s := visited(t)
	failed := 0
	f.locked(func() {
		f.busy[s.ID] = map[string]any{"type": "busy"}
		f.lose = func(path string) bool {
			if path == "/session/status" {
				failed++
			}
			return path == "/session/status" && failed < 3
		}
	})
	w := watch(t, a)
	w.await(t, "what works", w.told(s.ID))
	w.await(t, "the gaps", func() bool { return w.missed == 3 })
}

func TestWhatWasMadeBeforeAWatchWasHeardIsTold(t *testing.T) {
	f, a, before := visited(t)
	var fresh, missed *fakeSession
	f.locked(func() { // as if made after Watch was called, before its stream was there
		fresh = f.add(&fakeSession{Dir: before.Dir})
		fresh.Time.Updated = time.Now().Add(time.Minute).UnixMilli()
	})
	w := watch(t, a)
	w.await(t, "what was made meanwhile", w.told(fresh.ID))
	f.locked(func() {
		f.dropStreams()
		missed = f.add(&fakeSession{Dir: before.Dir})
		missed.Time.Updated = time.Now().Add(time.Minute).UnixMilli()
	})
	w.await(t, "what was made while the stream was cut", w.told(missed.ID))
	w.mu.Lock()
	defer w.mu.Unlock()
	if slices.Contains(w.signs, before.ID) {
		t.Error("a session that is idle since long was told")
	}
}
