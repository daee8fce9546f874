package bolt_test

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
	"opencode-mesh/store/bolt"
)

// model is what a store of tasks should hold, kept the simple way.
type model struct {
	tasks     map[string]store.Task
	forgotten map[string]time.Time // until
}

// newest returns the tasks that pass, newest first.
func (m *model) newest(passes func(store.Task) bool) (ids []string) {
	var all []store.Task
	for _, task := range m.tasks {
		if passes(task) {
			all = append(all, task)
		}
	}
	slices.SortFunc(all, func(a, b store.Task) int { return cmp.Compare(b.Seq, a.Seq) })
	for _, task := range all {
		ids = append(ids, task.ID)
	}
	return ids
}

// prune forgets what retention should remove and returns how much that is.
func (m *model) prune(r store.Retention, limit int) (n int) {
	for id, until := range m.forgotten {
		if until.Before(r.Now) {
			delete(m.forgotten, id)
		}
	}
	var settled []store.Task
	for _, task := range m.tasks {
		if task.State.Settled() {
			settled = append(settled, task)
		}
	}
	slices.SortFunc(settled, func(a, b store.Task) int {
		return cmp.Or(a.EndedAt.Compare(b.EndedAt), cmp.Compare(a.Seq, b.Seq))
	})
	for i, task := range settled {
		if n < limit && (task.EndedAt.Before(r.Before) || r.Keep > 0 && i < len(settled)-r.Keep) {
			delete(m.tasks, task.ID)
			m.forgotten[task.ID] = r.TombstonesUntil
			n++
		}
	}
	return n
}

// TestRandomUseAgreesWithASimpleModel does whatever a hub may do to tasks, in random
// order with restarts between, and compares all that can be asked.
func TestRandomUseAgreesWithASimpleModel(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			cfg, rnd := config(t), rand.New(rand.NewPCG(seed, 0))
			s := open(t, cfg)
			m := &model{tasks: map[string]store.Task{}, forgotten: map[string]time.Time{}}
			for step := range 120 {
				now := start.Add(time.Duration(step) * time.Minute)
				switch rnd.IntN(10) {
				case 0, 1, 2, 3:
					m.create(t, s, rnd, now)
				case 4, 5, 6, 7:
					m.change(t, s, rnd, now)
				case 8:
					r := store.Retention{Now: now, Keep: rnd.IntN(8), TombstonesUntil: now.Add(time.Duration(rnd.IntN(40)) * time.Minute)}
					if rnd.IntN(2) == 0 {
						r.Before = now.Add(-time.Duration(rnd.IntN(60)) * time.Minute)
					}
					limit := rnd.IntN(6)
					want := m.prune(r, limit)
					if got, err := s.Prune(t.Context(), r, limit); got != want || err != nil {
						t.Fatalf("step %d: pruned %d, want %d: %v", step, got, want, err)
					}
				case 9:
					if rnd.IntN(3) == 0 {
						closed(t, s)
						sound(t, cfg.Dir)
						s = open(t, cfg)
					}
				}
				if step%4 == 0 {
					m.compare(t, s, step)
				}
			}
			m.compare(t, s, -1)
		})
	}
}

// create makes some tasks, one of which may exist or be forgotten.
func (m *model) create(t *testing.T, s *bolt.Store, rnd *rand.Rand, now time.Time) {
	var tasks []store.NewTask
	var want error
	for range 1 + rnd.IntN(3) {
		n := newTask(fmt.Sprint("t", rnd.IntN(120)))
		if slices.ContainsFunc(tasks, func(other store.NewTask) bool { return other.Task.ID == n.Task.ID }) {
			continue
		}
		n.Task.Controller.ID, n.Task.Target.ID = fmt.Sprint("c", rnd.IntN(3)), fmt.Sprint("n", rnd.IntN(3))
		if rnd.IntN(6) == 0 { // a result that was adopted
			n.Task.State, n.Task.EndedAt = api.StateDone, now
		}
		tasks = append(tasks, n)
		if _, there := m.tasks[n.Task.ID]; there && want == nil {
			want = store.ErrExists
		}
		if _, was := m.forgotten[n.Task.ID]; was && want == nil {
			want = store.ErrForgotten
		}
	}
	made, err := s.CreateTasks(t.Context(), tasks)
	if !errors.Is(err, want) {
		t.Fatalf("create: %v, want %v", err, want)
	}
	for _, task := range made {
		m.tasks[task.ID] = task
	}
}

// change moves a task to another state, now or later, or from an old revision.
func (m *model) change(t *testing.T, s *bolt.Store, rnd *rand.Rand, now time.Time) {
	ids := m.newest(func(store.Task) bool { return true })
	if len(ids) == 0 {
		return
	}
	task := m.tasks[ids[rnd.IntN(len(ids))]]
	states := []api.State{api.StateQueued, api.StateOffered, api.StateRunning, api.StateDone, api.StateFailed, api.StateCanceled}
	task.State, task.EndedAt = states[rnd.IntN(len(states))], time.Time{}
	if task.State.Settled() {
		task.EndedAt = now
	}
	var err error
	switch rnd.IntN(4) {
	case 0:
		if task, err = s.UpdateTaskLater(task, func(err error) { t.Errorf("update later: %v", err) }); err != nil {
			t.Fatal(err)
		}
		task, err = s.UpdateTask(t.Context(), task) // awaits the other too
	case 1:
		task.Rev--
		if _, err := s.UpdateTask(t.Context(), task); !errors.Is(err, store.ErrConflict) {
			t.Fatalf("update from another revision: %v", err)
		}
		return
	default:
		task, err = s.UpdateTask(t.Context(), task, store.Part{Key: store.PartKey{Kind: store.PartReply, Attempt: 1, Turn: 1}, Data: []byte(task.State)})
	}
	if err != nil {
		t.Fatal(err)
	}
	m.tasks[task.ID] = task
}

// compare asks the store for everything.
func (m *model) compare(t *testing.T, s *bolt.Store, step int) {
	t.Helper()
	all, open := tasks(t, s)
	for _, task := range all {
		if want := m.tasks[task.ID]; task.Rev != want.Rev || task.State != want.State || !task.EndedAt.Equal(want.EndedAt) {
			t.Fatalf("step %d: task %+v, want %+v", step, task, want)
		}
	}
	slices.Reverse(open)
	if want := m.newest(func(task store.Task) bool { return !task.State.Settled() }); !slices.Equal(open, want) {
		t.Fatalf("step %d: open %v, want %v", step, open, want)
	}
	for _, q := range []store.TaskQuery{
		{}, {Open: true}, {Controller: "c1"}, {Target: "n2"}, {Controller: "c0", Target: "n0", Open: true},
		{States: []api.State{api.StateDone, api.StateOffered}}, {Target: "n1", States: []api.State{api.StateFailed}},
	} {
		want := m.newest(func(task store.Task) bool {
			return (q.Controller == "" || q.Controller == task.Controller.ID) && (q.Target == "" || q.Target == task.Target.ID) &&
				(!q.Open || !task.State.Settled()) && (q.States == nil || slices.Contains(q.States, task.State))
		})
		var got []string
		for q.Limit = 5; ; {
			page, err := s.Tasks(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			for _, task := range page.Tasks {
				got = append(got, task.ID)
			}
			if q.Before = page.Next; q.Before == 0 {
				break
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("step %d: %+v lists %v, want %v", step, q, got, want)
		}
	}
	for id := range m.forgotten {
		if _, err := s.Tombstone(t.Context(), id); err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
	}
}
