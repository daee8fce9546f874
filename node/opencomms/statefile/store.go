package statefile

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"path/filepath"
	"time"

	"opencode-mesh/protocol/opencomms"
)

const (
	// Dir is the directory in a project that OpenComms programs share.
	Dir = ".opencomms"

	stateName = "state.json"
	dirMode   = 0o700
	fileMode  = 0o600
)

// Options are what a Store may be given. The zero value is ready.
type Options struct {
	Log *slog.Logger // nil: none
}

// Store is the state file of one project. It is safe for concurrent use; any
// number of Stores and processes may use the same file.
type Store struct {
	project string
	dir     string
	path    string
	log     *slog.Logger
	disk    disk
	slow    time.Duration // between two looks of Watch

	swept sweepOnce
}

// Open returns the Store of a project's directory. It reads and makes nothing.
func Open(project string, opt Options) *Store {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if abs, err := filepath.Abs(project); err == nil {
		project = abs
	}
	dir := filepath.Join(project, Dir)
	return &Store{
		project: project, dir: dir, path: filepath.Join(dir, stateName),
		log: opt.Log, disk: osDisk{}, slow: slowPoll,
	}
}

// Path is the state file's path.
func (s *Store) Path() string { return s.path }

// Read returns the state as it is. It takes no lock and writes nothing, except the
// copy of a file that is not valid. Where there is no file, the state is empty;
// one of schema 1 that was not taken over yet is shown as it will be.
//
// Errors: *CorruptError, *NotRegularError, *LegacyError, and those of the
// operating system.
func (s *Store) Read(ctx context.Context) (*opencomms.State, error) {
	v, err := s.look(ctx)
	if err != nil {
		return nil, s.setAside(err)
	}
	return v.state, nil
}

// Update lets fn change the state and writes it, all under the lock. fn gets the
// present state and must not keep it or do anything slow. If it returns an error,
// nothing is written and the error is returned as it is. A state that fn left as
// it was is not written either.
//
// Once Update returned nil, the state is on the disk. After an error nothing was
// written. Errors: those of Read, *LockedError, ErrLockLost, and
// *opencomms.InvalidError if fn made a state that others would reject.
func (s *Store) Update(ctx context.Context, fn func(*opencomms.State) error) error {
	return s.update(ctx, fn, false)
}

// Touch writes the state as it is. Programs that look at the file's time take it
// as news, and deliver what they held back. Without a file it does nothing.
func (s *Store) Touch(ctx context.Context) error {
	return s.update(ctx, func(*opencomms.State) error { return nil }, true)
}

func (s *Store) update(ctx context.Context, fn func(*opencomms.State) error, always bool) error {
	l, err := s.acquire(ctx)
	if err != nil {
		return err
	}
	wrote, err := s.locked(ctx, l, fn, always)
	// What was written stays written, whatever becomes of the lock: others take it
	// for left behind after LockStale.
	if released := l.release(); released != nil {
		s.log.Warn("opencomms: the lock stays behind", "err", released)
	}
	if wrote {
		s.syncDir() // others need not wait for this
	}
	if err != nil {
		return s.setAside(err)
	}
	s.sweep()
	return nil
}

// locked is the part of an Update that happens under the lock. It says whether the
// file was replaced.
func (s *Store) locked(ctx context.Context, l *lock, fn func(*opencomms.State) error, always bool) (wrote bool, err error) {
	v, err := s.look(ctx)
	if err != nil {
		return false, err
	}
	if v.data == nil && v.legacy == nil {
		// Nothing made of nothing is no reason for a file.
		if v.data, err = v.state.Encode(); err != nil {
			return false, err
		}
		always = false
	}
	if err := fn(v.state); err != nil {
		return false, err
	}
	data, err := v.state.Encode()
	if err != nil {
		return false, err
	}
	if v.legacy != nil {
		err := s.takeOver(l, v, data)
		return err == nil, err
	}
	if always || !bytes.Equal(data, v.data) {
		if err := s.replace(stateName, data, v.mode, l); err != nil {
			return false, err
		}
		wrote = true
	}
	if v.unmarked {
		s.mark()
	}
	return wrote, nil
}

// view is what one look at the directory gave.
type view struct {
	state  *opencomms.State
	data   []byte      // the file's bytes; nil if there is none
	mode   fs.FileMode // for the next file
	legacy *legacy     // what is to be taken over; nil if nothing is
	// unmarked says that a take-over was done and broke off before its marker, without
	// which schema 1 would come back once the channels are empty.
	unmarked bool
}

// look reads the file and what is to be taken over.
func (s *Store) look(ctx context.Context) (*view, error) {
	v, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.withLegacy(ctx, v); err != nil {
		return nil, err
	}
	return v, nil
}

// current reads the file alone.
func (s *Store) current(ctx context.Context) (*view, error) {
	var v *view
	err := s.settled(ctx, s.path, func(data []byte, mode fs.FileMode) error {
		state, err := opencomms.Decode(data)
		v = &view{state: state, data: data, mode: mode}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return &view{state: &opencomms.State{}, mode: fileMode}, nil
	}
	if err != nil {
		return nil, err
	}
	return v, nil
}
