package relay_test

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// pairs is a model of two controllers with sessions at one node, for any interleaving
// of what they, the node and the hub may do.
type pairs struct {
	h    *harness
	node *living
	ids  []string // of all tasks, in the order of their dispatch
}

func (p *pairs) id() string {
	id := fmt.Sprintf("t%03d", len(p.ids))
	p.ids = append(p.ids, id)
	return id
}

var controllers = rapid.SampledFrom([]string{"alice", "alice", "alice", "bob"})

// dispatch submits a task.
func (p *pairs) dispatch(t *rapid.T, opts ...func(*api.Dispatch)) {
	text := rapid.SampledFrom([]string{"x", "x", "x", "ASK", "FULL"}).Draw(t, "text")
	if _, err := p.h.trySubmit(controllers.Draw(t, "controller"), "beta", p.id(), text, opts...); err != nil {
		t.Fatal(err)
	}
}

// operate starts an operation; that there is nothing to operate on is no error.
func (p *pairs) operate(t *rapid.T, op string) {
	by := p.h.ids[controllers.Draw(t, "controller")]
	_, err := p.h.relay.Operate(context.Background(), by, by, "beta", op, api.Operate{ID: p.id()})
	if err != nil {
		wantCode(t, err, api.CodeConflict)
		p.ids = p.ids[:len(p.ids)-1]
	}
}

// answer answers what is asked.
func (p *pairs) answer() {
	for _, id := range p.ids {
		_, _ = p.h.relay.Answer(context.Background(), id, "", "that")
	}
}

func (p *pairs) actions() map[string]func(*rapid.T) {
	ctx := context.Background()
	return map[string]func(*rapid.T){
		"dispatch":       func(t *rapid.T) { p.dispatch(t) },
		"dispatch more":  func(t *rapid.T) { p.dispatch(t); p.dispatch(t) },
		"dispatch --new": func(t *rapid.T) { p.dispatch(t, asNew) },
		"dispatch --auto-compact": func(t *rapid.T) {
			p.dispatch(t, func(d *api.Dispatch) { d.AutoCompact = 30 })
		},
		"compact": func(t *rapid.T) { p.operate(t, api.OpCompact) },
		"reset":   func(t *rapid.T) { p.operate(t, api.OpReset) },
		"clear":   func(t *rapid.T) { p.operate(t, api.OpClear) },
		"answer":  func(*rapid.T) { p.answer() },
		"cancel": func(t *rapid.T) {
			if len(p.ids) > 0 {
				_, _ = p.h.relay.Cancel(ctx, rapid.SampledFrom(p.ids).Draw(t, "task"))
			}
		},
		"work":       func(*rapid.T) { p.node.work() },
		"work a bit": func(t *rapid.T) { p.node.workOn(rapid.IntRange(1, 3).Draw(t, "turns")) },
		"node leaves": func(*rapid.T) {
			p.node.leave()
		},
		"node comes": func(*rapid.T) { p.node.attach() },
		"hub restarts": func(t *rapid.T) {
			was := p.node.detach != nil
			p.node.leave()
			p.h.crash()
			if was {
				p.node.attach()
			}
		},
		"sweep": func(*rapid.T) { p.h.relay.Sweep(ctx) },
	}
}

// end lets everything come to its end.
func (p *pairs) end() {
	p.node.attach()
	p.node.until("everything settles", func() bool {
		p.answer()
		return p.h.relay.Open() == 0
	})
}

// check looks at what became of it.
func (p *pairs) check(t *rapid.T) {
	page, err := p.h.store.Tasks(context.Background(), store.TaskQuery{Limit: api.MaxPage})
	if err != nil {
		t.Fatal(err)
	}
	tasks := map[string]store.Task{}
	for _, x := range page.Tasks {
		tasks[x.ID] = x
	}
	for _, c := range []string{"alice", "bob"} {
		if _, err := p.h.store.Binding(context.Background(), store.BindingKey{Controller: "id_" + c, Target: "id_beta"}); err == nil {
			p.node.sound(t, c)
		}
	}
	p.node.mu.Lock()
	defer p.node.mu.Unlock()
	alive := map[string]string{}
	for _, s := range p.node.sessions {
		key := fmt.Sprint(s.controller, " generation ", s.generation)
		if s.alive && alive[key] != "" {
			t.Errorf("%s has the sessions %s and %s", key, alive[key], s.id)
		}
		if s.alive {
			alive[key] = s.id
		}
	}
	p.order(t, tasks)
}

// order checks that the tasks of each lane came to the node in the order of their
// creation, on the right side of each operation, and in a session of that side.
func (p *pairs) order(t *rapid.T, tasks map[string]store.Task) {
	type lane struct {
		controller string
		lane       uint64
	}
	came := map[lane][]api.Offer{}
	for _, k := range p.node.order {
		x := tasks[k.offer.Task]
		if k.offer.Turn == 1 || x.Op != "" {
			key := lane{x.Controller.ID, x.Lane}
			came[key] = append(came[key], k.offer)
		}
	}
	for _, offers := range came {
		if !slices.IsSortedFunc(offers, func(a, b api.Offer) int { return cmp.Compare(a.Seq, b.Seq) }) {
			t.Errorf("the order of a lane is not that of its creation: %v", offers)
		}
	}
	for _, op := range tasks {
		if op.Op == "" || op.State != api.StateDone || op.Handover == nil || !p.movedOn(t, op) {
			continue
		}
		for _, x := range tasks {
			if x.Op != "" || x.Controller.ID != op.Controller.ID || x.Lane != op.Lane || x.Generation == 0 {
				continue
			}
			if x.Seq > op.Seq != (x.Generation > op.Handover.Generation) {
				t.Errorf("task %s (%d) ran in generation %d; %s %s (%d) ended generation %d", x.ID, x.Seq, x.Generation, op.Op, op.ID, op.Seq, op.Handover.Generation)
			}
		}
	}
}

// movedOn reports whether the operation's lane has a later generation than it began
// with: if --new has left the lane meanwhile, what is behind the operation stays.
func (p *pairs) movedOn(t *rapid.T, op store.Task) bool {
	b, err := p.h.store.Binding(context.Background(), store.BindingKey{Controller: op.Controller.ID, Target: "id_beta"})
	if err != nil {
		t.Fatal(err)
	}
	return b.Lane == op.Lane && b.Generation > op.Handover.Generation || slices.ContainsFunc(b.Former, func(f store.FormerSession) bool {
		return f.Lane == op.Lane && f.Generation > op.Handover.Generation
	})
}

func TestAnyInterleavingOfOnePairsDoingsKeepsItsSessionSound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "interleave")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		h := newHarnessIn(t, dir)
		p := &pairs{h: h, node: h.living("beta")}
		t.Cleanup(p.node.leave)
		p.node.attach()
		t.Repeat(p.actions())
		p.end()
		p.check(t)
	})
}
