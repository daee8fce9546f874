package boltdb

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

const (
	// lockSuffix is added to the database path for the lock file. The lock on it is
	// what counts; unlike bbolt's own it is kept while the file is opened anew.
	lockSuffix = ".lock"
	// lockRetry is the time between two attempts to get a lock.
	lockRetry = 25 * time.Millisecond
	// minBoltWait is what bbolt gets at least for its own lock: 0 would be for ever.
	minBoltWait = 100 * time.Millisecond
	// unknownHolder stands for a process that did not write the lock file.
	unknownHolder = "an unknown process"
	// maxHolderBytes bounds what is read of a lock file.
	maxHolderBytes = 4096
)

// errLocked is what tryLock returns if another process holds the lock.
var errLocked = errors.New("locked")

// holder is what a process writes to its lock file. The command line is left out,
// it may carry secrets.
type holder struct {
	PID     int       `json:"pid"`
	Started time.Time `json:"started"` // when it took the lock
	Program string    `json:"program"`
}

func (h holder) String() string {
	return fmt.Sprintf("pid %d (%s, since %s)", h.PID, h.Program, h.Started.Format(time.RFC3339))
}

// fileLock is an exclusive lock, held until release.
type fileLock struct{ file *os.File }

// acquireLock takes the lock beside the database path, waiting until deadline.
func acquireLock(path string, deadline time.Time) (*fileLock, error) {
	f, err := os.OpenFile(path+lockSuffix, os.O_RDWR|os.O_CREATE, fileMode)
	if err != nil {
		return nil, fmt.Errorf("open lock file: %w", diskError(err))
	}
	if err := waitLock(f, true, deadline); err != nil {
		if errors.Is(err, errLocked) {
			err = &LockedError{Path: path, Holder: readHolder(f)}
		}
		f.Close()
		return nil, err
	}
	// The record only serves messages: a full disk must not prevent the start that
	// is going to free some room.
	_ = writeHolder(f)
	return &fileLock{file: f}, nil
}

// release gives the lock up. The file stays: removing it would let two processes
// lock two different files.
func (l *fileLock) release() error {
	_ = l.file.Truncate(0)
	return errors.Join(unlock(l.file), l.file.Close())
}

// waitLock locks f, trying again until deadline; errLocked if that passed.
func waitLock(f *os.File, exclusive bool, deadline time.Time) error {
	for {
		err := tryLock(f, exclusive)
		if err == nil {
			return nil
		}
		if !errors.Is(err, errLocked) {
			return fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		wait := min(lockRetry, time.Until(deadline))
		if wait <= 0 {
			return errLocked
		}
		time.Sleep(wait)
	}
}

func writeHolder(f *os.File) error {
	program, err := os.Executable()
	if err != nil {
		program = "unknown program"
	}
	b, err := json.Marshal(holder{PID: os.Getpid(), Started: time.Now().UTC().Truncate(time.Second), Program: filepath.Base(program)})
	if err != nil {
		return err
	}
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err = f.WriteAt(append(b, '\n'), 0)
	return err
}

// readHolder describes who wrote the lock file.
func readHolder(f *os.File) string {
	b, err := io.ReadAll(io.NewSectionReader(f, 0, maxHolderBytes))
	var h holder
	if err != nil || json.Unmarshal(b, &h) != nil || h.PID == 0 {
		return unknownHolder
	}
	return h.String()
}

// lockedError names the holder of the data file.
func lockedError(cfg Config) error {
	e := &LockedError{Path: cfg.Path, Holder: unknownHolder}
	f, err := os.Open(cfg.Path + lockSuffix)
	if cfg.owned || err != nil {
		return e
	}
	defer f.Close()
	if tryLock(f, false) == nil {
		_ = unlock(f)
		return e // what stands there is about a process of the past
	}
	e.Holder = readHolder(f)
	return e
}
