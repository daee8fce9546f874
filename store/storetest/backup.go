package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// RunBackup holds backups to the contract. restore makes a store of a backup, in a
// place of its own, and registers what closes it.
func RunBackup(t *testing.T, open func(t *testing.T) store.Store, restore func(t *testing.T, backup []byte) store.Store) {
	backup := func(t *testing.T, s store.Store) []byte {
		t.Helper()
		var w bytes.Buffer
		n, err := s.Backup(t.Context(), &w)
		ok(t, err)
		if n != int64(w.Len()) || n == 0 {
			t.Fatalf("%d bytes are told of %d", n, w.Len())
		}
		return w.Bytes()
	}
	t.Run("a restored store holds what the other held, and no more", func(t *testing.T) {
		s := open(t)
		calls(t, s)
		want := look(t, s)
		copied := backup(t, s)
		createOne(t, s, "later")
		r := restore(t, copied)
		same(t, look(t, r), want)
		wantPart(t, r, "a", firstText, "text of a")
		same(t, openIDs(t, r), []string{"a"})
		createOne(t, r, "next")
	})
	t.Run("a restored store is of the same hub and of a new generation", func(t *testing.T) {
		s := open(t)
		copied := backup(t, s)
		r1, r2 := restore(t, copied), restore(t, copied)
		a, b, c := s.Info(), r1.Info(), r2.Info()
		if a.HubID != b.HubID || a.Generation == b.Generation || b.Generation == c.Generation {
			t.Fatalf("%+v became %+v and %+v", a, b, c)
		}
		if !b.CreatedAt.Equal(a.CreatedAt) || b.RestoredAt.IsZero() {
			t.Fatalf("%+v became %+v", a, b)
		}
	})
	t.Run("a backup taken in use shows all of a change or nothing", func(t *testing.T) {
		s := open(t)
		done := make(chan struct{})
		var writers sync.WaitGroup
		for w := range 4 {
			writers.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-done:
						return
					default:
					}
					made, err := s.CreateTasks(t.Context(), []store.NewTask{newTask(fmt.Sprint(w, "+", i)), newTask(fmt.Sprint(w, "-", i))})
					if err != nil {
						t.Error(err)
						return
					}
					made[0].State, made[0].EndedAt = api.StateDone, start
					reply := store.Part{Key: store.PartKey{Kind: store.PartReply, Attempt: 1, Turn: 1}, Data: []byte("reply")}
					if _, err := s.UpdateTask(t.Context(), made[0], reply); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		var copies [][]byte
		for range 3 {
			before := len(list(t, s, store.TaskQuery{}))
			waitFor(t, "some tasks", func() bool { return len(list(t, s, store.TaskQuery{})) > before+20 })
			copies = append(copies, backup(t, s))
		}
		close(done)
		writers.Wait()
		for _, copied := range copies {
			r := restore(t, copied)
			tasks := list(t, r, store.TaskQuery{})
			if len(tasks) == 0 || len(tasks)%2 != 0 {
				t.Fatalf("%d tasks", len(tasks))
			}
			isOpen := map[string]bool{}
			for _, id := range openIDs(t, r) {
				isOpen[id] = true
			}
			for _, id := range tasks {
				wantPart(t, r, id, firstText, "text of "+id)
				_, err := r.Part(t.Context(), id, store.PartKey{Kind: store.PartReply, Attempt: 1, Turn: 1})
				if err == nil == isOpen[id] {
					t.Fatalf("task %s is open: %v, its reply: %v", id, isOpen[id], err)
				}
			}
		}
	})
	t.Run("a backup ends with its context", func(t *testing.T) {
		s := open(t)
		n := newTask("a")
		n.Text = make([]byte, 1<<20)
		create(t, s, n)
		ctx, cancel := context.WithCancel(t.Context())
		_, err := s.Backup(ctx, writer(func(p []byte) (int, error) {
			cancel()
			return len(p), nil
		}))
		fails(t, err, context.Canceled)
	})
	t.Run("a backup ends with the error of its writer", func(t *testing.T) {
		s := open(t)
		full := errors.New("the other disk is full")
		_, err := s.Backup(t.Context(), writer(func([]byte) (int, error) { return 0, full }))
		fails(t, err, full)
		ok(t, s.Writable())
	})
}

// writer is an io.Writer made of a function.
type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }
