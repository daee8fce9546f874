package bolt_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
	"opencode-mesh/store/bolt"
)

// benchText is the size of a task's text and of its reply, in bytes.
const benchText = 2 << 10

// BenchmarkCreate stores new tasks with a text of 2 KB, awaited, from 1, 16 and 64
// callers at once.
func BenchmarkCreate(b *testing.B) {
	againstFloor(b, 1, func(s *bolt.Store, id string) error {
		_, err := createBench(b, s, id)
		return err
	})
}

// BenchmarkDispatch stores all that a dispatch stores awaited: the new task with its
// text, and its result with the reply.
func BenchmarkDispatch(b *testing.B) {
	againstFloor(b, 2, func(s *bolt.Store, id string) error {
		task, err := createBench(b, s, id)
		if err != nil {
			return err
		}
		task.State, task.EndedAt, task.Outcome = api.StateDone, time.Now(), &api.Outcome{State: api.StateDone, Summary: "done"}
		_, err = s.UpdateTask(b.Context(), task, store.Part{
			Key: store.PartKey{Kind: store.PartReply, Attempt: 1, Turn: 1}, Data: make([]byte, benchText),
		})
		return err
	})
}

// againstFloor runs fn, which makes that many awaited writes, for new ids. It reports
// writes a second, how many appended and synced writes a plain file took in the same
// run, one after the other ("floor/s"), and the ratio.
func againstFloor(b *testing.B, writes int, fn func(s *bolt.Store, id string) error) {
	for _, producers := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("producers=%d", producers), func(b *testing.B) {
			before := syncFloor(b)
			s := benchStore(b)
			var next atomic.Int64
			b.ReportAllocs()
			b.ResetTimer()
			produce(b, producers, func() error { return fn(s, fmt.Sprintf("task-%012d", next.Add(1))) })
			b.StopTimer()
			rate := float64(b.N*writes) / b.Elapsed().Seconds()
			floor := (before + syncFloor(b)) / 2
			b.ReportMetric(rate, "writes/s")
			b.ReportMetric(floor, "floor/s")
			b.ReportMetric(rate/floor, "ratio")
		})
	}
}

// BenchmarkUpdateTaskLater changes a task without waiting for the disk.
func BenchmarkUpdateTaskLater(b *testing.B) {
	s := benchStore(b)
	task, err := createBench(b, s, "task")
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		if task, err = s.UpdateTaskLater(task, nil); err != nil {
			b.Fatal(err)
		}
		if i%512 == 511 { // or the queue fills up
			if task, err = s.UpdateTask(b.Context(), task); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// BenchmarkReads reads what a busy hub reads, out of a store of 20,000 tasks.
func BenchmarkReads(b *testing.B) {
	s := benchStore(b)
	const size = 20000
	for at := 0; at < size; at += 1000 {
		var tasks []store.NewTask
		for i := at; i < at+1000; i++ {
			tasks = append(tasks, benchTask(fmt.Sprintf("task-%06d", i)))
		}
		if _, err := s.CreateTasks(b.Context(), tasks); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("task", func(b *testing.B) {
		for i := range b.N {
			if _, err := s.Task(b.Context(), fmt.Sprintf("task-%06d", i*7919%size)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("page of 100", func(b *testing.B) {
		for range b.N {
			if _, err := s.Tasks(b.Context(), store.TaskQuery{Controller: "id-controller", Limit: 100}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("no match in 20,000", func(b *testing.B) {
		for range b.N {
			if _, err := s.Tasks(b.Context(), store.TaskQuery{States: []api.State{api.StateFailed}}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("20,000 open", func(b *testing.B) {
		for range b.N {
			if err := s.OpenTasks(b.Context(), func(store.Task) error { return nil }); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func benchStore(b *testing.B) *bolt.Store {
	b.Helper()
	s, err := bolt.Open(bolt.Config{Dir: b.TempDir(), BallastBytes: -1})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	})
	return s
}

// benchTask is a new task of the size that tasks have.
func benchTask(id string) store.NewTask {
	now := time.Now()
	return store.NewTask{Text: make([]byte, benchText), Task: store.Task{
		ID: id, Hash: fmt.Sprintf("%064x", 1), TurnHash: fmt.Sprintf("%064x", 1), Mode: "task", State: api.StateQueued, Kind: api.TurnTask,
		Attempt: 1, Turn: 1, Controller: api.Party{ID: "id-controller", Name: "controller"}, Target: api.Party{ID: "id-node", Name: "node"},
		Workspace: "/home/somebody/src/project", Since: now, CreatedAt: now, ExpiresAt: now.Add(api.DefaultTTL),
		Life: []api.Step{{At: now, State: api.StateQueued, Attempt: 1, Turn: 1}},
	}}
}

func createBench(b *testing.B, s *bolt.Store, id string) (store.Task, error) {
	made, err := s.CreateTasks(b.Context(), []store.NewTask{benchTask(id)})
	if err != nil {
		return store.Task{}, err
	}
	return made[0], nil
}

// produce runs fn b.N times in all, from n goroutines.
func produce(b *testing.B, n int, fn func() error) {
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if err := fn(); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// syncFloor is how many appends of benchText bytes a second a plain file takes if
// each is synced.
func syncFloor(b *testing.B) float64 {
	b.Helper()
	f, err := os.Create(filepath.Join(b.TempDir(), "floor"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	data := make([]byte, benchText)
	began, n := time.Now(), 0
	for ; time.Since(began) < 200*time.Millisecond; n++ {
		if _, err := f.Write(data); err != nil {
			b.Fatal(err)
		}
		if err := datasync(f); err != nil {
			b.Fatal(err)
		}
	}
	return float64(n) / time.Since(began).Seconds()
}
