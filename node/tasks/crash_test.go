package tasks_test

import (
	"context"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"opencode-mesh/node/agent"
	"opencode-mesh/node/tasks"
	"opencode-mesh/protocol/api"
)

// program is a fake agent with a durable claim of its own, like a shim: it
// survives its node, and a resumed turn finds what became of it.
type program struct {
	ran  atomic.Int64 // how often the work itself was done
	stop chan struct{}
}

// run claims by a checkpoint, works, and answers; a resumed turn with a claim only
// collects the answer.
func (p *program) run(ctx context.Context, turn agent.Turn, h agent.Host) (api.Outcome, error) {
	if string(turn.Checkpoint) != "claimed" {
		if err := h.Checkpoint(ctx, []byte("claimed")); err != nil {
			return api.Outcome{}, err
		}
		p.ran.Add(1)
	}
	if p.stop != nil {
		select {
		case <-p.stop:
		case <-ctx.Done():
			return aborted(ctx)
		}
	}
	return done(ctx, turn, h)
}

// TestCrash walks along a task's way through the node and kills it at each step.
func TestCrash(t *testing.T) {
	t.Run("before the receipt's commit leaves nothing, and the offer that comes again runs once", func(t *testing.T) {
		a := newAgent(true, done)
		g := newRig(t, a)
		release := g.disk.hold()
		defer release()
		answered := make(chan int, 1)
		o := g.offer("t1")
		go func() {
			status, _, _ := g.put(o)
			answered <- status
		}()
		await(t, g.disk.at, "the receipt's commit")
		none(t, answered, "receipt before the commit")
		path := g.copyJournal()
		g.disk.fail(syscall.EROFS)
		release()
		if status := await(t, answered, "the answer"); status != http.StatusServiceUnavailable {
			t.Fatalf("an offer that did not reach the disk was answered %d", status)
		}

		h := openRig(t, path, a, newHub())
		if got := h.reconcile(o.Triple); got[0].State != "" {
			t.Fatalf("after the crash it is %+v", got[0])
		}
		h.take("t1")
		h.result()
		if got := a.starts(); !slices.Equal(got, []string{"t1/1/1"}) {
			t.Fatalf("starts: %v", got)
		}
	})

	t.Run("after the receipt's commit, before the receipt arrived: the repeated offer is known and runs once", func(t *testing.T) {
		gate := newGated()
		g := newRig(t, newAgent(true, gate.run))
		g.take("t0") // keeps the lane, so that t1 does not start
		g.began()
		o := g.take("t1")
		path := g.crash()

		a := newAgent(true, done)
		h := openRig(t, path, a, newHub())
		o.JournalID, o.Epoch = h.id, h.epoch
		status, rc, err := h.put(o)
		if err != nil || status != http.StatusOK {
			t.Fatalf("repeat: %d %+v %v", status, rc, err)
		}
		h.result()
		h.result()
		if got := a.starts(); !slices.Equal(got, []string{"t0/1/1+", "t1/1/1"}) {
			t.Fatalf("starts: %v", got)
		}
		gate.open("t0")
		gate.open("t1")
	})

	t.Run("after the receipt, before the start: it starts as new, with its text, in order", func(t *testing.T) {
		gate := newGated()
		g := newRig(t, newAgent(true, gate.run), func(c *tasks.Config) { c.MaxParallel = 1 })
		g.take("t0")
		g.began()
		g.take("t2", seq(20))
		g.take("t1", seq(10), from("beta"))
		path := g.crash()

		a := newAgent(true, done)
		h := openRig(t, path, a, newHub(), func(c *tasks.Config) { c.MaxParallel = 1 })
		for range 3 {
			h.result()
		}
		if got := a.starts(); !slices.Equal(got, []string{"t0/1/1+", "t1/1/1", "t2/1/1"}) {
			t.Fatalf("starts: %v", got)
		}
		if a.turns[1].Text != "do t1" || a.turns[1].Controller.Name != "beta" {
			t.Fatalf("turn %+v", a.turns[1])
		}
		gate.open("t0")
	})

	t.Run("after the start, before anything of it is on disk: no agent had claimed it, it starts as new", func(t *testing.T) {
		p := &program{}
		g := newRig(t, newAgent(true, p.run))
		gate := g.disk
		o := g.offer("t1")
		// The second commit is the one with the running mark and the claim.
		first := gate.hold()
		go g.put(o)
		await(t, gate.at, "the receipt's commit")
		second := gate.hold()
		first()
		await(t, gate.at, "the claim's commit")
		path := g.copyJournal()
		gate.fail(syscall.EROFS)
		second()
		if p.ran.Load() != 0 {
			t.Fatal("the work was done before the claim was on disk")
		}

		q := &program{}
		h := openRig(t, path, newAgent(true, q.run), newHub())
		if turn := h.began(); turn.Resumed || turn.Checkpoint != nil {
			t.Fatalf("turn %+v", turn)
		}
		h.result()
		if n := p.ran.Load() + q.ran.Load(); n != 1 {
			t.Fatalf("the work was done %d times", n)
		}
	})

	t.Run("after the running mark, without a checkpoint: it is resumed and the agent looks first", func(t *testing.T) {
		gate := newGated()
		g := newRig(t, newAgent(true, gate.run))
		g.take("t1")
		g.began()
		g.take("t2") // its commit takes the mark along
		path := g.crash()

		h := openRig(t, path, newAgent(true, done), newHub())
		if turn := h.began(); name(turn) != "t1/1/1+" || turn.Checkpoint != nil || turn.Text != "do t1" {
			t.Fatalf("turn %+v", turn)
		}
		h.result()
		h.result()
		gate.open("t1")
	})

	t.Run("after the agent's claim: it is resumed with the claim, and the work is not done twice", func(t *testing.T) {
		p := &program{stop: make(chan struct{})}
		g := newRig(t, newAgent(true, p.run))
		g.take("t1")
		g.began()
		eventually(t, "the claim", func() bool { return p.ran.Load() == 1 })
		path := g.crash()

		h := openRig(t, path, newAgent(true, (&program{}).run), newHub())
		turn := h.began()
		if !turn.Resumed || string(turn.Checkpoint) != "claimed" {
			t.Fatalf("turn %+v", turn)
		}
		if res := h.result(); res.Outcome.State != api.StateDone {
			t.Fatalf("result %+v", res)
		}
		close(p.stop)
	})

	t.Run("before the result's commit: it is resumed and settles once", func(t *testing.T) {
		p := &program{stop: make(chan struct{})}
		g := newRig(t, newAgent(true, p.run))
		o := g.take("t1")
		g.began()
		eventually(t, "the claim", func() bool { return p.ran.Load() == 1 })
		release := g.disk.hold()
		defer release()
		close(p.stop)
		await(t, g.disk.at, "the result's commit")
		none(t, g.hub.results, "delivery before the result is on disk")
		path := g.copyJournal()
		hub := g.hub
		g.r.Connect(nil)
		g.disk.fail(syscall.EROFS)
		release()

		q := &program{}
		h := openRig(t, path, newAgent(true, q.run), hub)
		if turn := h.began(); !turn.Resumed {
			t.Fatalf("turn %+v", turn)
		}
		h.result()
		if out, ok := hub.outcome(o.Triple); !ok || out.State != api.StateDone {
			t.Fatalf("the hub has %+v", out)
		}
		if q.ran.Load() != 0 {
			t.Fatal("the work was done again")
		}
	})

	t.Run("after the result's commit, before its delivery: it is delivered and not run", func(t *testing.T) {
		g := newRig(t, newAgent(true, done))
		g.r.Connect(nil)
		o := g.take("t1")
		eventually(t, "the result's commit", func() bool { return g.r.Snapshot().Undelivered == 1 })
		path := g.crash()

		a := newAgent(true, done)
		h := openRig(t, path, a, newHub())
		if res := h.result(); res.Triple != o.Triple || res.Outcome.Summary != "did t1" || res.JournalID != g.id {
			t.Fatalf("result %+v", res)
		}
		h.delivered()
		if len(a.starts()) != 0 {
			t.Fatalf("it ran again: %v", a.starts())
		}
	})

	t.Run("after the hub stored the result, before its answer: it is delivered again, the same", func(t *testing.T) {
		g := newRig(t, newAgent(true, done))
		g.hub.setAnswer(func(api.Result) error { return context.DeadlineExceeded })
		g.take("t1")
		first := g.result()
		path := g.crash()

		h := openRig(t, path, newAgent(true, done), newHub())
		again := h.result()
		if again.Triple != first.Triple || again.Outcome.Summary != first.Outcome.Summary || again.Outcome.RanMS != first.Outcome.RanMS {
			t.Fatalf("first %+v, again %+v", first, again)
		}
		g.hub.setAnswer(nil)
	})

	t.Run("after the acknowledgement was journaled: nothing is delivered, the repeat finds the result", func(t *testing.T) {
		g := newRig(t, newAgent(true, done))
		o := g.take("t1")
		g.result()
		g.delivered()
		g.take("t2") // its commit takes the mark along
		g.result()
		path := g.crash()

		a := newAgent(true, done)
		h := openRig(t, path, a, newHub())
		o.JournalID, o.Epoch = h.id, h.epoch
		if status, rc, _ := h.put(o); status != http.StatusOK || rc.State != api.StateDone || rc.Outcome == nil {
			t.Fatalf("repeat: %d %+v", status, rc)
		}
		h.delivered()
		for len(h.hub.results) > 0 {
			if res := h.result(); res.Task == "t1" {
				t.Fatal("t1 was delivered again")
			}
		}
	})

	t.Run("while a cancel is under way: the turn is resumed only to be aborted", func(t *testing.T) {
		stubborn := make(chan struct{})
		g := newRig(t, newAgent(true, func(ctx context.Context, _ agent.Turn, _ agent.Host) (api.Outcome, error) {
			<-stubborn
			return aborted(ctx)
		}))
		o := g.take("t1")
		g.began()
		g.withdraw(o.Triple, api.WithdrawCancel)
		g.take("t2") // its commit takes the mark along
		path := g.crash()

		h := openRig(t, path, newAgent(true, newGated().run), newHub())
		if turn := h.began(); name(turn) != "t1/1/1+" {
			t.Fatalf("turn %+v", turn)
		}
		if res := h.result(); res.Triple != o.Triple || res.Outcome.State != api.StateCanceled {
			t.Fatalf("result %+v", res)
		}
		close(stubborn)
	})

	t.Run("does not touch the checkpoint of a turn by that of another", func(t *testing.T) {
		p := &program{stop: make(chan struct{})}
		a := newAgent(true, func(ctx context.Context, turn agent.Turn, h agent.Host) (api.Outcome, error) {
			if err := h.Checkpoint(ctx, []byte("of "+turn.Task)); err != nil {
				return api.Outcome{}, err
			}
			p.ran.Add(1)
			<-p.stop
			return done(ctx, turn, h)
		})
		g := newRig(t, a)
		g.take("t1")
		g.take("t2", from("beta"))
		eventually(t, "both checkpoints", func() bool { return p.ran.Load() == 2 })
		path := g.crash()
		h := openRig(t, path, newAgent(true, done), newHub())
		for range 2 {
			if turn := h.began(); string(turn.Checkpoint) != "of "+turn.Task {
				t.Fatalf("turn %+v", turn)
			}
		}
		close(p.stop)
	})
}

func TestStart(t *testing.T) {
	t.Run("nothing of an earlier process runs before the hub took the hello", func(t *testing.T) {
		gate := newGated()
		g := newRig(t, newAgent(true, gate.run))
		g.take("t1")
		g.began()
		g.take("t2")
		path := g.crash()
		gate.open("t1")

		a := newAgent(true, done)
		cfg := g.cfg
		cfg.Path, cfg.Agent, cfg.Faults = path, a, nil
		r, err := tasks.Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Stop(t.Context())
		if s := r.Snapshot(); s.Waiting != 1 || len(s.Running) != 1 {
			t.Fatalf("in hand: %+v", s)
		}
		if len(a.starts()) != 0 {
			t.Fatalf("a copied directory ran %v", a.starts())
		}
	})

	t.Run("what expired or was canceled while the node was away is withdrawn before it starts", func(t *testing.T) {
		gate := newGated()
		g := newRig(t, newAgent(true, gate.run), func(c *tasks.Config) { c.MaxParallel = 1 })
		g.take("t1")
		g.began()
		o := g.take("t2", from("beta"), func(o *api.Offer) { o.Workspace = "other" })
		path := g.crash()
		gate.open("t1")
		gate.open("t2")

		a := newAgent(true, done)
		h := openRig(t, path, a, newHub(), func(c *tasks.Config) { c.StartDelay = time.Hour })
		h.withdraw(o.Triple, api.WithdrawExpire)
		if len(a.starts()) != 0 {
			t.Fatalf("started before the hub's word: %v", a.starts())
		}
		h.reconcile(triple("t1", 1, 1), o.Triple)
		h.result()
		h.delivered()
		for _, s := range a.starts() {
			if strings.HasPrefix(s, "t2") {
				t.Fatalf("starts: %v", a.starts())
			}
		}
	})

	t.Run("a hub that says nothing is not waited for longer than the start delay", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			gate := newGated()
			g := newRig(t, newAgent(true, gate.run))
			g.take("t1")
			g.began()
			g.stop() // leaves t1 for the next process
			a := newAgent(true, done)
			h := openRig(t, g.cfg.Path, a, newHub(), func(c *tasks.Config) { c.StartDelay = 2 * time.Second })
			time.Sleep(2*time.Second - time.Millisecond)
			synctest.Wait()
			none(t, a.began, "start before the delay")
			time.Sleep(2 * time.Millisecond)
			if turn := h.began(); name(turn) != "t1/1/1+" {
				t.Fatalf("turn %+v", turn)
			}
			h.result()
			h.stop()
		})
	})

	t.Run("a damaged journal, one of another hub and one in use are refused, and left as they are", func(t *testing.T) {
		g := newRig(t, newAgent(true, done))
		cfg := g.cfg
		if _, err := tasks.Open(cfg); err == nil || !strings.Contains(err.Error(), "in use by pid") {
			t.Fatalf("second process: %v", err)
		}
		g.stop()
		other := cfg
		other.HubID = "hub-2"
		if _, err := tasks.Open(other); err == nil || !strings.Contains(err.Error(), "belongs to hub hub-1") {
			t.Fatalf("another hub: %v", err)
		}
		for what, content := range map[string][]byte{"empty": {}, "garbage": []byte(strings.Repeat("no journal ", 10000))} {
			if err := os.WriteFile(cfg.Path, content, 0o600); err != nil {
				t.Fatal(err)
			}
			if r, err := tasks.Open(cfg); err == nil {
				r.Stop(t.Context())
				t.Fatalf("%s: it was made anew", what)
			}
			if now, err := os.ReadFile(cfg.Path); err != nil || len(now) != len(content) {
				t.Fatalf("%s: the file was changed: %d bytes, %v", what, len(now), err)
			}
		}
	})
}

func TestEpoch(t *testing.T) {
	t.Run("grows with each hello and over restarts, with one journal id", func(t *testing.T) {
		g := newRig(t, newAgent(true, done))
		id, first := g.id, g.epoch
		g.hello()
		if g.epoch != first+1 || g.id != id {
			t.Fatalf("second hello: %s %d", g.id, g.epoch)
		}
		path := g.crash()
		h := openRig(t, path, newAgent(true, done), newHub())
		if h.epoch != first+2 || h.id != id {
			t.Fatalf("after a crash: %s %d, want %s %d", h.id, h.epoch, id, first+2)
		}
	})

	t.Run("is not proposed when it cannot be stored", func(t *testing.T) {
		g := newRig(t, newAgent(true, done))
		g.disk.fail(syscall.EROFS)
		if _, _, err := g.r.Propose(); err == nil {
			t.Fatal("proposed")
		}
	})

	t.Run("an archived journal lets what runs end, keeps its id and starts nothing more", func(t *testing.T) {
		gate := newGated()
		a := newAgent(true, gate.run)
		g := newRig(t, a)
		g.take("t1")
		g.began()
		g.take("t2")
		g.r.Park()
		path, err := g.r.Archive()
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(path, ".forked") {
			t.Fatalf("archived as %s", path)
		}
		if _, err := os.Stat(g.cfg.Path); !os.IsNotExist(err) {
			t.Fatalf("the old name is still there: %v", err)
		}
		h := openRig(t, g.cfg.Path, newAgent(true, done), newHub())
		if h.id == g.id {
			t.Fatal("the new journal has the old one's id")
		}
		gate.open("t1")
		if res := g.result(); res.JournalID != g.id || res.Task != "t1" {
			t.Fatalf("result %+v", res)
		}
		await(t, g.r.Drained(), "the old journal to be drained")
		if got := a.starts(); !slices.Equal(got, []string{"t1/1/1"}) {
			t.Fatalf("starts: %v", got)
		}
		h.take("t1")
		h.result()
	})
}
