package outbox

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"opencode-mesh/node/peers/files"
	"opencode-mesh/protocol/peers"
)

const (
	// pruneEvery is how many messages of a sender are begun between two looks at how many
	// there are.
	pruneEvery = 128
	// leftAge is the age at which a temporary file was left behind for sure.
	leftAge = time.Hour
)

// pruner counts what was begun.
type pruner struct {
	mu    sync.Mutex
	begun map[string]int // by directory
}

// due counts one more message of a sender and says whether to look.
func (p *pruner) due(dir string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.begun == nil {
		p.begun = map[string]int{}
	}
	n := p.begun[dir]
	p.begun[dir] = (n + 1) % pruneEvery
	return n == 0
}

// Clear removes the records of a sender of which nothing was heard since a time, and reports
// whether nothing is left then. It is for senders that do not come back.
func (o *Outbox) Clear(from string, before time.Time) (gone bool, err error) {
	dir := filepath.Join(o.dir, peers.Safe(from))
	all, err := o.readAll(dir)
	if err != nil {
		return false, fmt.Errorf("clear the outbox of %s: %w", from, err)
	}
	var errs []error
	for _, r := range all {
		if r.FromEndpoint == from && r.UpdatedAt < float64(before.UnixMilli()) {
			errs = append(errs, o.sys.Remove(o.path(r.FromEndpoint, r.MessageID)))
		}
	}
	o.clearTemporary(dir)
	o.prune.forget(dir)
	err = o.sys.Remove(dir) // if it is empty
	return err == nil || errors.Is(err, fs.ErrNotExist), errors.Join(errs...)
}

// clearTemporary removes temporary files that were left.
func (o *Outbox) clearTemporary(dir string) (n int) {
	entries, err := o.sys.ReadDir(dir)
	if err != nil {
		return 0
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && strings.HasSuffix(e.Name(), files.TempSuffix) && time.Since(info.ModTime()) > leftAge {
			_ = o.sys.Remove(filepath.Join(dir, e.Name()))
		}
	}
	return len(entries)
}

// forget forgets a sender.
func (p *pruner) forget(dir string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.begun, dir)
}

// tidy removes the oldest records of a sender that are too many, and temporary files that
// were left. What cannot be removed is left for the next time.
func (o *Outbox) tidy(dir string) {
	if !o.prune.due(dir) {
		return
	}
	if o.clearTemporary(dir) <= MaxFinished {
		return
	}
	all, err := o.readAll(dir)
	if err != nil {
		return
	}
	for _, r := range excess(all, MaxFinished, MaxOpen) {
		_ = o.sys.Remove(o.path(r.FromEndpoint, r.MessageID))
	}
	_ = o.sys.SyncDir(dir)
}

// excess are the records beyond the newest ones.
func excess(records []Record, finished, open int) (old []Record) {
	slices.SortFunc(records, newest)
	for _, r := range records {
		left := &open
		if r.Finished() {
			left = &finished
		}
		if *left--; *left < 0 {
			old = append(old, r)
		}
	}
	return old
}
