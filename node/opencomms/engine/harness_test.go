package engine_test

import (
	"fmt"
	"testing"
	"time"

	"opencode-mesh/node/opencomms/engine"
	"opencode-mesh/protocol/opencomms"
)

// world is a state, its engine and a clock that only the test moves.
type world struct {
	t   *testing.T
	s   *opencomms.State
	e   engine.Engine
	now int64 // ms

	before string // the state at ready
}

const (
	project  = "proj"
	worktree = "/home/u/proj"
	second   = int64(1000)
	minute   = 60 * second
)

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, s: &opencomms.State{}, now: 1_770_000_000_000}
	w.e = engine.Engine{Now: func() time.Time { return time.UnixMilli(w.now) }}
	return w
}

// channel makes a channel whose members are pull members without a stale policy,
// with the session ids ses_a, ses_b, … and the roles A, B, ….
func (w *world) channel(name string, members int, change ...func(*engine.CreateRequest)) *opencomms.Channel {
	w.t.Helper()
	r := engine.CreateRequest{Channel: name, ProjectID: project, Worktree: worktree, Member: new(engine.NewMember)}
	*r.Member = pull(0)
	for _, f := range change {
		f(&r)
	}
	_, err := w.e.Create(w.s, r)
	w.must(err)
	for i := 1; i < members; i++ {
		_, err := w.e.Join(w.s, engine.JoinRequest{Channel: name, ProjectID: project, Worktree: worktree, Member: pull(i)})
		w.must(err)
	}
	return w.get(name)
}

func (w *world) get(name string) *opencomms.Channel {
	w.t.Helper()
	ch, ok := w.s.Channels.Get(name)
	if !ok {
		w.t.Fatalf("there is no channel %s", name)
	}
	return ch
}

func pull(i int) engine.NewMember {
	return engine.NewMember{
		Session: fmt.Sprintf("ses_%c", 'a'+i), Role: string(rune('A' + i)), RolePrompt: "Do your part.",
		Host: "test", Surface: opencomms.SurfaceMCP, Mode: opencomms.ModePull, Policy: &opencomms.StalePolicy{Mode: opencomms.StaleNone},
	}
}

func as(session string) engine.Caller { return engine.Caller{Session: session} }

var operator = engine.Caller{Operator: true}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// refused asserts the code of a refusal.
func (w *world) refused(err error, code engine.Code) {
	w.t.Helper()
	if got := engine.CodeOf(err); got != code {
		w.t.Fatalf("refused with %q (%v), not %q", got, err, code)
	}
}

// send sends from ses_a to ses_b and returns the row.
func (w *world) send(content string, change ...func(*engine.SendRequest)) *opencomms.Envelope {
	w.t.Helper()
	r := engine.SendRequest{Channel: "review", Content: content, To: "B"}
	for _, f := range change {
		f(&r)
	}
	sent, err := w.e.Send(w.s, as("ses_a"), r)
	w.must(err)
	return w.row(sent.MessageIDs[0])
}

func (w *world) row(id string) *opencomms.Envelope {
	w.t.Helper()
	row, ok := w.s.Messages.Get(id)
	if !ok {
		w.t.Fatalf("there is no message %s", id)
	}
	return row
}

func (w *world) queue(session string) []string {
	q, _ := w.s.Queues.Get(session)
	return q
}

func (w *world) drain(session string) []*opencomms.Envelope {
	return w.e.Drain(w.s, session, engine.DrainOptions{})
}
