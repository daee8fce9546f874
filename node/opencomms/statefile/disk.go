package statefile

import (
	"errors"
	"io"
	"io/fs"
	"os"
)

// disk is what the package does with the operating system, so that tests can fail
// or end it at every step.
type disk interface {
	// Create makes a file that must not exist.
	Create(path string, mode fs.FileMode) (file, error)
	// Open opens a regular file for reading. It never waits, and never follows a
	// symbolic link; what is no regular file is a *NotRegularError.
	Open(path string) (file, error)
	Lstat(path string) (fs.FileInfo, error)
	ReadDir(path string) ([]fs.DirEntry, error)
	Mkdir(path string, mode fs.FileMode) error
	Rename(from, to string) error
	Remove(path string) error
	// SyncDir makes renames in a directory durable, where the system has that.
	SyncDir(path string) error
}

type file interface {
	io.ReadWriteCloser
	Stat() (fs.FileInfo, error)
	Chmod(fs.FileMode) error
	Sync() error
}

type osDisk struct{}

func (osDisk) Create(path string, mode fs.FileMode) (file, error) {
	return notNil(os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode))
}

func (osDisk) Open(path string) (file, error) {
	// Before it is opened: opening some devices does something.
	before, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !before.Mode().IsRegular() {
		return nil, &NotRegularError{Path: path, Mode: before.Mode()}
	}
	f, err := os.OpenFile(path, os.O_RDONLY|openFlags, 0)
	if err != nil {
		return nil, err
	}
	now, err := f.Stat()
	if err == nil && !now.Mode().IsRegular() {
		err = &NotRegularError{Path: path, Mode: now.Mode()}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (osDisk) Lstat(path string) (fs.FileInfo, error)     { return os.Lstat(path) }
func (osDisk) ReadDir(path string) ([]fs.DirEntry, error) { return os.ReadDir(path) }
func (osDisk) Mkdir(path string, mode fs.FileMode) error  { return os.Mkdir(path, mode) }
func (osDisk) Rename(from, to string) error               { return os.Rename(from, to) }
func (osDisk) Remove(path string) error                   { return os.Remove(path) }
func (osDisk) SyncDir(path string) error                  { return syncDir(path) }

func notNil(f *os.File, err error) (file, error) {
	if err != nil {
		return nil, err // a nil *os.File would be a file that is not nil
	}
	return f, nil
}
