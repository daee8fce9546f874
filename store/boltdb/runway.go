package boltdb

import (
	"os"

	bolt "go.etcd.io/bbolt"
)

// A sync that has to tell the file system of new blocks costs several times one
// that does not, and on one disk such syncs of different files wait for each other.
// So the writer keeps a runway of zeros written ahead of the pages in use: commits
// then write blocks that the file has already. Pages beyond the high-water mark
// mean nothing to bbolt, and only the writer goroutine writes to the file, so the
// zeros can never meet a page.
const (
	// runwayStep is how much is written ahead at a time, in bytes.
	runwayStep = 1 << 20
	// runwayLeft is how much may be left of it before the next step.
	runwayLeft = runwayStep / 2
)

// runway is the zeros ahead of one file. It belongs to the writer.
type runway struct {
	path  string
	end   int64 // zeros reach up to here
	ended bool  // something went wrong: commits go on without one
}

// extend writes the next step when less than runwayLeft of the runway is ahead of
// the pages in use. The writer calls it between commits, when every page that was
// given out is below the high-water mark. It stays within the file, whose growing
// is bbolt's.
func (r *runway) extend(db *bolt.DB) {
	if r.ended {
		return
	}
	tx, err := db.Begin(false)
	if err != nil {
		return // closing, or the mapping was lost: nothing to hurry for
	}
	used := tx.Size()
	_ = tx.Rollback() // a read-only one has nothing to undo
	if r.end-used >= runwayLeft {
		return
	}
	if err := r.pave(max(r.end, used), used+runwayStep); err != nil {
		// Full or read-only: the commits themselves will find out and say so.
		r.ended = true
	}
}

func (r *runway) pave(from, to int64) error {
	f, err := os.OpenFile(r.path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if to = min(to, info.Size()); to <= from {
		return nil
	}
	if _, err := f.WriteAt(make([]byte, to-from), from); err != nil {
		return err
	}
	r.end = to
	return f.Sync()
}
