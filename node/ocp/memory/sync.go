package memory

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"opencode-mesh/node/agent"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/ocp"
)

const (
	// DefaultPoll is how often hub and channels are looked at, beside after each hello and
	// each nudge.
	DefaultPoll = time.Minute
	// DefaultGather is how long a round waits after a nudge for others to come along.
	DefaultGather = time.Second
	// sweepEvery is how often everything is told anew, and what does not come any more is
	// forgotten.
	sweepEvery = 24 * time.Hour
	// callTimeout bounds one page of the feed.
	callTimeout = time.Minute
	// maxPages bounds one round: a hub whose feed has no end keeps nobody busy for ever.
	maxPages = 20_000

	cursorNote = "feed"
	sweptNote  = "swept"
)

// The ids of items say where they come from. What others may have made as long as they like
// goes into them by brief.
const (
	fromResult = "result/"
	fromDigest = "digest/"
	fromFile   = "file/"
	fromThread = "thread/"
)

// Hub calls the hub through the tunnel; link.Client is one.
type Hub interface {
	Call(ctx context.Context, method, path string, in, out any) error
}

// SyncConfig says what a Syncer keeps filled, and from where. Index is required.
type SyncConfig struct {
	Index *Index
	// Workspaces are those whose channels are remembered, and from which files that results
	// name are read.
	Workspaces []agent.Workspace
	// Poll is how often it is looked; 0: DefaultPoll.
	Poll time.Duration
	// Gather is how long a nudge waits for others, so that a stream of results makes no
	// stream of rounds; 0: DefaultGather.
	Gather time.Duration
	Log    *slog.Logger // nil: discarded
}

// Syncer keeps an index filled. Its methods are safe for concurrent use.
type Syncer struct {
	cfg  SyncConfig
	wake chan struct{} // room for one: look at once
	news chan struct{} // room for one: look soon

	mu   sync.Mutex // guards the following fields
	hub  Hub        // nil: not connected
	self string     // the node's identity id there

	// Of Run alone.
	problem  string                  // of the last round
	threaded map[string]channelMarks // by workspace, of what was remembered
}

// NewSyncer makes a Syncer.
func NewSyncer(cfg SyncConfig) *Syncer {
	if cfg.Poll == 0 {
		cfg.Poll = DefaultPoll
	}
	if cfg.Gather == 0 {
		cfg.Gather = DefaultGather
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Syncer{cfg: cfg, wake: make(chan struct{}, 1), news: make(chan struct{}, 1), threaded: map[string]channelMarks{}}
}

// Attach gives it the hub after a hello, and the node's identity id there.
func (s *Syncer) Attach(hub Hub, self string) {
	s.mu.Lock()
	s.hub, s.self = hub, self
	s.mu.Unlock()
	signal(s.wake)
}

// Nudge says that the hub has something new. Many at about the same time lead to one round.
// It does not block.
func (s *Syncer) Nudge() { signal(s.news) }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Detach takes the hub away.
func (s *Syncer) Detach() {
	s.mu.Lock()
	s.hub = nil
	s.mu.Unlock()
}

// Run follows hub and channels until ctx ends. What cannot be had, or put, is tried again
// with the next round; nothing depends on it.
func (s *Syncer) Run(ctx context.Context) {
	tick := time.NewTicker(s.cfg.Poll)
	defer tick.Stop()
	for {
		s.round(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-s.wake:
		case <-s.news:
			select {
			case <-ctx.Done():
				return
			case <-s.wake:
			case <-time.After(s.cfg.Gather):
			}
			select { // what came meanwhile is told by the round
			case <-s.news:
			default:
			}
		}
	}
}

// round looks at everything once.
func (s *Syncer) round(ctx context.Context) {
	s.mu.Lock()
	hub := s.hub
	s.mu.Unlock()
	err := s.channels(ctx)
	if hub != nil {
		err = errors.Join(err, s.follow(ctx, hub))
	}
	if ctx.Err() != nil {
		return
	}
	before := s.problem
	s.problem = ""
	if err != nil {
		s.problem = err.Error()
	}
	switch {
	case s.problem != "" && s.problem != before:
		s.cfg.Log.Warn("the memory is not up to date; it is tried again", "err", err)
	case s.problem == "" && before != "":
		s.cfg.Log.Info("the memory is up to date again")
	}
}

// follow reads the feed from where it was left to its end, now and then from its
// beginning: then what the hub did not tell any more is forgotten.
func (s *Syncer) follow(ctx context.Context, hub Hub) error {
	x := s.cfg.Index
	cursor, err := x.noted(ctx, cursorNote)
	if err != nil {
		return err
	}
	swept, err := x.noted(ctx, sweptNote)
	if err != nil {
		return err
	}
	last, _ := time.Parse(time.RFC3339, string(swept)) // zero when it is none: sweep
	if age := time.Since(last); len(cursor) > 0 && age >= 0 && age < sweepEvery {
		next, err := s.read(ctx, hub, string(cursor), nil)
		if refused := new(api.Error); errors.As(err, &refused) && refused.Code == api.CodeBadRequest && next == string(cursor) {
			s.cfg.Log.Warn("the hub does not know the place in its feed; the memory is read anew", "err", err)
			return s.sweep(ctx, hub)
		}
		return err
	}
	return s.sweep(ctx, hub)
}

// sweep reads the feed from its beginning and forgets what it did not tell. The channels are
// read anew after it, too.
func (s *Syncer) sweep(ctx context.Context, hub Hub) error {
	told := map[string]bool{}
	began := time.Now().UTC()
	cursor, err := s.read(ctx, hub, "", told)
	if err != nil {
		return err
	}
	var gone []string
	for _, source := range []string{fromResult, fromDigest, fromFile} {
		have, err := s.cfg.Index.ids(ctx, source)
		if err != nil {
			return err
		}
		for _, id := range have {
			if !told[id] {
				gone = append(gone, id)
			}
		}
	}
	if err := s.cfg.Index.Delete(ctx, gone...); err != nil {
		return err
	}
	clear(s.threaded) // the next round reads them anew: the index may be another by now
	if err := s.cfg.Index.put(ctx, nil, &note{cursorNote, []byte(cursor)}); err != nil {
		return err
	}
	return s.cfg.Index.put(ctx, nil, &note{sweptNote, []byte(began.Format(time.RFC3339))})
}

// read follows the feed to its end and returns where that is. With told it notes the ids
// that it put there; without, how far it came is noted with the items.
func (s *Syncer) read(ctx context.Context, hub Hub, cursor string, told map[string]bool) (string, error) {
	for range maxPages {
		var page api.MemoryPage
		path := "/v1/memory?limit=" + strconv.Itoa(api.MaxMemoryPage/2)
		if cursor != "" {
			path += "&after=" + url.QueryEscape(cursor)
		}
		call, cancel := context.WithTimeout(ctx, callTimeout)
		err := hub.Call(call, http.MethodGet, path, nil, &page)
		cancel()
		if err != nil {
			return cursor, err
		}
		items, gone := s.made(page.Items)
		if told != nil {
			for _, it := range items {
				told[it.ID] = true
			}
		}
		if err := s.cfg.Index.Delete(ctx, gone...); err != nil {
			return cursor, err
		}
		var n *note
		if told == nil && page.Next != cursor {
			n = &note{cursorNote, []byte(page.Next)}
		}
		if err := s.cfg.Index.put(ctx, items, n); err != nil {
			return cursor, err
		}
		if cursor = page.Next; !page.More {
			break
		}
	}
	return cursor, ctx.Err()
}

// made makes items of what the hub told; gone are the ids of what is to be forgotten. A
// later item of the same id replaces an earlier one.
func (s *Syncer) made(list []api.MemoryItem) (items []Item, gone []string) {
	for _, m := range list {
		switch {
		case m.Result != nil:
			items = append(items, resultItem(m.Result))
			items = append(items, s.fileItems(m.Result)...)
		case m.Digest != nil && m.Digest.Gone:
			gone = append(gone, digestID(m.Digest))
		case m.Digest != nil:
			items = append(items, digestItem(m.Digest))
		}
	}
	return items, gone
}

// maxIDPart is the longest part of an id that is kept as it is, in bytes: with four of them
// an id is shorter than MaxTitle.
const maxIDPart = 64

// brief is a part of an id, a digest of one that is too long or has the sign that parts
// them.
func brief(part string) string {
	if len(part) <= maxIDPart && !strings.Contains(part, "/") {
		return part
	}
	return ocp.Digest(part)[len("sha256:"):]
}

// between names a task's parties for people.
func between(controller, target api.Party) string {
	return nameOf(controller) + " → " + nameOf(target)
}

func nameOf(p api.Party) string {
	if p.Name == "" {
		return "someone"
	}
	return p.Name
}

// firstWords is the beginning of the first line of a text that says something.
func firstWords(text string, n int) string {
	for l := range strings.Lines(text) {
		l = strings.Trim(line(l), "# *-")
		if l == "" {
			continue
		}
		if cut := ocp.Cut(l, n); cut != l {
			return strings.TrimSpace(cut) + "…"
		}
		return l
	}
	return ""
}
