package peers

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"opencode-mesh/node/peers/spool"
	"opencode-mesh/protocol/peers"
)

// later is a clock that is put forward by hand.
type later struct{ by atomic.Int64 }

func (l *later) now() time.Time          { return time.Now().Add(time.Duration(l.by.Load())) }
func (l *later) forward(d time.Duration) { l.by.Add(int64(d)) }

// left are the directories below the storage that are an endpoint's.
func (m *machine) left(id string) (list []string) {
	for _, dir := range []string{"spool", "outbox"} {
		if _, err := os.Lstat(filepath.Join(m.storage, dir, id)); err == nil {
			list = append(list, dir)
		}
	}
	return list
}

func TestWhatAnEndpointThatIsGoneOwesIsToldAfterARestartToo(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	dir := t.TempDir()
	beta := func() *side { return m.start("beta", func(c *Config) { c.DataDir = dir }) }
	a, b := m.start("alpha", func(c *Config) { c.Options.Stale = time.Hour }), beta()
	box := newInbox()
	box.answer = func(context.Context, spool.Record) error { return ErrLater }
	from, to := a.agent("a", "", newInbox()), b.agent("b", "", box)
	sent := a.send(from, to, "hello")
	await(t, "the message", box.got)
	if err := a.Withdraw(t.Context(), from); err != nil { // so it cannot be told
		t.Fatal(err)
	}
	if err := b.Abandon(t.Context(), to); err != nil {
		t.Fatal(err)
	}
	b.stop()
	beta()
	a.agent("a", "", newInbox())
	if r := a.awaitFinal(sent); r.FinalStatus != peers.Dropped {
		t.Errorf("it ended as %q", r.FinalStatus)
	}
}

func TestWhatAnEndpointLeftGoesOnceNobodyNeedsIt(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	clock := &later{}
	s := m.start("alpha", func(c *Config) { c.now = clock.now })
	passing, staying := s.agent("passing", "", newInbox()), s.agent("staying", "", newInbox())
	for from, to := range map[string]string{passing: staying, staying: passing} {
		s.awaitFinal(s.send(from, to, "hello"))
	}
	if err := s.Withdraw(t.Context(), passing); err != nil {
		t.Fatal(err)
	}
	clock.forward(peers.DoneRetention + time.Minute)
	eventually(t, "the end of what it took", func() bool { return slices.Equal(m.left(passing), []string{"outbox"}) })
	clock.forward(SentKept)
	eventually(t, "the end of what it sent", func() bool { return len(m.left(passing)) == 0 })
	eventually(t, "that nothing is known of it", func() bool { return slices.Equal(s.traces.all(), []string{staying}) })
	if got := m.left(staying); len(got) != 2 {
		t.Errorf("of one that is there %q is left", got)
	}
	// And it may come back.
	s.agent("passing", "", newInbox())
	if got := s.traces.all(); !slices.Equal(got, []string{staying}) {
		t.Errorf("it left something before it did anything: %q", got)
	}
}

func TestAnEndpointThatAnotherProcessPublishesIsLeftToThat(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	a, b := m.start("alpha"), m.start("beta")
	id, from := a.agent("moves", "", newInbox()), b.agent("b", "", newInbox())
	b.awaitFinal(b.send(from, id, "hello"))
	if err := a.Withdraw(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	gone := func(want ...string) {
		t.Helper()
		if got, err := a.traces.gone(t.Context()); err != nil || !slices.Equal(got, want) {
			t.Errorf("gone are %q, %v", got, err)
		}
	}
	gone(id)
	b.agent("moves", "", newInbox())
	gone()
	if err := b.Withdraw(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	gone(id)
}

func TestTheNotesOfEndpointsAreBoundedAndADamagedFileIsWrittenAnew(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	s := m.idle("alpha") // none of these runs: what left nothing would be forgotten
	file := filepath.Join(s.Config().DataDir, TraceFile)
	if err := os.WriteFile(file, []byte(`{"endpoints":["session-`), 0o600); err != nil {
		t.Fatal(err)
	}
	again := m.idle("alpha", func(c *Config) { c.DataDir = s.Config().DataDir })
	err := again.traces.change(t.Context(), func([]string) []string {
		return strings.Fields(strings.Repeat("session-x ", MaxTraces-1) + "session-last")
	})
	if err != nil {
		t.Fatal(err)
	}
	again.traces.note(t.Context(), "session-new")
	if all := again.traces.all(); len(all) != MaxTraces || all[MaxTraces-1] != "session-new" || all[MaxTraces-2] != "session-last" {
		t.Errorf("%d are known, the last is %s", len(all), all[len(all)-1])
	}
	third := m.idle("alpha", func(c *Config) { c.DataDir = s.Config().DataDir })
	if got, err := third.traces.gone(t.Context()); err != nil || len(got) != MaxTraces {
		t.Errorf("%d are known after a restart, %v", len(got), err)
	}
}
