package statefile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"
)

const (
	// LockTimeout is how long an Update waits for its turn and for the lock.
	LockTimeout = 5 * time.Second
	// LockStale is the age at which a lock counts as left behind and is removed. It
	// is the file's age by its time of modification, whoever made it.
	LockStale = 15 * time.Second

	lockName = ".state.lock"
	// lockPoll is the mean time between two looks at a lock that is held. Other
	// programs look every 10 ms, too.
	lockPoll = 10 * time.Millisecond
	// lockPollOld is that of those who have waited for lockOld. To look more often is
	// all that gives them precedence.
	lockPollOld = 2 * time.Millisecond
	lockOld     = time.Second
	// lockBurst is how long a process takes the lock again and again without a
	// pause in which another could get it.
	lockBurst = 200 * time.Millisecond
	// lockRest is such a pause: whoever looks every 10 ms looks in it.
	lockRest = lockPoll + lockPoll/2
	// lockRestMax bounds the pause of who waited long.
	lockRestMax = 250 * time.Millisecond
	// maxHolderBytes bounds what is read of a lock.
	maxHolderBytes = 256
)

// lock is the lock file while we hold it.
type lock struct {
	disk disk
	path string
	// file stays open, so that the number of its inode is not given to another file.
	file file
	text string
	turn *turn
}

// acquire makes the directory and takes the lock, waiting for at most LockTimeout.
func (s *Store) acquire(ctx context.Context) (*lock, error) {
	began := time.Now()
	ctx, cancel := context.WithDeadlineCause(ctx, began.Add(LockTimeout), errLockTimeout)
	defer cancel()
	if err := s.disk.Mkdir(s.dir, dirMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	path := filepath.Join(s.dir, lockName)
	t := turnOf(s.dir)
	err := t.take(ctx)
	if err == nil {
		var l *lock
		if l, err = s.create(ctx, path, began, t); err == nil {
			return l, nil
		}
		t.give()
	}
	if errors.Is(err, errLockTimeout) {
		return nil, &LockedError{Path: path, Holder: readHolder(s.disk, path), Waited: time.Since(began)}
	}
	return nil, err
}

// errLockTimeout is the cause of the end of a context.
var errLockTimeout = errors.New("the lock is held")

// create polls until the lock file is ours.
func (s *Store) create(ctx context.Context, path string, began time.Time, t *turn) (*lock, error) {
	if err := pause(ctx, t.courtesy(time.Now())); err != nil {
		return nil, err
	}
	first := time.Now()
	for {
		f, err := s.disk.Create(path, fileMode)
		if err == nil {
			return s.sign(f, path, t)
		}
		if !errors.Is(err, fs.ErrExist) && !lockBusy(err) {
			return nil, fmt.Errorf("take the lock: %w", err)
		}
		again, err := s.breakStale(path)
		if err == nil && !again {
			err = pause(ctx, pollAfter(time.Since(began)))
		}
		if err != nil {
			return nil, err
		}
		t.waited = time.Since(first)
	}
}

// sign writes who holds the lock into it.
func (s *Store) sign(f file, path string, t *turn) (*lock, error) {
	l := &lock{disk: s.disk, path: path, file: f, turn: t, text: fmt.Sprintf("%d@%d", os.Getpid(), time.Now().UnixMilli())}
	if _, err := io.WriteString(f, l.text); err != nil {
		// Without its text it could not be told from another's.
		return nil, errors.Join(fmt.Errorf("write the lock: %w", err), f.Close(), s.disk.Remove(path))
	}
	return l, nil
}

// breakStale removes a lock that was left behind, and says whether to try at once.
// Between the second look and the removal another process may break the same lock
// and make its own, which we then remove: its holder notices before it writes.
func (s *Store) breakStale(path string) (again bool, err error) {
	first, err := s.disk.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("look at the lock: %w", err)
	}
	if !first.Mode().IsRegular() {
		return false, &NotRegularError{Path: path, Mode: first.Mode()}
	}
	if time.Since(first.ModTime()) <= LockStale {
		return false, nil
	}
	holder := readHolder(s.disk, path)
	second, err := s.disk.Lstat(path)
	if err != nil || !os.SameFile(first, second) || !second.ModTime().Equal(first.ModTime()) {
		return true, nil
	}
	if err := s.disk.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("remove a lock that was left behind: %w", err)
	}
	s.log.Warn("opencomms: removed a lock that was left behind", "path", path, "holder", holder, "age", time.Since(first.ModTime()).Round(time.Second))
	return true, nil
}

// ours says whether the lock is still the file that we made.
func (l *lock) ours() bool {
	mine, err := l.file.Stat()
	if err != nil {
		return false
	}
	there, err := l.disk.Lstat(l.path)
	return err == nil && os.SameFile(mine, there) && readHolder(l.disk, l.path) == l.text
}

// release gives the lock up, unless it is another's by now.
func (l *lock) release() error {
	defer l.turn.give()
	mine := l.ours()
	err := l.file.Close() // first: Windows removes no open file
	if mine {
		err = errors.Join(err, l.disk.Remove(l.path))
	}
	if err != nil {
		return fmt.Errorf("give the lock up: %w", err)
	}
	return nil
}

// readHolder is what stands in a lock.
func readHolder(d disk, path string) string {
	f, err := d.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxHolderBytes))
	if err != nil {
		return ""
	}
	return string(text)
}

// pollAfter is the time to the next look for those who have waited for so long. A
// random part keeps processes that began together from staying together.
func pollAfter(waited time.Duration) time.Duration {
	mean := lockPoll - time.Duration(float64(lockPoll-lockPollOld)*min(1, waited.Seconds()/lockOld.Seconds()))
	return mean/2 + rand.N(mean)
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return context.Cause(ctx)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// turn orders the users of one directory within this process: first come, first
// served, and only one of them looks at the lock.
type turn struct {
	slot chan struct{} // holds one while somebody has the turn; waiters are served in order

	// For who has the turn:
	waited time.Duration // for another process, when the lock was taken last
	since  time.Time     // when the lock was taken first without a pause since
	last   time.Time     // when it was given up
}

// turns has one entry for each directory that this process ever used.
var turns sync.Map

func turnOf(dir string) *turn {
	// The same directory by another name is another queue, which costs order only.
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	t, _ := turns.LoadOrStore(dir, &turn{slot: make(chan struct{}, 1)})
	return t.(*turn)
}

func (t *turn) take(ctx context.Context) error {
	select {
	case t.slot <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (t *turn) give() {
	t.last = time.Now()
	<-t.slot
}

// courtesy is how long to leave the lock alone before it is taken again. Whoever
// gives it up and takes it at once always wins against those who look every 10 ms.
// So who had to wait for others rests for as long, which leaves fewer to draw lots
// for it, and who met none rests once every lockBurst, since they cannot be met
// otherwise.
func (t *turn) courtesy(now time.Time) time.Duration {
	idle := now.Sub(t.last)
	rest := time.Duration(0)
	switch {
	case t.waited > 0:
		rest = min(max(t.waited, lockRest), lockRestMax)
	case idle >= lockRest:
		t.since = now
	case now.Sub(t.since) >= lockBurst:
		rest = lockRest
	}
	t.waited = 0
	if rest <= idle {
		return 0
	}
	t.since = now.Add(rest - idle)
	return rest - idle
}
