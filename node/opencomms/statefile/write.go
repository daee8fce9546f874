package statefile

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"
)

const (
	// leftAge is the age at which a temporary file was left behind for sure.
	leftAge = time.Hour
)

// renamePauses come before each attempt to rename: a reader on Windows, or a
// scanner, may hold the file for a moment.
var renamePauses = [...]time.Duration{0, 50 * time.Millisecond, 100 * time.Millisecond}

// replace writes a file of the directory: the old one stays until the new one is
// on the disk, whole. With a lock it is only done while that is ours.
func (s *Store) replace(name string, data []byte, mode fs.FileMode, l *lock) (err error) {
	if len(data) > MaxFile {
		return fmt.Errorf("%s would have %d bytes, at most %d are possible", name, len(data), MaxFile)
	}
	var id [4]byte
	_, _ = rand.Read(id[:])
	tmp := filepath.Join(s.dir, fmt.Sprintf(".state.%d.%s.tmp", os.Getpid(), hex.EncodeToString(id[:])))
	f, err := s.disk.Create(tmp, fileMode)
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("write %s: %w", name, err)
			_ = s.disk.Remove(tmp)
		}
	}()
	_, err = f.Write(data)
	if err == nil && mode != fileMode {
		// A system without modes has none to keep.
		_ = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	for _, wait := range renamePauses {
		time.Sleep(wait)
		if l != nil && !l.ours() {
			return ErrLockLost
		}
		if err = s.disk.Rename(tmp, filepath.Join(s.dir, name)); err == nil {
			break
		}
	}
	return err
}

// syncDir makes what was replaced outlive a crash of the machine. The files are in
// place and everybody sees them: an error now would make callers take back what is
// done.
func (s *Store) syncDir() {
	if err := s.disk.SyncDir(s.dir); err != nil {
		s.log.Warn("opencomms: the directory was not synced, a crash of the machine may bring the file before back", "dir", s.dir, "err", err)
	}
}

var tmpName = regexp.MustCompile(`^\.state\.[0-9]+\.[0-9a-f]{8}\.tmp$`)

type sweepOnce struct{ sync.Once }

// sweep removes temporary files that dead processes left behind, once for a Store.
// Everybody writes them within seconds, so the old ones are nobody's.
func (s *Store) sweep() {
	s.swept.Do(func() {
		names, err := s.disk.ReadDir(s.dir)
		if err != nil {
			return
		}
		for _, e := range names {
			if !tmpName.MatchString(e.Name()) {
				continue
			}
			if info, err := e.Info(); err == nil && info.Mode().IsRegular() && time.Since(info.ModTime()) > leftAge {
				_ = s.disk.Remove(filepath.Join(s.dir, e.Name()))
			}
		}
	})
}
