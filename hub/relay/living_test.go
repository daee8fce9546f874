package relay_test

import (
	"context"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"opencode-mesh/hub/relay"
	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// living is a node whose agent keeps sessions, as a real one does: at most one is made
// for a generation, a compaction's is nobody's until the hub names it, and what is
// gone is replaced. Turns run and results are delivered when the test says work.
type living struct {
	h       *harness
	name    string
	journal string
	epoch   uint64
	detach  func()

	mu       sync.Mutex
	turns    map[api.Triple]*liveTurn
	order    []*liveTurn
	sessions []*liveSession
	made     map[string]string // session by generation, or by compaction
	script   func(api.Offer) *api.Outcome
	faults   []string // what must never happen
}

type liveTurn struct {
	offer api.Offer
	out   *api.Outcome
	acked bool
	runs  int
}

type liveSession struct {
	id, controller, workspace, compaction string
	generation                            uint64
	alive                                 bool
	turns                                 int
}

func (h *harness) living(name string) *living {
	return &living{h: h, name: name, journal: "j1", epoch: 1, turns: map[api.Triple]*liveTurn{}, made: map[string]string{}}
}

// attach connects the node, instead of an earlier connection.
func (n *living) attach() {
	n.h.t.Helper()
	n.leave()
	ctx, cancel := context.WithCancel(context.Background())
	n.epoch++
	hello := api.Hello{JournalID: n.journal, Epoch: n.epoch, OS: "linux", Arch: "amd64", Sessions: true}
	n.mu.Lock()
	for _, s := range n.sessions {
		if s.alive && s.compaction == "" {
			hello.Bound = append(hello.Bound, api.BoundSession{Controller: s.controller, Workspace: s.workspace, Generation: s.generation, Session: s.id})
		}
	}
	n.mu.Unlock()
	end, err := n.h.relay.Attach(ctx, relay.Link{Identity: n.h.ids[n.name], Node: n, Hello: hello}, func(error) {})
	if err != nil {
		cancel()
		n.h.t.Fatal(err)
	}
	n.detach = func() { cancel(); end() }
}

// leave ends the connection, if there is one.
func (n *living) leave() {
	if n.detach != nil {
		n.detach()
		n.detach = nil
	}
}

// lose makes the node start anew without its journal; its agent keeps the sessions.
func (n *living) lose() {
	n.leave()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.journal += "x"
	n.turns, n.order, n.made = map[api.Triple]*liveTurn{}, nil, map[string]string{}
}

func (n *living) Offer(_ context.Context, o api.Offer) (api.Receipt, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if k := n.turns[o.Triple]; k != nil {
		if k.offer.Hash != "" && k.offer.Hash != o.Hash {
			n.faults = append(n.faults, "another body of "+o.Task)
		}
		return n.receipt(k), nil
	}
	if s := n.session(o.Binding.Session); s != nil && s.controller != o.Controller.ID {
		n.faults = append(n.faults, o.Controller.ID+" is led into the session of "+s.controller)
	}
	k := &liveTurn{offer: o}
	n.turns[o.Triple] = k
	n.order = append(n.order, k)
	return n.receipt(k), nil
}

func (n *living) receipt(k *liveTurn) api.Receipt {
	rc := api.Receipt{Triple: k.offer.Triple, State: api.StateAccepted, Outcome: k.out}
	if k.out != nil {
		rc.State = k.out.State
	}
	return rc
}

func (n *living) Withdraw(_ context.Context, w api.Withdraw) (api.Receipt, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	k := n.turns[w.Triple]
	if k == nil {
		k = &liveTurn{offer: api.Offer{Triple: w.Triple}}
		n.turns[w.Triple] = k
	}
	switch {
	case k.out == nil:
		k.out, k.acked = &api.Outcome{State: api.StateCanceled}, true
	case k.out.State == api.StateQuestion:
		return api.Receipt{Triple: w.Triple, State: api.StateCanceled}, nil
	}
	return n.receipt(k), nil
}

func (n *living) Reconcile(_ context.Context, q api.Reconcile) (a api.Reconciled, _ error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, t := range q.Tasks {
		rc := api.Receipt{}
		if k := n.turns[t]; k != nil {
			rc = n.receipt(k)
		}
		a.Tasks = append(a.Tasks, rc)
	}
	return a, nil
}

func (n *living) Answer(_ context.Context, a api.Reply) (api.Receipt, error) {
	return api.Receipt{Triple: a.Triple, State: api.StateRunning}, nil
}

// session finds a session by its id. Called with mu held, as are those below.
func (n *living) session(id string) *liveSession {
	if i := slices.IndexFunc(n.sessions, func(s *liveSession) bool { return s.id == id }); id != "" && i >= 0 {
		return n.sessions[i]
	}
	return nil
}

func keyOf(o api.Offer) string {
	return fmt.Sprint(o.Controller.ID, "/", o.Workspace, "/", o.Binding.Generation, "/", o.Binding.Compaction)
}

// enter is the session that a turn runs in, made if need be.
func (n *living) enter(o api.Offer) (s *liveSession, fresh, replaced bool) {
	id := n.made[keyOf(o)]
	if id == "" {
		id = o.Binding.Session
	}
	if s = n.session(id); s != nil && s.alive {
		return s, false, false
	}
	s = &liveSession{
		id: fmt.Sprintf("ses_%s_%d", n.name, len(n.sessions)+1), controller: o.Controller.ID, workspace: o.Workspace,
		generation: o.Binding.Generation, compaction: o.Binding.Compaction, alive: true,
	}
	n.sessions = append(n.sessions, s)
	n.made[keyOf(o)] = s.id
	return s, true, id != ""
}

var genLine = regexp.MustCompile(`(?m)^gen: (\d+)$`)

// run executes a turn.
func (n *living) run(o api.Offer) (out api.Outcome) {
	if n.script != nil {
		if out := n.script(o); out != nil {
			return *out
		}
	}
	out = done(o.Kind + " of " + o.Task)
	out.RanMS = 5
	switch o.Kind {
	case api.TurnDelete:
		if s := n.session(o.Binding.Session); s != nil {
			s.alive = false
			for k, id := range n.made {
				if id == s.id {
					delete(n.made, k)
				}
			}
		}
		return out
	case api.TurnDigest:
		s := n.session(o.Binding.Session)
		if s == nil || !s.alive {
			return api.Outcome{State: api.StateFailed, Error: &api.TaskError{Code: api.TaskSessionGone, Message: "the session is gone"}}
		}
		gen := genLine.FindStringSubmatch(o.Text)
		out.Reply = fmt.Sprintf("[opencode-mesh-digest v1]\ntask: %s\ngen: %s\nfacts:\n- fact of %s\npending: none\nrefs: none\n[/opencode-mesh-digest]\n", o.Task, gen[1], o.Task)
		out.Flags = []api.Flag{api.FlagFreeReply}
		return n.in(s, out)
	case api.TurnResume:
		for _, s := range n.sessions {
			if s.controller == o.Controller.ID && s.generation == o.Binding.Generation && s.compaction != "" && s.compaction != o.Task {
				s.alive = false // of an abandoned compaction
			}
		}
	}
	s, fresh, replaced := n.enter(o)
	out.NewSession = fresh
	if replaced {
		out.Flags = append(out.Flags, api.FlagSessionReplaced)
	}
	if strings.Contains(o.Text, "ASK") && o.Kind == api.TurnTask {
		out = api.Outcome{State: api.StateQuestion, Question: &api.Asked{Kind: api.QuestionText, Text: "which?"}}
	}
	if strings.Contains(o.Text, "FULL") && o.Kind == api.TurnTask {
		out.State, out.Flags = api.StateFailed, append(out.Flags, api.FlagContextFull)
	}
	return n.in(s, out)
}

// in adds what a turn leaves in its session.
func (n *living) in(s *liveSession, out api.Outcome) api.Outcome {
	s.turns++
	out.Session, out.Tokens = s.id, &api.Tokens{Total: int64(100 * s.turns), Limit: 1000}
	return out
}

// work runs the turns that wait and delivers what was not acknowledged, twice each.
func (n *living) work() { n.workOn(math.MaxInt) }

// workOn is work for some of the turns, the oldest.
func (n *living) workOn(most int) {
	n.mu.Lock()
	var due []*liveTurn
	for _, k := range n.order {
		if len(due) == most {
			break
		}
		if k.out == nil {
			out := n.run(k.offer)
			k.out = &out
			k.runs++
		}
		if !k.acked {
			due = append(due, k)
		}
	}
	n.mu.Unlock()
	for _, k := range due {
		res := api.Result{Triple: k.offer.Triple, JournalID: n.journal, Epoch: n.epoch, Outcome: *k.out}
		if n.h.relay.Result(context.Background(), n.h.ids[n.name], res) == nil {
			_ = n.h.relay.Result(context.Background(), n.h.ids[n.name], res) // the acknowledgement was lost
			n.mu.Lock()
			k.acked = true
			n.mu.Unlock()
		}
	}
}

// until works until cond holds.
func (n *living) until(what string, cond func() bool) {
	n.h.t.Helper()
	for limit := time.Now().Add(2 * time.Minute); !cond(); time.Sleep(200 * time.Microsecond) {
		if time.Now().After(limit) {
			n.h.t.Fatalf("it does not come to that: %s", what)
		}
		n.work()
	}
}

// settled works until a task is.
func (n *living) settled(id string) store.Task {
	n.h.t.Helper()
	n.until(id+" settles", func() bool { return n.h.state(id).Settled() })
	t, err := n.h.relay.Task(context.Background(), id)
	if err != nil {
		n.h.t.Fatal(err)
	}
	return t
}

// alive are the living sessions of a controller.
func (n *living) alive(controller string) (ids []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range n.sessions {
		if s.alive && s.controller == controller {
			ids = append(ids, s.id)
		}
	}
	return ids
}

// vanish deletes a session behind everybody's back.
func (n *living) vanish(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.session(id).alive = false
}

// operate starts an operation and fails the test when it is refused.
func (h *harness) operate(controller, target, op, id string) store.Task {
	h.t.Helper()
	t, err := h.relay.Operate(context.Background(), h.ids[controller], h.ids[controller], target, op, api.Operate{ID: id})
	if err != nil {
		h.t.Fatalf("%s: %v", op, err)
	}
	return t
}

func (h *harness) bindingOf(controller, target string) store.Binding {
	h.t.Helper()
	b, err := h.store.Binding(context.Background(), store.BindingKey{Controller: "id_" + controller, Target: "id_" + target})
	if err != nil {
		h.t.Fatal(err)
	}
	return b
}

// sound checks what must hold of a pair whenever nothing is under way: the binding
// has a living session or none, whatever else lives was bound before, and no
// generation of the digest is missing.
func (n *living) sound(t tester, controller string) store.Binding {
	t.Helper()
	key := store.BindingKey{Controller: "id_" + controller, Target: "id_" + n.name}
	b, err := n.h.store.Binding(context.Background(), key)
	if err != nil {
		t.Fatal(err)
	}
	alive := n.alive(key.Controller)
	if b.Session != "" && !slices.Contains(alive, b.Session) {
		t.Errorf("the bound session %s does not live; %v do", b.Session, alive)
	}
	for _, id := range alive {
		was := slices.ContainsFunc(b.Former, func(f store.FormerSession) bool { return f.Session == id && f.Why != api.EndedClear })
		if id != b.Session && !was {
			t.Errorf("session %s lives and nobody knows it; %s is bound, before it %+v", id, b.Session, b.Former)
		}
		if id == b.Session && was {
			t.Errorf("session %s is bound and was bound before: %+v", id, b.Former)
		}
	}
	digests, err := n.h.relay.Digests(context.Background(), key)
	if err != nil {
		t.Fatal(err)
	}
	for i, d := range digests {
		if d.Generation != i+1 || len(d.Facts) != 1 {
			t.Errorf("digest %d of %d is %+v", i+1, len(digests), d)
		}
	}
	if b.Digest > len(digests) {
		t.Errorf("digest %d is bound and there are %d", b.Digest, len(digests))
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, f := range n.faults {
		t.Error(f)
	}
	for _, k := range n.turns {
		if k.runs > 1 {
			t.Errorf("%+v ran %d times", k.offer.Triple, k.runs)
		}
	}
	return b
}
