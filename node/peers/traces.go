package peers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"opencode-mesh/node/peers/files"
)

const (
	// TraceFile is where the endpoints are noted that left something on the disk, in
	// Config.DataDir.
	TraceFile = "peers-endpoints.json"
	// MaxTraces is how many of them are known. What others left stays where it is.
	MaxTraces = 4096
	// SentKept is how long what an agent sent is known after its last news, once the agent
	// is gone.
	SentKept = 7 * 24 * time.Hour
	// tidyEvery is the time between two removals of what endpoints left that are gone.
	tidyEvery = time.Hour

	maxTraceFile = 1 << 20
)

// traces knows the endpoints of this node that sent or took a message, over restarts. What
// an endpoint owes is told by whoever publishes it; without this nobody would tell of those
// that are gone, and what they left would stay for ever.
type traces struct {
	s    *Service
	path string

	// turn holds a token while the file is read or written; its holder may use loaded.
	turn   chan struct{}
	loaded bool

	mu  sync.Mutex // guards the following field
	ids []string   // the oldest first
}

func newTraces(s *Service) *traces {
	return &traces{s: s, path: filepath.Join(s.cfg.DataDir, TraceFile), turn: make(chan struct{}, 1)}
}

type traceFile struct {
	Endpoints []string `json:"endpoints"`
}

// note notes an endpoint before it leaves something. If that cannot be kept, it is logged:
// what the endpoint leaves may stay then.
func (t *traces) note(ctx context.Context, id string) {
	t.mu.Lock()
	known := slices.Contains(t.ids, id)
	t.mu.Unlock()
	if known {
		return
	}
	err := t.change(ctx, func(ids []string) []string {
		if slices.Contains(ids, id) {
			return ids
		}
		if ids = append(ids, id); len(ids) > MaxTraces {
			t.s.cfg.Log.Warn("peers: what an endpoint left on the disk is not known any more", "endpoint", ids[0], "most", MaxTraces)
			ids = ids[1:]
		}
		return ids
	})
	if err != nil {
		t.s.cfg.Log.Warn("peers: an endpoint is not noted, what it leaves on the disk may stay", "endpoint", id, "err", err)
	}
}

// forget forgets an endpoint that left nothing.
func (t *traces) forget(ctx context.Context, id string) error {
	return t.change(ctx, func(ids []string) []string {
		return slices.DeleteFunc(ids, func(other string) bool { return other == id })
	})
}

func (t *traces) all() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.ids)
}

// change changes what is known and writes it, if it is another one then.
func (t *traces) change(ctx context.Context, fn func([]string) []string) error {
	select {
	case t.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-t.turn }()
	if err := t.load(); err != nil {
		return err
	}
	before := t.all()
	now := fn(slices.Clone(before))
	t.mu.Lock()
	t.ids = now
	t.mu.Unlock()
	if slices.Equal(before, now) {
		return nil
	}
	b, err := json.Marshal(traceFile{now})
	if err == nil {
		err = files.MakeDir(files.OS{}, filepath.Dir(t.path))
	}
	if err == nil {
		err = files.Replace(files.OS{}, t.path, b)
	}
	if err != nil {
		return fmt.Errorf("note which endpoints left something: %w", err)
	}
	return nil
}

// load reads the file, once. One that is damaged counts for nothing and is written anew.
// The caller has the turn.
func (t *traces) load() error {
	if t.loaded {
		return nil
	}
	b, err := files.Read(files.OS{}, t.path, maxTraceFile)
	var f traceFile
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case json.Unmarshal(b, &f) != nil:
		t.s.cfg.Log.Warn("peers: the file of the endpoints that left something is damaged, they are forgotten", "file", t.path)
		f.Endpoints = nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ids, t.loaded = f.Endpoints, true
	return nil
}

// gone are the known endpoints that nobody publishes: neither this process nor another one,
// which would care for them itself.
func (t *traces) gone(ctx context.Context) ([]string, error) {
	if err := t.change(ctx, func(ids []string) []string { return ids }); err != nil {
		return nil, err
	}
	ids := slices.DeleteFunc(t.all(), func(id string) bool { return t.s.find(id) != nil })
	if len(ids) == 0 {
		return nil, nil
	}
	agents, err := t.s.reader.Read(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range agents {
		if p.Alive && !p.Own {
			ids = slices.DeleteFunc(ids, func(id string) bool { return id == p.EndpointID })
		}
	}
	return ids, nil
}

// run cares for what endpoints left that are gone, until ctx ends.
func (t *traces) run(ctx context.Context) {
	tick := time.NewTicker(t.s.cfg.Options.Sweep)
	defer tick.Stop()
	var tidied time.Time
	for {
		now := t.s.cfg.now()
		due := now.Sub(tidied) >= tidyEvery
		if err := t.care(ctx, due); err != nil && ctx.Err() == nil {
			t.s.cfg.Log.Error("peers: what endpoints left that are gone is looked at again", "err", err)
		}
		if due {
			tidied = now
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// care expires what is held for endpoints that are gone, and has their senders told what
// became of it. tidy also removes what is old.
func (t *traces) care(ctx context.Context, tidy bool) error {
	ids, err := t.gone(ctx)
	errs := []error{err}
	for _, id := range ids {
		_, err := t.s.spool.Queue(id).Expire(ctx)
		errs = append(errs, err)
		t.s.settled(id)
		if tidy {
			errs = append(errs, t.tidy(ctx, id))
		}
	}
	return errors.Join(errs...)
}

// tidy removes what an endpoint left that is gone, as far as nobody needs it.
func (t *traces) tidy(ctx context.Context, id string) error {
	took, err := t.s.spool.Clear(ctx, id)
	if err != nil || id == t.s.desk.id { // people look at what they sent long ago, too
		return err
	}
	sent, err := t.s.outbox.Clear(id, t.s.cfg.now().Add(-SentKept))
	if err != nil || !took || !sent {
		return err
	}
	return t.forget(ctx, id)
}
