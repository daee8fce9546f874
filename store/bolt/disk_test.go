package bolt_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
	"opencode-mesh/store/bolt"
	"opencode-mesh/store/boltdb"
)

// patience bounds the wait for what must happen.
const patience = 2 * time.Minute

// disk is a fault injector: a disk that can be told how commits go.
type disk struct {
	fault  atomic.Pointer[error] // of commits and probes; nil: none
	entry  chan struct{}         // if not nil, gets a token per batch, which waits for verdict
	permit chan error
}

func (d *disk) BeforeCommit(op boltdb.CommitOp) error {
	if op == boltdb.CommitRetention {
		return nil // what the ballast is for
	}
	if err := d.fault.Load(); err != nil {
		return *err
	}
	if d.entry == nil || op != boltdb.CommitBatch {
		return nil
	}
	d.entry <- struct{}{}
	return <-d.permit
}

// breaks makes commits fail from now on; nil ends that.
func (d *disk) breaks(err error) {
	if err == nil {
		d.fault.Store(nil)
		return
	}
	d.fault.Store(&err)
}

// troubled opens a store on a disk that can be told to fail.
func troubled(t *testing.T) (*bolt.Store, *disk) {
	t.Helper()
	d, cfg := new(disk), config(t)
	cfg.Faults, cfg.ProbeInterval = d, 5*time.Millisecond
	return open(t, cfg), d
}

// eventually waits for something that cannot be awaited otherwise.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

func TestADiskInTroubleRefusesChangesAndHealsWithoutARestart(t *testing.T) {
	for _, tc := range []struct {
		fault error
		want  error
	}{
		{boltdb.WriteFault(syscall.ENOSPC), store.ErrFull},
		{boltdb.WriteFault(syscall.EROFS), store.ErrReadOnly},
	} {
		t.Run(tc.want.Error(), func(t *testing.T) {
			s, d := troubled(t)
			old := create(t, s, "old")[0]
			d.breaks(tc.fault)
			for range 2 { // the one that meets the trouble, and the one after it
				if _, err := s.CreateTasks(t.Context(), []store.NewTask{newTask("new")}); !errors.Is(err, tc.want) {
					t.Fatalf("create: %v", err)
				}
			}
			if err := s.Writable(); !errors.Is(err, tc.want) {
				t.Fatalf("writable: %v", err)
			}
			if _, err := s.UpdateTaskLater(old, nil); !errors.Is(err, tc.want) {
				t.Fatalf("update later: %v", err)
			}
			all, open := tasks(t, s)
			if len(all) != 1 || len(open) != 1 {
				t.Fatalf("a refused task is listed: %v, open %v", all, open)
			}
			if _, err := s.Task(t.Context(), "new"); !errors.Is(err, store.ErrNotFound) {
				t.Fatalf("the refused task: %v", err)
			}
			d.breaks(nil)
			eventually(t, "changes are taken again", func() bool { return s.Writable() == nil })
			create(t, s, "new")
			settle(t, s, old, start)
			if all, open := tasks(t, s); len(all) != 2 || len(open) != 1 {
				t.Fatalf("after the trouble: %d tasks, open %v", len(all), open)
			}
		})
	}
}

func TestRetentionWorksOnAFullDisk(t *testing.T) {
	s, d := troubled(t)
	var ids []string
	for i := range 300 {
		ids = append(ids, fmt.Sprint("t", i))
	}
	for _, task := range create(t, s, ids...)[:200] {
		settle(t, s, task, start)
	}
	if err := s.AppendAudit(t.Context(), api.AuditEntry{Action: "x"}); err != nil {
		t.Fatal(err)
	}
	d.breaks(boltdb.WriteFault(syscall.ENOSPC))
	if _, err := s.CreateTasks(t.Context(), []store.NewTask{newTask("new")}); !errors.Is(err, store.ErrFull) {
		t.Fatalf("create: %v", err)
	}
	n, err := s.Prune(t.Context(), store.Retention{Before: start.Add(1), TombstonesUntil: start.Add(time.Hour)}, 150)
	if n != 150 || err != nil {
		t.Fatalf("pruned %d on a full disk: %v", n, err)
	}
	if err := s.PruneAudit(t.Context(), 0); err != nil {
		t.Fatalf("prune audit on a full disk: %v", err)
	}
	all, open := tasks(t, s)
	if len(all) != 150 || len(open) != 100 {
		t.Fatalf("%d tasks are left, %d of them open", len(all), len(open))
	}
	d.breaks(nil)
	eventually(t, "changes are taken again", func() bool { return s.Writable() == nil })
	create(t, s, "new")
}

func TestAFailedSyncEndsAllAcknowledging(t *testing.T) {
	s, d := troubled(t)
	old := create(t, s, "old")[0]
	select {
	case <-s.Failed():
		t.Fatal("failed before anything happened")
	default:
	}
	d.breaks(errors.New("input/output error"))
	if _, err := s.CreateTasks(t.Context(), []store.NewTask{newTask("new")}); !errors.Is(err, store.ErrFailed) {
		t.Fatalf("create: %v", err)
	}
	<-s.Failed()
	d.breaks(nil) // too late
	if err := s.Writable(); !errors.Is(err, store.ErrFailed) {
		t.Fatalf("writable: %v", err)
	}
	if _, err := s.UpdateTask(t.Context(), old); !errors.Is(err, store.ErrFailed) {
		t.Fatalf("update: %v", err)
	}
	if _, err := s.UpdateTaskLater(old, nil); !errors.Is(err, store.ErrFailed) {
		t.Fatalf("update later: %v", err)
	}
}

func TestABackupWorksOnAFullDisk(t *testing.T) {
	s, d := troubled(t)
	create(t, s, "a")
	d.breaks(boltdb.WriteFault(syscall.ENOSPC))
	if n, err := s.Backup(t.Context(), discard{}); n == 0 || err != nil {
		t.Fatalf("%d bytes: %v", n, err)
	}
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// gated is a store whose next commit waits until permit gets a verdict. It returns
// when that commit has begun, with a task in the store.
func gated(t *testing.T) (*bolt.Store, *disk, store.Task) {
	t.Helper()
	cfg := config(t)
	s := open(t, cfg)
	task := create(t, s, "a")[0]
	closed(t, s)
	d := &disk{entry: make(chan struct{}), permit: make(chan error)}
	cfg.Faults, cfg.ProbeInterval = d, 5*time.Millisecond
	s = open(t, cfg)
	if err := s.TouchCredentialsLater(map[string]time.Time{"x": start}); err != nil {
		t.Fatal(err)
	}
	<-d.entry
	return s, d, task
}

// later changes a task twice without waiting and returns what onFail gets.
func later(t *testing.T, s *bolt.Store, task store.Task) <-chan error {
	t.Helper()
	failed := make(chan error, 10)
	for range 2 {
		var err error
		if task, err = s.UpdateTaskLater(task, func(err error) { failed <- err }); err != nil {
			t.Fatal(err)
		}
	}
	return failed
}

// wantFailures waits for both.
func wantFailures(t *testing.T, failed <-chan error, is func(error) bool) {
	t.Helper()
	for range 2 {
		select {
		case err := <-failed:
			if !is(err) {
				t.Errorf("onFail got %v", err)
			}
		case <-time.After(patience):
			t.Fatal("onFail was not called")
		}
	}
	select {
	case err := <-failed:
		t.Errorf("onFail was called too often, with %v", err)
	default:
	}
}

func TestAChangeThatWaitedWhenTheDiskGaveOutIsReported(t *testing.T) {
	t.Run("when another change is stored", func(t *testing.T) { giveOut(t, true) })
	t.Run("when nothing else happens", func(t *testing.T) { giveOut(t, false) })
}

func giveOut(t *testing.T, goesOn bool) {
	s, d, task := gated(t)
	failed := later(t, s, task)
	d.breaks(boltdb.WriteFault(syscall.ENOSPC))
	d.permit <- boltdb.WriteFault(syscall.ENOSPC)
	eventually(t, "the disk is full", func() bool { return errors.Is(s.Writable(), store.ErrFull) })
	d.entry = nil
	d.breaks(nil)
	if goesOn { // a change that is stored tells at once what became of those before it
		eventually(t, "changes are taken again", func() bool { return s.Writable() == nil })
		next, err := s.UpdateTaskLater(task, func(err error) { t.Errorf("the change that was stored: %v", err) })
		if err != nil {
			t.Fatal(err)
		}
		task = next
	}
	wantFailures(t, failed, func(err error) bool { return err != nil })
	settle(t, s, task, start) // what was lost left no trace
	closed(t, s)
}

func TestAChangeThatWaitedWhenASyncFailedIsReported(t *testing.T) {
	s, d, task := gated(t)
	failed := later(t, s, task)
	d.permit <- errors.New("input/output error")
	<-s.Failed()
	wantFailures(t, failed, func(err error) bool { return errors.Is(err, store.ErrFailed) })
}

func TestClosingReportsAChangeThatWasLost(t *testing.T) {
	s, d, task := gated(t)
	failed := later(t, s, task)
	d.breaks(boltdb.WriteFault(syscall.EROFS))
	d.permit <- boltdb.WriteFault(syscall.EROFS)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if len(failed) != 2 {
		t.Fatalf("%d failures were reported until Close returned, want 2", len(failed))
	}
	wantFailures(t, failed, func(err error) bool { return errors.Is(err, store.ErrReadOnly) })
}

func TestATaskIsListedOnlyOnceItIsCommitted(t *testing.T) {
	s, d, _ := gated(t)
	done := make(chan error, 1)
	go func() {
		_, err := s.CreateTasks(t.Context(), []store.NewTask{newTask("b")})
		done <- err
	}()
	d.permit <- nil
	<-d.entry // now b's commit waits
	all, open := tasks(t, s)
	if len(all) != 1 || len(open) != 1 {
		t.Errorf("listed before the commit: %d tasks, open %v", len(all), open)
	}
	d.permit <- nil
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if all, open := tasks(t, s); len(all) != 2 || len(open) != 2 {
		t.Errorf("not listed after the commit: %d tasks, open %v", len(all), open)
	}
}

func TestATaskThatIsTriedAgainWhileRetentionWaitsStays(t *testing.T) {
	cfg := config(t)
	s := open(t, cfg)
	task := settle(t, s, create(t, s, "a")[0], start)
	closed(t, s)
	d := &disk{entry: make(chan struct{}), permit: make(chan error)}
	cfg.Faults = d
	s = open(t, cfg)
	if err := s.TouchCredentialsLater(map[string]time.Time{"x": start}); err != nil {
		t.Fatal(err)
	}
	<-d.entry // the writer is busy: what follows waits in its queue, in this order
	task.State, task.Attempt, task.EndedAt = api.StateQueued, 2, time.Time{}
	task, err := s.UpdateTaskLater(task, func(err error) { t.Errorf("try again: %v", err) })
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		n, err := s.Prune(t.Context(), store.Retention{Before: start.Add(1)}, 10)
		if n != 0 {
			err = fmt.Errorf("removed %d: %w", n, err)
		}
		done <- err
	}()
	eventually(t, "retention waits in the queue", func() bool { return s.Queued() == 2 })
	close(d.permit)
	go func() {
		for range d.entry {
		}
	}()
	defer close(d.entry)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got, err := s.Task(t.Context(), "a"); err != nil || got.Rev != task.Rev {
		t.Fatalf("%+v: %v", got, err)
	}
	closed(t, s)
}

func TestIdentitiesWithTheSameHashAreToldApart(t *testing.T) {
	s := open(t, config(t))
	alike := [2]string{"id-7e5ff", "id-a3e80"} // as the heads of records have them
	var made []store.NewTask
	for i, id := range alike {
		byIt, toIt := newTask(fmt.Sprint("by ", i)), newTask(fmt.Sprint("to ", i))
		byIt.Task.Controller.ID, toIt.Task.Target.ID = id, id
		made = append(made, byIt, toIt)
	}
	if _, err := s.CreateTasks(t.Context(), made); err != nil {
		t.Fatal(err)
	}
	for i, id := range alike {
		for want, q := range map[string]store.TaskQuery{
			fmt.Sprint("by ", i): {Controller: id, Limit: 1}, fmt.Sprint("to ", i): {Target: id, Limit: 1},
		} {
			page, err := s.Tasks(t.Context(), q)
			if err != nil || len(page.Tasks) != 1 || page.Tasks[0].ID != want || page.Next != 0 {
				t.Errorf("%+v: %+v, %v", q, page, err)
			}
		}
	}
}
