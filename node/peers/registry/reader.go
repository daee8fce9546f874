package registry

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"opencode-mesh/protocol/peers"
)

// Peer is an agent as a Reader found it.
type Peer struct {
	peers.Entry
	// Alive is false for one that nothing can be sent to; Reason says why then.
	Alive  bool
	Reason string // ReasonStale, ReasonGone or ""
	// Own marks the endpoints of this process.
	Own bool
}

// Why a peer is not alive.
const (
	ReasonStale = "no heartbeat"
	ReasonGone  = "its process is gone"
)

// ReaderConfig is what a Reader needs.
type ReaderConfig struct {
	// StorageDir is the directory that has Dir in it. It need not be there.
	StorageDir string
	// Stale is the age of a heartbeat up to which it counts; 0: peers.DefaultStale.
	Stale time.Duration
	// Own says whether an endpoint is this process's; nil: none is.
	Own func(endpoint string) bool
	// Now is the clock; nil: the system's.
	Now func() time.Time
	// Log gets what was left out for its number, and what could not be watched; nil:
	// nowhere.
	Log *slog.Logger
}

// Reader reads the registry. It may be used by any number of goroutines.
type Reader struct {
	dir   string
	stale float64 // milliseconds
	own   func(string) bool
	now   func() time.Time
	log   *slog.Logger
	pid   int
	poll  time.Duration // of Watch
}

// NewReader makes a Reader.
func NewReader(cfg ReaderConfig) *Reader {
	if cfg.Own == nil {
		cfg.Own = func(string) bool { return false }
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	stale := cmp.Or(cfg.Stale, peers.DefaultStale)
	return &Reader{
		dir: filepath.Join(cfg.StorageDir, Dir), stale: float64(stale.Milliseconds()), own: cfg.Own, now: cfg.Now, log: cfg.Log, pid: os.Getpid(),
		poll: slowPoll,
	}
}

// Read returns every agent that has a file, dead ones too, sorted by start and id. Each
// endpoint is in it once, and a process that has entries of version 2 has none of version 1.
// Files that are no entries are passed over. Without a directory it is empty.
func (r *Reader) Read(ctx context.Context) ([]Peer, error) {
	var names []string
	more := false
	err := eachFile(ctx, r.dir, func(name string) bool {
		if more = len(names) == MaxFiles; !more {
			names = append(names, name)
		}
		return !more
	})
	if err != nil {
		return nil, fmt.Errorf("read the registry of peers: %w", err)
	}
	if more {
		r.log.Warn("peers: the registry has more files than are read", "dir", r.dir, "read", MaxFiles)
	}
	// Version 2 first: it comes before the other of its process and goes after it, so that
	// of one that appears or goes meanwhile the other is never left alone.
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(order(a), order(b)), cmp.Compare(a, b))
	})
	var found []Peer
	for _, name := range names {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if e, err := readFile(r.dir, name); err == nil {
			found = append(found, r.look(e))
		}
	}
	return unique(found), nil
}

// order is 0 for the name of a file of version 2, 1 for any other.
func order(name string) int {
	if strings.HasSuffix(name, ".v2.json") {
		return 0
	}
	return 1
}

// look says what is to be thought of an entry.
func (r *Reader) look(e peers.Entry) Peer {
	p := Peer{Entry: e, Own: e.PID == r.pid && r.own(e.EndpointID)}
	switch now := float64(r.now().UnixMilli()); {
	case now-e.HeartbeatAt > r.stale: // never so for NaN
		p.Reason = ReasonStale
	case e.PID != r.pid && !exists(e.PID):
		p.Reason = ReasonGone
	default:
		p.Alive = true
	}
	return p
}

// unique leaves of each endpoint the entry that counts, and sorts.
func unique(found []Peer) []Peer {
	modern := map[string]bool{} // processes with an entry of version 2, alive or not
	for _, p := range found {
		if !p.V1 {
			modern[p.ProcessID] = true
		}
	}
	type key struct {
		v1 bool
		id string
	}
	at := map[key]int{}
	var list []Peer
	for _, p := range found {
		if p.V1 && modern[p.ProcessID] {
			continue
		}
		k := key{p.V1, p.EndpointID}
		i, ok := at[k]
		switch {
		case !ok:
			at[k] = len(list)
			list = append(list, p)
		case better(p, list[i]):
			list[i] = p
		}
	}
	slices.SortStableFunc(list, func(a, b Peer) int {
		return cmp.Or(cmp.Compare(a.StartedAt, b.StartedAt), cmp.Compare(a.EndpointID, b.EndpointID))
	})
	return list
}

// better says whether a counts where b is of the same endpoint.
func better(a, b Peer) bool {
	if a.Alive != b.Alive {
		return a.Alive
	}
	return beat(a) > beat(b)
}

// beat is a heartbeat that can be compared: none is before all.
func beat(p Peer) float64 {
	if math.IsNaN(p.HeartbeatAt) {
		return math.Inf(-1)
	}
	return p.HeartbeatAt
}

// Collapse leaves one agent of each process, the one that started last, in the order of the
// list, as agents and people are shown them. What is offline counts as well: take it out
// before if it is not to be shown.
func Collapse(list []Peer) []Peer {
	last := map[string]int{}
	for i, p := range list {
		if j, ok := last[p.ProcessID]; !ok || p.StartedAt >= list[j].StartedAt {
			last[p.ProcessID] = i
		}
	}
	var rows []Peer
	for i, p := range list {
		if last[p.ProcessID] == i {
			rows = append(rows, p)
		}
	}
	return rows
}
