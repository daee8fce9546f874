package push

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"opencode-mesh/node/agent"
	"opencode-mesh/node/mail"
	"opencode-mesh/node/opencomms"
)

// Config says for which projects a Pusher works and by what. Box and Projects are
// required.
type Config struct {
	// Enabled turns delivery on. Without it only what an earlier process had under way
	// is brought to its end, and owners are woken.
	Enabled bool
	// Agent is the node's; nothing is delivered unless it is an agent.Prompter.
	Agent agent.Agent
	// Box keeps the notes.
	Box *mail.Box
	// Projects lists the directories of the projects, absolute; it may change.
	Projects func() []string
	// Retry is the time from a delivery that failed to the next; 0: RetryAfter.
	Retry time.Duration
	// Look is how often Projects is asked and plugins are looked for; 0: LookAgain.
	Look time.Duration
	// Log gets what an operator should see; nil: discarded.
	Log *slog.Logger
}

// Pusher delivers for a node. Its methods are safe for concurrent use.
type Pusher struct {
	cfg   Config
	agent agent.Prompter // nil: none
	notes journal
	slots chan struct{} // one for each delivery under way
	at    func(point)   // called before each step, for tests

	mu      sync.Mutex // guards the following field
	watched map[string]*watched
}

// watched is a project that is looked after.
type watched struct {
	stop context.CancelFunc
	done chan struct{}
	w    *watcher
}

// New makes a Pusher. It starts nothing.
func New(cfg Config) *Pusher {
	if cfg.Retry == 0 {
		cfg.Retry = RetryAfter
	}
	if cfg.Look == 0 {
		cfg.Look = LookAgain
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	p := &Pusher{cfg: cfg, notes: journal{cfg.Box}, slots: make(chan struct{}, MaxDeliveries), at: func(point) {}, watched: map[string]*watched{}}
	p.agent, _ = cfg.Agent.(agent.Prompter)
	return p
}

// Run works until ctx ends, and returns when nothing of it runs any more. What is under
// way then is taken up by the next Run.
func (p *Pusher) Run(ctx context.Context) {
	defer p.keep(ctx, nil, nil)
	for {
		p.keep(ctx, p.cfg.Projects(), p.noted())
		timer := time.NewTimer(p.cfg.Look)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// noted are the projects in which something is under way.
func (p *Pusher) noted() []string {
	all, err := p.notes.all("")
	if err != nil {
		p.cfg.Log.Error("opencomms: notes of deliveries cannot be read", "err", err)
	}
	var dirs []string
	for _, n := range all {
		dirs = append(dirs, n.Project)
	}
	return dirs
}

// keep sees to it that just these projects are looked after. Those that are noted only
// are brought to their end.
func (p *Pusher) keep(ctx context.Context, offered, noted []string) {
	p.mu.Lock()
	var ended []*watched
	for dir, one := range p.watched {
		if is := slices.Contains(offered, dir); is != one.w.offered || !is && !slices.Contains(noted, dir) || one.w.ended() {
			one.stop()
			ended = append(ended, one)
			delete(p.watched, dir)
		}
	}
	p.mu.Unlock()
	for _, one := range ended {
		<-one.done
	}
	for _, dir := range slices.Concat(offered, noted) {
		if ctx.Err() == nil {
			p.start(ctx, dir, slices.Contains(offered, dir))
		}
	}
}

// start looks after a project, if it is there.
func (p *Pusher) start(ctx context.Context, dir string, offered bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.watched[dir] != nil {
		return
	}
	log := p.cfg.Log.With("project", dir)
	project, err := opencomms.Open(dir, opencomms.Options{Log: log})
	if err != nil {
		log.Debug("opencomms: project not watched", "err", err)
		return
	}
	ctx, stop := context.WithCancel(ctx)
	one := &watched{stop: stop, done: make(chan struct{}), w: newWatcher(p, project, offered, log)}
	p.watched[dir] = one
	go func() {
		defer close(one.done)
		one.w.run(ctx)
	}()
}

// Project is how it stands with one project, for people.
type Project struct {
	Dir string `json:"dir"`
	// Off says why nothing is delivered there; "" when it is.
	Off string `json:"off,omitempty"`
	// Delivering are the sessions that are delivered to now, or wait for it.
	Delivering []string `json:"delivering,omitempty"`
	// Problem is what went wrong last, "" once a delivery went well again.
	Problem string `json:"problem,omitempty"`
}

// Status lists the projects that have channels, by directory; none while delivery is
// not turned on.
func (p *Pusher) Status() []Project {
	if !p.cfg.Enabled {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []Project
	for _, one := range p.watched {
		if s, ok := one.w.status(); ok {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b Project) int { return strings.Compare(a.Dir, b.Dir) })
	return out
}
