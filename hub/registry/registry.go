// Package registry knows which nodes are connected to this hub.
//
// The newest connection of a name wins once: Register closes the older one with a
// reason of its own, after the lock is released, and a late end of the older one
// never marks the newer offline. "Which hub holds this node" is the Locator
// interface; this is its local implementation.
package registry

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"opencode-mesh/hub/proxy"
	"opencode-mesh/store"
	"opencode-mesh/tunnel"
)

// Conn is one connected node.
type Conn struct {
	Identity store.Identity
	Session  *tunnel.Session
	// Client calls the node.
	Client *Client
	// Instance is the random name of the node's process, Journal that of the journal
	// it works with.
	Instance string
	Journal  string
	Since    time.Time
	// Services are what the node offers; nil in tests that have none.
	Services *proxy.Node
}

// Locator finds the connection of a node by its identity. Several hubs will share
// one some day.
type Locator interface {
	Locate(identity string) (*Conn, bool)
}

// Registry is the local Locator. Safe for concurrent use.
type Registry struct {
	// mu guards the following field.
	mu    sync.Mutex
	conns map[string]*Conn // by identity
	names map[string]*Conn // the same by name, which one living identity has
}

// New makes an empty registry.
func New() *Registry { return &Registry{conns: map[string]*Conn{}, names: map[string]*Conn{}} }

// Register makes c its identity's connection, unless its tunnel has ended already,
// and tells the older one, if there is one, to go; superseded says that it was
// another process.
func (g *Registry) Register(c *Conn) (superseded, ok bool) {
	g.mu.Lock()
	if c.Session.Err() != nil {
		g.mu.Unlock()
		return false, false
	}
	older := g.conns[c.Identity.ID]
	g.conns[c.Identity.ID], g.names[c.Identity.Name] = c, c
	g.mu.Unlock()
	if older == nil || older == c {
		return false, true
	}
	superseded = older.Instance != c.Instance
	reason := tunnel.ReasonNone // the same process came back before its old tunnel was given up
	if superseded {
		reason = tunnel.ReasonSuperseded
	}
	_ = older.Session.CloseWith(reason)
	return superseded, true
}

// Unregister removes c and reports whether it was still the current one.
func (g *Registry) Unregister(c *Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.conns[c.Identity.ID] != c {
		return false
	}
	delete(g.conns, c.Identity.ID)
	if g.names[c.Identity.Name] == c {
		delete(g.names, c.Identity.Name)
	}
	return true
}

// Locate implements Locator.
func (g *Registry) Locate(identity string) (*Conn, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c, ok := g.conns[identity]
	return c, ok
}

// Named finds the connection of a node by its name.
func (g *Registry) Named(name string) (*Conn, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c, ok := g.names[name]
	return c, ok
}

// All are the connections of all nodes, by name.
func (g *Registry) All() []*Conn {
	g.mu.Lock()
	defer g.mu.Unlock()
	list := slices.Collect(maps.Values(g.names))
	slices.SortFunc(list, func(a, b *Conn) int { return strings.Compare(a.Identity.Name, b.Identity.Name) })
	return list
}

// Online is how many nodes are connected.
func (g *Registry) Online() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.conns)
}
