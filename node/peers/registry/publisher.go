package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"opencode-mesh/node/peers/files"
	"opencode-mesh/protocol/peers"
)

// Dir is the registry's directory within the storage directory.
const Dir = "peers.d"

// PublisherConfig is what a Publisher needs.
type PublisherConfig struct {
	// StorageDir is the directory that has Dir in it; nothing is made before the first
	// Publish.
	StorageDir string
	// Heartbeat is the time between two rewritings; 0: peers.DefaultHeartbeat.
	Heartbeat time.Duration
	// Now is the clock; nil: the system's.
	Now func() time.Time
	// Log gets what went wrong with files that nobody waits for; nil: nowhere.
	Log *slog.Logger
}

// Publisher keeps the files of this process's endpoints. It may be used by any number of
// goroutines; Run has to run for as long as it is used.
type Publisher struct {
	dir       string
	heartbeat time.Duration
	now       func() time.Time
	log       *slog.Logger
	pid       int
	started   float64

	// turn is taken around all work on own files, so that a heartbeat brings nothing back
	// that was withdrawn. Its holder may use what is below.
	turn    chan struct{}
	shown   map[string]peers.Entry // by endpoint, without HeartbeatAt
	left    map[string]peers.Entry // by process: withdrawn, but a file could not be removed
	failing bool                   // the last heartbeat could not write
	closed  bool
}

// ErrStopped says that the Publisher has stopped.
var ErrStopped = errors.New("the registry's publisher has stopped")

// NewPublisher makes a Publisher. It does nothing yet.
func NewPublisher(cfg PublisherConfig) *Publisher {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Publisher{
		dir: filepath.Join(cfg.StorageDir, Dir), heartbeat: cmp.Or(cfg.Heartbeat, peers.DefaultHeartbeat), now: cfg.Now, log: cfg.Log,
		pid: os.Getpid(), started: float64(cfg.Now().UnixMilli()), turn: make(chan struct{}, 1), shown: map[string]peers.Entry{},
		left: map[string]peers.Entry{},
	}
}

// Publish writes the files of an endpoint, which may be new or have changed: one of
// version 2, and with an InboxURL one of version 1. EndpointID, ProcessID, SessionID and
// Transport are needed, and the process is the endpoint's alone; the process's PID, Busy
// and HeartbeatAt are set here, Status, StartedAt and UpdatedAt if they are empty. The files
// stay, and are rewritten at every heartbeat, until Withdraw or the end of Run. After an
// error all is as it was before.
func (p *Publisher) Publish(ctx context.Context, e peers.Entry) error {
	if e.EndpointID == "" || e.ProcessID == "" || e.SessionID == "" || e.Transport == (peers.Transport{}) {
		return fmt.Errorf("publish endpoint %q: without id, process, session or transport nobody can see it", e.EndpointID)
	}
	if peers.Safe(e.ProcessID) != e.ProcessID {
		return fmt.Errorf("publish endpoint %q: its process id %q cannot be in a file's name", e.EndpointID, e.ProcessID)
	}
	if err := p.take(ctx); err != nil {
		return err
	}
	defer p.leave()
	if p.closed {
		return ErrStopped
	}
	old, known := p.shown[e.EndpointID]
	now := float64(p.now().UnixMilli())
	e.V1, e.PID, e.HeartbeatAt = false, p.pid, 0
	e.Status = cmp.Or(e.Status, peers.Idle)
	e.Busy = e.Status != peers.Idle
	e.StartedAt = cmp.Or(e.StartedAt, old.StartedAt, now)
	if e.UpdatedAt == 0 {
		// The time of the last change, unless this is one.
		if e.UpdatedAt = old.UpdatedAt; !known || e != old {
			e.UpdatedAt = now
		}
	}
	if known && e == old {
		return nil
	}
	err := p.makeDir()
	if err == nil {
		err = p.write(e, now)
	}
	if err != nil {
		if !known {
			_ = p.remove(e)
		}
		return fmt.Errorf("publish endpoint %s: %w", e.EndpointID, err)
	}
	p.shown[e.EndpointID] = e
	delete(p.left, e.ProcessID)
	if known && (old.ProcessID != e.ProcessID || old.InboxURL != "" && e.InboxURL == "") {
		for _, name := range p.names(old) {
			if !p.owns(name) {
				err = errors.Join(err, removeFile(filepath.Join(p.dir, name)))
			}
		}
		if err != nil {
			p.log.Warn("peers: a file of the registry could not be removed", "err", err)
		}
	}
	return nil
}

// Withdraw removes the files of an endpoint. One that is not published is none. After an
// error they are not renewed any more, and every heartbeat tries again to remove them, as
// does another Withdraw.
func (p *Publisher) Withdraw(ctx context.Context, endpoint string) error {
	if err := p.take(ctx); err != nil {
		return err
	}
	defer p.leave()
	if e, ok := p.shown[endpoint]; ok {
		delete(p.shown, endpoint)
		p.left[e.ProcessID] = e
	}
	if err := p.clearLeft(func(e peers.Entry) bool { return e.EndpointID == endpoint }); err != nil {
		return fmt.Errorf("withdraw endpoint %s: %w", endpoint, err)
	}
	return nil
}

// clearLeft removes the files of what was withdrawn, as far as it goes. The caller has the
// turn.
func (p *Publisher) clearLeft(which func(peers.Entry) bool) (failed error) {
	for process, e := range p.left {
		if !which(e) {
			continue
		}
		if err := p.remove(e); err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		delete(p.left, process)
	}
	return failed
}

func every(peers.Entry) bool { return true }

// Run rewrites the files at every heartbeat and clears away after dead processes, until ctx
// ends. Then it removes all files that are its own; the error is what could not be removed.
// Nothing can be published after that.
func (p *Publisher) Run(ctx context.Context) error {
	tick := time.NewTicker(p.heartbeat)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return p.stop()
		case <-tick.C:
			p.beat(ctx)
		}
	}
}

// stop removes everything, whether there is time for it or not: the work on files that
// others have begun is short.
func (p *Publisher) stop() error {
	p.turn <- struct{}{}
	defer p.leave()
	p.closed = true
	for id, e := range p.shown {
		delete(p.shown, id)
		p.left[e.ProcessID] = e
	}
	if failed := p.clearLeft(every); failed != nil {
		return fmt.Errorf("leave the registry: %w", failed)
	}
	return nil
}

// beat is one heartbeat: all own files are written anew, then the files of the dead go.
func (p *Publisher) beat(ctx context.Context) {
	if p.take(ctx) != nil {
		return
	}
	own, err := p.rewrite()
	_ = p.clearLeft(every) // whoever withdrew it was told
	began, ended := err != nil && !p.failing, err == nil && p.failing
	p.failing = err != nil
	p.leave()
	switch {
	case began:
		p.log.Warn("peers: the registry cannot be written, agents of this node will be shown as offline", "dir", p.dir, "err", err)
	case ended:
		p.log.Info("peers: the registry can be written again", "dir", p.dir)
	}
	p.clean(ctx, own)
}

// rewrite writes every own file and returns their names. The caller has the turn.
func (p *Publisher) rewrite() (own map[string]bool, err error) {
	if len(p.shown) == 0 {
		return nil, nil
	}
	own = map[string]bool{}
	err = p.makeDir()
	now := float64(p.now().UnixMilli())
	for _, e := range p.shown {
		err = errors.Join(err, p.write(e, now))
		for _, name := range p.names(e) {
			own[name] = true
		}
	}
	return own, err
}

// take waits for the turn.
func (p *Publisher) take(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	select {
	case p.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (p *Publisher) leave() { <-p.turn }

// makeDir makes the directory if it is not there, and closes it to others.
func (p *Publisher) makeDir() error {
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return err
	}
	return os.Chmod(p.dir, 0o700)
}

// forms are the entries of an endpoint, in the order in which they appear. That of version 1
// is never there alone, so that a reader of both sees one agent.
func (p *Publisher) forms(e peers.Entry) []peers.Entry {
	if e.InboxURL == "" {
		return []peers.Entry{e}
	}
	return []peers.Entry{e, e.Compat(p.started)}
}

func (p *Publisher) names(e peers.Entry) []string {
	var names []string
	for _, form := range p.forms(e) {
		names = append(names, form.FileName())
	}
	return names
}

// owns says whether a name is that of a file of what is shown.
func (p *Publisher) owns(name string) bool {
	for _, e := range p.shown {
		for _, own := range p.names(e) {
			if own == name {
				return true
			}
		}
	}
	return false
}

// write puts the files of an endpoint in place, each whole.
func (p *Publisher) write(e peers.Entry, now float64) error {
	for _, form := range p.forms(e) {
		form.HeartbeatAt = now
		path := filepath.Join(p.dir, form.FileName())
		temp := path + "." + strconv.Itoa(p.pid) + ".tmp" // no reader takes it for an entry
		err := os.WriteFile(temp, form.Encode(), 0o600)
		if err == nil {
			err = os.Chmod(temp, 0o600)
		}
		if err == nil {
			err = files.Rename(files.OS{}, temp, path)
		}
		if err != nil {
			_ = os.Remove(temp)
			return err
		}
	}
	return nil
}

// remove removes the files of an endpoint, the one of version 1 first.
func (p *Publisher) remove(e peers.Entry) error {
	var failed error
	names := p.names(e)
	for i := len(names) - 1; i >= 0; i-- {
		failed = errors.Join(failed, removeFile(filepath.Join(p.dir, names[i])))
	}
	return failed
}

// removeFile removes a file that may have gone.
func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
