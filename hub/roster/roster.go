// Package roster knows which agents the connected nodes show each other.
//
// It is soft state: a list lives as long as the connection that said it, nothing of it
// is stored, and each node says its own again after every hello. A list is encoded once
// and shared by all answers that have it, so that what is kept is bounded by
// api.MaxPeerFleet and a thousand nodes that wait for news cost no copies.
package roster

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"opencode-mesh/protocol/api"
)

// Owner is the connection that says a list.
type Owner struct {
	// NodeID is the identity of the node, Node its name.
	NodeID, Node string
	// Since tells connections of a node apart: the list of a newer one stays.
	Since time.Time
}

// list is what one node shows. It is never changed once it was entered.
type list struct {
	owner Owner
	json  []byte // api.PeerNode
	empty bool
	rev   uint64
}

// Roster holds the lists. Safe for concurrent use.
type Roster struct {
	boot string // makes revisions of another process of the hub others

	// mu guards the following fields.
	mu      sync.Mutex
	lists   map[string]*list // by NodeID
	bytes   int
	rev     uint64        // of the last change
	gone    uint64        // of the last list that went
	changed chan struct{} // closed at the next change
}

// New makes an empty roster.
func New() *Roster {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return &Roster{boot: hex.EncodeToString(b[:]), lists: map[string]*list{}, changed: make(chan struct{})}
}

// Put makes agents the list of o's node, unless a newer connection has said one. It is
// refused with api.CodeQueueFull when there is no room; the list before stays then.
func (r *Roster) Put(o Owner, agents []api.PeerAgent) error {
	agents = slices.Clone(agents)
	slices.SortFunc(agents, func(a, b api.PeerAgent) int {
		return cmp.Or(cmp.Compare(a.StartedAt, b.StartedAt), strings.Compare(a.ID, b.ID))
	})
	if agents == nil {
		agents = []api.PeerAgent{}
	}
	data, err := json.Marshal(api.PeerNode{Node: o.Node, NodeID: o.NodeID, Agents: agents})
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	before := 0
	if old := r.lists[o.NodeID]; old != nil {
		if old.owner.Since.After(o.Since) {
			return api.Errorf(api.CodeSuperseded, "a newer connection of %s has said its list", o.Node)
		}
		if bytes.Equal(old.json, data) {
			again := *old
			again.owner = o
			r.lists[o.NodeID] = &again // the same news, of another connection
			return nil
		}
		before = len(old.json)
	}
	if r.bytes-before+len(data) > api.MaxPeerFleet {
		return api.Errorf(api.CodeQueueFull, "the lists of all nodes have more than %d bytes; this one is kept when others are gone", api.MaxPeerFleet)
	}
	r.bytes += len(data) - before
	r.rev++
	r.lists[o.NodeID] = &list{owner: o, json: data, empty: len(agents) == 0, rev: r.rev}
	r.wake()
	return nil
}

// Leave takes the list of a connection out that has ended.
func (r *Roster) Leave(o Owner) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.lists[o.NodeID]
	if l == nil || !l.owner.Since.Equal(o.Since) {
		return
	}
	delete(r.lists, o.NodeID)
	r.bytes -= len(l.json)
	r.rev++
	r.gone = r.rev
	r.wake()
}

// wake tells those who wait. Called with mu held.
func (r *Roster) wake() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// Others is what the node with an identity sees: every list but its own. It waits for
// news while the answer would have the revision after, until ctx ends.
func (r *Roster) Others(ctx context.Context, nodeID, after string) Fleet {
	for {
		f, changed := r.look(func(l *list) bool { return l.owner.NodeID != nodeID })
		if f.revision != after {
			return f
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return f
		}
	}
}

// All is what operators see: the lists that have anything in them.
func (r *Roster) All() Fleet {
	f, _ := r.look(func(l *list) bool { return !l.empty })
	return f
}

func (r *Roster) look(pick func(*list) bool) (Fleet, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	// The revision is that of the last change to what was picked, so that a node's own
	// list does not wake it.
	rev := r.gone
	var f Fleet
	for _, l := range r.lists {
		if pick(l) {
			f.lists, rev = append(f.lists, l), max(rev, l.rev)
		}
	}
	slices.SortFunc(f.lists, func(a, b *list) int { return strings.Compare(a.owner.Node, b.owner.Node) })
	f.revision = fmt.Sprintf("%s.%d", r.boot, rev)
	return f, r.changed
}

// Fleet is an api.PeerFleet that is encoded already.
type Fleet struct {
	revision string
	lists    []*list
}

// WriteTo implements io.WriterTo: the JSON of an api.PeerFleet.
func (f Fleet) WriteTo(w io.Writer) (n int64, err error) {
	put := func(b []byte) {
		if err == nil {
			var m int
			m, err = w.Write(b)
			n += int64(m)
		}
	}
	put(fmt.Appendf(nil, `{"revision":%q,"nodes":[`, f.revision))
	for i, l := range f.lists {
		if i > 0 {
			put([]byte(","))
		}
		put(l.json)
	}
	put([]byte("]}\n"))
	return n, err
}
