// Package events carries live changes to whoever watches the hub: a bounded ring
// of the newest events and bounded subscribers.
//
// Events are at most once. An id is "<generation>-<boot>-<number>", so it makes no
// assumption about one process or one life of the data; who resumes with an id
// that the ring no longer holds, or of another boot, is told to reload state. A
// subscriber that does not keep up is cut off, never waited for: it comes back
// with its last id.
package events

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"sync"

	"opencode-mesh/protocol/api"
)

const (
	// RingSize is how many events are kept for resuming.
	RingSize = 8192
	// RingBytes is how large they may be together, roughly; the oldest go first.
	RingBytes = 32 << 20
	// QueueSize is how many events may wait for one subscriber before it is cut off.
	QueueSize = 1024
)

// Event is one change. Type and Controller say who may see it.
type Event struct {
	Seq        uint64 // 0 of an event that is not kept
	Type       string // api.EventTask …
	Task       string // id, for subscribers of one task
	Controller string // identity id of the task's
	Value      any    // marshalled when somebody watches
	Size       int    // roughly, in bytes; see RingBytes

	once sync.Once
	json []byte
}

// JSON is the event's data, marshalled once for all subscribers.
func (e *Event) JSON() []byte {
	e.once.Do(func() {
		b, err := json.Marshal(e.Value)
		if err != nil { // our own types always marshal
			b = []byte("{}")
		}
		e.json = b
	})
	return e.json
}

// Bus is the hub's stream of events. Safe for concurrent use.
type Bus struct {
	prefix string

	// mu guards the following fields.
	mu     sync.Mutex
	ring   [RingSize]*Event
	oldest uint64 // number of the oldest event that is kept
	next   uint64 // number of the next event, from 1
	bytes  int    // of those that are kept
	subs   map[*Sub]struct{}
	closed bool
}

// New makes a bus whose ids start with the store's generation and this boot's
// random name.
func New(generation, boot string) *Bus {
	return &Bus{prefix: generation + "-" + boot + "-", oldest: 1, next: 1, subs: map[*Sub]struct{}{}}
}

// ID is how an event is named on the wire; "" of one that is not kept.
func (b *Bus) ID(e *Event) string {
	if e.Seq == 0 {
		return ""
	}
	return b.prefix + strconv.FormatUint(e.Seq, 10)
}

// Sub is one subscriber. Read C until it is closed, then Err says why.
type Sub struct {
	C      <-chan *Event
	c      chan *Event
	filter func(*Event) bool
	bus    *Bus
	lagged bool // guarded by bus.mu
}

// ErrLagged is why a subscriber that did not keep up was cut off.
var ErrLagged = errors.New("events: subscriber did not keep up")

// ErrClosed is why subscribers end when the hub stops.
var ErrClosed = errors.New("events: hub is stopping")

// Subscribe returns what is missed since lastID ("" for nothing) and a subscriber
// for what comes, without a gap between the two. resync is true when lastID
// cannot be resumed.
func (b *Bus) Subscribe(lastID string, filter func(*Event) bool) (missed []*Event, sub *Sub, resync bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if lastID != "" {
		n, err := strconv.ParseUint(strings.TrimPrefix(lastID, b.prefix), 10, 64)
		switch {
		case err != nil || !strings.HasPrefix(lastID, b.prefix) || n >= b.next || n+1 < b.oldest:
			resync = true
		default:
			for i := n + 1; i < b.next; i++ {
				if e := b.ring[i%RingSize]; filter(e) {
					missed = append(missed, e)
				}
			}
		}
	}
	c := make(chan *Event, QueueSize)
	sub = &Sub{C: c, c: c, filter: filter, bus: b}
	if b.closed {
		close(c)
	} else {
		b.subs[sub] = struct{}{}
	}
	return missed, sub, resync
}

// Close ends the subscription; C is closed.
func (s *Sub) Close() {
	s.bus.mu.Lock()
	defer s.bus.mu.Unlock()
	s.bus.drop(s)
}

// Err says why C was closed.
func (s *Sub) Err() error {
	s.bus.mu.Lock()
	defer s.bus.mu.Unlock()
	if s.lagged {
		return ErrLagged
	}
	return ErrClosed
}

func (b *Bus) drop(s *Sub) {
	if _, ok := b.subs[s]; ok {
		delete(b.subs, s)
		close(s.c)
	}
}

// Publish hands e on. It never blocks: the channels are buffered and a full one
// is closed, so doing it under the lock cannot wait for a reader.
func (b *Bus) Publish(e *Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	e.Seq = b.next
	b.next++
	b.bytes += e.Size
	for b.next-b.oldest > RingSize || b.bytes > RingBytes && b.oldest < e.Seq {
		old := &b.ring[b.oldest%RingSize]
		b.bytes -= (*old).Size
		*old = nil
		b.oldest++
	}
	b.ring[e.Seq%RingSize] = e
	for s := range b.subs {
		if !s.filter(e) {
			continue
		}
		select {
		case s.c <- e:
		default:
			s.lagged = true
			b.drop(s)
		}
	}
}

// Passing publishes a task whose record did not change: what its agent does comes
// every second of every running task. It is not kept for resuming, so that it pushes
// no change out, and a subscriber whose queue is half full goes without.
func (b *Bus) Passing(controller string, t api.Task) {
	e := &Event{Type: api.EventTask, Task: t.Task, Controller: controller, Value: t}
	b.mu.Lock()
	defer b.mu.Unlock()
	for s := range b.subs {
		if len(s.c) < QueueSize/2 && s.filter(e) {
			s.c <- e // only Publish and this fill it, under the lock
		}
	}
}

// plain is about what an event takes whose texts are short.
const plain = 1 << 10

// Task publishes a change of a task.
func (b *Bus) Task(controller string, t api.Task) {
	size := plain + sum(t.Artifacts) + sum(t.Flags)
	if a := t.Activity; a != nil {
		size += len(a.Note) + len(a.Tool) + len(a.Line)
	}
	if t.Question != nil {
		size += len(t.Question.Text) + sum(t.Question.Options)
	}
	if t.Error != nil {
		size += len(t.Error.Message)
	}
	b.Publish(&Event{Type: api.EventTask, Task: t.Task, Controller: controller, Value: t, Size: 2 * size}) // and its JSON
}

// Node publishes a change of a node.
func (b *Bus) Node(n api.Node) {
	size := plain + sum(n.Workspaces) + sum(n.Services) + sum(n.Agent.Warnings) + sum(n.Alarms)
	b.Publish(&Event{Type: api.EventNode, Value: n, Size: 2 * size})
}

func sum(list []string) (n int) {
	for _, s := range list {
		n += len(s)
	}
	return n
}

// Last is the id of the newest event, for who reads the state first and then asks for
// what came after.
func (b *Bus) Last() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.prefix + strconv.FormatUint(b.next-1, 10)
}

// Subscribers is how many watch now.
func (b *Bus) Subscribers() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.subs)
}

// Close cuts every subscriber off.
func (b *Bus) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for s := range b.subs {
		b.drop(s)
	}
}
