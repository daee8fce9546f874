package statefile

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"opencode-mesh/protocol/opencomms"
)

const (
	// MaxFile bounds a state file. The original cannot hold a longer one in a string.
	MaxFile = 512 << 20
	// MaxInvalidCopies is how many files that were not valid are kept beside the
	// state file. The first ones are: what came later is mostly made of them.
	MaxInvalidCopies = 10

	// Older programs write over the file in place when a rename fails, so one that
	// is not valid may only be half written: it is looked at again before it is
	// called corrupt.
	corruptLooks = 5
	corruptPause = 25 * time.Millisecond

	invalidPrefix = "state.invalid."
)

// invalidFile is a CorruptError on its way: it still has the bytes.
type invalidFile struct {
	path string
	data []byte
	err  error
}

func (e *invalidFile) Error() string { return e.err.Error() }

// settled reads a file and gives it to decode, again while that finds it invalid.
func (s *Store) settled(ctx context.Context, path string, decode func([]byte, fs.FileMode) error) error {
	for look := 1; ; look++ {
		data, mode, err := s.readFile(path)
		if err != nil {
			return err
		}
		err = decode(data, mode)
		var invalid *opencomms.InvalidError
		if !errors.As(err, &invalid) {
			return err
		}
		if look == corruptLooks {
			return &invalidFile{path: path, data: data, err: err}
		}
		if err := pause(ctx, corruptPause); err != nil {
			return err
		}
	}
}

// readFile reads a regular file whole and lets go of it at once: on Windows nobody
// can replace it meanwhile.
func (s *Store) readFile(path string) ([]byte, fs.FileMode, error) {
	f, err := s.disk.Open(path)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, 0, err
	}
	if info.Size() > MaxFile {
		return nil, 0, fmt.Errorf("%s has %d bytes, more than %d: move it away", path, info.Size(), MaxFile)
	}
	var b bytes.Buffer
	b.Grow(int(info.Size()) + bytes.MinRead)
	if _, err := b.ReadFrom(io.LimitReader(f, MaxFile+1)); err != nil {
		return nil, 0, err
	}
	return b.Bytes(), info.Mode().Perm(), nil
}

// setAside turns the error about a file that is not valid into a CorruptError, and
// copies that file. Other errors stay as they are. It needs no lock.
func (s *Store) setAside(err error) error {
	var bad *invalidFile
	if !errors.As(err, &bad) {
		return err
	}
	copied, copyErr := s.copyInvalid(bad.data)
	if copyErr != nil {
		copyErr = fmt.Errorf("copy it aside: %w", copyErr)
	}
	return &CorruptError{Path: bad.path, Copy: copied, Err: errors.Join(bad.err, copyErr)}
}

// copyInvalid keeps data beside the state file, once for each content.
func (s *Store) copyInvalid(data []byte) (path string, err error) {
	sum := sha256.Sum256(data)
	suffix := "." + hex.EncodeToString(sum[:4]) + ".json"
	names, err := s.disk.ReadDir(s.dir)
	if err != nil {
		return "", err
	}
	copies := 0
	for _, e := range names {
		if !strings.HasPrefix(e.Name(), invalidPrefix) {
			continue
		}
		if strings.HasSuffix(e.Name(), suffix) {
			return filepath.Join(s.dir, e.Name()), nil
		}
		copies++
	}
	if copies >= MaxInvalidCopies {
		return "", fmt.Errorf("there are %d copies named %s* already, move them away", copies, invalidPrefix)
	}
	name := invalidPrefix + time.Now().UTC().Format("20060102T150405Z") + suffix
	if err := s.replace(name, data, fileMode, nil); err != nil {
		return "", err
	}
	path = filepath.Join(s.dir, name)
	s.log.Info("opencomms: the state file is not valid, it was copied and is left as it is", "path", s.path, "copy", path)
	return path, nil
}
