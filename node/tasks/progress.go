package tasks

import (
	"context"
	"log/slog"
	"net/http"
	"reflect"
	"sync"
	"time"

	"opencode-mesh/protocol/api"
)

// reporter tells the hub what goes on in running turns, best effort: one request
// at a time, per turn not more often than Config.ProgressInterval, the newest
// activity wins, and nothing for a turn that ends within Config.ProgressDelay.
type reporter struct {
	cfg     Config
	log     *slog.Logger
	journal *journal

	ctx    context.Context
	cancel context.CancelFunc
	wake   chan struct{} // room for one
	wg     sync.WaitGroup

	mu     sync.Mutex // guards the following fields and those of news
	hub    Hub
	turns  map[*turn]*news
	queue  []*news
	closed bool
}

// news is what the hub should hear about one turn.
type news struct {
	turn    *turn
	timer   *time.Timer // queues it when it may be sent
	pending bool        // the timer runs, or it is queued
	dirty   bool        // there is something that was not sent
	doing   api.Activity
	session string
}

func newReporter(j *journal, cfg Config) *reporter {
	p := &reporter{
		cfg: cfg, log: cfg.Log, journal: j,
		wake:  make(chan struct{}, 1),
		turns: make(map[*turn]*news),
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.wg.Add(1)
	go p.loop()
	return p
}

// begin starts to report a turn.
func (p *reporter) begin(t *turn) {
	n := &news{turn: t, pending: true, dirty: true}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.turns[t] = n
	n.timer = time.AfterFunc(p.cfg.ProgressDelay, func() { p.due(n) })
}

// end stops to report a turn.
func (p *reporter) end(t *turn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.turns[t]; n != nil {
		n.timer.Stop()
		delete(p.turns, t)
	}
}

// activity replaces what people are told about a turn.
func (p *reporter) activity(t *turn, a api.Activity) {
	a.Note, a.Tool, a.Line = cutString(a.Note, maxNote), cutString(a.Tool, maxNote), cutString(a.Line, maxNote)
	if a.Tokens != nil { // the caller may go on counting in it
		tokens := *a.Tokens
		a.Tokens = &tokens
	}
	p.change(t, func(n *news) bool {
		if reflect.DeepEqual(n.doing, a) {
			return false
		}
		n.doing = a
		return true
	})
}

// session tells which session a turn runs in.
func (p *reporter) session(t *turn, id string) {
	p.change(t, func(n *news) bool {
		n.session = id
		return true
	})
}

// change has the hub told of what set changed, if it did.
func (p *reporter) change(t *turn, set func(*news) (changed bool)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.turns[t]
	if n == nil || !set(n) {
		return
	}
	n.dirty = true
	if !n.pending {
		p.push(n)
	}
}

// due is called by a turn's timer.
func (p *reporter) due(n *news) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n.pending = false
	if n.dirty && p.turns[n.turn] == n {
		p.push(n)
	}
}

// push queues news for the loop. Callers hold mu.
func (p *reporter) push(n *news) {
	n.pending = true
	p.queue = append(p.queue, n)
	signal(p.wake)
}

// connect sets the hub; nil takes it away. What could not be sent is sent now.
func (p *reporter) connect(hub Hub) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hub = hub
	if hub == nil {
		return
	}
	for _, n := range p.turns {
		if n.dirty && !n.pending {
			p.push(n)
		}
	}
}

// loop sends what is queued.
func (p *reporter) loop() {
	defer p.wg.Done()
	for {
		select {
		case <-p.ctx.Done():
			return
		case <-p.wake:
		}
		for p.sendNext() {
		}
	}
}

// sendNext sends the first of the queue and reports whether there was one.
func (p *reporter) sendNext() bool {
	p.mu.Lock()
	if len(p.queue) == 0 || p.closed {
		p.mu.Unlock()
		return false
	}
	n := p.queue[0]
	p.queue = p.queue[1:]
	hub := p.hub
	if hub == nil || p.turns[n.turn] != n {
		n.pending = false
		p.mu.Unlock()
		return true
	}
	rec := n.turn.rec
	msg := api.Progress{
		Triple: rec.Triple, State: api.StateRunning, RanMS: n.turn.ran(),
		Session: n.session, Activity: n.doing,
	}
	n.dirty = false
	p.mu.Unlock()

	msg.JournalID, msg.Epoch = p.journal.identity()
	ctx, cancel := context.WithTimeout(p.ctx, progressTimeout)
	err := hub.Call(ctx, http.MethodPut, "/v1/tasks/"+rec.Task+"/progress", &msg, nil)
	cancel()
	if err != nil {
		p.log.Debug("progress not told", "task", rec.Task, "err", err)
	}

	p.mu.Lock()
	defer p.mu.Unlock()
	if p.turns[n.turn] == n {
		n.timer.Reset(p.cfg.ProgressInterval) // pending stays set until it is due
	}
	return true
}

// close ends the reporter and returns when it has.
func (p *reporter) close() {
	p.mu.Lock()
	p.closed = true
	for t, n := range p.turns {
		n.timer.Stop()
		delete(p.turns, t)
	}
	p.mu.Unlock()
	p.cancel()
	p.wg.Wait()
}
