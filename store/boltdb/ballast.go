package boltdb

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
)

const (
	// ballastSuffix is added to the database path for the ballast file.
	ballastSuffix = ".ballast"
	// probeSuffix is added for the file that tests whether there is room.
	probeSuffix = ".probe"
	// probeBytes is the room that must be there beyond the ballast to leave DiskFull.
	probeBytes = 1 << 20
)

// ballast is a file that holds room on the disk, to be given up when the disk is
// full so that retention has something to work with: bbolt copies pages to delete.
// Only the writer uses it.
type ballast struct {
	path    string
	size    int64 // ≤ 0 = there is none
	present bool
}

// ensure creates the file unless it is there in full.
func (b *ballast) ensure() error {
	if b.size <= 0 || b.present {
		return nil
	}
	if fi, err := os.Lstat(b.path); err != nil || fi.Size() != b.size {
		if err := allocate(b.path, b.size); err != nil {
			return err
		}
	}
	b.present = true
	return nil
}

// ensureBeside is ensure for a disk that is not known to be full: it refuses to
// take most of what is left, or the ballast itself would fill the disk.
func (b *ballast) ensureBeside() error {
	if b.size <= 0 || b.present {
		return nil
	}
	if fi, err := os.Lstat(b.path); err != nil || fi.Size() != b.size {
		if free, err := freeBytes(b.path); err == nil && free < 2*b.size {
			return fmt.Errorf("%w: %d bytes are left", ErrFull, free)
		}
	}
	return b.ensure()
}

// release gives the room back. The empty file is synced before it is removed
// because journaling file systems reuse blocks only after that.
func (b *ballast) release() error {
	if b.size <= 0 {
		return nil
	}
	b.present = false
	f, err := os.OpenFile(b.path, os.O_WRONLY|os.O_TRUNC, fileMode)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close(), os.Remove(b.path))
}

// allocate makes a file of size bytes whose blocks exist. The content is random,
// because some file systems store zeros without using any room.
func allocate(path string, size int64) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, fileMode)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(path)
		}
	}()
	_, err = io.CopyN(f, rand.NewChaCha8([32]byte{}), size)
	return errors.Join(err, f.Sync(), f.Close())
}

// testRoom checks that probeBytes can be written beside path.
func testRoom(path string) error {
	if err := allocate(path+probeSuffix, probeBytes); err != nil {
		return fmt.Errorf("test for room: %w", err)
	}
	return os.Remove(path + probeSuffix)
}
