package boltdb

import "io/fs"

// CommitOp says what a commit is for.
type CommitOp int

// The commits that a FaultInjector is asked about.
const (
	CommitBatch     CommitOp = iota // Update and Enqueue
	CommitRetention                 // UpdateRetention on a full disk
	CommitProbe                     // the test write that may end a disk trouble
)

// FaultInjector stands between a finished transaction and its commit, in tests of
// this package and of its users. It is called by the writer goroutine only, and
// may block there to hold a commit back.
type FaultInjector interface {
	// BeforeCommit returns nil to let the commit happen. An error rolls the
	// transaction back and is judged as if the disk had given it: a WriteFault by its
	// error number, anything else as a failed sync.
	BeforeCommit(op CommitOp) error
}

// FaultFunc is a FaultInjector made of a function.
type FaultFunc func(op CommitOp) error

// BeforeCommit implements FaultInjector.
func (f FaultFunc) BeforeCommit(op CommitOp) error { return f(op) }

// WriteFault is what a write that failed with errno (such as syscall.ENOSPC or
// syscall.EROFS) before any sync looks like.
func WriteFault(errno error) error {
	return &fs.PathError{Op: "write", Path: "injected fault", Err: errno}
}
