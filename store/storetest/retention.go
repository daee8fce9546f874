package storetest

import (
	"errors"
	"testing"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// prune runs retention once and wants the number of tasks that went.
func prune(t *testing.T, s store.Store, r store.Retention, want int) {
	t.Helper()
	got, err := s.Prune(t.Context(), r, 1000)
	if err != nil {
		t.Fatalf("prune %+v: %v", r, err)
	}
	if got != want {
		t.Fatalf("prune %+v removed %d tasks, want %d", r, got, want)
	}
}

// endedIn makes tasks that ended in the order of the ids given, a minute apart from
// start, though they were made the other way round.
func endedIn(t *testing.T, s store.Store, ids ...string) {
	t.Helper()
	for i := len(ids) - 1; i >= 0; i-- {
		createOne(t, s, ids[i], ended(api.StateDone, after(time.Duration(i)*time.Minute)))
	}
}

var retentionContracts = []contract{
	{"settled tasks go by age", func(t *testing.T, s store.Store) {
		endedIn(t, s, "a", "b", "c", "d")
		prune(t, s, store.Retention{Before: after(2 * time.Minute)}, 2)
		same(t, list(t, s, store.TaskQuery{}), []string{"c", "d"})
		prune(t, s, store.Retention{Before: after(2 * time.Minute)}, 0)
	}},
	{"settled tasks go by number, those that ended first before the others", func(t *testing.T, s store.Store) {
		endedIn(t, s, "a", "b", "c", "d")
		prune(t, s, store.Retention{Keep: 3}, 1)
		same(t, list(t, s, store.TaskQuery{}), []string{"b", "c", "d"})
		prune(t, s, store.Retention{Keep: 1}, 2)
		same(t, list(t, s, store.TaskQuery{}), []string{"d"})
	}},
	{"a limit that is zero does not limit", func(t *testing.T, s store.Store) {
		endedIn(t, s, "a", "b")
		prune(t, s, store.Retention{Now: after(time.Hour)}, 0)
		prune(t, s, store.Retention{Now: after(time.Hour), Keep: 2}, 0)
		prune(t, s, store.Retention{Now: after(time.Hour), Before: after(30 * time.Second)}, 1)
	}},
	{"whichever limit is stricter decides", func(t *testing.T, s store.Store) {
		endedIn(t, s, "a", "b", "c", "d")
		prune(t, s, store.Retention{Before: after(time.Minute), Keep: 2}, 2)
		same(t, list(t, s, store.TaskQuery{}), []string{"c", "d"})
		prune(t, s, store.Retention{Before: after(time.Hour), Keep: 2}, 2)
		same(t, list(t, s, store.TaskQuery{}), []string(nil))
	}},
	{"open tasks never go", func(t *testing.T, s store.Store) {
		createOne(t, s, "open")
		createOne(t, s, "running", in(api.StateRunning))
		endedIn(t, s, "a")
		prune(t, s, store.Retention{Before: after(time.Hour), Keep: 1}, 1)
		same(t, openIDs(t, s), []string{"open", "running"})
	}},
	{"no more tasks go in a call than its limit", func(t *testing.T, s store.Store) {
		names := ids("t", 300)
		var tasks []store.NewTask
		for _, id := range names {
			tasks = append(tasks, newTask(id, ended(api.StateDone, start)))
		}
		create(t, s, tasks...)
		for _, want := range []int{0, 140, 140, 20, 0} {
			limit := 140
			if want == 0 {
				limit = 0
			}
			got, err := s.Prune(t.Context(), store.Retention{Before: after(1), TombstonesUntil: after(time.Hour)}, limit)
			ok(t, err)
			if got != want {
				t.Fatalf("%d tasks went, want %d", got, want)
			}
		}
		for _, id := range names {
			if _, err := s.Tombstone(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		}
	}},
	{"of a task that went only a tombstone is left", func(t *testing.T, s store.Store) {
		key := store.PartKey{Kind: store.PartReply, Attempt: 1, Turn: 1}
		task := createOne(t, s, "gone", by("id-c"), to("id-n"))
		task = update(t, s, task, ended(api.StateFailed, start), store.Part{Key: key, Data: []byte("reply")})
		kept := createOne(t, s, "kept", by("id-c"), to("id-n"))
		prune(t, s, store.Retention{Before: after(time.Hour), TombstonesUntil: after(48 * time.Hour)}, 1)

		got, err := s.Tombstone(t.Context(), "gone")
		ok(t, err)
		same(t, got, store.Tombstone{
			ID: "gone", Hash: task.Hash, Controller: "id-c", Target: "id-n", State: api.StateFailed, Until: after(48 * time.Hour),
		})
		for _, q := range []store.TaskQuery{{}, {Controller: "id-c"}, {Target: "id-n"}, {States: []api.State{api.StateFailed}}} {
			page, err := s.Tasks(t.Context(), q)
			ok(t, err)
			for _, task := range page.Tasks {
				if task.ID != "kept" {
					t.Fatalf("%+v lists %s", q, task.ID)
				}
			}
		}
		_, err = s.UpdateTask(t.Context(), task)
		forgotten(t, err)
		_, err = s.Task(t.Context(), "gone")
		forgotten(t, err)
		_, err = s.Part(t.Context(), "gone", key)
		forgotten(t, err)
		wantTask(t, s, kept)
		wantPart(t, s, "kept", firstText, "text of kept")
		_, err = s.Tombstone(t.Context(), "kept")
		fails(t, err, store.ErrNotFound)
	}},
	{"a tombstone goes when its time is over, and its id is free again", func(t *testing.T, s store.Store) {
		endedIn(t, s, "a", "b")
		prune(t, s, store.Retention{Before: after(30 * time.Second), TombstonesUntil: after(time.Hour)}, 1)
		prune(t, s, store.Retention{Before: after(time.Hour), TombstonesUntil: after(2 * time.Hour)}, 1)
		prune(t, s, store.Retention{Now: after(time.Hour)}, 0)
		for _, id := range []string{"a", "b"} { // the hour is not before itself
			_, err := s.Tombstone(t.Context(), id)
			ok(t, err)
		}
		prune(t, s, store.Retention{Now: after(time.Hour + 1)}, 0)
		_, err := s.Tombstone(t.Context(), "a")
		fails(t, err, store.ErrNotFound)
		_, err = s.Tombstone(t.Context(), "b")
		ok(t, err)
		createOne(t, s, "a")
		wantPart(t, s, "a", firstText, "text of a")
	}},
	{"many tombstones go in one call", func(t *testing.T, s store.Store) {
		names := ids("t", 700)
		var tasks []store.NewTask
		for _, id := range names {
			tasks = append(tasks, newTask(id, ended(api.StateDone, start)))
		}
		create(t, s, tasks...)
		prune(t, s, store.Retention{Before: after(1), TombstonesUntil: after(time.Minute)}, len(names))
		prune(t, s, store.Retention{Now: after(time.Hour)}, 0)
		for _, id := range names {
			if _, err := s.Tombstone(t.Context(), id); !errors.Is(err, store.ErrNotFound) {
				t.Fatalf("tombstone of %s: %v", id, err)
			}
		}
	}},
	{"a task that ended again counts from its last end", func(t *testing.T, s store.Store) {
		task := createOne(t, s, "a")
		task = update(t, s, task, ended(api.StateFailed, start))
		task = update(t, s, task, func(t *store.Task) { t.State, t.EndedAt = api.StateQueued, time.Time{} })
		prune(t, s, store.Retention{Before: after(time.Hour)}, 0)
		task = update(t, s, task, ended(api.StateDone, after(time.Hour)))
		task = update(t, s, task, ended(api.StateDone, after(2*time.Hour)))
		prune(t, s, store.Retention{Before: after(2 * time.Hour)}, 0)
		wantTask(t, s, task)
		prune(t, s, store.Retention{Before: after(2*time.Hour + 1)}, 1)
	}},
}

// forgotten wants an error that says both that the task is not there and that it
// was: a caller may ask for either.
func forgotten(t *testing.T, err error) {
	t.Helper()
	fails(t, err, store.ErrForgotten)
	fails(t, err, store.ErrNotFound)
}
