package statefile

import (
	"errors"
	"fmt"
	"io/fs"
	"time"
)

// ErrLockLost says that another program took the lock away, believing that its
// holder was dead, before the file was replaced. Nothing was written.
var ErrLockLost = errors.New("another program took the lock, because this one held it for too long; nothing was written, try again")

// A CorruptError says that the file is not a valid state file. It was not changed
// and will not be until it is valid again.
type CorruptError struct {
	Path string
	Copy string // the copy that lies beside it; "" if there is none
	Err  error  // what is wrong; of a copy that failed, too
}

func (e *CorruptError) Error() string {
	kept := "no copy could be made"
	if e.Copy != "" {
		kept = "a copy is " + e.Copy
	}
	return fmt.Sprintf("%s is not a valid state file and is left as it is (%s): %v; stop the programs that use it, then repair it or move it away to begin with an empty one", e.Path, kept, e.Err)
}

func (e *CorruptError) Unwrap() error { return e.Err }

// A LockedError says that another process held the lock for all of LockTimeout.
type LockedError struct {
	Path   string // of the lock
	Holder string // what its holder wrote into it, "" if that cannot be read
	Waited time.Duration
}

func (e *LockedError) Error() string {
	holder := "another process"
	if e.Holder != "" {
		holder = fmt.Sprintf("process %q", e.Holder)
	}
	return fmt.Sprintf("%s is held by %s, waited %v; try again, and if no OpenComms program runs, remove that file", e.Path, holder, e.Waited.Round(time.Millisecond))
}

// A NotRegularError says that a name that must be a file is something else.
// Nothing was read from it or written over it.
type NotRegularError struct {
	Path string
	Mode fs.FileMode
}

func (e *NotRegularError) Error() string {
	kind := "no regular file"
	switch {
	case e.Mode&fs.ModeSymlink != 0:
		kind = "a symbolic link, which a write would replace (link the directory instead)"
	case e.Mode.IsDir():
		kind = "a directory"
	case e.Mode&fs.ModeNamedPipe != 0:
		kind = "a named pipe"
	}
	return fmt.Sprintf("%s is %s; move it away", e.Path, kind)
}

// A LegacyError says that there is a state file of schema 1 that cannot be taken
// over. Nothing is written, because that would hide it for good.
type LegacyError struct {
	Path string
	Err  error
}

func (e *LegacyError) Error() string {
	return fmt.Sprintf("%s cannot be taken over: %v; repair it, or move its directory away to begin without it", e.Path, e.Err)
}

func (e *LegacyError) Unwrap() error { return e.Err }
