package files

import (
	"errors"
	"io"
	"io/fs"
	"os"
)

// FS is what is done with the operating system, so that tests can fail it or end the
// process at every step.
type FS interface {
	// Create makes a file that must not exist.
	Create(path string, mode fs.FileMode) (File, error)
	// Open opens a regular file for reading. It never waits and never follows a link.
	Open(path string) (File, error)
	Stat(path string) (fs.FileInfo, error)
	Lstat(path string) (fs.FileInfo, error)
	ReadDir(path string) ([]fs.DirEntry, error)
	Mkdir(path string, mode fs.FileMode) error
	Rename(from, to string) error
	Remove(path string) error
	// SyncDir makes what was renamed, made and removed in a directory durable, where the
	// system has that.
	SyncDir(path string) error
}

// File is an open file.
type File interface {
	io.ReadWriteCloser
	Chmod(fs.FileMode) error
	Sync() error
}

// OS is the operating system.
type OS struct{}

// Create is FS.Create.
func (OS) Create(path string, mode fs.FileMode) (File, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return nil, err // a nil *os.File would be a File that is not nil
	}
	return f, nil
}

// Open is FS.Open.
func (OS) Open(path string) (File, error) {
	// Before it is opened: opening some devices does something.
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, ErrNotRegular
	}
	f, err := os.OpenFile(path, os.O_RDONLY|openFlags, 0)
	if err != nil {
		return nil, err
	}
	if info, err = f.Stat(); err == nil && !info.Mode().IsRegular() {
		err = ErrNotRegular
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Stat is FS.Stat.
func (OS) Stat(path string) (fs.FileInfo, error) { return os.Stat(path) }

// Lstat is FS.Lstat.
func (OS) Lstat(path string) (fs.FileInfo, error) { return os.Lstat(path) }

// ReadDir is FS.ReadDir.
func (OS) ReadDir(path string) ([]fs.DirEntry, error) { return os.ReadDir(path) }

// Mkdir is FS.Mkdir.
func (OS) Mkdir(path string, mode fs.FileMode) error { return os.Mkdir(path, mode) }

// Rename is FS.Rename.
func (OS) Rename(from, to string) error { return os.Rename(from, to) }

// Remove is FS.Remove.
func (OS) Remove(path string) error { return os.Remove(path) }

// SyncDir is FS.SyncDir.
func (OS) SyncDir(path string) error { return syncDir(path) }
