package bolt_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/bbolt"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
	"opencode-mesh/store/bolt"
	"opencode-mesh/store/boltdb"
)

var bound = store.BindingKey{Controller: "id-ctl", Target: "id-node", Workspace: "main"}

// sessions is all that is kept of a bound session.
type sessions struct {
	Binding store.Binding
	Fills   []api.Fill
	Digests []store.Digest
}

func sessionsOf(t *testing.T, s *bolt.Store) (all sessions) {
	t.Helper()
	var errs [3]error
	all.Binding, errs[0] = s.Binding(t.Context(), bound)
	all.Fills, errs[1] = s.Fills(t.Context(), bound)
	all.Digests, errs[2] = s.Digests(t.Context(), bound)
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	return all
}

// converse stores a binding with more fills than are kept, and digests.
func converse(t *testing.T, s *bolt.Store) sessions {
	t.Helper()
	b := store.Binding{BindingKey: bound, Generation: 1, Session: "ses_1", CreatedAt: start}
	for i := range store.MaxFills + 3 {
		var err error
		if b, err = s.PutBinding(t.Context(), b, fill(i)); err != nil {
			t.Fatal(err)
		}
	}
	for generation := range 3 {
		if err := s.PutDigest(t.Context(), bound, digest(generation+1)); err != nil {
			t.Fatal(err)
		}
	}
	return sessionsOf(t, s)
}

func fill(n int) api.Fill {
	return api.Fill{At: start, Generation: 1, Tokens: api.Tokens{Total: int64(n)}}
}

func digest(generation int) store.Digest {
	return store.Digest{Context: 1, Digest: api.Digest{Generation: generation, Task: "a", At: start, Facts: []string{"one"}}}
}

func TestSessionsAreTheSameAfterAReopenACompactionAndARestore(t *testing.T) {
	cfg := config(t)
	s := open(t, cfg)
	want := converse(t, s)
	file := backup(t, s)
	closed(t, s)

	restored := bolt.Config{Dir: filepath.Join(t.TempDir(), "restored"), BallastBytes: -1}
	if _, err := bolt.Restore(t.Context(), file, restored.Dir); err != nil {
		t.Fatal(err)
	}
	for _, how := range []struct {
		name string
		cfg  bolt.Config
		do   func() error
	}{
		{"reopened", cfg, func() error { return nil }},
		{"compacted", cfg, func() error { _, _, err := bolt.Compact(cfg.Dir); return err }},
		{"restored", restored, func() error { return nil }},
	} {
		if err := how.do(); err != nil {
			t.Fatal(how.name, err)
		}
		s := open(t, how.cfg)
		if diff := cmp.Diff(want, sessionsOf(t, s)); diff != "" {
			t.Errorf("%s (-before +after):\n%s", how.name, diff)
		}
		closed(t, s)
	}
	s = open(t, cfg)
	b, err := s.PutBinding(t.Context(), want.Binding, fill(-1))
	if err != nil {
		t.Fatal(err)
	}
	if got := sessionsOf(t, s); got.Fills[len(got.Fills)-1].Total != -1 || got.Fills[0].Total != 4 || b.Fills != store.MaxFills+4 {
		t.Errorf("the series does not go on where it ended: %d of %d fills, from %+v", len(got.Fills), b.Fills, got.Fills[0])
	}
}

func TestABindingWhoseCommitFailsLeavesNoFill(t *testing.T) {
	cfg := config(t)
	full := make(chan struct{}, 1)
	cfg.Faults = boltdb.FaultFunc(func(op boltdb.CommitOp) error {
		select {
		case <-full:
			return boltdb.WriteFault(syscall.ENOSPC)
		default:
			return nil
		}
	})
	cfg.ProbeInterval = time.Millisecond
	s := open(t, cfg)
	want := converse(t, s)
	full <- struct{}{}
	if _, err := s.PutBinding(t.Context(), want.Binding, fill(-1)); !errors.Is(err, store.ErrFull) {
		t.Fatalf("got error %v, want %v", err, store.ErrFull)
	}
	if diff := cmp.Diff(want, sessionsOf(t, s)); diff != "" {
		t.Fatalf("the failed commit left (-before +after):\n%s", diff)
	}
}

// TestFilesOfHubsThatKnewNoSessionsAreTaken makes files that are without what later
// hubs added to schema 1.
func TestFilesOfHubsThatKnewNoSessionsAreTaken(t *testing.T) {
	older := func(t *testing.T) bolt.Config {
		cfg := config(t)
		s, err := bolt.Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		create(t, s, "a")
		_, err = s.PutBinding(t.Context(), store.Binding{BindingKey: bound, Generation: 3, Session: "ses_1"})
		if err != nil {
			t.Fatal(err)
		}
		closed(t, s)
		tamper(t, cfg.Dir, func(tx *bbolt.Tx) error {
			var errs []error
			for _, name := range []string{"fills", "digests", "mails", "mail_ids", "mail_bodies"} {
				errs = append(errs, tx.DeleteBucket([]byte(name)))
			}
			return errors.Join(errs...)
		})
		return cfg
	}
	// works uses a store that was such a file.
	works := func(t *testing.T, cfg bolt.Config) {
		s := open(t, cfg)
		before := sessionsOf(t, s)
		if before.Binding.Generation != 3 || before.Binding.Session != "ses_1" || len(before.Fills)+len(before.Digests) != 0 {
			t.Fatalf("%+v", before)
		}
		_, errFill := s.PutBinding(t.Context(), before.Binding, fill(1))
		errDigest := s.PutDigest(t.Context(), bound, digest(1))
		if err := errors.Join(errFill, errDigest); err != nil {
			t.Fatal(err)
		}
		if after := sessionsOf(t, s); len(after.Fills) != 1 || len(after.Digests) != 1 {
			t.Fatalf("%+v", after)
		}
		if all, open := tasks(t, s); len(all) != 1 || !slices.Equal(open, []string{"a"}) {
			t.Fatalf("tasks %v", all)
		}
	}
	t.Run("opened", func(t *testing.T) { works(t, older(t)) })
	t.Run("checked", func(t *testing.T) {
		cfg := older(t)
		before, err := os.ReadFile(cfg.Path())
		if err != nil {
			t.Fatal(err)
		}
		sound(t, cfg.Dir)
		after, err := os.ReadFile(cfg.Path())
		if err != nil || string(after) != string(before) {
			t.Fatalf("the check changed the file: %v", err)
		}
		works(t, cfg)
	})
	t.Run("compacted", func(t *testing.T) {
		cfg := older(t)
		if _, _, err := bolt.Compact(cfg.Dir); err != nil {
			t.Fatal(err)
		}
		sound(t, cfg.Dir)
		works(t, cfg)
	})
	t.Run("restored", func(t *testing.T) {
		cfg := config(t)
		if _, err := bolt.Restore(t.Context(), older(t).Path(), cfg.Dir); err != nil {
			t.Fatal(err)
		}
		sound(t, cfg.Dir)
		works(t, cfg)
	})
}

// talkerEnv makes the test binary one that stores fills and digests in the
// directory it names until it is killed.
const talkerEnv = "BOLT_TEST_TALKER"

// talk prints a number after its fill and its digest were acknowledged.
func talk(dir string) error {
	ctx := context.Background()
	s, err := bolt.Open(bolt.Config{Dir: dir, BallastBytes: -1})
	if err != nil {
		return err
	}
	b, err := s.Binding(ctx, bound)
	if errors.Is(err, store.ErrNotFound) {
		b, err = store.Binding{BindingKey: bound, Generation: 1}, nil
	}
	for n := int(b.Fills); err == nil; n++ {
		if b, err = s.PutBinding(ctx, b, fill(n)); err == nil {
			err = s.PutDigest(ctx, bound, digest(n+1))
		}
		if err == nil {
			fmt.Println(n)
		}
	}
	return err
}

func TestEveryAcknowledgedFillAndDigestSurvivesAKill(t *testing.T) {
	cfg := config(t)
	const rounds, each = 3, 300 // beyond MaxFills together
	for round := range rounds {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), talkerEnv+"="+cfg.Dir)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		last := -1
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if _, err := fmt.Sscan(lines.Text(), &last); err != nil {
				t.Fatal(err)
			}
			if last == (round+1)*each {
				_ = cmd.Process.Kill() // what was printed meanwhile is still read
			}
		}
		_ = cmd.Wait()
		if last < (round+1)*each {
			t.Fatalf("the program ended at %d", last)
		}
		s := open(t, cfg)
		got := sessionsOf(t, s)
		stored := int(got.Binding.Fills)
		if stored != last+1 && stored != last+2 {
			t.Fatalf("%d fills are counted after the %dth", stored, last)
		}
		if len(got.Fills) != min(stored, store.MaxFills) {
			t.Fatalf("%d fills are there of %d", len(got.Fills), stored)
		}
		for i, f := range got.Fills {
			if want := stored - len(got.Fills) + i; f.Total != int64(want) {
				t.Fatalf("fill %d where %d should be", f.Total, want)
			}
		}
		if n := len(got.Digests); n < last+1 || got.Digests[n-1].Generation != n {
			t.Fatalf("%d digests are there of %d", n, last+1)
		}
		// The program may have ended between the two.
		if err := s.PutDigest(t.Context(), bound, digest(stored)); err != nil {
			t.Fatal(err)
		}
		closed(t, s)
	}
}
