package node_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"opencode-mesh/auth/local"
	"opencode-mesh/node"
	"opencode-mesh/node/agent"
	"opencode-mesh/node/link"
	"opencode-mesh/node/link/linktest"
	"opencode-mesh/node/tasks"
	"opencode-mesh/protocol/api"
	"opencode-mesh/store/boltdb"
	"opencode-mesh/tunnel"
)

func TestNodeRunsTasks(t *testing.T) {
	hub := linktest.New(t, tunnel.Config{})
	p := launch(t, hub, t.TempDir(), func(c *node.Config) {
		c.MaxParallel = 7
		c.Services = map[string]string{"web": "http://127.0.0.1:1", "api": "tcp://127.0.0.1:2"}
	})
	c := linktest.Await(t, hub.Conns, "the connection")
	h := c.Hello
	if h.Protocol != api.ProtocolVersion || h.OS != runtime.GOOS || h.Arch != runtime.GOARCH || h.Policy != api.PolicyAccept ||
		h.MaxParallel != 7 || !h.Sessions || h.Agent.Health != api.HealthHealthy || h.Instance == "" ||
		!slices.Equal(h.Workspaces, []string{"main"}) || !slices.Equal(h.Services, []api.Service{{Name: "api", Kind: api.ServiceTCP}, {Name: "web", Kind: api.ServiceHTTP}}) {
		t.Fatalf("hello %+v", h)
	}
	c.Take("t1")
	if got := p.began(); got != "t1" {
		t.Fatalf("started %s", got)
	}
	p.agent.open("t1")
	res := linktest.Await(t, hub.Results, "the result")
	if res.Task != "t1" || res.Outcome.Summary != "did t1" || res.JournalID != h.JournalID || res.Epoch != h.Epoch {
		t.Fatalf("result %+v", res)
	}

	t.Run("and answers for people, and in one error shape", func(t *testing.T) {
		var s node.Status
		if _, err := c.Call(http.MethodGet, "/v1/status", nil, &s); err != nil || s.Name != "node" || s.Link.State != link.StateOnline || s.Tasks.JournalID != h.JournalID {
			t.Fatalf("status %+v, %v", s, err)
		}
		if _, err := c.Call(http.MethodGet, "/v1/nothing", nil, nil); api.ErrorCode(err) != api.CodeNotFound {
			t.Fatalf("unknown path: %v", err)
		}
		if _, err := c.Call(http.MethodPost, "/v1/tasks/t1", nil, nil); api.ErrorCode(err) != api.CodeMethodNotAllowed {
			t.Fatalf("wrong method: %v", err)
		}
	})

	t.Run("and keeps a result that is ready while the hub is away", func(t *testing.T) {
		c.Take("t2")
		p.began()
		hub.Refuse(api.Errorf(api.CodeUnavailable, "restarting"))
		hub.Cut(tunnel.ReasonLost)
		p.agent.open("t2")
		for p.node.Status(t.Context()).Tasks.Undelivered == 0 {
			time.Sleep(time.Millisecond)
		}
		hub.Refuse(nil)
		if res := linktest.Await(t, hub.Results, "the result"); res.Task != "t2" || res.Epoch <= h.Epoch {
			t.Fatalf("result %+v", res)
		}
	})
}

func TestNodeStops(t *testing.T) {
	hub := linktest.New(t, tunnel.Config{})
	dir := t.TempDir()
	p := launch(t, hub, dir)
	c := linktest.Await(t, hub.Conns, "the connection")
	c.Take("t1")
	c.Take("t2")
	p.began()

	t.Run("telling the hub, leaving running turns to the next process, the agent last", func(t *testing.T) {
		p.quit()
		if r := linktest.Await(t, hub.Reports, "the last report"); !r.Draining {
			t.Fatalf("report %+v", r)
		}
		if err := p.agent.cause("t1"); !errors.Is(err, agent.ErrStopping) {
			t.Fatalf("the turn was ended by %v", err)
		}
		if p.agent.started != 1 || p.agent.stopped != 1 {
			t.Fatalf("agent started %d times, stopped %d times", p.agent.started, p.agent.stopped)
		}
	})

	t.Run("and the next process resumes and goes on in order", func(t *testing.T) {
		next := launch(t, hub, dir)
		if c := linktest.Await(t, hub.Conns, "the connection"); c.Hello.JournalID == "" || c.Hello.Epoch != 2 {
			t.Fatalf("hello %+v", c.Hello)
		}
		if got := next.began(); got != "t1+" {
			t.Fatalf("started %s", got)
		}
		next.agent.open("t1")
		if got := next.began(); got != "t2" {
			t.Fatalf("started %s", got)
		}
		next.agent.open("t2")
		linktest.Await(t, hub.Results, "t1")
		linktest.Await(t, hub.Results, "t2")
	})
}

func TestNodeWaitsForTheHubBeforeItResumes(t *testing.T) {
	hub := linktest.New(t, tunnel.Config{})
	dir := t.TempDir()
	p := launch(t, hub, dir)
	c := linktest.Await(t, hub.Conns, "the connection")
	c.Take("t1")
	p.began()
	p.quit()

	hub.Refuse(api.Errorf(api.CodeUnavailable, "away"))
	next := launch(t, hub, dir)
	for len(hub.Dials()) < 5 {
		time.Sleep(time.Millisecond)
	}
	next.idle()
	hub.Refuse(nil)
	if got := next.began(); got != "t1+" {
		t.Fatalf("started %s", got)
	}
	next.agent.open("t1")
	linktest.Await(t, hub.Results, "the result")
}

func TestDataDirectory(t *testing.T) {
	t.Run("serves one process at a time, and the second names the first", func(t *testing.T) {
		hub := linktest.New(t, tunnel.Config{})
		dir := t.TempDir()
		launch(t, hub, dir)
		_, err := node.New(config(t, hub, dir, newWorker()))
		var locked *boltdb.LockedError
		if !errors.As(err, &locked) || !strings.Contains(err.Error(), fmt.Sprintf("pid %d", os.Getpid())) {
			t.Fatalf("second process: %v", err)
		}
		if _, err := node.NewOperator(dir).Status(t.Context()); err != nil {
			t.Fatalf("the first one's socket: %v", err)
		}
	})

	t.Run("with a damaged journal is refused and left as it is", func(t *testing.T) {
		hub := linktest.New(t, tunnel.Config{})
		dir := t.TempDir()
		path := tasks.JournalPath(dir, linktest.HubID)
		if err := os.WriteFile(path, []byte("not a journal"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := node.New(config(t, hub, dir, newWorker())); err == nil {
			t.Fatal("it started")
		}
		if data, err := os.ReadFile(path); err != nil || string(data) != "not a journal" {
			t.Fatalf("the file is now %q, %v", data, err)
		}
	})

	t.Run("that was copied gets a journal of its own and runs nothing of the other", func(t *testing.T) {
		hub := linktest.New(t, tunnel.Config{})
		dir := t.TempDir()
		p := launch(t, hub, dir)
		c := linktest.Await(t, hub.Conns, "the connection")
		c.Take("t1")
		c.Take("t2")
		p.began()
		p.quit()
		copied := copyDir(t, dir)

		p = launch(t, hub, dir)
		original := linktest.Await(t, hub.Conns, "the original")
		if got := p.began(); got != "t1+" {
			t.Fatalf("started %s", got)
		}
		p.agent.open("t1")
		p.agent.open("t2")
		linktest.Await(t, hub.Results, "t1")
		linktest.Await(t, hub.Results, "t2")
		p.quit()

		q := launch(t, hub, copied)
		fork := linktest.Await(t, hub.Conns, "the copy")
		if fork.Hello.JournalID == original.Hello.JournalID || fork.Hello.Epoch != 1 {
			t.Fatalf("hello of the copy %+v", fork.Hello)
		}
		if _, err := os.Stat(tasks.JournalPath(copied, linktest.HubID) + ".forked"); err != nil {
			t.Fatalf("the copied journal: %v", err)
		}
		fork.Take("t3")
		if got := q.began(); got != "t3" {
			t.Fatalf("the copy started %s", got)
		}
		q.agent.open("t3")
		linktest.Await(t, hub.Results, "t3")
		q.idle()
	})
}

func TestNodeFinishesWhatRunsWhenItsJournalForked(t *testing.T) {
	hub := linktest.New(t, tunnel.Config{})
	p := launch(t, hub, t.TempDir())
	c := linktest.Await(t, hub.Conns, "the connection")
	old := c.Hello.JournalID
	c.Take("t1")
	c.Take("t2")
	p.began()
	hub.SawEpoch(old, 100) // a copy was further on meanwhile
	hub.Cut(tunnel.ReasonLost)
	c = linktest.Await(t, hub.Conns, "the reconnect")
	if c.Hello.JournalID == old {
		t.Fatal("the forked journal is still in use")
	}
	if s := p.node.Status(t.Context()); len(s.Forked) != 1 || len(s.Forked[0].Running) != 1 || s.Tasks.JournalID != c.Hello.JournalID {
		t.Fatalf("status %+v", s)
	}
	if _, _, err := c.Offer("t9", func(o *api.Offer) { o.JournalID = old }); api.ErrorCode(err) != api.CodeJournalMismatch {
		t.Fatalf("an offer for the old journal: %v", err)
	}
	c.Take("t3", lane("beta"))
	if got := p.began(); got != "t3" {
		t.Fatalf("started %s", got)
	}
	p.agent.open("t1")
	if res := linktest.Await(t, hub.Results, "the old journal's result"); res.Task != "t1" || res.JournalID != old {
		t.Fatalf("result %+v", res)
	}
	p.agent.open("t3")
	if res := linktest.Await(t, hub.Results, "the new journal's result"); res.Task != "t3" || res.JournalID != c.Hello.JournalID {
		t.Fatalf("result %+v", res)
	}
	for len(p.node.Status(t.Context()).Forked) != 0 {
		time.Sleep(time.Millisecond)
	}
	p.idle() // t2 waited in the old journal and is not started
}

func TestSupersededNode(t *testing.T) {
	hub := linktest.New(t, tunnel.Config{})
	first := launch(t, hub, t.TempDir())
	c := linktest.Await(t, hub.Conns, "the first process")
	c.Take("t1")
	c.Take("t2")
	first.began()
	second := launch(t, hub, t.TempDir())
	linktest.Await(t, hub.Conns, "the second process")
	linktest.Await(t, hub.Drains, "the first one's drain tunnel")

	first.agent.open("t1")
	if res := linktest.Await(t, hub.Results, "the result"); res.Task != "t1" || res.JournalID != c.Hello.JournalID {
		t.Fatalf("result %+v", res)
	}
	for s := first.node.Status(t.Context()); s.Tasks.Undelivered+len(s.Tasks.Running) > 0; s = first.node.Status(t.Context()) {
		time.Sleep(time.Millisecond)
	}
	first.idle() // t2 stays
	if s := first.node.Status(t.Context()); s.Link.State != link.StateSuperseded || !s.Tasks.Parked || s.Tasks.Waiting != 1 {
		t.Fatalf("the first process: %+v", s)
	}
	if s := second.node.Status(t.Context()); s.Link.State != link.StateOnline || s.Link.Connections != 1 {
		t.Fatalf("the second process: %+v", s)
	}
	if n := len(hub.Hellos); n != 2 {
		t.Fatalf("%d hellos, want one of each process", n)
	}
	// Each tunnel asks for its mail, in its own time.
	linktest.Await(t, hub.MailAsked, "the tunnel of the first process for mail")
	linktest.Await(t, hub.MailAsked, "the tunnel of the second process for mail")
	if n := len(hub.MailAsked); n != 0 {
		t.Fatalf("%d tunnels for mail beside one of each process", n)
	}
	first.quit()
}

func TestRevokedNode(t *testing.T) {
	hub := linktest.New(t, tunnel.Config{})
	p := launch(t, hub, t.TempDir())
	c := linktest.Await(t, hub.Conns, "the connection")
	c.Take("t1")
	c.Take("t2")
	p.began()
	hub.Refuse(api.Errorf(api.CodeRevoked, "gone"))
	hub.Cut(tunnel.ReasonRevoked)
	if err := p.end(); !errors.Is(err, link.ErrRevoked) {
		t.Fatalf("ended with %v", err)
	}
	if err := p.agent.cause("t1"); !errors.Is(err, agent.ErrCanceled) {
		t.Fatalf("what ran was ended by %v", err)
	}
	p.idle()
}

func TestNodeEnds(t *testing.T) {
	t.Run("when a sync of its journal failed", func(t *testing.T) {
		hub := linktest.New(t, tunnel.Config{})
		var fail sync.Map
		p := launch(t, hub, t.TempDir(), func(c *node.Config) {
			c.Tasks.Faults = boltdb.FaultFunc(func(boltdb.CommitOp) error {
				if _, yes := fail.Load("now"); yes {
					return errors.New("fdatasync: input/output error")
				}
				return nil
			})
		})
		c := linktest.Await(t, hub.Conns, "the connection")
		fail.Store("now", true)
		if _, _, err := c.Offer("t1"); err == nil {
			t.Fatal("acknowledged")
		}
		if err := p.end(); !errors.Is(err, node.ErrJournalFailed) {
			t.Fatalf("ended with %v", err)
		}
		p.idle()
	})

	t.Run("when its agent cannot be started", func(t *testing.T) {
		hub := linktest.New(t, tunnel.Config{})
		w := newWorker()
		w.startErr = errors.New("no such program")
		p := launch(t, hub, t.TempDir(), func(c *node.Config) { c.Agent = w })
		if err := p.end(); !errors.Is(err, w.startErr) {
			t.Fatalf("ended with %v", err)
		}
		if len(hub.Dials()) != 0 {
			t.Fatal("it connected without an agent")
		}
	})
}

func TestServices(t *testing.T) {
	echo, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	go func() {
		for {
			c, err := echo.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				line, _ := bufio.NewReader(c).ReadString('\n')
				fmt.Fprintf(c, "you said %s", line)
			}()
		}
	}()
	hub := linktest.New(t, tunnel.Config{})
	launch(t, hub, t.TempDir(), func(c *node.Config) { c.Services = map[string]string{"echo": "tcp://" + echo.Addr().String()} })
	c := linktest.Await(t, hub.Conns, "the connection")

	t.Run("that are named are piped byte for byte", func(t *testing.T) {
		s, err := c.Session.Open(t.Context(), tunnel.Service("echo"))
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		fmt.Fprintln(s, "hello")
		if line, err := bufio.NewReader(s).ReadString('\n'); err != nil || line != "you said hello\n" {
			t.Fatalf("got %q, %v", line, err)
		}
	})

	t.Run("that are not named do not exist", func(t *testing.T) {
		s, err := c.Session.Open(t.Context(), tunnel.Service("ssh"))
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		var reset *tunnel.ResetError
		if _, err := bufio.NewReader(s).ReadByte(); !errors.As(err, &reset) || reset.Code != tunnel.ResetNoService {
			t.Fatalf("got %v", err)
		}
	})
}

func TestConfigIsChecked(t *testing.T) {
	hub := linktest.New(t, tunnel.Config{})
	for what, change := range map[string]func(*node.Config){
		"no data directory":       func(c *node.Config) { c.DataDir = "" },
		"no agent":                func(c *node.Config) { c.Agent = nil },
		"no hub":                  func(c *node.Config) { c.Profile.HubID = "" },
		"a controller's login":    func(c *node.Config) { c.Profile.Role = api.RoleController },
		"an unknown policy":       func(c *node.Config) { c.Policy = "maybe" },
		"a relative workspace":    func(c *node.Config) { c.Workspaces = []agent.Workspace{{Name: "w", Dir: "here"}} },
		"a workspace named twice": func(c *node.Config) { c.Workspaces = append(c.Workspaces, c.Workspaces[0]) },
		"a service without port":  func(c *node.Config) { c.Services = map[string]string{"s": "tcp://127.0.0.1"} },
		"a service of a file":     func(c *node.Config) { c.Services = map[string]string{"s": "file:///etc/passwd"} },
		"a service with a path":   func(c *node.Config) { c.Services = map[string]string{"s": "http://127.0.0.1:1/base"} },
		"a stream with password":  func(c *node.Config) { c.Services = map[string]string{"s": "tcp://me:own@127.0.0.1:1"} },
		"a user without password": func(c *node.Config) { c.Services = map[string]string{"s": "http://me@127.0.0.1:1"} },
		"a service with a slash":  func(c *node.Config) { c.Services = map[string]string{"a/b": "http://127.0.0.1"} },
		"push without sessions":   func(c *node.Config) { c.OpencommsPush = true },
		"a negative limit":        func(c *node.Config) { c.MaxParallel = -1 },
	} {
		t.Run(what, func(t *testing.T) {
			cfg := config(t, hub, t.TempDir(), newWorker())
			change(&cfg)
			if _, err := node.New(cfg); err == nil {
				t.Fatal("taken")
			}
		})
	}
}

func TestOperator(t *testing.T) {
	hub := linktest.New(t, tunnel.Config{})
	dir := filepath.Join(t.TempDir(), strings.Repeat("a-long-name-", 12))
	p := launch(t, hub, dir, func(c *node.Config) { c.Policy = api.PolicyHold })
	c := linktest.Await(t, hub.Conns, "the connection")
	op := node.NewOperator(dir)
	for _, id := range []string{"t1", "t2"} {
		if _, rc, err := c.Offer(id); err != nil || rc.State != api.StateHeld {
			t.Fatalf("%+v %v", rc, err)
		}
	}

	t.Run("sees how the node is, also in a directory with a long name", func(t *testing.T) {
		s, err := op.Status(t.Context())
		if err != nil || s.Name != "node" || s.PID != os.Getpid() || s.Link.State != link.StateOnline || s.Tasks.Held != 2 || s.Policy != api.PolicyHold || s.Agent.Version != "1" {
			t.Fatalf("status %+v, %v", s, err)
		}
	})

	t.Run("releases and refuses held tasks", func(t *testing.T) {
		held, err := op.Held(t.Context())
		if err != nil || len(held) != 2 || held[0].Task != "t1" || held[0].Text != "do t1" {
			t.Fatalf("held %+v, %v", held, err)
		}
		if err := op.Release(t.Context(), "t1"); err != nil {
			t.Fatal(err)
		}
		if got := p.began(); got != "t1" {
			t.Fatalf("started %s", got)
		}
		if err := op.Refuse(t.Context(), "t2"); err != nil {
			t.Fatal(err)
		}
		if res := linktest.Await(t, hub.Results, "the refusal"); res.Task != "t2" || res.Outcome.State != api.StateRefused {
			t.Fatalf("result %+v", res)
		}
		if err := op.Release(t.Context(), "t2"); api.ErrorCode(err) != api.CodeNotFound {
			t.Fatalf("released after that: %v", err)
		}
	})

	t.Run("is told when no node runs", func(t *testing.T) {
		p.quit()
		if _, err := op.Status(t.Context()); !errors.Is(err, local.ErrNotRunning) {
			t.Fatalf("got %v", err)
		}
	})
}

// asker is a worker that asks before it works.
type asker struct{ *worker }

func (a asker) Run(ctx context.Context, turn agent.Turn, host agent.Host) (api.Outcome, error) {
	text, err := host.Ask(ctx, "per_1", api.Asked{Kind: api.QuestionPermission, Text: "run make?"})
	if err != nil {
		return api.Outcome{}, err
	}
	return api.Outcome{State: api.StateDone, Summary: text}, nil
}

func TestAQuestionInATurnOutlivesItsTunnel(t *testing.T) {
	hub := linktest.New(t, tunnel.Config{})
	launch(t, hub, t.TempDir(), func(cfg *node.Config) { cfg.Agent = asker{cfg.Agent.(*worker)} })
	c := linktest.Await(t, hub.Conns, "the connection")
	hub.AnswerAsk(func(api.Ask) *api.Error { return api.Errorf(api.CodeUnavailable, "the disk is slow") })
	c.Take("t1")
	hub.Cut(tunnel.ReasonLost)
	c = linktest.Await(t, hub.Conns, "the reconnect")
	hub.AnswerAsk(nil)
	a := linktest.Await(t, hub.Asks, "the question")
	if a.Task != "t1" || a.Epoch != c.Hello.Epoch || a.Asked == nil {
		t.Fatalf("question %+v", a)
	}
	if status, err := c.Reply(a, api.PermitOnce); err != nil {
		t.Fatalf("answer: %d %v", status, err)
	}
	if res := linktest.Await(t, hub.Results, "the result"); res.Outcome.Summary != api.PermitOnce {
		t.Fatalf("result %+v", res)
	}
	if _, err := c.Reply(a, api.PermitOnce); api.ErrorCode(err) != api.CodeQuestionGone {
		t.Fatalf("answer after the end: %v", err)
	}
}
