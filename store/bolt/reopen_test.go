package bolt_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/bbolt"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
	"opencode-mesh/store/bolt"
	"opencode-mesh/store/boltdb"
)

var start = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// newTask is a queued task.
func newTask(id string) store.NewTask {
	return store.NewTask{Text: []byte("text of " + id), Task: store.Task{
		ID: id, Hash: "hash", State: api.StateQueued, Kind: api.TurnTask, Attempt: 1, Turn: 1, Since: start, CreatedAt: start,
		Controller: api.Party{ID: "id-ctl", Name: "ctl"}, Target: api.Party{ID: "id-node", Name: "node"},
	}}
}

// create stores queued tasks.
func create(t *testing.T, s *bolt.Store, ids ...string) []store.Task {
	t.Helper()
	var tasks []store.NewTask
	for _, id := range ids {
		tasks = append(tasks, newTask(id))
	}
	made, err := s.CreateTasks(t.Context(), tasks)
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	return made
}

// settle ends a task.
func settle(t *testing.T, s *bolt.Store, task store.Task, at time.Time) store.Task {
	t.Helper()
	task.State, task.EndedAt = api.StateDone, at
	task, err := s.UpdateTask(t.Context(), task, store.Part{Key: store.PartKey{Kind: store.PartReply, Attempt: 1, Turn: 1}, Data: []byte("reply")})
	if err != nil {
		t.Fatalf("settle: %v", err)
	}
	return task
}

// tasks lists everything, and what is open.
func tasks(t *testing.T, s *bolt.Store) (all []store.Task, open []string) {
	t.Helper()
	page, err := s.Tasks(t.Context(), store.TaskQuery{Limit: api.MaxPage})
	if err != nil {
		t.Fatal(err)
	}
	err = s.OpenTasks(t.Context(), func(task store.Task) error {
		open = append(open, task.ID)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return page.Tasks, open
}

func closed(t *testing.T, s *bolt.Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestAReopenedStoreIsAsItWas(t *testing.T) {
	cfg := config(t)
	s := open(t, cfg)
	info := s.Info()
	made := create(t, s, "a", "b", "c", "d")
	settle(t, s, made[0], start)
	settle(t, s, made[2], start.Add(time.Hour))
	if n, err := s.Prune(t.Context(), store.Retention{Before: start.Add(1), TombstonesUntil: start.Add(time.Hour)}, 10); n != 1 || err != nil {
		t.Fatalf("pruned %d: %v", n, err)
	}
	rev, err := s.PutSetting(t.Context(), "key", []byte("value"), 0)
	if err != nil {
		t.Fatal(err)
	}
	wantAll, wantOpen := tasks(t, s)
	closed(t, s)

	s = open(t, cfg)
	if diff := cmp.Diff(info, s.Info()); diff != "" {
		t.Fatalf("info (-before +after):\n%s", diff)
	}
	gotAll, gotOpen := tasks(t, s)
	if diff := cmp.Diff(wantAll, gotAll); diff != "" {
		t.Fatalf("tasks (-before +after):\n%s", diff)
	}
	if !slices.Equal(gotOpen, wantOpen) || !slices.Equal(gotOpen, []string{"b", "d"}) {
		t.Fatalf("open: %v before, %v after", wantOpen, gotOpen)
	}
	if _, err := s.CreateTasks(t.Context(), []store.NewTask{newTask("a")}); !errors.Is(err, store.ErrForgotten) {
		t.Fatalf("the pruned id: %v", err)
	}
	if next := create(t, s, "e")[0]; next.Seq <= made[3].Seq {
		t.Fatalf("number %d after %d", next.Seq, made[3].Seq)
	}
	if _, err := s.PutSetting(t.Context(), "key", nil, rev); err != nil {
		t.Fatalf("the revision did not last: %v", err)
	}
	if n, err := s.Prune(t.Context(), store.Retention{Before: start.Add(2 * time.Hour)}, 10); n != 1 || err != nil {
		t.Fatalf("pruned %d after the start: %v", n, err)
	}
}

func TestTheFileIsReadableByItsOwnerOnly(t *testing.T) {
	cfg := config(t)
	open(t, cfg)
	for path, want := range map[string]os.FileMode{cfg.Path(): 0o600, cfg.Dir: 0o700 | os.ModeDir} {
		fi, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if fi.Mode() != want {
			t.Errorf("%s has mode %v, want %v", filepath.Base(path), fi.Mode(), want)
		}
	}
}

func TestACredentialsHashIsTheKeyOfItsRecordAndNotInIt(t *testing.T) {
	cfg := config(t)
	s := open(t, cfg)
	id := store.Identity{ID: "id-1", Name: "alpha", Role: api.RoleNode, CreatedAt: start}
	cred := store.Credential{ID: "cred-1", IdentityID: "id-1", Name: "alpha", Hash: [32]byte{200, 201, 202, 203}, CreatedAt: start}
	if err := s.CreateIdentity(t.Context(), id, cred); err != nil {
		t.Fatal(err)
	}
	closed(t, s)
	raw, err := os.ReadFile(cfg.Path())
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(raw), "200,201,202,203") {
		t.Fatal("the hash is in the record beside being its key")
	}
}

func TestASecondHubOnTheSameDataIsTurnedAwayWithTheHolder(t *testing.T) {
	cfg := config(t)
	open(t, cfg)
	cfg.LockTimeout = 50 * time.Millisecond
	var wg sync.WaitGroup
	for what, try := range map[string]func() error{
		"open":    func() error { _, err := bolt.Open(cfg); return err },
		"compact": func() error { _, _, err := bolt.Compact(cfg.Dir); return err },
		"check":   func() error { _, err := bolt.Check(cfg.Dir); return err },
	} {
		wg.Go(func() { // each waits for its turn
			var locked *boltdb.LockedError
			if err := try(); !errors.As(err, &locked) || locked.Path != cfg.Path() || !strings.Contains(locked.Holder, fmt.Sprint(os.Getpid())) {
				t.Errorf("%s: %v", what, err)
			}
		})
	}
	wg.Wait()
}

func TestAFileThatIsNotOneOfOursIsRefused(t *testing.T) {
	for name, engine := range map[string]boltdb.Config{
		"newer schema": {Kind: "hub store", Schema: 2},
		"other kind":   {Kind: "node journal", Schema: 1},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(t)
			engine.Path, engine.BallastBytes = cfg.Path(), -1
			db, err := boltdb.Open(engine)
			if err != nil {
				t.Fatal(err)
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			before, err := os.ReadFile(cfg.Path())
			if err != nil {
				t.Fatal(err)
			}
			_, err = bolt.Open(cfg)
			newer, other := (*boltdb.NewerSchemaError)(nil), (*boltdb.KindError)(nil)
			if !errors.As(err, &newer) && !errors.As(err, &other) {
				t.Fatalf("opened: %v", err)
			}
			after, err := os.ReadFile(cfg.Path())
			if err != nil || string(after) != string(before) {
				t.Fatalf("the file was changed: %v", err)
			}
		})
	}
}

func TestADirectoryIsNeeded(t *testing.T) {
	for what, err := range map[string]error{
		"open":    func() error { _, err := bolt.Open(bolt.Config{}); return err }(),
		"check":   func() error { _, err := bolt.Check(""); return err }(),
		"restore": func() error { _, err := bolt.Restore(t.Context(), "backup", ""); return err }(),
		"compact": func() error { _, _, err := bolt.Compact(""); return err }(),
	} {
		if err == nil {
			t.Errorf("%s took no directory", what)
		}
	}
}

// tamper changes a closed store behind its back.
func tamper(t *testing.T, dir string, fn func(tx *bbolt.Tx) error) {
	t.Helper()
	db, err := bbolt.Open(bolt.Config{Dir: dir}.Path(), 0o600, &bbolt.Options{Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Update(fn); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestADamagedRecordIsAnErrorAndNotAnEmptyOne(t *testing.T) {
	cfg := config(t)
	s := open(t, cfg)
	create(t, s, "a", "b")
	closed(t, s)
	var good []byte
	edit := func(value func(old []byte) []byte) {
		tamper(t, cfg.Dir, func(tx *bbolt.Tx) error {
			b := tx.Bucket([]byte("tasks"))
			key, raw := b.Cursor().First()
			good = slices.Clone(raw)
			return b.Put(slices.Clone(key), value(good))
		})
	}
	edit(func(old []byte) []byte { return append(slices.Clone(old[:len(old)-1]), '!') })
	s, err := bolt.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Task(t.Context(), "a"); err == nil || errors.Is(err, store.ErrNotFound) {
		t.Errorf("a damaged task: %v", err)
	}
	if _, err := s.Tasks(t.Context(), store.TaskQuery{}); err == nil {
		t.Error("a listing passed over a damaged task")
	}
	if err := s.OpenTasks(context.Background(), func(store.Task) error { return nil }); err == nil {
		t.Error("the open tasks passed over a damaged task")
	}
	closed(t, s)
	whole := good
	edit(func([]byte) []byte { return []byte("short") })
	if _, err := bolt.Open(cfg); err == nil {
		t.Error("a store with a record without a head was opened")
	}
	edit(func([]byte) []byte { return whole[:len(whole)-1] })
	edit(func([]byte) []byte { return append(slices.Clone(whole[:len(whole)-1]), '}') })
}
