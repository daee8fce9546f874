package node

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"net/http"
	"runtime"
	"sync"

	"github.com/go-chi/chi/v5"

	"opencode-mesh/node/agent"
	"opencode-mesh/node/link"
	"opencode-mesh/node/mail"
	"opencode-mesh/node/ocp/memory"
	"opencode-mesh/node/opencomms/across"
	"opencode-mesh/node/opencomms/board"
	peerboard "opencode-mesh/node/peers/board"
	"opencode-mesh/node/peers/relay"
	"opencode-mesh/node/tasks"
	"opencode-mesh/protocol/api"
)

// desk is what the link sees of a node: the runner with the present journal, and
// those of forked journals that still finish what they had running.
type desk struct {
	cfg      Config
	instance string
	box      *mail.Box
	board    *board.Board
	peers    *peerboard.Board
	across   *across.Across
	relay    *relay.Relay   // nil: the node takes no part in peers
	syncer   *memory.Syncer // nil without a memory
	context  contextDesk
	status   func(context.Context) Status

	quit chan struct{} // closed by close
	wg   sync.WaitGroup

	mu       sync.Mutex // guards the following fields
	closed   bool
	current  *tasks.Runner
	identity string // the node's at the hub, "" before the first welcome
	parked   bool   // another process has the node's name
	archived bool   // current's journal was archived and has no successor yet
	former   []*tasks.Runner
}

var _ link.Host = (*desk)(nil)

func newDesk(cfg Config) (*desk, error) {
	var b [8]byte
	if _, err := rand.Read(b[:]); err != nil {
		return nil, err
	}
	d := &desk{instance: hex.EncodeToString(b[:]), quit: make(chan struct{})}
	cfg.Tasks.Delivered = d.delivered
	r, err := tasks.Open(cfg.Tasks)
	if err != nil {
		return nil, err
	}
	box, err := mail.Open(cfg.Mail)
	if err != nil {
		return nil, errors.Join(err, r.Stop(context.Background()))
	}
	d.cfg, d.box, d.current = cfg, box, r
	return d, nil
}

// delivered is called when the hub has a result: now it tells it to the memory, too.
func (d *desk) delivered() {
	if d.syncer != nil {
		d.syncer.Nudge()
	}
}

// runner is the one with the present journal.
func (d *desk) runner() *tasks.Runner {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.current
}

// runners are all, the present one first.
func (d *desk) runners() []*tasks.Runner {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]*tasks.Runner{d.current}, d.former...)
}

// Hello implements link.Host.
func (d *desk) Hello(ctx context.Context) (api.Hello, error) {
	d.mu.Lock()
	archived := d.archived
	d.mu.Unlock()
	if archived { // an earlier Fork got stuck half-way
		if err := d.Fork(ctx); err != nil {
			return api.Hello{}, err
		}
	}
	r := d.runner()
	journal, epoch, err := r.Propose()
	if err != nil {
		return api.Hello{}, err
	}
	h := api.Hello{
		Protocol: api.ProtocolVersion, Version: d.cfg.Version, OS: runtime.GOOS, Arch: runtime.GOARCH,
		JournalID: journal, Epoch: epoch, Agent: d.agent(ctx), Sessions: d.cfg.Agent.HasSessions(),
		Policy: r.Policy(), MaxParallel: r.MaxParallel(), Services: d.cfg.services.list(), AcceptFrom: d.cfg.AcceptFrom,
		Bound: r.Bound(), Instance: d.instance,
	}
	for _, w := range d.cfg.Workspaces {
		h.Workspaces = append(h.Workspaces, w.Name)
	}
	return h, nil
}

// agent looks at the agent's health.
func (d *desk) agent(ctx context.Context) api.AgentStatus {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	s := d.cfg.Agent.Status(ctx)
	if s.Kind == "" {
		s.Kind = d.cfg.Agent.Kind()
	}
	if s.Health == "" {
		s.Health = api.HealthUnknown
	}
	return s
}

// Fork implements link.Host: the present runner finishes what it has under its
// archived journal, and one with a new journal takes its place (semantics 5).
func (d *desk) Fork(context.Context) error {
	d.mu.Lock()
	old, archived := d.current, d.archived
	d.mu.Unlock()
	if !archived {
		old.Park()
		path, err := old.Archive()
		if err != nil {
			return err
		}
		d.cfg.Log.Warn("journal archived", "path", path)
		d.mu.Lock()
		d.archived = true
		d.mu.Unlock()
	}
	r, err := tasks.Open(d.cfg.Tasks)
	if err != nil {
		return err
	}
	d.mu.Lock()
	d.current, d.archived = r, false
	d.former = append(d.former, old)
	closed := d.closed
	d.mu.Unlock()
	if closed { // close has not seen the new one
		return r.Stop(context.Background())
	}
	d.spawn(func() { d.retire(old) })
	return nil
}

// spawn runs f in a goroutine that close waits for, unless it is too late.
func (d *desk) spawn(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed {
		d.wg.Go(f)
	}
}

// retire stops a former runner once it has delivered everything.
func (d *desk) retire(r *tasks.Runner) {
	select {
	case <-d.quit:
		return // close stops it
	case <-r.Drained():
	}
	ctx, cancel := context.WithTimeout(context.Background(), d.cfg.StopTimeout)
	defer cancel()
	if err := r.Stop(ctx); err != nil {
		d.cfg.Log.Warn("former journal not closed", "err", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.former {
		if d.former[i] == r {
			d.former = append(d.former[:i:i], d.former[i+1:]...)
			return
		}
	}
}

// Welcomed implements link.Host.
func (d *desk) Welcomed(w api.Welcome) {
	d.mu.Lock()
	d.identity = w.IdentityID
	d.mu.Unlock()
	d.runner().Start()
}

// Handler implements link.Host.
func (d *desk) Handler() http.Handler {
	mux := chi.NewRouter()
	mux.NotFound(func(w http.ResponseWriter, _ *http.Request) {
		tasks.WriteError(w, api.Errorf(api.CodeNotFound, "a node has nothing at this path"))
	})
	mux.MethodNotAllowed(func(w http.ResponseWriter, _ *http.Request) {
		tasks.WriteError(w, api.Errorf(api.CodeMethodNotAllowed, "not with this method"))
	})
	d.runner().Routes(mux)
	d.box.Routes(mux)
	d.board.Routes(mux)
	d.peers.Routes(mux)
	d.context.tunnelRoutes(mux)
	mux.Get("/v1/status", func(w http.ResponseWriter, r *http.Request) {
		tasks.WriteJSON(w, http.StatusOK, d.status(r.Context()))
	})
	return mux
}

// Attach implements link.Host. A process whose name another one has delivers results
// only: its mail waits in its box, because the receipts would go to the other.
func (d *desk) Attach(hub *link.Client) {
	d.connect(hub)
	d.mu.Lock()
	parked, identity := d.parked, d.identity
	d.mu.Unlock()
	if parked {
		return
	}
	d.box.Attach(hub)
	if d.relay != nil {
		d.relay.Attach(hub)
	}
	if d.syncer != nil {
		d.syncer.Attach(hub, identity)
	}
}

// Detach implements link.Host.
func (d *desk) Detach() {
	if d.relay != nil {
		d.relay.Detach()
	}
	if d.syncer != nil {
		d.syncer.Detach()
	}
	d.box.Detach()
	d.connect(nil)
}

func (d *desk) connect(hub tasks.Hub) {
	for _, r := range d.runners() {
		r.Connect(hub)
	}
}

// Report implements link.Host.
func (d *desk) Report(ctx context.Context) api.NodeReport {
	report := api.NodeReport{Agent: d.agent(ctx), Services: d.cfg.services.list()}
	for _, r := range d.runners() {
		s := r.Snapshot()
		report.Running += len(s.Running)
		report.Waiting += s.Waiting
	}
	return report
}

// Changed implements link.Host.
func (d *desk) Changed() <-chan struct{} {
	if n, ok := d.cfg.Agent.(agent.Notifier); ok {
		return n.Changed()
	}
	return nil
}

// Supersede implements link.Host.
func (d *desk) Supersede() {
	d.mu.Lock()
	d.parked = true
	d.mu.Unlock()
	d.across.Park()
	if d.relay != nil {
		d.relay.Park()
	}
	for _, r := range d.runners() {
		r.Park()
	}
}

// Revoke implements link.Host.
func (d *desk) Revoke() {
	for _, r := range d.runners() {
		r.Revoke()
	}
}

// Drained implements link.Host.
func (d *desk) Drained() <-chan struct{} {
	all := d.runners()
	drained := make(chan struct{})
	d.spawn(func() {
		for _, r := range all {
			select {
			case <-r.Drained():
			case <-d.quit:
				return
			}
		}
		close(drained)
	})
	return drained
}

// close stops all runners and what waits for them, and closes the mail box.
func (d *desk) close(ctx context.Context) error {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	close(d.quit)
	d.wg.Wait()
	all := d.runners()
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, r := range all {
		wg.Go(func() { errs[i] = r.Stop(ctx) })
	}
	wg.Wait()
	errs = append(errs, d.box.Close())
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// needed are the sessions that unfinished tasks need; called after close.
func (d *desk) needed() (map[string]bool, error) {
	needed := make(map[string]bool)
	for _, r := range d.runners() {
		sessions, err := r.Needed()
		if err != nil {
			return nil, err
		}
		for _, id := range sessions {
			needed[id] = true
		}
	}
	return needed, nil
}
