package storetest

import (
	"testing"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// patience bounds the wait for what must happen.
const patience = 20 * time.Second

// failures receives the errors of onFail.
type failures chan error

func newFailures() failures { return make(failures, 1000) }

func (f failures) add(err error) { f <- err }

// next waits for a failure.
func (f failures) next(t *testing.T) error {
	t.Helper()
	select {
	case err := <-f:
		return err
	case <-time.After(patience):
		t.Fatal("onFail was not called")
		return nil
	}
}

// none closes the store, after which nothing can fail any more, and wants that
// nothing did.
func (f failures) none(t *testing.T, s store.Store) {
	t.Helper()
	ok(t, s.Close())
	select {
	case err := <-f:
		t.Fatalf("onFail was called: %v", err)
	default:
	}
}

var laterContracts = []contract{
	{"an update that is not awaited is stored under the revision it was given", func(t *testing.T, s store.Store) {
		failed := newFailures()
		created := createOne(t, s, "a")
		next := created
		next.State = api.StateOffered
		got, err := s.UpdateTaskLater(next, failed.add)
		ok(t, err)
		if got.Rev <= created.Rev {
			t.Fatalf("revision %d after %d", got.Rev, created.Rev)
		}
		createOne(t, s, "b") // a change that is awaited was queued behind the other
		wantTask(t, s, got)
		failed.none(t, s)
	}},
	{"updates of a task keep their order, awaited or not", func(t *testing.T, s store.Store) {
		failed := newFailures()
		task := createOne(t, s, "a")
		for i := range 100 {
			task.CancelReason, task.RanMS = "later", int64(i)
			var err error
			if task, err = s.UpdateTaskLater(task, failed.add); err != nil {
				t.Fatal(err)
			}
			if i%10 == 9 {
				task = update(t, s, task, func(t *store.Task) { t.CancelReason = "awaited" })
			}
		}
		wantTask(t, s, task)
		failed.none(t, s)
	}},
	{"an update from an old revision fails with a conflict and changes nothing", func(t *testing.T, s store.Store) {
		failed := newFailures()
		old := createOne(t, s, "a")
		now := update(t, s, old, in(api.StateRunning))
		old.State = api.StateOffered
		_, err := s.UpdateTaskLater(old, failed.add)
		ok(t, err)
		fails(t, failed.next(t), store.ErrConflict)
		wantTask(t, s, now)
		failed.none(t, s)
	}},
	{"the updates that build on a failed one fail too", func(t *testing.T, s store.Store) {
		// The caller saw nothing of the other's changes, however many those were, and
		// must not overwrite them by meeting their revisions.
		failed := newFailures()
		mine := createOne(t, s, "a")
		theirs := mine
		for range 3 {
			theirs = update(t, s, theirs, in(api.StateRunning))
		}
		for range 5 {
			var err error
			mine, err = s.UpdateTaskLater(mine, failed.add)
			ok(t, err)
		}
		for range 5 {
			fails(t, failed.next(t), store.ErrConflict)
		}
		_, err := s.UpdateTask(t.Context(), mine)
		fails(t, err, store.ErrConflict)
		wantTask(t, s, theirs)
	}},
	{"an update of an unknown task fails", func(t *testing.T, s store.Store) {
		failed := newFailures()
		task := newTask("nobody").Task
		task.Rev, task.Seq = 1, 1
		_, err := s.UpdateTaskLater(task, failed.add)
		ok(t, err)
		fails(t, failed.next(t), store.ErrNotFound)
	}},
	{"onFail may use the store", func(t *testing.T, s store.Store) {
		old := createOne(t, s, "a")
		update(t, s, old, in(api.StateRunning))
		failed := newFailures()
		_, err := s.UpdateTaskLater(old, func(error) {
			_, err := s.CreateTasks(t.Context(), []store.NewTask{newTask("b")})
			failed.add(err)
		})
		ok(t, err)
		ok(t, failed.next(t))
		same(t, openIDs(t, s), []string{"a", "b"})
	}},
	{"onFail may be nil", func(t *testing.T, s store.Store) {
		old := createOne(t, s, "a")
		now := update(t, s, old, in(api.StateRunning))
		_, err := s.UpdateTaskLater(old, nil)
		ok(t, err)
		createOne(t, s, "b")
		wantTask(t, s, now)
	}},
	{"closing stores what is on its way", func(t *testing.T, s store.Store) {
		failed := newFailures()
		task := createOne(t, s, "a")
		for range 50 {
			var err error
			task, err = s.UpdateTaskLater(task, failed.add)
			ok(t, err)
		}
		failed.none(t, s)
	}},
}
