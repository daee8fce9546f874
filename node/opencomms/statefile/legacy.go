package statefile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"opencode-mesh/protocol/opencomms"
)

const (
	// LegacyDir is the directory of schema 1. It is never written to.
	LegacyDir = ".opencode-comms"
	// markerName says that schema 1 was taken over, or is not wanted.
	markerName = "MIGRATED_FROM_V1"

	legacyCopy  = "state.v1.bak.json"       // of the file of schema 1
	inertCopy   = "state.v2.empty.bak.json" // of the file that gave way to it
	takenNotice = "Took over the state of " + LegacyDir + " (schema 1)"
)

// legacy is a state file of schema 1 that is to be taken over.
type legacy struct{ data []byte }

// withLegacy puts what a file of schema 1 holds into the view, if it is to be taken
// over. A file of ours in which something happened has precedence, so nothing may
// be written before this was looked at.
func (s *Store) withLegacy(ctx context.Context, v *view) error {
	if _, err := s.disk.Lstat(filepath.Join(s.dir, markerName)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	path := filepath.Join(s.project, LegacyDir, stateName)
	if _, err := s.disk.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if v.unmarked = taken(v.state); v.unmarked || !v.state.Inert() {
		return nil
	}
	var old *opencomms.State
	var data []byte
	err := s.settled(ctx, path, func(b []byte, _ fs.FileMode) (err error) {
		data = b
		old, err = opencomms.ConvertV1(b)
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		if ctx.Err() != nil {
			return err
		}
		var bad *invalidFile
		if errors.As(err, &bad) {
			err = bad.err // it stays where it is and needs no copy
		}
		return &LegacyError{Path: path, Err: err}
	}
	old.Adopt(v.state)
	old.Errors = append(old.Errors, opencomms.ErrorEntry{At: time.Now().UnixMilli(), Message: takenNotice})
	v.state, v.legacy = old, &legacy{data: data}
	return nil
}

// taken says that schema 1 was taken over, marker or not.
func taken(s *opencomms.State) bool {
	return slices.ContainsFunc(s.Errors, func(e opencomms.ErrorEntry) bool { return e.Message == takenNotice })
}

// takeOver writes the state that came from schema 1, its side files before and its
// marker last: wherever this ends, the next one goes on from there.
func (s *Store) takeOver(l *lock, v *view, data []byte) error {
	// The original stays where it is, so this copy is a courtesy.
	if err := s.replace(legacyCopy, v.legacy.data, fileMode, l); err != nil {
		s.log.Warn("opencomms: no copy of the state of schema 1", "err", err)
	}
	if v.data != nil {
		if err := s.replace(inertCopy, v.data, fileMode, l); err != nil {
			return err
		}
	}
	if err := s.replace(stateName, data, v.mode, l); err != nil {
		return err
	}
	s.log.Info("opencomms: took over the state of schema 1", "project", s.project)
	s.mark()
	return nil
}

// mark writes the marker. The state is written by then, and the marker is written
// by the next Update if not by this one.
func (s *Store) mark() {
	text, err := json.Marshal(struct {
		MigratedAt int64  `json:"migrated_at"`
		From       string `json:"from"`
		Schema     int    `json:"schema"`
	}{time.Now().UnixMilli(), LegacyDir, 1})
	if err == nil {
		err = s.replace(markerName, text, fileMode, nil)
	}
	if err != nil {
		s.log.Warn("opencomms: schema 1 was taken over, its marker is missing until the next write", "err", fmt.Errorf("%s: %w", markerName, err))
	}
}
