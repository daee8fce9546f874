package registry

import (
	"context"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// slowPoll is the time between two looks of Watch, for what the system does not tell:
	// that somebody fell silent, network file systems, a directory that was not there yet.
	slowPoll = 2 * time.Second
	// pause is the least time between two looks, however many files are written: a
	// heartbeat writes all of them.
	pause = 200 * time.Millisecond
)

// Watch tells when what Read returns has become different in more than heartbeats: who is
// there, what is known of them and whether they are alive. Any number of changes are told as
// one, each within moments or after two seconds at the latest. Call it before the first
// Read, so that no change lies between.
//
// The channel is closed once ctx ended and nothing of the watch runs any more.
func (r *Reader) Watch(ctx context.Context) <-chan struct{} {
	changed := make(chan struct{}, 1)
	w := &watch{reader: r, changed: changed}
	w.follow()
	w.seen = w.read(ctx)
	go func() {
		defer close(changed)
		defer w.stop()
		w.run(ctx)
	}()
	return changed
}

type watch struct {
	reader  *Reader
	changed chan struct{}
	seen    []Peer // at the last look, without heartbeats
	events  *fsnotify.Watcher
	dir     os.FileInfo // the directory that events is about; nil: none
}

func (w *watch) run(ctx context.Context) {
	tick := time.NewTicker(w.reader.poll)
	defer tick.Stop()
	// rest runs after a look; what is written meanwhile is looked at when it is over.
	rest := time.NewTimer(0)
	defer rest.Stop()
	resting, dirty := true, false
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
			if e.Name == w.reader.dir && e.Op.Has(fsnotify.Remove|fsnotify.Rename) {
				// Another directory may get the same number, so follow cannot tell.
				w.stop()
				w.dir = nil
			} else if !strings.HasSuffix(e.Name, ".json") || e.Op == fsnotify.Chmod {
				continue
			}
			dirty = true
		case err := <-errs:
			w.reader.log.Debug("peers: events of the file system were lost", "err", err)
			dirty = true
		case <-tick.C:
			w.follow()
			dirty = true
		case <-rest.C:
			resting = false
		}
		if dirty && !resting {
			w.look(ctx)
			resting, dirty = true, false
			rest.Reset(pause)
		}
	}
}

// look reads, and leaves word if something is different, unless word lies there already.
func (w *watch) look(ctx context.Context) {
	now := w.read(ctx)
	if slices.Equal(now, w.seen) {
		return
	}
	w.seen = now
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// read is what there is to compare. What cannot be read now is as it was.
func (w *watch) read(ctx context.Context) []Peer {
	list, err := w.reader.Read(ctx)
	if err != nil {
		return w.seen
	}
	for i := range list {
		list[i].HeartbeatAt = 0
	}
	return list
}

// follow sees to it that events are those of the directory that is there now.
func (w *watch) follow() {
	now, err := os.Stat(w.reader.dir)
	if err != nil {
		now = nil
	}
	if now == nil && w.dir == nil || now != nil && w.dir != nil && os.SameFile(now, w.dir) {
		return
	}
	w.stop()
	w.dir = now
	if now == nil {
		return
	}
	if w.events, err = fsnotify.NewWatcher(); err == nil {
		if err = w.events.Add(w.reader.dir); err != nil {
			w.stop()
		}
	}
	if err != nil {
		w.reader.log.Info("peers: no events of the file system, looking every two seconds", "dir", w.reader.dir, "err", err)
	}
}

// stop ends the watcher.
func (w *watch) stop() {
	if w.events != nil {
		w.events.Close()
		w.events = nil
	}
}
