package storetest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// waitFor waits for something that cannot be awaited otherwise.
func waitFor(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// together runs fn n times at once and waits for all.
func together(n int, fn func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { fn(i) })
	}
	wg.Wait()
}

// winner runs fn n times at once and wants one success and the error kind from all
// others.
func winner(t *testing.T, n int, kind error, fn func(i int) error) {
	t.Helper()
	var won atomic.Int32
	together(n, func(i int) {
		switch err := fn(i); {
		case err == nil:
			won.Add(1)
		case !errors.Is(err, kind):
			t.Errorf("a loser got %v, want %v", err, kind)
		}
	})
	if won.Load() != 1 {
		t.Fatalf("%d of %d succeeded, want 1", won.Load(), n)
	}
}

var concurrencyContracts = []contract{
	{"no change of a task is lost", func(t *testing.T, s store.Store) {
		const writers, changes = 8, 10
		createOne(t, s, "a")
		together(writers, func(int) {
			for range changes {
				for {
					task, err := s.Task(t.Context(), "a")
					if err != nil {
						t.Error(err)
						return
					}
					task.RanMS++
					_, err = s.UpdateTask(t.Context(), task)
					if err == nil {
						break
					}
					if !errors.Is(err, store.ErrConflict) {
						t.Error(err)
						return
					}
				}
			}
		})
		task, err := s.Task(t.Context(), "a")
		ok(t, err)
		if task.RanMS != writers*changes {
			t.Fatalf("%d changes are left of %d", task.RanMS, writers*changes)
		}
	}},
	{"tasks made at once get numbers of their own, in the order in which a caller made them", func(t *testing.T, s store.Store) {
		const callers, each = 16, 10
		var mu sync.Mutex
		seen := map[uint64]string{}
		together(callers, func(i int) {
			last := uint64(0)
			for j := range each {
				made, err := s.CreateTasks(t.Context(), []store.NewTask{newTask(fmt.Sprint(i, "-", j)), newTask(fmt.Sprint(i, "+", j))})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for _, task := range made {
					if task.Seq <= last || seen[task.Seq] != "" {
						t.Errorf("task %s has the number %d after %d; it is also that of %q", task.ID, task.Seq, last, seen[task.Seq])
					}
					seen[task.Seq], last = task.ID, task.Seq
				}
				mu.Unlock()
			}
		})
		if got := len(list(t, s, store.TaskQuery{})); got != 2*callers*each {
			t.Fatalf("%d tasks are stored of %d", got, 2*callers*each)
		}
	}},
	{"an id is taken once", func(t *testing.T, s store.Store) {
		winner(t, 16, store.ErrExists, func(i int) error {
			_, err := s.CreateTasks(t.Context(), []store.NewTask{newTask(fmt.Sprint("own-", i)), newTask("shared")})
			return err
		})
		if got := list(t, s, store.TaskQuery{}); len(got) != 2 {
			t.Fatalf("stored: %v", got)
		}
	}},
	{"a revision is replaced once", func(t *testing.T, s store.Store) {
		task := createOne(t, s, "a")
		winner(t, 16, store.ErrConflict, func(i int) error {
			mine := task
			mine.RanMS = int64(i)
			_, err := s.UpdateTask(t.Context(), mine)
			return err
		})
	}},
	{"a name is taken once", func(t *testing.T, s store.Store) {
		winner(t, 16, store.ErrNameTaken, func(i int) error {
			id := identity("alpha", fmt.Sprint("id-", i))
			return s.CreateIdentity(t.Context(), id, credential(fmt.Sprint("cred-", i), id))
		})
		all, err := s.Identities(t.Context())
		ok(t, err)
		same(t, len(all), 1)
	}},
	{"an identity is replaced once", func(t *testing.T, s store.Store) {
		old := join(t, s, "alpha", "id", "cred")
		winner(t, 16, store.ErrConflict, func(i int) error {
			id := identity("alpha", fmt.Sprint("id-", i))
			return s.ReplaceIdentity(t.Context(), old, id, credential(fmt.Sprint("cred-", i), id))
		})
		all, err := s.Identities(t.Context())
		ok(t, err)
		same(t, len(all), 2)
	}},
	{"a setting, a binding and a node's record are made once", func(t *testing.T, s store.Store) {
		winner(t, 16, store.ErrConflict, func(i int) error {
			_, err := s.PutSetting(t.Context(), "key", []byte{byte(i)}, 0)
			return err
		})
		winner(t, 16, store.ErrConflict, func(int) error {
			_, err := s.PutBinding(t.Context(), binding("c", "n", ""))
			return err
		})
		winner(t, 16, store.ErrConflict, func(int) error {
			_, err := s.PutNodeRecord(t.Context(), store.NodeRecord{IdentityID: "id-1"})
			return err
		})
	}},
	{"a task is pruned once", func(t *testing.T, s store.Store) {
		names := ids("t", 100)
		endedIn(t, s, names...)
		var removed atomic.Int64
		together(8, func(int) {
			n, err := s.Prune(t.Context(), store.Retention{Now: start, Before: after(24 * time.Hour), TombstonesUntil: after(time.Hour)}, 100)
			if err != nil {
				t.Error(err)
			}
			removed.Add(int64(n))
		})
		if removed.Load() != 100 {
			t.Fatalf("%d tasks went of 100", removed.Load())
		}
	}},
	{"a task that is tried again while retention runs stays or is forgotten", func(t *testing.T, s store.Store) {
		names := ids("t", 60)
		var tasks []store.NewTask
		for _, id := range names {
			tasks = append(tasks, newTask(id, ended(api.StateDone, start)))
		}
		made := create(t, s, tasks...)
		stays := make([]bool, len(made))
		together(5, func(w int) {
			if w == 4 {
				for range made {
					if _, err := s.Prune(t.Context(), store.Retention{Before: after(1), TombstonesUntil: after(time.Hour)}, 1); err != nil {
						t.Error(err)
					}
				}
				return
			}
			for i := len(made) - 1 - w; i >= 0; i -= 4 {
				again := made[i]
				again.State, again.Attempt, again.EndedAt = api.StateQueued, 2, time.Time{}
				_, err := s.UpdateTask(t.Context(), again)
				stays[i] = err == nil
				if err != nil && !errors.Is(err, store.ErrForgotten) {
					t.Errorf("try again: %v", err)
				}
			}
		})
		var want []string
		for i, id := range names {
			_, err := s.Tombstone(t.Context(), id)
			if stays[i] {
				want = append(want, id)
				fails(t, err, store.ErrNotFound)
			} else {
				ok(t, err)
			}
		}
		same(t, openIDs(t, s), want)
	}},
	{"a reader sees all of a call or nothing", func(t *testing.T, s store.Store) {
		const calls, each = 24, 5
		done := make(chan struct{})
		var readers sync.WaitGroup
		for range 2 {
			readers.Go(func() {
				for {
					page, err := s.Tasks(t.Context(), store.TaskQuery{Limit: api.MaxPage})
					if err != nil {
						t.Error(err)
						return
					}
					if len(page.Tasks)%each != 0 {
						t.Errorf("a page of %d tasks shows a part of a call", len(page.Tasks))
					}
					for _, task := range page.Tasks {
						if _, err := s.Part(t.Context(), task.ID, firstText); err != nil {
							t.Errorf("task %s is there, its text is not: %v", task.ID, err)
						}
						if task.State == api.StateDone {
							if _, err := s.Part(t.Context(), task.ID, store.PartKey{Kind: store.PartReply, Attempt: 1, Turn: 1}); err != nil {
								t.Errorf("task %s is done, its reply is not there: %v", task.ID, err)
							}
						}
					}
					select {
					case <-done:
						return
					default:
					}
				}
			})
		}
		together(2, func(w int) {
			for i := range calls / 2 {
				var tasks []store.NewTask
				for j := range each {
					tasks = append(tasks, newTask(fmt.Sprint(w, "-", i, "-", j)))
				}
				made, err := s.CreateTasks(t.Context(), tasks)
				if err != nil {
					t.Error(err)
					return
				}
				made[0].State, made[0].EndedAt = api.StateDone, start
				reply := store.Part{Key: store.PartKey{Kind: store.PartReply, Attempt: 1, Turn: 1}, Data: []byte("reply")}
				if _, err := s.UpdateTask(t.Context(), made[0], reply); err != nil {
					t.Error(err)
				}
			}
		})
		close(done)
		readers.Wait()
	}},
}
