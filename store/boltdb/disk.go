package boltdb

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"
)

// DiskState says whether the DB can write.
type DiskState string

// The disk states.
const (
	DiskOK       DiskState = "ok"
	DiskFull     DiskState = "full"      // updates get ErrFull; heals by itself
	DiskReadOnly DiskState = "read_only" // updates get ErrReadOnly; heals by itself
	DiskFailed   DiskState = "failed"    // everything gets ErrFailed; final
)

// diskStatus is one period of a DiskState.
type diskStatus struct {
	state DiskState
	err   error // what requests get; nil when ok
	since time.Time
}

// Beginnings of the errors that bbolt 1.5 makes without wrapping their cause, for
// the steps of growing a file that come before any sync. (The sync that belongs to
// growing says "file sync error".)
var growErrors = []string{"file resize error: ", "mmap allocate error: truncate: "}

// commitState judges the error of a commit. A disk without room or without write
// permission is told from a failed sync by the operation, not by the number alone:
// a sync may report ENOSPC too, and after that the page cache cannot be trusted.
// bbolt writes with File.WriteAt, whose errors are *fs.PathError with Op "write",
// while fdatasync gives a bare errno and File.Sync Op "sync". What is not known to
// be harmless counts as failed.
func commitState(err error) DiskState {
	var path *fs.PathError
	if errors.As(err, &path) && path.Op == "write" {
		switch {
		case isAny(path.Err, fullErrnos):
			return DiskFull
		case isAny(path.Err, readOnlyErrnos):
			return DiskReadOnly
		}
		return DiskFailed
	}
	text := err.Error()
	for _, prefix := range growErrors {
		if !strings.HasPrefix(text, prefix) {
			continue
		}
		switch {
		case endsInAny(text, fullErrnos):
			return DiskFull
		case endsInAny(text, readOnlyErrnos):
			return DiskReadOnly
		}
	}
	return DiskFailed
}

// stateError makes the error that requests get in a state.
func stateError(state DiskState, cause error) error {
	switch state {
	case DiskFull:
		return fmt.Errorf("%w: %w", ErrFull, cause)
	case DiskReadOnly:
		return fmt.Errorf("%w: %w", ErrReadOnly, cause)
	case DiskFailed:
		return fmt.Errorf("%w: %w", ErrFailed, cause)
	}
	return nil
}

// diskError adds ErrFull or ErrReadOnly to an error of the operating system, for
// operations outside of a commit.
func diskError(err error) error {
	switch {
	case err == nil:
		return nil
	case isAny(err, fullErrnos):
		return stateError(DiskFull, err)
	case isAny(err, readOnlyErrnos):
		return stateError(DiskReadOnly, err)
	}
	return err
}

func isAny(err error, targets []error) bool {
	for _, t := range targets {
		if errors.Is(err, t) {
			return true
		}
	}
	return false
}

func endsInAny(text string, errnos []error) bool {
	for _, e := range errnos {
		if strings.HasSuffix(text, ": "+e.Error()) {
			return true
		}
	}
	return false
}
