package hub_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/tunnel"
)

// evil is text that a terminal must not get to see, and very much of it.
func evil(n int) string { return "\x1b[2J\x07" + strings.Repeat("x", n) }

func many(n int, s string) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprint(i, s)
	}
	return out
}

func (b *box) revoke(op, name string) {
	b.t.Helper()
	if status, _, data := b.call(http.MethodPost, "/v1/revoke/"+name, op, nil); status != http.StatusNoContent {
		b.t.Fatalf("%d %s", status, data)
	}
}

func TestRevokingANodeEndsEveryTunnelThatItHas(t *testing.T) {
	b := start(t, config(t.TempDir()))
	beta, op := b.enroll("join", "beta"), b.enroll("login", "boss", operator)
	p := b.greeted(beta, "j1", 1)
	drain, err := b.dial(beta, "Mesh-Tunnel", "drain")
	if err != nil {
		t.Fatal(err)
	}
	silent, err := b.dial(beta)
	if err != nil {
		t.Fatal(err)
	}
	b.revoke(op, "beta")
	for name, q := range map[string]*peer{"the one with the name": p, "a draining one": drain, "one that said nothing": silent} {
		if r := q.ended(); r != tunnel.ReasonRevoked {
			t.Errorf("%s ended with %s", name, r)
		}
	}
}

func TestADrainingTunnelDeliversAndNothingElse(t *testing.T) {
	b := start(t, config(t.TempDir()))
	b.enroll("join", "alpha")
	beta := b.enroll("join", "beta")
	drain, err := b.dial(beta, "Mesh-Tunnel", "drain")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		method, path string
		body         any
	}{
		{http.MethodPost, "/v1/tasks", dispatch("alpha", "t1", "x")},
		{http.MethodGet, "/v1/tasks", nil},
		{http.MethodGet, "/v1/nodes", nil},
		{http.MethodPut, "/v1/status", api.NodeReport{}},
		{http.MethodPost, "/v1/hello", hello("j1", 1)},
	} {
		status, e := drain.call(c.method, c.path, c.body, nil)
		want(t, status, e, http.StatusConflict, api.CodeSuperseded)
	}
	status, e := drain.call(http.MethodPut, "/v1/tasks/t1/progress", api.Progress{}, nil)
	want(t, status, e, http.StatusNotFound, api.CodeUnknownTask)
}

func TestANodeHasAFewTunnelsAtMost(t *testing.T) {
	b := start(t, config(t.TempDir()))
	beta := b.enroll("join", "beta")
	var err error
	n := 0
	for ; n < 100 && err == nil; n++ {
		_, err = b.dial(beta, "Mesh-Tunnel", "drain")
	}
	var refused *tunnel.RefusedError
	if !errors.As(err, &refused) || refused.Status != http.StatusTooManyRequests || n < 8 || n > 32 {
		t.Errorf("the tunnel number %d: %v", n, err)
	}
}

func TestAHelloIsSaidOncePerTunnel(t *testing.T) {
	b := start(t, config(t.TempDir()))
	beta := b.enroll("join", "beta")
	p := b.greeted(beta, "j1", 1)
	status, e := p.call(http.MethodPost, "/v1/hello", hello("j1", 100), nil)
	want(t, status, e, http.StatusConflict, api.CodeConflict)
	b.greeted(beta, "j1", 2) // the refused one did not count
}

// hostileServices are too many, with names that are none.
func hostileServices() []api.Service {
	list := []api.Service{{Name: "web", Kind: api.ServiceHTTP}, {Name: "odd", Kind: "odd"}, {Name: "long", Kind: api.ServiceHTTP, Password: evil(9999)}}
	for _, name := range many(999, evil(20)) {
		list = append(list, api.Service{Name: name, Kind: api.ServiceHTTP})
	}
	for i := range 999 {
		list = append(list, api.Service{Name: fmt.Sprint("s", i), Kind: api.ServiceTCP})
	}
	return list
}

func TestWhatANodeSaysOfItselfIsBoundedAndCleaned(t *testing.T) {
	b := start(t, config(t.TempDir()))
	beta, op := b.enroll("join", "beta"), b.enroll("login", "boss", operator)
	p, err := b.dial(beta)
	if err != nil {
		t.Fatal(err)
	}
	agent := api.AgentStatus{
		Kind: evil(9999), Health: evil(9999), Version: evil(9999), Detail: evil(99999), Memory: -5, Warnings: many(99, evil(999)),
	}
	h := hello("j1", 1)
	h.Version, h.OS, h.Arch, h.Policy, h.MaxParallel = evil(9999), evil(9999), evil(9999), evil(9999), -1
	h.Agent, h.Workspaces, h.Services = agent, append([]string{"main", evil(5)}, many(9999, "ws")...), hostileServices()
	if status, e := p.call(http.MethodPost, "/v1/hello", h, nil); status != http.StatusOK {
		t.Fatalf("%d %v", status, e)
	}
	check := func(when string) {
		t.Helper()
		n := b.node(op, "beta")
		data, err := json.Marshal(n)
		if err != nil {
			t.Fatal(err)
		}
		if len(data) > 64<<10 || bytes.Contains(data, []byte(`\u001b`)) || bytes.Contains(data, []byte(`\u0007`)) {
			t.Errorf("%s: %d bytes: %.500s", when, len(data), data)
		}
		if n.Agent.Health != api.HealthUnknown || n.Agent.Memory != 0 {
			t.Errorf("%s: agent %+v", when, n.Agent)
		}
		if len(n.Services) != 256 || n.Services[0] != "web" || n.Services[1] != "s0" {
			t.Errorf("%s: services %.200v", when, n.Services)
		}
		if n.Workspaces[0] != "main" {
			t.Errorf("%s: the default workspace is %q", when, n.Workspaces[0])
		}
	}
	check("hello")
	if status, e := p.call(http.MethodPut, "/v1/status", api.NodeReport{Agent: agent}, nil); status != http.StatusNoContent {
		t.Fatalf("%d %v", status, e)
	}
	check("status")
}

func TestAHelloWithoutWhatItNeedsIsRefused(t *testing.T) {
	b := start(t, config(t.TempDir()))
	p, err := b.dial(b.enroll("join", "beta"))
	if err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*api.Hello){
		"no journal":         func(h *api.Hello) { h.JournalID = "" },
		"no epoch":           func(h *api.Hello) { h.Epoch = 0 },
		"the last epoch":     func(h *api.Hello) { h.Epoch = 1<<64 - 1 },
		"no instance":        func(h *api.Hello) { h.Instance = "" },
		"an evil journal":    func(h *api.Hello) { h.JournalID = evil(5) },
		"an endless journal": func(h *api.Hello) { h.JournalID = strings.Repeat("j", 999) },
		"an evil instance":   func(h *api.Hello) { h.Instance = evil(5) },
	} {
		t.Run(name, func(t *testing.T) {
			h := hello("j1", 1)
			spoil(&h)
			status, e := p.call(http.MethodPost, "/v1/hello", h, nil)
			want(t, status, e, http.StatusBadRequest, api.CodeBadRequest)
		})
	}
	if status, e := p.call(http.MethodPut, "/v1/status", api.NodeReport{}, nil); status != http.StatusConflict {
		t.Errorf("a status before the hello: %d %v", status, e)
	}
	if status, e := p.call(http.MethodPost, "/v1/hello", hello("j1", 1), nil); status != http.StatusOK {
		t.Errorf("after all that: %d %v", status, e)
	}
}

func TestANodeThatStopsGetsNoOffers(t *testing.T) {
	b := start(t, config(t.TempDir()))
	beta, alice := b.enroll("join", "beta"), b.enroll("login", "alice")
	p := b.greeted(beta, "j1", 1)
	b.call(http.MethodPost, "/v1/tasks", alice, dispatch("beta", "t0", "x"))
	p.offer() // it is attached
	if status, e := p.call(http.MethodPut, "/v1/status", api.NodeReport{Draining: true}, nil); status != http.StatusNoContent {
		t.Fatalf("%d %v", status, e)
	}
	var made api.Dispatched
	_, _, data := b.call(http.MethodPost, "/v1/tasks", alice, dispatch("beta", "t1", "x"))
	if err := json.Unmarshal(data, &made); err != nil || made.Tasks[0].State != api.StateQueued {
		t.Errorf("it is offered: %s", data)
	}
	if status, e := p.call(http.MethodPut, "/v1/status", api.NodeReport{}, nil); status != http.StatusNoContent {
		t.Fatalf("%d %v", status, e)
	}
	if o := p.offer(); o.Task != "t1" {
		t.Errorf("offer %+v", o)
	}
}

func TestAForgottenTaskIsForgottenForItsControllerOnly(t *testing.T) {
	cfg := config(t.TempDir())
	cfg.KeepSettled, cfg.SweepEvery = time.Nanosecond, time.Millisecond // pruned every 60 ms
	b := start(t, cfg)
	b.enroll("join", "beta")
	alice, bob := b.enroll("login", "alice"), b.enroll("login", "bob")
	b.call(http.MethodPost, "/v1/tasks", alice, dispatch("beta", "t1", "x"))
	b.call(http.MethodPost, "/v1/tasks/t1/cancel", alice, nil)
	for limit := time.Now().Add(2 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
		status, e, _ := b.call(http.MethodGet, "/v1/tasks/t1", alice, nil)
		if status == http.StatusGone && e.Code == api.CodeTaskForgotten {
			break
		}
		if time.Now().After(limit) {
			t.Fatalf("%d %v", status, e)
		}
	}
	status, e, _ := b.call(http.MethodGet, "/v1/tasks/t1", bob, nil)
	want(t, status, e, http.StatusNotFound, api.CodeUnknownTask)
	status, e, _ = b.call(http.MethodPost, "/v1/tasks", bob, dispatch("beta", "t1", "x"))
	want(t, status, e, http.StatusConflict, api.CodeTaskConflict)
}

func TestAForgerDoesNotPushOthersOutOfTheAuditLog(t *testing.T) {
	b := start(t, config(t.TempDir()))
	b.enroll("join", "beta")
	alice, op := b.enroll("login", "alice"), b.enroll("login", "boss", operator)
	for range 50 {
		status, e, _ := b.call("POST", "/v1/envelopes?target=beta", alice, "[opencode-mesh v1]\nfrom: bob\ntask: t3\nmode: session\nreply: result-block\n---\nx")
		want(t, status, e, http.StatusForbidden, api.CodeFromMismatch)
	}
	var page api.AuditPage
	_, _, data := b.call(http.MethodGet, "/v1/audit", op, nil)
	if err := json.Unmarshal(data, &page); err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range page.Entries {
		if e.Action == "from_mismatch" {
			n++
			if e.Actor != "alice" || e.Peer != "127.0.0.1" {
				t.Errorf("entry %+v", e)
			}
		}
	}
	if n == 0 || n > 20 {
		t.Errorf("%d entries of 50 forgeries", n)
	}
}

func TestAControllersNameIsNotReplacedByANode(t *testing.T) {
	b := start(t, config(t.TempDir()))
	alice := b.enroll("login", "alice")
	status, e, _ := b.call(http.MethodPost, "/v1/join", "", api.Login{Name: "alice", Password: password, Replace: true})
	want(t, status, e, http.StatusConflict, api.CodeNameTaken)
	if status, _, data := b.call(http.MethodGet, "/v1/whoami", alice, nil); status != http.StatusOK {
		t.Errorf("alice: %d %s", status, data)
	}
}

func TestErrorsRepeatLittleOfTheRequest(t *testing.T) {
	b := start(t, config(t.TempDir()))
	op := b.enroll("login", "boss", operator)
	long := strings.Repeat("x", 20<<10)
	for name, ask := range map[string]func() []byte{
		"a path":           func() []byte { _, _, d := b.call(http.MethodGet, "/"+long, op, nil); return d },
		"a name to revoke": func() []byte { _, _, d := b.call(http.MethodPost, "/v1/revoke/"+long, op, nil); return d },
		"a task":           func() []byte { _, _, d := b.call(http.MethodGet, "/v1/tasks/"+long, op, nil); return d },
		"a target":         func() []byte { _, _, d := b.call(http.MethodGet, "/v1/tasks?target="+long, op, nil); return d },
		"a number": func() []byte {
			_, _, d := b.call(http.MethodPost, "/v1/tasks", op, `{"ttl_ms":`+strings.Repeat("1", 20<<10)+`}`)
			return d
		},
		"a state": func() []byte { _, _, d := b.call(http.MethodGet, "/v1/tasks?state="+long, op, nil); return d },
		"a name to log in": func() []byte {
			_, _, d := b.call(http.MethodPost, "/v1/login", "", api.Login{Name: long, Password: password})
			return d
		},
	} {
		if d := ask(); len(d) > 1024 || len(d) == 0 {
			t.Errorf("%s: %d bytes: %.100s", name, len(d), d)
		}
	}
}

func TestHeadersAreBounded(t *testing.T) {
	b := start(t, config(t.TempDir()))
	req, _ := http.NewRequest(http.MethodGet, b.hub.URL()+"/healthz", nil)
	req.Header.Set("X-Long", strings.Repeat("x", 128<<10))
	resp, err := b.hc.Do(req)
	if err != nil {
		return // cut off, as good
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("got %d", resp.StatusCode)
	}
}

// TestWhatIsNoRequestIsRefusedByTheServerBelow holds what docs/errors.md says of it.
func TestWhatIsNoRequestIsRefusedByTheServerBelow(t *testing.T) {
	b := start(t, config(t.TempDir()))
	for text, status := range map[string]string{
		"GET /healthz\r\n\r\n": "400", "G{T /healthz HTTP/1.1\r\nHost: x\r\n\r\n": "400", "GET /healthz HTTP/1.1\r\n\r\n": "400",
		"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n": "400", "GET /healthz HTTP/1.1\r\nHost: x\r\nA B: c\r\n\r\n": "400",
		"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", 64<<10) + "\r\n\r\n":       "431",
		"POST /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n":                     "501",
		"GET /healthz HTTP/3.0\r\nHost: x\r\n\r\n":                                                 "505",
		"POST /healthz HTTP/1.1\r\nHost: x\r\nExpect: 200-maybe\r\nConnection: close\r\n\r\n":      "417",
		"Odd /v1/nodes HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n":                           "405",
		"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\nConnection: close\r\n\r\n":   "404",
		"TRACE /v1/nodes/x/services/y/ HTTP/1.1\r\nHost: example.org\r\nConnection: close\r\n\r\n": "401",
	} {
		c, err := net.Dial("tcp", strings.TrimPrefix(b.hub.URL(), "http://"))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(c, text)
		got, _ := io.ReadAll(c)
		_ = c.Close()
		ours := strings.Contains(string(got), `{"error":{"code":`)
		if _, rest, _ := strings.Cut(string(got), " "); !strings.HasPrefix(rest, status) || ours != strings.Contains("401 404 405", status) {
			t.Errorf("%.60q: got %.300q", text, got)
		}
	}
}
