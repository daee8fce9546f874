package registry

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"opencode-mesh/protocol/peers"
)

const (
	// MaxFiles is how many files of the registry are read in one go.
	MaxFiles = 4096
	// MaxFileBytes is how large a file of the registry may be. A larger one is nobody's
	// entry; it is not read, and not removed.
	MaxFileBytes = 32 << 10
	// batch is how many names are read at once.
	batch = 256
)

// errTooLarge says that a file is larger than MaxFileBytes.
var errTooLarge = errors.New("larger than an entry can be")

// eachFile calls do with the name of every file that readers of the registry take for an
// entry, in no order, until do returns false. A directory that is not there has none.
func eachFile(ctx context.Context, dir string, do func(name string) bool) error {
	d, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.Close()
	for {
		items, err := d.ReadDir(batch)
		for _, item := range items {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if strings.HasSuffix(item.Name(), ".json") && !do(item.Name()) {
				return nil
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// readFile reads an entry. The error is that of the file, errTooLarge, or one of
// peers.ReadEntry.
func readFile(dir, name string) (peers.Entry, error) {
	path := filepath.Join(dir, name)
	// What is no file, a pipe for one, would keep whoever opens it.
	if info, err := os.Stat(path); err != nil {
		return peers.Entry{}, err
	} else if !info.Mode().IsRegular() {
		return peers.Entry{}, fs.ErrInvalid
	}
	f, err := os.Open(path)
	if err != nil {
		return peers.Entry{}, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxFileBytes+1))
	if err != nil {
		return peers.Entry{}, err
	}
	if len(data) > MaxFileBytes {
		return peers.Entry{}, errTooLarge
	}
	return peers.ReadEntry(data)
}
