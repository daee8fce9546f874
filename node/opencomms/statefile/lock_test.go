package statefile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"opencode-mesh/protocol/opencomms"
)

func nothing(*opencomms.State) error { return nil }

func TestTheLockIsHeldWhileTheStateIsChangedAndGoneAfterwards(t *testing.T) {
	s := Open(t.TempDir(), Options{})
	path := filepath.Join(s.dir, lockName)
	err := s.Update(t.Context(), func(st *opencomms.State) error {
		var pid, at int64
		if _, err := fmt.Sscanf(read(t, path), "%d@%d", &pid, &at); err != nil || pid != int64(os.Getpid()) || time.Since(time.UnixMilli(at)).Abs() > time.Minute {
			t.Errorf("the lock says %q (%v)", read(t, path), err)
		}
		add(st, "ocm_1")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want(t, names(t, s.dir), []string{stateName})
}

func TestAHeldLockIsWaitedForFiveSecondsAndItsHolderNamed(t *testing.T) {
	t.Parallel()
	s := Open(t.TempDir(), Options{})
	write(t, filepath.Join(s.dir, lockName), "4711@1700000000000")
	began := time.Now()
	err := s.Update(t.Context(), nothing)
	var locked *LockedError
	if !errors.As(err, &locked) || locked.Holder != "4711@1700000000000" || !strings.Contains(err.Error(), "4711") {
		t.Fatal(err)
	}
	if waited := time.Since(began); waited < LockTimeout {
		t.Error("waited only", waited)
	}
	want(t, names(t, s.dir), []string{lockName})
}

func TestWhoWaitsForALockGetsItOnceItIsGivenUp(t *testing.T) {
	s := Open(t.TempDir(), Options{})
	path := filepath.Join(s.dir, lockName)
	write(t, path, "4711@1700000000000")
	done := make(chan error)
	go func() {
		done <- s.Update(context.Background(), func(st *opencomms.State) error { add(st, "ocm_1"); return nil })
	}()
	select {
	case err := <-done:
		t.Fatal("did not wait", err)
	case <-time.After(50 * time.Millisecond):
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	want(t, ids(t, s), []string{"ocm_1"})
}

func TestTheEndOfTheContextEndsTheWait(t *testing.T) {
	s := Open(t.TempDir(), Options{})
	write(t, filepath.Join(s.dir, lockName), "4711@1700000000000")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := s.Update(ctx, nothing); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
}

func TestALockIsRemovedOnceItIsFifteenSecondsOld(t *testing.T) {
	s := Open(t.TempDir(), Options{})
	path := filepath.Join(s.dir, lockName)
	write(t, path, "4711@1700000000000")
	age(t, path, LockStale-2*time.Second)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := s.Update(ctx, nothing); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal("a younger lock was not respected:", err)
	}
	age(t, path, LockStale+time.Second)
	mustAdd(t, s, "ocm_1")
	want(t, names(t, s.dir), []string{stateName})
}

func TestManyWhoMeetALockThatWasLeftBehindDoNotLoseAnything(t *testing.T) {
	s := Open(t.TempDir(), Options{})
	path := filepath.Join(s.dir, lockName)
	write(t, path, "4711@1700000000000")
	age(t, path, time.Hour)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() { mustAdd(t, Open(s.project, Options{}), fmt.Sprint("ocm_", i)) })
	}
	wg.Wait()
	if n := len(ids(t, s)); n != 20 {
		t.Fatal(n, "of 20 messages are there")
	}
}

func TestALockThatWasTakenAwayIsNoticedBeforeAnythingIsWritten(t *testing.T) {
	s := Open(t.TempDir(), Options{})
	mustAdd(t, s, "ocm_1")
	before := read(t, s.path)
	path := filepath.Join(s.dir, lockName)
	for name, take := range map[string]func() error{
		"another took it": func() error { return errors.Join(os.Remove(path), os.WriteFile(path, []byte("1@1"), 0o600)) },
		"overwritten":     func() error { return os.WriteFile(path, []byte("1@1"), 0o600) },
		"removed":         func() error { return os.Remove(path) },
	} {
		err := s.Update(t.Context(), func(st *opencomms.State) error { add(st, "ocm_2"); return take() })
		if !errors.Is(err, ErrLockLost) {
			t.Error(name, err)
		}
		if read(t, s.path) != before {
			t.Error(name, "the file was written")
		}
		for _, n := range names(t, s.dir) {
			if n != stateName && n != lockName {
				t.Error(name, n, "stayed behind")
			}
		}
		if name != "removed" && read(t, path) != "1@1" {
			t.Error(name, "the other's lock was removed")
		}
		_ = os.Remove(path)
	}
}

func TestWhatIsNoLockIsRefusedAtOnce(t *testing.T) {
	s := Open(t.TempDir(), Options{})
	path := filepath.Join(s.dir, lockName)
	if err := os.MkdirAll(path, 0o700); err != nil {
		t.Fatal(err)
	}
	var not *NotRegularError
	if err := s.Update(t.Context(), nothing); !errors.As(err, &not) || !strings.Contains(err.Error(), "a directory") {
		t.Error(err)
	}
	if runtime.GOOS != "windows" {
		if err := errors.Join(os.Remove(path), os.Symlink("nowhere", path)); err != nil {
			t.Fatal(err)
		}
		if err := s.Update(t.Context(), nothing); !errors.As(err, &not) || !strings.Contains(err.Error(), "symbolic link") {
			t.Error(err)
		}
	}
}

func TestAnErrorOtherThanThatTheLockIsThereIsToldAtOnce(t *testing.T) {
	for _, errno := range []error{syscall.EACCES, syscall.EROFS, syscall.EMFILE} {
		s := Open(t.TempDir(), Options{})
		d := &faulty{disk: osDisk{}, at: 2, err: errno}
		s.disk = d
		began := time.Now()
		if err := s.Update(t.Context(), nothing); !errors.Is(err, errno) {
			t.Error(errno, err)
		}
		if d.step != 2 || time.Since(began) >= LockTimeout {
			t.Error(errno, "was tried again", d.log)
		}
	}
}

func TestAProjectThatIsNotThereIsNotMade(t *testing.T) {
	project := filepath.Join(t.TempDir(), "typo")
	s := Open(project, Options{})
	if st, err := s.Read(t.Context()); err != nil || st.Messages.Len() != 0 {
		t.Error(err)
	}
	if err := s.Update(t.Context(), nothing); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if _, err := os.Lstat(project); !errors.Is(err, os.ErrNotExist) {
		t.Error("it was made", err)
	}
}

func TestUsersInOneProcessTakeTurns(t *testing.T) {
	project := t.TempDir()
	var wg sync.WaitGroup
	for i := range 30 {
		s := Open(project, Options{})
		wg.Go(func() {
			for k := range 5 {
				mustAdd(t, s, fmt.Sprintf("ocm_%d_%d", i, k))
			}
		})
	}
	wg.Wait()
	if n := len(ids(t, Open(project, Options{}))); n != 150 {
		t.Fatal(n, "of 150 messages are there")
	}
}

func TestWhoUsesTheLockAgainAndAgainLeavesItAloneForAWhile(t *testing.T) {
	at := time.Now()
	turn := &turn{slot: make(chan struct{}, 1)}
	use := func(waited time.Duration) time.Duration {
		rest := turn.courtesy(at)
		at = at.Add(rest + 5*time.Millisecond) // it is held so long
		turn.waited, turn.last = waited, at
		return rest
	}
	if rest := use(0); rest != 0 {
		t.Fatal("the first use rests", rest)
	}
	var held, rested time.Duration
	for range 1000 {
		rested += use(0)
		held += 5 * time.Millisecond
	}
	if n := rested / lockRest; n < held/lockBurst-1 || n > held/lockBurst+1 {
		t.Errorf("alone: rested for %v in %v", rested, held)
	}
	for waited, want := range map[time.Duration]time.Duration{time.Millisecond: lockRest, 100 * time.Millisecond: 100 * time.Millisecond, time.Second: lockRestMax} {
		use(waited)
		if rest := use(0); rest != want {
			t.Errorf("after a wait of %v a rest of %v, not %v", waited, rest, want)
		}
	}
	use(100 * time.Millisecond)
	at = at.Add(60 * time.Millisecond)
	if rest := use(0); rest != 40*time.Millisecond {
		t.Error("idle time does not count as rest:", rest)
	}
	use(time.Second)
	at = at.Add(time.Second)
	if rest := use(0); rest != 0 {
		t.Error("after a second of idle time a rest of", rest)
	}
}

func TestThoseWhoWaitedLongLookMoreOften(t *testing.T) {
	for range 1000 {
		if d := pollAfter(0); d < lockPoll/2 || d > lockPoll*3/2 {
			t.Fatal("at first", d)
		}
		if d := pollAfter(2 * LockTimeout); d < lockPollOld/2 || d > lockPollOld*3/2 {
			t.Fatal("at last", d)
		}
	}
}
