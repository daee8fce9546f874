package tasks

import (
	"container/heap"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"opencode-mesh/protocol/api"
)

// outbox delivers results until the hub acknowledged each. What waits is bounded
// by Config.MaxOpen and stays in the journal; only what travels, and what the
// journal could not take, is in memory.
type outbox struct {
	cfg     Config
	log     *slog.Logger
	journal *journal
	emptied func() // called without locks whenever it may have become empty

	ctx    context.Context // ends the requests under way
	cancel context.CancelFunc
	wake   chan struct{} // room for one; tells the retry loop of an earlier due time
	wg     sync.WaitGroup

	mu     sync.Mutex // guards the following fields
	hub    Hub
	gen    int // of hub, to tell a call's hub from the present one
	all    map[uint64]*delivery
	ready  []*delivery
	later  dueQueue
	active int           // workers
	idle   chan struct{} // closed when all becomes empty; nil when nobody waits
	closed bool
}

// delivery is a result on its way.
type delivery struct {
	rec      *record
	tries    int
	due      time.Time
	recover  bool // the hub did not know the task: tell it
	rejected bool // the hub refused the result for good: send the minimal one
}

// resultBody is api.Result with the outcome as it is in the journal.
type resultBody struct {
	api.Triple
	JournalID string          `json:"journal_id"`
	Epoch     uint64          `json:"epoch"`
	Outcome   json.RawMessage `json:"outcome"`
	AgoMS     int64           `json:"ago_ms"`
	Recover   *api.Recover    `json:"recover,omitempty"`
}

func newOutbox(j *journal, cfg Config, emptied func()) *outbox {
	o := &outbox{
		cfg: cfg, log: cfg.Log, journal: j, emptied: emptied,
		wake: make(chan struct{}, 1),
		all:  make(map[uint64]*delivery),
	}
	o.ctx, o.cancel = context.WithCancel(context.Background())
	o.wg.Add(1)
	go o.retry()
	return o
}

// connect sets the hub; nil takes it away. Everything that waits is due at once.
func (o *outbox) connect(hub Hub) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.hub = hub
	o.gen++
	if hub == nil {
		return
	}
	for _, d := range o.later {
		d.tries = 0
		o.ready = append(o.ready, d)
	}
	o.later = nil
	o.pump()
}

// add hands a settled record over for delivery; one that is on its way stays so.
func (o *outbox) add(rec *record) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, ok := o.all[rec.arrival]; ok || o.closed {
		return
	}
	d := &delivery{rec: rec}
	o.all[rec.arrival] = d
	o.ready = append(o.ready, d)
	o.pump()
}

// empty reports whether every result was acknowledged.
func (o *outbox) empty() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.all) == 0
}

// flush waits until every result was acknowledged, the hub is gone, or ctx ends.
func (o *outbox) flush(ctx context.Context) {
	o.mu.Lock()
	if len(o.all) == 0 || o.hub == nil || o.closed {
		o.mu.Unlock()
		return
	}
	if o.idle == nil {
		o.idle = make(chan struct{})
	}
	idle := o.idle
	o.mu.Unlock()
	select {
	case <-idle:
	case <-ctx.Done():
	}
}

// close ends all deliveries and returns when they have; the journal keeps what was
// not acknowledged.
func (o *outbox) close() {
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
	o.cancel()
	o.wg.Wait()
}

// pump starts workers for what is ready. Callers hold mu.
func (o *outbox) pump() {
	for o.hub != nil && !o.closed && len(o.ready) > 0 && o.active < o.cfg.Deliveries {
		o.active++
		o.wg.Add(1)
		go o.work(o.pop())
	}
}

// pop takes the first that is ready. Callers hold mu.
func (o *outbox) pop() *delivery {
	d := o.ready[0]
	o.ready[0] = nil
	o.ready = o.ready[1:]
	return d
}

// work delivers one result after the other while there are any.
func (o *outbox) work(d *delivery) {
	defer o.wg.Done()
	for d != nil {
		o.mu.Lock()
		hub, gen := o.hub, o.gen
		o.mu.Unlock()
		acked, wait := false, time.Duration(0)
		if hub != nil {
			acked, wait = o.deliver(hub, d)
		}
		d = o.done(d, gen, acked, wait)
	}
}

// done puts a delivery where it belongs after an attempt and takes the next.
func (o *outbox) done(d *delivery, gen int, acked bool, wait time.Duration) (next *delivery) {
	o.mu.Lock()
	switch {
	case acked:
		delete(o.all, d.rec.arrival)
	case gen != o.gen || wait == 0:
		// Another hub connection is there by now, or the answer asks for another form.
		o.ready = append(o.ready, d)
	default:
		d.due = time.Now().Add(wait)
		heap.Push(&o.later, d)
		signal(o.wake)
	}
	empty := len(o.all) == 0
	if empty && o.idle != nil {
		close(o.idle)
		o.idle = nil
	}
	if o.hub != nil && !o.closed && len(o.ready) > 0 {
		next = o.pop()
	} else {
		o.active--
	}
	o.mu.Unlock()
	if acked && o.cfg.Delivered != nil {
		o.cfg.Delivered()
	}
	if empty {
		o.emptied()
	}
	return next
}

// retry brings back what waited long enough.
func (o *outbox) retry() {
	defer o.wg.Done()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		o.mu.Lock()
		now := time.Now()
		for len(o.later) > 0 && !o.later[0].due.After(now) {
			o.ready = append(o.ready, heap.Pop(&o.later).(*delivery))
		}
		wait := time.Hour
		if len(o.later) > 0 {
			wait = o.later[0].due.Sub(now)
		}
		o.pump()
		o.mu.Unlock()
		timer.Reset(wait)
		select {
		case <-o.ctx.Done():
			return
		case <-o.wake:
		case <-timer.C:
		}
	}
}

// deliver makes one attempt. wait is how long to wait before the next one; 0 asks
// for it at once, in the form that the answer called for.
func (o *outbox) deliver(hub Hub, d *delivery) (acked bool, wait time.Duration) {
	body, err := o.body(d)
	if err != nil {
		o.log.Error("result cannot be read for delivery", "task", d.rec.Task, "err", err)
		return false, o.backoff(d, err)
	}
	ctx, cancel := context.WithTimeout(o.ctx, deliveryTimeout)
	defer cancel()
	err = hub.Call(ctx, http.MethodPut, "/v1/tasks/"+d.rec.Task+"/result", body, nil)
	var refused *api.Error
	switch {
	case err == nil:
		o.journal.ack(d.rec)
		return true, 0
	case !errors.As(err, &refused) || retryable(refused):
		o.log.Debug("result not delivered", "task", d.rec.Task, "try", d.tries+1, "err", err)
		o.journal.unload(d.rec)
		return false, o.backoff(d, err)
	case refused.Code.Status() == http.StatusNotFound && !d.recover:
		d.recover = true
		return false, 0
	case !d.rejected:
		o.log.Warn("hub refused a result for good, sending a minimal one", "task", d.rec.Task, "err", err)
		d.rejected = true
		return false, 0
	}
	o.log.Error("hub refused even the minimal result, giving the delivery up",
		"task", d.rec.Task, "attempt", d.rec.Attempt, "turn", d.rec.Turn, "err", err)
	o.journal.ack(d.rec)
	return true, 0
}

// retryable reports whether the same request may succeed later.
func retryable(e *api.Error) bool {
	switch e.Code {
	case api.CodeRevoked, api.CodeUnauthorized, api.CodeSuperseded:
		return true // the link decides what this means for the process
	}
	status := e.Code.Status()
	return status >= http.StatusInternalServerError || status == http.StatusTooManyRequests
}

// body puts a result together.
func (o *outbox) body(d *delivery) (*resultBody, error) {
	rec := d.rec
	b := &resultBody{Triple: rec.Triple}
	b.JournalID, b.Epoch = o.journal.identity()
	b.AgoMS = o.journal.since(o.journal.endedMS(rec)).Milliseconds()
	if d.rejected {
		out := meshFailure(api.TaskResultRejected, "the hub did not take the result; the node has it in its journal")
		b.Outcome = encodeOutcome(&out)
	} else {
		blob, err := o.journal.outcomeBlob(rec)
		if err != nil {
			return nil, err
		}
		b.Outcome = blob
	}
	if d.recover {
		text, err := o.journal.textOf(rec)
		if err != nil {
			return nil, err
		}
		b.Recover = &api.Recover{
			Kind: rec.Kind, Controller: rec.Controller, Hash: rec.Hash, Mode: rec.Mode,
			Workspace: rec.Workspace, CreatedMS: rec.CreatedMS, Text: text,
		}
	}
	return b, nil
}

// backoff is the wait before a delivery is tried again.
func (o *outbox) backoff(d *delivery, err error) time.Duration {
	d.tries++
	return backoff(o.cfg, d.tries-1, err)
}

// backoff doubles from RetryMin to RetryMax, jittered by half, and is never less
// than what the hub asked for.
func backoff(cfg Config, tries int, err error) time.Duration {
	wait := cfg.RetryMax
	if tries < 20 {
		wait = min(wait, cfg.RetryMin<<tries)
	}
	wait = wait/2 + rand.N(wait/2+1)
	var refused *api.Error
	if errors.As(err, &refused) {
		wait = max(wait, refused.RetryAfter)
	}
	return wait
}

// signal wakes a loop that listens on a channel with room for one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// dueQueue is a heap of deliveries by due time.
type dueQueue []*delivery

func (q dueQueue) Len() int           { return len(q) }
func (q dueQueue) Less(a, b int) bool { return q[a].due.Before(q[b].due) }
func (q dueQueue) Swap(a, b int)      { q[a], q[b] = q[b], q[a] }
func (q *dueQueue) Push(x any)        { *q = append(*q, x.(*delivery)) }
func (q *dueQueue) Pop() any {
	old := *q
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	return last
}
