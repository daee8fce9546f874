package statefile

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// slowPoll is the time between two looks of Watch, for what the system does not
// tell: network file systems, a directory that was not there yet.
const slowPoll = 2 * time.Second

// Watch tells when the file may have changed: whoever wrote it, and also when it or
// its directory came, went or was replaced. Changes are told within moments, at
// the latest after two seconds, and any number of them as one. Call it before the
// first Read, so that no change lies between.
//
// The channel is closed once ctx ended and nothing of the watch runs any more.
func (s *Store) Watch(ctx context.Context) <-chan struct{} {
	changed := make(chan struct{}, 1)
	w := &watch{store: s, changed: changed}
	w.seen, _ = s.disk.Lstat(s.path)
	w.follow()
	go func() {
		defer close(changed)
		defer w.stop()
		w.run(ctx)
	}()
	return changed
}

type watch struct {
	store   *Store
	changed chan struct{}
	seen    fs.FileInfo // the file at the last look; nil: none
	events  *fsnotify.Watcher
	dir     fs.FileInfo // the directory that events is about
}

func (w *watch) run(ctx context.Context) {
	tick := time.NewTicker(w.store.slow)
	defer tick.Stop()
	for {
		// Without a watcher both are nil, and only the ticks are left.
		var events chan fsnotify.Event
		var errs chan error
		if w.events != nil {
			events, errs = w.events.Events, w.events.Errors
		}
		select {
		case <-ctx.Done():
			return
		case e := <-events:
			switch name := filepath.Base(e.Name); {
			case name == stateName && e.Op != fsnotify.Chmod:
				w.tell()
			case name == Dir && e.Op.Has(fsnotify.Remove|fsnotify.Rename):
				// Another directory may get the same number, so follow cannot tell.
				w.stop()
				w.dir = nil
				w.tell()
			} // the lock and temporary files come and go with every write
		case err := <-errs:
			w.store.log.Debug("opencomms: events of the file system were lost", "err", err)
			w.tell()
		case <-tick.C:
			if w.follow() || w.different() {
				w.tell()
			}
		}
	}
}

// tell leaves word, unless some lies there already.
func (w *watch) tell() {
	w.seen, _ = w.store.disk.Lstat(w.store.path)
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// different says whether the file is another than at the last look.
func (w *watch) different() bool {
	now, err := w.store.disk.Lstat(w.store.path)
	if err != nil || w.seen == nil {
		return (err == nil) != (w.seen != nil)
	}
	return !os.SameFile(now, w.seen) || now.Size() != w.seen.Size() || !now.ModTime().Equal(w.seen.ModTime())
}

// follow sees to it that events are those of the directory that is there now, and
// says whether that is another one than before.
func (w *watch) follow() (moved bool) {
	now, err := os.Stat(w.store.dir) // through a link, as the watcher goes
	if err != nil {
		now = nil
	}
	if now == nil && w.dir == nil || now != nil && w.dir != nil && os.SameFile(now, w.dir) {
		return false
	}
	w.stop()
	w.dir = now
	if now == nil {
		return true
	}
	if w.events, err = fsnotify.NewWatcher(); err == nil {
		if err = w.events.Add(w.store.dir); err != nil {
			w.stop()
		}
	}
	if err != nil {
		w.store.log.Info("opencomms: no events of the file system, looking every two seconds", "dir", w.store.dir, "err", err)
	}
	return true
}

// stop ends the watcher.
func (w *watch) stop() {
	if w.events != nil {
		w.events.Close()
		w.events = nil
	}
}
