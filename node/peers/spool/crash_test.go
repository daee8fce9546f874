package spool

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"opencode-mesh/node/peers/files"
	"opencode-mesh/node/peers/files/filestest"
	"opencode-mesh/protocol/peers"
)

// scenario is a change that breaks off somewhere.
type scenario struct {
	prepare func(w *world)
	change  func(ctx context.Context, q *Queue) error
	// before and after are where the messages are, if it did not happen or did, once the
	// spool was loaded.
	before, after []string
}

func accepting(d Decision) func(context.Context, *Queue) error {
	return func(ctx context.Context, q *Queue) error {
		_, _, err := q.Accept(ctx, message("m3"), d)
		return err
	}
}

// busy is a queue with a message in every state: m0 is done, m1 inflight, m2 queued and h
// held.
func busy(w *world) {
	w.accept(message("m0"), Enqueue)
	w.accept(message("m1"), Enqueue)
	w.drain()
	w.must(w.Finish(w.t.Context(), key("m0"), peers.Delivered))
	w.accept(message("m2"), Enqueue)
	w.accept(message("h"), Hold)
}

var asBusy = []string{"h:held", "m0:delivered", "m1:queued", "m2:queued"}

// with replaces the state of a message, or adds it.
func with(list []string, is string) []string {
	id, _, _ := strings.Cut(is, ":")
	list = slices.DeleteFunc(slices.Clone(list), func(s string) bool { return strings.HasPrefix(s, id+":") })
	list = append(list, is)
	slices.Sort(list)
	return list
}

var scenarios = map[string]scenario{
	"accept first": {func(*world) {}, accepting(Enqueue), nil, []string{"m3:queued"}},
	"accept":       {busy, accepting(Enqueue), asBusy, with(asBusy, "m3:queued")},
	"hold":         {busy, accepting(Hold), asBusy, with(asBusy, "m3:held")},
	"refuse":       {busy, accepting(Refuse), asBusy, with(asBusy, "m3:refused")},
	"drain": {busy, func(ctx context.Context, q *Queue) error {
		_, err := q.Drain(ctx)
		return err
	}, asBusy, asBusy},
	"finish": {busy, func(ctx context.Context, q *Queue) error {
		return q.Finish(ctx, key("m1"), peers.Delivered)
	}, asBusy, with(asBusy, "m1:delivered")},
	"requeue": {func(w *world) { busy(w); w.drain() }, func(ctx context.Context, q *Queue) error {
		return q.Requeue(ctx, key("m1"), key("m2"))
	}, asBusy, asBusy},
	"release": {busy, func(ctx context.Context, q *Queue) error {
		return q.Release(ctx, key("h"))
	}, asBusy, with(asBusy, "h:queued")},
	"drop": {busy, func(ctx context.Context, q *Queue) error {
		return q.Drop(ctx, key("h"))
	}, asBusy, with(asBusy, "h:dropped")},
	"drop all": {busy, func(ctx context.Context, q *Queue) error {
		_, err := q.DropAll(ctx)
		return err
	}, asBusy, []string{"h:dropped", "m0:delivered", "m1:dropped", "m2:dropped"}},
	"expire": {func(w *world) { busy(w); w.pass(peers.DefaultHeldExpiry) }, func(ctx context.Context, q *Queue) error {
		_, err := q.Expire(ctx)
		return err
	}, asBusy, with(asBusy, "h:expired")},
	"acknowledge": {busy, func(ctx context.Context, q *Queue) error {
		return q.AckSent(ctx, key("m0"))
	}, asBusy, asBusy},
	"load": {func(w *world) {
		busy(w)
		// What the original leaves when it dies in between: two states of one message.
		w.twin(StateInflight, StateDone, "m0")
		w.twin(StateHeld, StateQueued, "m2")
	}, func(ctx context.Context, q *Queue) error { return q.Load(ctx) }, asBusy, asBusy},
}

// twin puts a message that is in one state into an earlier one, too.
func (w *world) twin(earlier, is State, id string) {
	w.t.Helper()
	name := peers.RecordName("session-s", id)
	r, err := w.read(is, name)
	w.must(err)
	r.State, r.Ack = earlier, nil
	if earlier == StateHeld {
		r.HeldAt, r.ExpiresAt = r.AcceptedAt, r.AcceptedAt+300_000
		r.Message.HeldAt, r.Message.ExpiresAt = r.HeldAt, r.ExpiresAt
	}
	data, err := encode(r)
	w.must(err)
	put(w.t, w.path(earlier, name), string(data))
}

// recovered checks what there is after a change that broke off.
func (sc scenario) recovered(w *world, what string, happened bool) {
	w.t.Helper()
	fits := func(states []string, loaded bool) {
		w.t.Helper()
		for i, s := range states {
			id, is, _ := strings.Cut(s, ":")
			if i > 0 && strings.HasPrefix(states[i-1], id+":") {
				w.t.Errorf("%s: %s is seen twice in %v", what, id, states)
			}
			if !loaded && is == string(StateInflight) {
				s = id + ":queued"
			}
			if !slices.Contains(sc.before, s) && !slices.Contains(sc.after, s) {
				w.t.Errorf("%s: %s is neither in %v nor in %v", what, s, sc.before, sc.after)
			}
		}
		if len(states) < len(sc.before) || happened && len(states) < len(sc.after) {
			w.t.Errorf("%s: lost, there is only %v", what, states)
		}
	}
	w.reopen()
	w.ageClaims()
	fits(w.states(), false)
	w.must(w.Load(w.t.Context()))
	fits(w.states(), true)
	if happened {
		want(w.t, w.states(), sc.after)
	}
	// Every message has one file now, and nothing else is left.
	names := map[string]bool{}
	for _, path := range tree(w.t, w.Queue.dir) {
		name := filepath.Base(path)
		if names[name] || name != sequenceName && !recordName.MatchString(name) {
			w.t.Errorf("%s: %s is left", what, path)
		}
		names[name] = true
	}
	if got := w.log.count("not valid"); got != 0 {
		w.t.Error(what, "left a file that is not valid")
	}
	// It goes on, behind what there is.
	w.accept(message("next"), Enqueue)
	if list := w.ids(StateQueued); list[len(list)-1] != "next" {
		w.t.Error(what, "the next message is not the last:", list)
	}
}

// Every process is killed between two steps, or in the middle of a write.
func TestKilledAnywhereNothingIsLostAndNothingDoneTwice(t *testing.T) {
	killed := make(chan int, len(scenarios))
	t.Run("", func(t *testing.T) {
		for name, sc := range scenarios {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				lock := strings.HasPrefix(name, "accept") // it is the same for all
				at := 1
				for ; ; at++ {
					w := newWorld(t, Config{}).fast()
					sc.prepare(w)
					out := run(t, job{Dir: w.cfg().Dir, Op: name, Now: w.now().UnixMilli(), At: at, Lock: lock})
					if out != "" && out != "done" {
						t.Fatal(out)
					}
					sc.recovered(w, fmt.Sprintf("%s killed before step %d", name, at), out == "done")
					if out == "done" || t.Failed() {
						break
					}
				}
				killed <- at - 1
			})
		}
	})
	total := 0
	for range len(scenarios) {
		total += <-killed
	}
	t.Log(total, "processes were killed")
	if total < 10*len(scenarios) {
		t.Error("that is too few")
	}
}

// Each step is failed alone, as a disk that is full for a moment does.
func TestAChangeThatFailsLeavesWhatWasThere(t *testing.T) {
	for name, sc := range scenarios {
		for at := 1; ; at++ {
			w := newWorld(t, Config{}).fast()
			sc.prepare(w)
			before := w.states()
			faults := &filestest.Faults{FS: noSync{files.OS{}}, At: at, Err: syscall.ENOSPC, Half: true}
			w.Queue.sys = faults
			err := sc.change(t.Context(), w.Queue)
			steps := faults.Steps()
			if len(steps) < at {
				w.must(err)
				break
			}
			what := fmt.Sprintf("%s with %q failed (%v)", name, steps[at-1], err)
			w.Queue.sys = w.Spool.sys
			if err != nil {
				if !errors.Is(err, syscall.ENOSPC) {
					t.Error(what)
				}
				// A change of many messages may have been done for some of them.
				if after := w.states(); !slices.Equal(before, after) && (name != "requeue" && name != "drop all" || len(before) != len(after)) {
					t.Errorf("%s\nbefore %v\nafter  %v", what, before, after)
				}
			}
			for _, path := range tree(t, w.Queue.dir) {
				if strings.HasSuffix(path, files.TempSuffix) {
					t.Error(what, "left", path)
				}
			}
			sc.recovered(w, what, err == nil)
			if t.Failed() {
				return
			}
		}
	}
}

// noSync saves the time of a disk where no machine crashes.
type noSync struct{ files.FS }

func (noSync) SyncDir(string) error { return nil }

func (n noSync) Create(path string, mode fs.FileMode) (files.File, error) {
	f, err := n.FS.Create(path, mode)
	return noSyncFile{f}, err
}

type noSyncFile struct{ files.File }

func (noSyncFile) Sync() error { return nil }
