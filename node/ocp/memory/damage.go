package memory

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"

	index "github.com/blevesearch/bleve_index_api"

	"opencode-mesh/store/boltdb"
)

// errDamaged is what is wrong with files that are not as they were written.
var errDamaged = errors.New("the index is damaged")

// layout is the version of what is kept in the files; an index of another one is made anew.
const layout = "2"

const (
	// engineDir is where the engine has its files, below the directory of the index.
	engineDir = "text"
	// layoutFile has the layout.
	layoutFile = "layout"
	// crcBytes are at the end of each file of the engine's.
	crcBytes = 4
	// segmentExt is that of those files.
	segmentExt = ".zap"
)

// openOrRemake opens the index in a directory. What cannot be read is removed and made anew:
// everything in it comes again from where it came first.
func openOrRemake(cfg Config, queue *index.AnalysisQueue) (index.Index, error) {
	if err := os.MkdirAll(cfg.Path, 0o700); err != nil {
		return nil, err
	}
	dir := filepath.Join(cfg.Path, engineDir)
	var engine index.Index
	err := sound(cfg.Path)
	if err == nil {
		err = guarded(func() (err error) {
			engine, err = startEngine(dir, queue, false)
			return err
		})
	}
	if err == nil {
		return engine, nil
	}
	if boltdb.InUse(err) {
		return nil, fmt.Errorf("another process, or a disk that does not answer, holds %s: %w", dir, err)
	}
	if _, statErr := os.Stat(dir); statErr == nil {
		cfg.Log.Warn("the memory cannot be used as it is on disk; it is made anew and filled again from hub, channels and workspaces", "dir", dir, "err", err)
	}
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(cfg.Path, layoutFile), []byte(layout), 0o600); err != nil {
		return nil, err
	}
	err = guarded(func() (err error) {
		engine, err = startEngine(dir, queue, false)
		return err
	})
	return engine, err
}

// sound looks whether the files are those that were written: the engine maps them into
// memory and believes what it reads there.
func sound(path string) error {
	got, err := os.ReadFile(filepath.Join(path, layoutFile))
	if err != nil {
		return err
	}
	if string(got) != layout {
		return fmt.Errorf("it is of layout %q, not %s", got, layout)
	}
	return filepath.WalkDir(filepath.Join(path, engineDir), func(name string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || d.IsDir() || !strings.HasSuffix(name, segmentExt) {
			return err
		}
		return soundSegment(name)
	})
}

// soundSegment compares a file with the checksum at its end.
func soundSegment(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Size() < crcBytes {
		return fmt.Errorf("%w: %s has %d bytes", errDamaged, filepath.Base(name), info.Size())
	}
	sum := crc32.NewIEEE()
	if _, err := io.CopyN(sum, f, info.Size()-crcBytes); err != nil {
		return err
	}
	var end [crcBytes]byte
	if _, err := io.ReadFull(f, end[:]); err != nil {
		return err
	}
	if binary.BigEndian.Uint32(end[:]) != sum.Sum32() {
		return fmt.Errorf("%w: the checksum of %s is wrong", errDamaged, filepath.Base(name))
	}
	return nil
}

// guarded runs fn and makes an error of its panic: the engine panics on files that are
// damaged, and one that was cut off is a fault of memory.
func guarded(fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", errDamaged, p)
		}
	}()
	return fn()
}
