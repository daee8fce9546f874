// Package files writes and reads small private files so that a crash at any moment leaves
// the old file or the new one, whole.
//
// Whoever calls it says when a directory is synced: many files that are placed in one
// need that once. It takes no locks, so two writers of one file at the same moment leave
// the file of one of them.
package files

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

const (
	dirMode  = 0o700
	fileMode = 0o600

	// TempSuffix is how the names of temporary files end. They lie beside the file that
	// they become; one that stays there was left by a process that died.
	TempSuffix = ".tmp"

	// longName is the length from which on a name is not part of that of its temporary file.
	longName = 100
)

// Absent reports whether an error says that there is no such file: none was made, or none
// with such a name can be.
func Absent(err error) bool { return errors.Is(err, fs.ErrNotExist) || unnameable(err) }

// ErrNotRegular says that a name that must be a file is something else. Nothing was read.
var ErrNotRegular = errors.New("it is not a regular file; move it away")

// ErrTooBig says that a file is larger than any that is written here.
var ErrTooBig = errors.New("it is too large; move it away")

// renamePauses come before each attempt to rename: a reader on Windows may hold the file
// for a moment.
var renamePauses = [...]time.Duration{0, 20 * time.Millisecond, 100 * time.Millisecond}

// MakeDir makes a directory and those above it that are missing, for the owner alone, and
// makes them durable. Directories that are there stay as they are.
func MakeDir(sys FS, path string) error {
	info, err := sys.Stat(path)
	if err == nil && !info.IsDir() {
		return fmt.Errorf("%s is not a directory; move it away", path)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	parent := filepath.Dir(path)
	if err := MakeDir(sys, parent); err != nil {
		return err
	}
	if err := sys.Mkdir(path, dirMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return sys.SyncDir(parent)
}

// Place writes a file in place of the one that is there. It is durable once its directory
// was synced. An error leaves what was there.
func Place(sys FS, path string, data []byte) (err error) {
	dir, base := filepath.Split(path)
	if len(base) > longName { // with more at its end it could be no name
		base = fmt.Sprintf("%x", sha256.Sum256([]byte(base)))
	}
	temp := fmt.Sprintf("%s%s.%d.%d%s", dir, base, os.Getpid(), time.Now().UnixMilli(), TempSuffix)
	f, err := sys.Create(temp, fileMode)
	if errors.Is(err, fs.ErrExist) {
		// Left by a process that died and had our number.
		if err = sys.Remove(temp); err == nil {
			f, err = sys.Create(temp, fileMode)
		}
	}
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = sys.Remove(temp)
		}
	}()
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = f.Chmod(fileMode) // whatever the process's mask is
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return Rename(sys, temp, path)
}

// Rename renames a file, over the one that is there. Where somebody has that open for a
// moment, it is tried again for some tenths of a second.
func Rename(sys FS, from, to string) (err error) {
	for _, wait := range renamePauses {
		time.Sleep(wait)
		if err = sys.Rename(from, to); err == nil || !busy(err) {
			break
		}
	}
	return err
}

// Replace is Place, and makes it durable.
func Replace(sys FS, path string, data []byte) error {
	if err := Place(sys, path, data); err != nil {
		return err
	}
	return sys.SyncDir(filepath.Dir(path))
}

// Read reads a regular file of at most limit bytes. It never waits and follows no link.
func Read(sys FS, path string, limit int64) ([]byte, error) {
	f, err := sys.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(io.LimitReader(f, limit+1)); err != nil {
		return nil, err
	}
	if int64(b.Len()) > limit {
		return nil, ErrTooBig
	}
	return b.Bytes(), nil
}
