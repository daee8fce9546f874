package spool

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"time"

	"opencode-mesh/node/internal/proc"
	"opencode-mesh/node/peers/files"
)

const (
	// LockTimeout is how long a change waits for its turn in this process and for the
	// lock, together.
	LockTimeout = 5 * time.Second
	// AcceptTimeout is the same for a message that is to be accepted: its sender waits for
	// peers.SendTimeout only.
	AcceptTimeout = 2500 * time.Millisecond
	// LockStale is the age at which a claim on the lock counts as left behind and is
	// removed. It is the file's age by its time of modification, whoever made it. A claim
	// that says which process made it goes as soon as that one is known to have ended.
	LockStale = 30 * time.Second

	lockDir  = ".lock-tickets"
	lockPoll = 10 * time.Millisecond
	// maxTicket is the largest number that 16 digits hold.
	maxTicket = 9_999_999_999_999_999
	// maxClaimBytes bounds what is read of a claim.
	maxClaimBytes = 4 << 10
)

// ErrLockLost says that another program removed our claim on the lock, believing that we
// were dead, before all was written. What was written so far counts as it stands.
var ErrLockLost = errors.New("another program took the lock, because this one held it for too long; try again")

// A LockedError says that somebody else had the lock for as long as was waited.
type LockedError struct {
	Path   string // of the claim that was in the way; the directory, if it was this process
	PID    int    // of whoever made it; 0 if that cannot be read
	Age    time.Duration
	Waited time.Duration
}

func (e *LockedError) Error() string {
	return fmt.Sprintf("%s of process %d, %v old, holds the lock of the queue, waited %v; try again, it is removed once it is %v old",
		e.Path, e.PID, e.Age.Round(time.Millisecond), e.Waited.Round(time.Millisecond), LockStale)
}

// claim is what stands in a file of the lock. The names and the times of the files are
// what programs agree by. The mark of the process is ours alone: other programs have a
// bare pid there, of which nobody knows in which container it counts.
type claim struct {
	Kind      string    `json:"kind"`
	Ticket    int64     `json:"ticket"`
	Token     string    `json:"token"`
	PID       int       `json:"pid"`
	CreatedAt int64     `json:"createdAt"`
	Process   proc.Mark `json:"process"`
}

var claimName = regexp.MustCompile(`^(?:choosing-[0-9a-f]{32}|ticket-([0-9]{16})-[0-9a-f]{32})\.json$`)

// lock is the lock of an endpoint's directory while we hold it.
//
// It is a bakery: whoever wants it says that it is choosing, takes a number above all that
// are there, and waits until nobody chooses and its own number is the lowest. Without the
// first step two could take one number and the later of them come first.
type lock struct {
	sys    files.FS
	dir    string
	ticket string // the file's path
}

// takeLock waits for the lock until ctx ends. The endpoint's directory must be there.
func takeLock(ctx context.Context, sys files.FS, endpointDir string) (l *lock, err error) {
	began := time.Now()
	dir := filepath.Join(endpointDir, lockDir)
	for again := false; ; {
		if err := files.MakeDir(sys, dir); err != nil {
			return nil, fmt.Errorf("take the lock: %w", err)
		}
		l, err := draw(sys, dir)
		if errors.Is(err, fs.ErrNotExist) && !again {
			again = true // the directory was cleared away at this moment
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("take the lock: %w", err)
		}
		blocker, err := l.wait(ctx)
		if err == nil {
			return l, nil
		}
		err = errors.Join(err, l.release())
		switch {
		case errors.Is(err, ErrLockLost) && ctx.Err() == nil:
			continue // the clock jumped, or the machine slept: nothing was done yet
		case errors.Is(err, errLockTimeout):
			return nil, blocked(sys, dir, blocker, time.Since(began))
		}
		return nil, fmt.Errorf("take the lock: %w", err)
	}
}

// errLockTimeout is the cause of the end of a context.
var errLockTimeout = errors.New("the lock is held")

// draw takes a number. No file of ours is left if that fails.
func draw(sys files.FS, dir string) (l *lock, err error) {
	var id [16]byte
	_, _ = rand.Read(id[:])
	c := claim{Kind: "choosing", Token: hex.EncodeToString(id[:]), PID: os.Getpid(), CreatedAt: time.Now().UnixMilli(), Process: proc.Self()}
	choosing := filepath.Join(dir, "choosing-"+c.Token+".json")
	defer func() {
		// After the number is there: nobody may see us without one of the two.
		if removed := sys.Remove(choosing); removed != nil && !errors.Is(removed, fs.ErrNotExist) && err == nil {
			err = errors.Join(removed, l.release())
		}
	}()
	if err := write(sys, choosing, c); err != nil {
		return nil, err
	}
	claims, err := readClaims(sys, dir)
	if err != nil {
		return nil, err
	}
	c.Kind = "ticket"
	for _, other := range claims {
		c.Ticket = max(c.Ticket, other.number)
	}
	if c.Ticket++; c.Ticket > maxTicket {
		return nil, fmt.Errorf("%s has the last number there is; remove what is in it", dir)
	}
	l = &lock{sys: sys, dir: dir, ticket: filepath.Join(dir, fmt.Sprintf("ticket-%016d-%s.json", c.Ticket, c.Token))}
	if err := write(sys, l.ticket, c); err != nil {
		return nil, errors.Join(err, l.release())
	}
	return l, nil
}

// write makes a file of the lock.
func write(sys files.FS, path string, c claim) error {
	data, err := json.Marshal(c)
	if err != nil {
		return err
	}
	f, err := sys.Create(path, 0o600)
	if err != nil {
		return err
	}
	if _, err = f.Write(data); err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// wait polls until the number is the lowest. If it ends before, it says who was in the
// way.
func (l *lock) wait(ctx context.Context) (blocker string, err error) {
	mine := filepath.Base(l.ticket)
	for {
		claims, err := readClaims(l.sys, l.dir)
		if err != nil {
			return "", err
		}
		if !slices.ContainsFunc(claims, func(c found) bool { return c.name == mine }) {
			return "", ErrLockLost
		}
		// Those who choose come first, then the numbers, the lowest first.
		if claims[0].name == mine {
			return "", nil
		}
		select {
		case <-ctx.Done():
			return claims[0].name, context.Cause(ctx)
		case <-time.After(lockPoll):
		}
	}
}

// found is a file of the lock.
type found struct {
	name   string
	number int64 // 0: choosing
}

// readClaims lists the files of the lock, and removes those that were left behind.
func readClaims(sys files.FS, dir string) ([]found, error) {
	entries, err := sys.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var claims []found
	for _, e := range entries {
		match := claimName.FindStringSubmatch(e.Name())
		if match == nil {
			continue
		}
		info, err := e.Info()
		if err == nil && (time.Since(info.ModTime()) > LockStale || abandoned(sys, filepath.Join(dir, e.Name()))) {
			if err = sys.Remove(filepath.Join(dir, e.Name())); err == nil {
				continue
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		c := found{name: e.Name()}
		if match[1] != "" {
			if c.number, err = strconv.ParseInt(match[1], 10, 64); err != nil {
				return nil, err
			}
			c.number = max(c.number, 1)
		}
		claims = append(claims, c)
	}
	// Names of equal numbers decide; 0 puts those who choose before all numbers.
	slices.SortFunc(claims, func(a, b found) int {
		return cmp.Or(cmp.Compare(min(a.number, 1), min(b.number, 1)), cmp.Compare(a.name, b.name))
	})
	return claims, nil
}

// readClaim reads what stands in a file of the lock; nothing, if it cannot be read.
func readClaim(sys files.FS, path string) (c claim) {
	if data, err := files.Read(sys, path, maxClaimBytes); err == nil && json.Unmarshal(data, &c) != nil {
		return claim{}
	}
	return c
}

// abandoned says that whoever made a claim cannot come back to it.
func abandoned(sys files.FS, path string) bool { return readClaim(sys, path).Process.Gone() }

// ours says whether the lock is still ours.
func (l *lock) ours() bool {
	_, err := l.sys.Lstat(l.ticket)
	return err == nil
}

// release gives the number back.
func (l *lock) release() error {
	err := l.sys.Remove(l.ticket)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = l.sys.SyncDir(l.dir)
	}
	if err != nil {
		return fmt.Errorf("give the lock up: %w", err)
	}
	return nil
}

// blocked describes who was in the way.
func blocked(sys files.FS, dir, name string, waited time.Duration) error {
	e := &LockedError{Path: filepath.Join(dir, name), Waited: waited}
	e.PID = readClaim(sys, e.Path).PID
	if info, err := sys.Lstat(e.Path); err == nil {
		e.Age = time.Since(info.ModTime())
	}
	return e
}
