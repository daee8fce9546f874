package statefile

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// told waits for word of a change.
func told(t *testing.T, changed <-chan struct{}, of string) {
	t.Helper()
	select {
	case _, ok := <-changed:
		if !ok {
			t.Fatal("the watch ended before ", of)
		}
	case <-time.After(2 * time.Minute):
		t.Fatal("nothing was told of ", of)
	}
}

// settle reads what is left to be told of earlier changes.
func settle(changed <-chan struct{}) {
	for {
		select {
		case <-changed:
		case <-time.After(300 * time.Millisecond):
			return
		}
	}
}

// watching opens a project and watches it until the test ends.
func watching(t *testing.T, s *Store) <-chan struct{} {
	ctx, cancel := context.WithCancel(t.Context())
	changed := s.Watch(ctx)
	t.Cleanup(func() {
		cancel()
		for range changed { // until it is closed
		}
	})
	return changed
}

func TestAWatchTellsOfEveryWayInWhichTheFileChanges(t *testing.T) {
	for name, slow := range map[string]time.Duration{
		"by events":  time.Hour, // too slow to be what tells
		"by looking": 10 * time.Millisecond,
	} {
		t.Run(name, func(t *testing.T) {
			s := Open(t.TempDir(), Options{})
			s.slow = slow
			mustAdd(t, s, "ocm_1")
			changed := watching(t, s)
			mustAdd(t, s, "ocm_2")
			told(t, changed, "a replacement")
			settle(changed)
			write(t, s.path, read(t, s.path)+"\n")
			told(t, changed, "a write in place")
			settle(changed)
			if err := s.Touch(t.Context()); err != nil {
				t.Fatal(err)
			}
			told(t, changed, "a touch")
			settle(changed)
			if err := os.Rename(s.path, s.path+".away"); err != nil {
				t.Fatal(err)
			}
			told(t, changed, "its end")
			settle(changed)
			if err := os.Rename(s.path+".away", s.path); err != nil {
				t.Fatal(err)
			}
			told(t, changed, "its return")
		})
	}
}

func TestAWatchIsNotWokenByTheLockAndOtherFiles(t *testing.T) {
	s := Open(t.TempDir(), Options{})
	mustAdd(t, s, "ocm_1")
	changed := watching(t, s)
	settle(changed)
	if err := s.Update(t.Context(), nothing); err != nil { // takes the lock and writes nothing
		t.Fatal(err)
	}
	write(t, filepath.Join(s.dir, "pins", "x.json"), "{}")
	write(t, filepath.Join(s.dir, ".state.1.0123abcd.tmp"), "{}")
	select {
	case <-changed:
		t.Error("it was")
	case <-time.After(300 * time.Millisecond):
	}
}

func TestManyChangesAreToldAsOne(t *testing.T) {
	w := &watch{store: Open(t.TempDir(), Options{}), changed: make(chan struct{}, 1)}
	for range 20 {
		w.tell()
	}
	<-w.changed
	select {
	case <-w.changed:
		t.Error("they were told twice")
	default:
	}
	w.tell()
	<-w.changed
}

func TestAWatchFollowsADirectoryThatComesGoesAndComesAgain(t *testing.T) {
	s := Open(t.TempDir(), Options{})
	s.slow = 20 * time.Millisecond
	changed := watching(t, s)
	for range 3 {
		mustAdd(t, s, "ocm_1")
		told(t, changed, "a new directory")
		settle(changed)
		if err := os.RemoveAll(s.dir); err != nil {
			t.Fatal(err)
		}
		told(t, changed, "its end")
		settle(changed)
	}
	// Another directory in its place.
	mustAdd(t, s, "ocm_1")
	settle(changed)
	if err := os.Rename(s.dir, s.dir+".away"); err != nil {
		t.Fatal(err)
	}
	mustAdd(t, s, "ocm_2")
	told(t, changed, "another directory")
	settle(changed)
	mustAdd(t, s, "ocm_3")
	told(t, changed, "a change in it")
}

func TestAWatchEndsWithItsContext(t *testing.T) {
	s := Open(t.TempDir(), Options{})
	mustAdd(t, s, "ocm_1")
	ctx, cancel := context.WithCancel(t.Context())
	changed := s.Watch(ctx)
	cancel()
	for {
		select {
		case _, ok := <-changed:
			if !ok {
				return
			}
		case <-time.After(2 * time.Minute):
			t.Fatal("it goes on")
		}
	}
}
