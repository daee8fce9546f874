// Package filestest fails what package files does with the operating system, or ends the
// process in the middle of it, at a step that a test chooses.
package filestest

import (
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"opencode-mesh/node/peers/files"
)

// Faults is an FS whose steps, which are all calls that change something, are counted.
// Its fields are set before it is used.
type Faults struct {
	files.FS
	At    int   // the step that fails, from 1; 0: none
	Err   error // what it fails with; nil: the process is killed before it
	Stays bool  // all later steps fail, too
	Half  bool  // a write that fails writes half of its bytes
	// Only counts steps of these paths alone; nil: all.
	Only func(path string) bool

	mu    sync.Mutex
	steps []string
}

// Steps are the steps that were met, each as what was done and with which file.
func (f *Faults) Steps() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.steps...)
}

// step counts a step and fails the one that is to fail.
func (f *Faults) step(what, path string) error {
	if f.Only != nil && !f.Only(path) {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.steps = append(f.steps, what+" "+filepath.Base(path))
	if n := len(f.steps); f.At == 0 || n < f.At || n > f.At && !f.Stays {
		return nil
	}
	if f.Err == nil {
		kill()
	}
	return &fs.PathError{Op: what, Path: path, Err: f.Err}
}

// kill ends the process as kill -9 does.
func kill() {
	if p, err := os.FindProcess(os.Getpid()); err == nil {
		_ = p.Kill()
	}
	select {} // the signal is on its way
}

// Create is a step.
func (f *Faults) Create(path string, mode fs.FileMode) (files.File, error) {
	if err := f.step("create", path); err != nil {
		return nil, err
	}
	file, err := f.FS.Create(path, mode)
	if err != nil {
		return nil, err
	}
	return &faultyFile{File: file, faults: f, path: path}, nil
}

// Mkdir is a step.
func (f *Faults) Mkdir(path string, mode fs.FileMode) error {
	if err := f.step("mkdir", path); err != nil {
		return err
	}
	return f.FS.Mkdir(path, mode)
}

// Rename is a step.
func (f *Faults) Rename(from, to string) error {
	if err := f.step("rename to", to); err != nil {
		return err
	}
	return f.FS.Rename(from, to)
}

// Remove is a step.
func (f *Faults) Remove(path string) error {
	if err := f.step("remove", path); err != nil {
		return err
	}
	return f.FS.Remove(path)
}

// SyncDir is a step.
func (f *Faults) SyncDir(path string) error {
	if err := f.step("sync directory", path); err != nil {
		return err
	}
	return f.FS.SyncDir(path)
}

type faultyFile struct {
	files.File
	faults *Faults
	path   string
}

func (f *faultyFile) Write(b []byte) (int, error) {
	if f.faults.Half {
		// Also before a kill: half of a file is what a crash leaves.
		half := len(b) / 2
		if _, err := f.File.Write(b[:half]); err != nil {
			return 0, err
		}
		if err := f.faults.step("write", f.path); err != nil {
			return half, err
		}
		n, err := f.File.Write(b[half:])
		return half + n, err
	}
	if err := f.faults.step("write", f.path); err != nil {
		return 0, err
	}
	return f.File.Write(b)
}

func (f *faultyFile) Sync() error {
	if err := f.faults.step("sync", f.path); err != nil {
		return err
	}
	return f.File.Sync()
}

func (f *faultyFile) Chmod(mode fs.FileMode) error {
	if err := f.faults.step("chmod", f.path); err != nil {
		return err
	}
	return f.File.Chmod(mode)
}
