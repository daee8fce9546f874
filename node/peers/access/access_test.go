package access_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	node "opencode-mesh/node/peers"
	"opencode-mesh/node/peers/access"
	"opencode-mesh/node/peers/spool"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/peers"
)

// patience bounds every wait; only a hang reaches it.
const patience = 30 * time.Second

// machine is where all services of a test are.
type machine struct {
	t            *testing.T
	storage, run string
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	run, err := os.MkdirTemp("", "p") // t's is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(run) })
	return &machine{t, filepath.Join(t.TempDir(), "peers"), run}
}

// process is one that takes part.
type process struct {
	*access.Access
	t     *testing.T
	svc   *node.Service
	clock *clock
	stop  func()
}

// clock is one that a test puts forward.
type clock struct {
	mu   sync.Mutex
	plus time.Duration
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.plus)
}

func (c *clock) forward(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.plus += d
}

func (m *machine) start(name string) *process {
	m.t.Helper()
	options := peers.DefaultOptions()
	options.Sweep, options.Heartbeat, options.Stale = 100*time.Millisecond, 200*time.Millisecond, time.Minute
	svc, err := node.New(node.Config{Node: name, DataDir: m.t.TempDir(), StorageDir: m.storage, RuntimeDir: m.run, Options: options})
	if err != nil {
		m.t.Fatal(err)
	}
	p := &process{t: m.t, svc: svc, clock: &clock{}}
	p.Access = access.New(access.Config{Service: svc, Now: p.clock.now})
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() {
		if err := svc.Run(ctx); err != nil {
			m.t.Error(err)
		}
	})
	p.stop = sync.OnceFunc(func() { cancel(); work.Wait() })
	m.t.Cleanup(p.stop)
	return p
}

// session is an agent that takes whatever comes.
type session struct{ got chan spool.Record }

func (s *session) Deliver(_ context.Context, r spool.Record) error {
	s.got <- r
	return nil
}
func (s *session) Acked(context.Context, peers.Ack) (bool, error) { return false, nil }

func (p *process) session(id, name string) *session {
	p.t.Helper()
	s := &session{make(chan spool.Record, 100)}
	err := p.svc.Publish(p.t.Context(), node.Endpoint{
		ID: peers.EndpointID(id), Session: id, Title: "work", Name: name, Directory: "/srv/" + name, Receiver: s,
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return s
}

func (s *session) text(t *testing.T) string {
	t.Helper()
	select {
	case r := <-s.got:
		return r.Message.Text
	case <-time.After(patience):
		t.Fatal("nothing arrived")
		return ""
	}
}

// await waits until a condition holds that other goroutines bring about.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s does not come", what)
		}
	}
}

func (p *process) final(as, id, want string) {
	p.t.Helper()
	await(p.t, "the final acknowledgement "+want, func() bool {
		m, err := p.Status(as, id)
		if err != nil {
			p.t.Fatal(err)
		}
		if m.Final != "" && m.Final != want {
			p.t.Fatalf("the final acknowledgement is %q, want %q", m.Final, want) // no other follows
		}
		return m.Final == want
	})
}

func code(err error) api.Code {
	var e *api.Error
	errors.As(err, &e)
	if e == nil {
		return ""
	}
	return e.Code
}

const (
	leaseA = "0123456789abcdef0123456789abcdef"
	leaseB = "fedcba9876543210fedcba9876543210"
)

func (p *process) register(lease string, r access.Registration) access.Identity {
	p.t.Helper()
	i, err := p.Register(p.t.Context(), lease, r)
	if err != nil {
		p.t.Fatal(err)
	}
	return i
}

func TestAskingAloneMakesNothing(t *testing.T) {
	m := newMachine(t)
	a := m.start("alpha")
	l, err := a.List(t.Context(), access.Desk, true)
	if err != nil || len(l.Agents) != 0 || l.You.Name != "alpha" || !strings.HasSuffix(l.Text(), "\nYou are "+l.You.String()+".") {
		t.Fatalf("%+v, %v", l, err)
	}
	if in, err := a.Inbox(t.Context()); err != nil || in == nil || len(in) != 0 {
		t.Errorf("%v, %v", in, err)
	}
	if s, err := a.Sent(access.Desk, true); err != nil || s.Messages == nil {
		t.Errorf("%v, %v", s, err)
	}
	if _, err := a.Send(t.Context(), access.Desk, "nobody", "hi"); code(err) != api.CodeUnknownTarget {
		t.Error(err)
	}
	if _, err := os.Stat(m.storage); !os.IsNotExist(err) {
		t.Errorf("the directory is there: %v", err)
	}
}

func TestPeopleSendByNameOrIdAndSeeWhatBecameOfIt(t *testing.T) {
	m := newMachine(t)
	a, b := m.start("alpha"), m.start("beta")
	shop := b.session("ses_1", "shop")
	b.session("ses_2", "twin")
	a.session("ses_3", "twin")
	sent, err := a.Send(t.Context(), access.Desk, "shop", "by name")
	if err != nil || shop.text(t) != "by name" || sent.ToName != "shop" || sent.Receipt == "" {
		t.Fatalf("%+v, %v", sent, err)
	}
	a.final(access.Desk, sent.ID, peers.Delivered)
	if got, _ := a.Status(access.Desk, sent.ID); got.AcknowledgedAt.IsZero() ||
		got.Status() != `Message `+sent.ID+` to "shop" — receipt: `+sent.Receipt+`; final: delivered.` ||
		got.Line() != `- `+sent.ID+` → "shop" — receipt: `+sent.Receipt+`; final: delivered` {
		t.Errorf("%s\n%s", got.Status(), got.Line())
	}
	if _, err := a.Send(t.Context(), access.Desk, peers.EndpointID("ses_1"), "by id"); err != nil || shop.text(t) != "by id" {
		t.Fatal(err)
	}
	out, err := a.Sent(access.Desk, false)
	if err != nil || len(out.Messages) != 2 || out.Messages[0].Text != "by id" {
		t.Errorf("%+v, %v", out, err)
	}
	you, _ := a.Name()
	for to, want := range map[string]api.Code{
		"twin": api.CodeBadRequest, "nobody": api.CodeUnknownTarget, "session-0": api.CodeUnknownTarget, you.ID: api.CodeBadRequest,
	} {
		if _, err := a.Send(t.Context(), access.Desk, to, "x"); code(err) != want {
			t.Errorf("%s: %v", to, err)
		}
	}
	for text, want := range map[string]api.Code{" \n\t": api.CodeBadRequest, strings.Repeat("x", 8193): api.CodeTooLarge} {
		if _, err := a.Send(t.Context(), access.Desk, "shop", text); code(err) != want {
			t.Errorf("%.10q: %v", text, err)
		}
	}
	if _, err := a.Send(t.Context(), access.Desk, "shop", strings.Repeat("<", 8192)); err != nil {
		t.Errorf("at the limit: %v", err)
	}
	if _, err := a.Status(access.Desk, "unknown"); code(err) != api.CodeNotFound {
		t.Error(err)
	}
}

func TestTheDeskReceivesAndPeopleDecide(t *testing.T) {
	m := newMachine(t)
	a, b := m.start("alpha"), m.start("beta")
	if _, err := a.Rename(t.Context(), "Ada at the desk"); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Rename(t.Context(), "no/name"); code(err) != api.CodeBadRequest {
		t.Error(err)
	}
	var ids []string
	for _, text := range []string{"first", "second"} {
		sent, err := b.Send(t.Context(), access.Desk, "Ada at the desk", text)
		if err != nil || sent.Receipt != peers.Held {
			t.Fatalf("%+v, %v", sent, err)
		}
		ids = append(ids, sent.ID)
	}
	in, err := a.Inbox(t.Context())
	if err != nil || len(in) != 2 || in[0].Text != "first" || in[0].Name != "beta" || in[0].For.Name != "Ada at the desk" || in[0].ExpiresAt.IsZero() {
		t.Fatalf("%+v, %v", in, err)
	}
	for i, accept := range []bool{true, false} {
		ref := access.Ref{Key: in[i].Key, For: in[i].For.ID}
		if err := a.Decide(t.Context(), accept, []access.Ref{ref}); err != nil {
			t.Fatal(err)
		}
		b.final(access.Desk, ids[i], map[bool]string{true: peers.Delivered, false: peers.Dropped}[accept])
		if err := a.Decide(t.Context(), accept, []access.Ref{ref}); code(err) != api.CodeConflict {
			t.Errorf("twice: %v", err)
		}
	}
	if in, err = a.Inbox(t.Context()); err != nil || len(in) != 0 {
		t.Errorf("%+v, %v", in, err)
	}
}

func TestAnAgentGetsItsMessagesWhenItReadsThem(t *testing.T) {
	m := newMachine(t)
	a, b := m.start("alpha"), m.start("beta")
	me := a.register(leaseA, access.Registration{Member: "sess_9", Directory: "/srv/x", Name: "reader"})
	if me.ID != peers.EndpointID("sess_9") || me.Name != "reader" {
		t.Fatalf("%+v", me)
	}
	var ids []string
	for _, text := range []string{"one", "two"} {
		sent, err := b.Send(t.Context(), access.Desk, "reader", text)
		if err != nil || sent.Receipt != peers.Queued {
			t.Fatalf("%+v, %v", sent, err)
		}
		ids = append(ids, sent.ID)
	}
	for range 2 { // looking takes nothing
		u, err := a.Unread(leaseA)
		if err != nil || len(u.Messages) != 2 || u.Messages[0].Text != "one" || u.Messages[1].Text != "two" || u.Messages[0].Name != "beta" {
			t.Fatalf("%+v, %v", u, err)
		}
	}
	u, _ := a.Unread(leaseA)
	if got, _ := b.Status(access.Desk, ids[0]); got.Final != "" {
		t.Errorf("before it was read: %+v", got)
	}
	if err := a.Taken(t.Context(), leaseA, []access.Key{u.Messages[0].Key, {From: "session-x", ID: "unknown"}}); err != nil {
		t.Fatal(err)
	}
	b.final(access.Desk, ids[0], peers.Delivered)
	if u, _ = a.Unread(leaseA); len(u.Messages) != 1 || u.Messages[0].Text != "two" {
		t.Errorf("%+v", u)
	}
	// The other one waits for the next process of the same member, of another node run.
	a.stop()
	a = m.start("alpha")
	a.register(leaseB, access.Registration{Member: "sess_9", Directory: "/srv/x"})
	await(t, "the message after a restart", func() bool { u, _ = a.Unread(leaseB); return len(u.Messages) == 1 })
	if err := a.Taken(t.Context(), leaseB, []access.Key{u.Messages[0].Key}); err != nil {
		t.Fatal(err)
	}
	b.final(access.Desk, ids[1], peers.Delivered)
}

func TestAnAgentSendsAndSeesItsOwnOnly(t *testing.T) {
	m := newMachine(t)
	a, b := m.start("alpha"), m.start("beta")
	shop := b.session("ses_1", "shop")
	a.register(leaseA, access.Registration{Member: "sess_a", Directory: "/srv/x"})
	a.register(leaseB, access.Registration{Member: "sess_b", Directory: "/srv/y"})
	sent, err := a.Send(t.Context(), leaseA, "shop", "hello")
	if err != nil || shop.text(t) != "hello" || sent.From != peers.EndpointID("sess_a") {
		t.Fatalf("%+v, %v", sent, err)
	}
	a.final(leaseA, sent.ID, peers.Delivered)
	if _, err := a.Status(leaseB, sent.ID); code(err) != api.CodeNotFound {
		t.Errorf("another agent sees it: %v", err)
	}
	if got, err := a.Status(access.Desk, sent.ID); err != nil || got.Text != "hello" {
		t.Errorf("people do not see it: %+v, %v", got, err)
	}
	l, err := a.List(t.Context(), leaseA, false)
	if err != nil || len(l.Agents) != 2 || l.You.ID != peers.EndpointID("sess_a") || strings.Contains(l.Text(), "\n- "+l.You.String()) {
		t.Errorf("%s, %v", l.Text(), err)
	}
	if _, err := a.Send(t.Context(), "0000000000000000000000000000ffff", "shop", "x"); code(err) != api.CodeNotFound {
		t.Errorf("without a lease: %v", err)
	}
}

func TestAnAgentGoesWithItsLastLeaseButStaysForItsAcknowledgements(t *testing.T) {
	m := newMachine(t)
	a, b := m.start("alpha"), m.start("beta")
	if _, err := b.Rename(t.Context(), "Bob"); err != nil {
		t.Fatal(err)
	}
	id := peers.EndpointID("mcp-1")
	there := func() bool { _, own := a.svc.Own(id); return own }
	r := access.Registration{Member: "mcp-1", Directory: "/srv/x", Name: "guest", Once: true}
	a.register(leaseA, r)
	a.register(leaseB, r)
	sent, err := a.Send(t.Context(), leaseA, "Bob", "are you there?") // held at Bob's
	if err != nil || sent.Receipt != peers.Held {
		t.Fatalf("%+v, %v", sent, err)
	}
	back, err := b.Send(t.Context(), access.Desk, "guest", "unread")
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Release(t.Context(), leaseA); err != nil || !there() {
		t.Fatalf("gone with the first of two leases: %v", err)
	}
	a.clock.forward(access.LeaseTime - time.Second)
	a.register(leaseB, r)
	a.clock.forward(access.LeaseTime - time.Second)
	if err := a.Sweep(t.Context()); err != nil || !there() {
		t.Fatalf("gone though the lease was renewed: %v", err)
	}
	a.clock.forward(2 * time.Second)
	if err := a.Sweep(t.Context()); err != nil || !there() {
		t.Fatalf("gone before its acknowledgement came: %v", err)
	}
	b.final(access.Desk, back.ID, peers.Dropped) // nobody comes back to read it
	if late, err := b.Send(t.Context(), access.Desk, id, "too late"); err != nil {
		t.Error(err)
	} else {
		b.final(access.Desk, late.ID, peers.Dropped)
	}
	in, err := b.Inbox(t.Context())
	if err != nil || len(in) != 1 {
		t.Fatalf("%+v, %v", in, err)
	}
	if err := b.Decide(t.Context(), true, []access.Ref{{Key: in[0].Key, For: in[0].For.ID}}); err != nil {
		t.Fatal(err)
	}
	a.final(access.Desk, sent.ID, peers.Delivered)
	if err := a.Sweep(t.Context()); err != nil || there() {
		t.Errorf("there after everything: %v", err)
	}
}

func TestARegistrationThatCannotBeIsRefused(t *testing.T) {
	m := newMachine(t)
	a, b := m.start("alpha"), m.start("beta")
	a.session("ses_here", "here")
	b.session("ses_there", "there")
	good := access.Registration{Member: "m", Directory: "/srv/x"}
	a.register(leaseA, good)
	change := func(f func(*access.Registration)) access.Registration { r := good; f(&r); return r }
	for name, c := range map[string]struct {
		lease string
		r     access.Registration
		want  api.Code
	}{
		"no lease":              {"x", good, api.CodeBadRequest},
		"a path as lease":       {"../" + leaseB[3:], good, api.CodeBadRequest},
		"no member":             {leaseB, change(func(r *access.Registration) { r.Member = "" }), api.CodeBadRequest},
		"a long member":         {leaseB, change(func(r *access.Registration) { r.Member = strings.Repeat("m", 257) }), api.CodeBadRequest},
		"a relative directory":  {leaseB, change(func(r *access.Registration) { r.Directory = "x" }), api.CodeBadRequest},
		"a name with a bracket": {leaseB, change(func(r *access.Registration) { r.Name = "[x" }), api.CodeBadRequest},
		"somebody else's lease": {leaseA, change(func(r *access.Registration) { r.Member = "other" }), api.CodeConflict},
		"a session of the node": {leaseB, change(func(r *access.Registration) { r.Member = "ses_here" }), api.CodeConflict},
		"a session elsewhere":   {leaseB, change(func(r *access.Registration) { r.Member = "ses_there" }), api.CodeConflict},
	} {
		if _, err := a.Register(t.Context(), c.lease, c.r); code(err) != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAMessageThatCannotBeSentIsSaidNotToBeSent(t *testing.T) {
	m := newMachine(t)
	p := m.start("alpha")
	entry := peers.Entry{
		EndpointID: "session-far", ProcessID: "0badcafe", PID: os.Getpid(), SessionID: "ses_far", Name: "far", Directory: "/far",
		Transport: peers.Transport{Type: "tcp", Host: "192.0.2.1", Port: 80}, HeartbeatAt: float64(time.Now().UnixMilli()),
	}
	dir := filepath.Join(m.storage, "peers.d")
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, entry.FileName()), entry.Encode(), 0o600)); err != nil {
		t.Fatal(err)
	}
	sent, err := p.Send(t.Context(), access.Desk, "far", "hello")
	if err != nil {
		t.Fatal(err)
	}
	const why = `the host "192.0.2.1", which is not this machine`
	if text, arrived := sent.Outcome(); arrived || !strings.Contains(text, "was not sent: ") || !strings.Contains(text, why) || strings.Contains(text, "may have") {
		t.Errorf("%q", text)
	}
	later, err := p.Status(access.Desk, sent.ID)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{later.Status(), later.Line()} {
		if strings.Contains(text, "awaiting") || !strings.Contains(text, "not sent") || !strings.Contains(text, why) {
			t.Errorf("%q", text)
		}
	}
	var none *api.Error
	if _, err := p.Status(access.Desk, strings.Repeat("x", 5000)); !errors.As(err, &none) || none.Code != api.CodeNotFound {
		t.Errorf("an id that no file can have: %v", err)
	}
}
