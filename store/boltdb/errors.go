package boltdb

import (
	"errors"
	"fmt"
)

// Errors of a DB. Test with errors.Is; what is returned may carry more detail.
var (
	// ErrFull means that the disk, a quota or a file size limit has no room left
	// (HTTP 507). Nothing of the refused transaction was kept.
	ErrFull = errors.New("disk is full")
	// ErrReadOnly means that the file cannot be written at present, or that the DB
	// was opened read-only (HTTP 503). Nothing of the refused transaction was kept.
	ErrReadOnly = errors.New("store is read-only")
	// ErrFailed means that a sync failed: what the last commit left on disk is
	// unknown, and only a restart from disk can tell. It is final.
	ErrFailed = errors.New("store failed")
	// ErrClosed means that Close was called before the request was accepted.
	ErrClosed = errors.New("store is closed")
	// ErrBusy means that the queue has no room for a request that does not wait.
	ErrBusy = errors.New("store queue is full")
	// ErrExists means that a target file exists and was not overwritten.
	ErrExists = errors.New("file exists and is not overwritten")
)

// LockedError reports that another process holds the file.
type LockedError struct {
	// Path is the database file.
	Path string
	// Holder names the process that has it, as "pid N (program, since TIME)"; for a
	// process that is not one of ours it says that it is unknown.
	Holder string
}

func (e *LockedError) Error() string {
	return fmt.Sprintf("%s is in use by %s", e.Path, e.Holder)
}

// NewerSchemaError reports a file that was written by a newer program.
type NewerSchemaError struct {
	Path    string
	File    int // schema version found in the file
	Program int // newest schema version that this program knows
}

func (e *NewerSchemaError) Error() string {
	return fmt.Sprintf("%s has schema version %d, this program knows up to %d: use a newer program", e.Path, e.File, e.Program)
}

// OlderSchemaError reports a file of an older schema that the program has no
// migration for.
type OlderSchemaError struct {
	Path    string
	File    int // schema version found in the file
	Program int // schema version that the program needs
}

func (e *OlderSchemaError) Error() string {
	return fmt.Sprintf("%s has schema version %d, this program needs %d and cannot migrate it", e.Path, e.File, e.Program)
}

// KindError reports a database that serves another purpose.
type KindError struct {
	Path string
	Want string // what the program asked for
	Got  string // what the file says; empty if it is a bbolt file of another program
}

func (e *KindError) Error() string {
	if e.Got == "" {
		return fmt.Sprintf("%s is the database of another program, not a %s", e.Path, e.Want)
	}
	return fmt.Sprintf("%s is a %s, not a %s", e.Path, e.Got, e.Want)
}

// CorruptError reports a file that cannot be read. The file was not touched: it
// is for an operator to restore a backup or to move the file away.
type CorruptError struct {
	Path string
	Err  error // the first damage found
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("%s is damaged: %v", e.Path, e.Err)
}

func (e *CorruptError) Unwrap() error { return e.Err }

// PanicError is what a transaction function's panic is turned into.
type PanicError struct {
	Value any    // what was panicked with
	Stack []byte // where, as runtime/debug.Stack gives it
}

func (e *PanicError) Error() string {
	return fmt.Sprintf("panic in a transaction: %v", e.Value)
}
