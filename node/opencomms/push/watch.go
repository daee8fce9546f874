package push

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"opencode-mesh/node/agent"
	"opencode-mesh/node/opencomms"
	"opencode-mesh/node/opencomms/engine"
	"opencode-mesh/node/opencomms/statefile"
	ocm "opencode-mesh/protocol/opencomms"
)

// watcher looks after one project. What is to be done follows from the file and the
// notes alone, whenever one of them changes: a wake-up that comes during a delivery is
// found when that has ended.
type watcher struct {
	p       *Pusher
	project *opencomms.Project
	offered bool // else only what is under way is brought to its end
	log     *slog.Logger
	done    chan outcome

	mu      sync.Mutex          // guards the following fields
	active  map[string]bool     // recipients
	again   map[string][]string // the messages of a delivery that failed, by recipient
	off     string
	problem string
	refused map[string]bool // recipients of whom it was said why nothing is put into them
	last    bool            // nothing is left to do
}

// outcome is the end of one delivery.
type outcome struct {
	recipient string
	wait      time.Duration // until the recipient is looked at again
}

func newWatcher(p *Pusher, project *opencomms.Project, offered bool, log *slog.Logger) *watcher {
	w := &watcher{p: p, project: project, offered: offered, log: log, done: make(chan outcome), active: map[string]bool{}, again: map[string][]string{}, refused: map[string]bool{}}
	if p.agent == nil {
		w.off = "the agent has no sessions to deliver to"
	}
	return w
}

// pushes says whether new mail is delivered.
func (w *watcher) pushes() bool { return w.p.cfg.Enabled && w.offered && w.p.agent != nil }

func (w *watcher) run(ctx context.Context) {
	var work sync.WaitGroup
	if w.offered {
		work.Go(func() {
			// It ends with ctx and has nothing to say.
			_ = w.project.WakeOwners(ctx)
		})
	}
	if w.pushes() {
		work.Go(func() { w.survey(ctx) })
	}
	if w.p.agent != nil {
		w.loop(ctx)
	}
	work.Wait()
}

// loop starts what is due, one delivery at a time for each recipient.
func (w *watcher) loop(ctx context.Context) {
	changed := w.project.Watch(ctx)
	var deliveries sync.WaitGroup
	defer func() {
		deliveries.Wait()
		for range changed { // closed with the watch
		}
	}()
	notBefore := map[string]time.Time{}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		now := time.Now()
		wait := idle
		for recipient, at := range w.due(ctx, now) {
			if not := notBefore[recipient]; at.Before(not) {
				at = not
			}
			if w.isActive(recipient) {
				continue
			}
			if at.After(now) {
				wait = min(wait, at.Sub(now))
				continue
			}
			w.setActive(recipient, true)
			deliveries.Go(func() {
				out := outcome{recipient, w.deliver(ctx, recipient)}
				select {
				case w.done <- out:
				case <-ctx.Done():
				}
			})
		}
		maps.DeleteFunc(notBefore, func(_ string, at time.Time) bool { return at.Before(now) })
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-timer.C:
		case out := <-w.done:
			w.setActive(out.recipient, false)
			if out.wait > 0 {
				notBefore[out.recipient] = time.Now().Add(out.wait)
			}
		}
	}
}

// due are the recipients for whom something is to be done, and when.
func (w *watcher) due(ctx context.Context, now time.Time) map[string]time.Time {
	out := map[string]time.Time{}
	notes, err := w.p.notes.all(w.project.Dir())
	if err != nil {
		w.trouble(err)
	}
	for _, n := range notes {
		out[n.Recipient] = now
	}
	w.setLast(!w.pushes() && len(notes) == 0)
	if !w.pushes() {
		return out
	}
	s, err := w.project.Read(ctx)
	if err != nil {
		w.trouble(err) // the next change is another chance
		return out
	}
	for recipient, at := range waiting(s, now.UnixMilli()) {
		if _, ok := out[recipient]; !ok {
			out[recipient] = time.UnixMilli(at)
		}
	}
	return out
}

// waiting are the push members of opencode for whom mail waits, and when it may be
// drained.
func waiting(s *ocm.State, now int64) map[string]int64 {
	out := map[string]int64{}
	channels := map[string]*ocm.Channel{}
	for _, ch := range s.Channels.All() {
		channels[ch.ID] = ch
	}
	for recipient, queue := range s.Queues.All() {
		for _, id := range queue {
			e, ok := s.Messages.Get(id)
			if !ok || e.Status != ocm.StatusPending {
				continue
			}
			ch := channels[e.ChannelID]
			if ch == nil || ch.Paused || !isPush(ch, recipient) {
				continue
			}
			at := now
			// An end that is further off than a pause lasts is one of another clock.
			if until, _ := ch.Cooldowns.Get(recipient); until > now && until-now <= ch.DeliveryCooldown {
				at = until
			}
			if first, ok := out[recipient]; !ok || at < first {
				out[recipient] = at
			}
		}
	}
	return out
}

// isPush says whether a session is a member that opencode's host delivers to.
func isPush(ch *ocm.Channel, session string) bool {
	m := engine.Member(ch, session)
	return m != nil && m.Mode == ocm.ModePush && (m.Host == hostOpencode || m.Host == hostMigrated)
}

// The hosts whose sessions are opencode's.
const (
	hostOpencode = "opencode"
	hostMigrated = "opencode-comms" // of a file of the first schema
)

// survey keeps an eye on whether a plugin delivers in the project, and says so.
func (w *watcher) survey(ctx context.Context) {
	for {
		var news <-chan struct{}
		if n, ok := w.p.cfg.Agent.(agent.Notifier); ok {
			news = n.Changed()
		}
		if _, err := os.Stat(filepath.Join(w.project.Dir(), statefile.Dir)); err == nil {
			// What cannot be looked at is looked at before each delivery.
			if name, err := w.p.agent.Plugin(ctx, w.project.Dir(), pluginNames); err == nil {
				w.found(name)
			}
		}
		timer := time.NewTimer(w.p.cfg.Look)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		case <-news:
			timer.Stop()
		}
	}
}

// found notes whether a plugin delivers here, and says so when that changed.
func (w *watcher) found(plugin string) {
	off := ""
	if plugin != "" {
		off = "the plugin " + plugin + " delivers here"
	}
	w.mu.Lock()
	was := w.off
	w.off = off
	w.mu.Unlock()
	switch {
	case off != "" && off != was:
		w.log.Warn("opencomms: nothing is pushed, a plugin of opencode does it", "plugin", plugin)
	case off == "" && was != "":
		w.log.Info("opencomms: the plugin of opencode is gone, mail is pushed again")
	}
}

// trouble notes what went wrong and logs it when it is news.
func (w *watcher) trouble(err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	text := shown(err)
	w.mu.Lock()
	news := w.problem != text
	w.problem = text
	w.mu.Unlock()
	if news {
		w.log.Warn("opencomms: delivery", "err", text)
	}
}

// refuse says once why nothing is put into a session.
func (w *watcher) refuse(recipient, why string, args ...any) {
	w.mu.Lock()
	said := w.refused[recipient]
	w.refused[recipient] = true
	w.mu.Unlock()
	if !said {
		w.log.Warn("opencomms: nothing is put into a session: "+why, append(args, "session", recipient)...)
	}
}

// fine takes back what went wrong.
func (w *watcher) fine() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.problem = ""
}

func (w *watcher) isActive(recipient string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.active[recipient]
}

func (w *watcher) setActive(recipient string, active bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if active {
		w.active[recipient] = true
	} else {
		delete(w.active, recipient)
	}
}

// batch are the messages that the next delivery to a recipient is bound to; nil is any.
// What failed is tried as it was, under the same key: should the session get the first
// prompt after all, the second is no other one.
func (w *watcher) batch(recipient string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.again[recipient]
}

func (w *watcher) setBatch(recipient string, ids []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(ids) > 0 {
		w.again[recipient] = ids
	} else {
		delete(w.again, recipient)
	}
}

func (w *watcher) setLast(last bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = last
}

// ended says that a project that is not offered has nothing under way any more.
func (w *watcher) ended() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.offered && w.last && len(w.active) == 0
}

// status is false for a project without channels.
func (w *watcher) status() (Project, bool) {
	if _, err := os.Stat(filepath.Join(w.project.Dir(), statefile.Dir)); err != nil {
		return Project{}, false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return Project{Dir: w.project.Dir(), Off: w.off, Problem: w.problem, Delivering: slices.Sorted(maps.Keys(w.active))}, true
}
