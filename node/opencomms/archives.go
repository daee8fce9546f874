package opencomms

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"opencode-mesh/node/opencomms/statefile"
	"opencode-mesh/protocol/opencomms"
)

// ArchivesDir is where the archives of the project in a directory are; what is in it changes
// with each that is saved or removed.
func ArchivesDir(dir string) string { return filepath.Join(dir, statefile.Dir, "archives") }

// archives are the files of saved sessions, archives/<channel id>.json.
type archives struct {
	dir string
	log *slog.Logger
}

func (d archives) path(id string) string { return filepath.Join(d.dir, id+".json") }

// write puts an archive on the disk; an older one of the same channel is replaced
// whole. Only the user reads it: it has role prompts and mail.
func (d archives) write(a *opencomms.Archive) (err error) {
	if !opencomms.ValidArchiveID(a.ChannelID) {
		return fmt.Errorf("archive: the channel id %q cannot name a file", a.ChannelID)
	}
	data, err := a.Encode()
	if err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	var id [4]byte
	_, _ = rand.Read(id[:])
	temp := filepath.Join(d.dir, fmt.Sprintf(".arch.%d.%s.tmp", os.Getpid(), hex.EncodeToString(id[:])))
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("archive: %w", err)
			_ = os.Remove(temp)
		}
	}()
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err = os.Rename(temp, d.path(a.ChannelID)); err != nil {
		return err
	}
	syncDir(d.dir)
	syncDir(filepath.Dir(d.dir)) // the directory may be new
	return nil
}

// syncDir makes what happened in a directory durable, where the system has that.
func syncDir(dir string) {
	if f, err := os.Open(dir); err == nil {
		_ = f.Sync()
		f.Close()
	}
}

// remove deletes an archive, if it is there.
func (d archives) remove(id string) error {
	if !opencomms.ValidArchiveID(id) {
		return nil
	}
	if err := os.Remove(d.path(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("archive: %w", err)
	}
	return nil
}

// all are the archives that can be read, newest first. One that cannot is logged
// and left out: it says nothing about the others.
func (d archives) all() ([]*opencomms.Archive, error) {
	entries, err := os.ReadDir(d.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("archives: %w", err)
	}
	var out []*opencomms.Archive
	for _, entry := range entries {
		id, ok := strings.CutSuffix(entry.Name(), ".json")
		if !ok || !opencomms.ValidArchiveID(id) || !entry.Type().IsRegular() {
			continue
		}
		a, err := d.read(id)
		if err != nil {
			d.log.Warn("opencomms: an archive cannot be read", "file", d.path(id), "err", err)
			continue
		}
		out = append(out, a)
	}
	slices.SortStableFunc(out, func(a, b *opencomms.Archive) int { return cmp.Compare(b.SavedAt, a.SavedAt) })
	return out, nil
}

func (d archives) read(id string) (*opencomms.Archive, error) {
	f, err := os.Open(d.path(id))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, statefile.MaxFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > statefile.MaxFile {
		return nil, fmt.Errorf("it has more than %d bytes", statefile.MaxFile)
	}
	a, err := opencomms.DecodeArchive(data)
	if err != nil {
		return nil, err
	}
	if a.ChannelID != id {
		return nil, fmt.Errorf("it is the archive of %q", a.ChannelID)
	}
	return a, nil
}

// Saved are all archives that can be read, newest first, for whoever owns the machine;
// Archives is for members.
func (p *Project) Saved() ([]*opencomms.Archive, error) { return p.archives.all() }
