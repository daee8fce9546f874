package hub_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"opencode-mesh/auth"
	"opencode-mesh/auth/local"
	"opencode-mesh/hub"
	"opencode-mesh/protocol/api"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const password = "correct horse battery staple"

// box is a running hub.
type box struct {
	t    *testing.T
	hub  *hub.Hub
	dir  string
	hc   *http.Client
	stop func() error
}

func config(dir string) hub.Config {
	return hub.Config{DataDir: dir, Listen: "127.0.0.1:0", TLS: hub.TLSOff, Password: password, Log: slog.New(slog.DiscardHandler), Version: "test"}
}

func start(t *testing.T, cfg hub.Config) *box {
	t.Helper()
	h, err := hub.Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.Serve(ctx) }()
	link, err := auth.ParseLink(h.JoinLink())
	if err != nil {
		t.Fatal(err)
	}
	hc, err := link.HTTPClient("")
	if err != nil {
		t.Fatal(err)
	}
	b := &box{t: t, hub: h, dir: cfg.DataDir, hc: hc}
	var err2 error
	stopped := false
	b.stop = func() error {
		if !stopped {
			stopped = true
			cancel()
			err2 = <-done
			hc.CloseIdleConnections()
		}
		return err2
	}
	t.Cleanup(func() { _ = b.stop() })
	return b
}

// call makes a request and returns the status, the decoded error code and the body.
func (b *box) call(method, path, secret string, body any) (int, *api.Error, []byte) {
	b.t.Helper()
	resp, data := b.do(method, path, secret, body)
	var e api.ErrorBody
	_ = json.Unmarshal(data, &e)
	return resp.StatusCode, e.Error, data
}

func (b *box) do(method, path, secret string, body any) (*http.Response, []byte) {
	b.t.Helper()
	var r io.Reader
	switch v := body.(type) {
	case nil:
	case string:
		r = strings.NewReader(v)
	default:
		j, err := json.Marshal(v)
		if err != nil {
			b.t.Fatal(err)
		}
		r = bytes.NewReader(j)
	}
	req, err := http.NewRequest(method, b.hub.URL()+path, r)
	if err != nil {
		b.t.Fatal(err)
	}
	if secret != "" {
		req.Header.Set("Authorization", "Bearer "+secret)
	}
	resp, err := b.hc.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return resp, data
}

func (b *box) enroll(path, name string, opts ...func(*api.Login)) string {
	b.t.Helper()
	req := api.Login{Name: name, Password: password, Platform: "linux/amd64"}
	for _, o := range opts {
		o(&req)
	}
	status, _, data := b.call(http.MethodPost, "/v1/"+path, "", req)
	var is api.Issued
	if err := json.Unmarshal(data, &is); err != nil || status != http.StatusOK || is.Credential == "" {
		b.t.Fatalf("%s %s: %d %s", path, name, status, data)
	}
	return is.Credential
}

func operator(l *api.Login) { l.Operator = true }

func want(t *testing.T, status int, e *api.Error, wantStatus int, wantCode api.Code) {
	t.Helper()
	if status != wantStatus || e == nil || e.Code != wantCode {
		t.Fatalf("got %d %v, want %d %s", status, e, wantStatus, wantCode)
	}
}

func dispatch(target, id, text string) api.Dispatch {
	return api.Dispatch{Text: text, Targets: []api.DispatchTarget{{Name: target, ID: id}}}
}

func TestWithoutAPasswordTheHubDoesNotStart(t *testing.T) {
	cfg := config(t.TempDir())
	cfg.Password = ""
	if _, err := hub.Open(context.Background(), cfg); !errors.Is(err, hub.ErrNoPassword) {
		t.Fatalf("got %v", err)
	}
}

func TestPlainHTTPBeyondLoopbackNeedsAnExplicitFlag(t *testing.T) {
	cfg := config(t.TempDir())
	cfg.Listen = "0.0.0.0:0"
	if _, err := hub.Open(context.Background(), cfg); err == nil || !strings.Contains(err.Error(), "--allow-plain-http") {
		t.Fatalf("got %v", err)
	}
}

func TestASecondHubOnTheSameDirectoryNamesFileAndHolder(t *testing.T) {
	t.Parallel()
	b := start(t, config(t.TempDir()))
	_, err := hub.Open(context.Background(), config(b.dir))
	if err == nil || !strings.Contains(err.Error(), b.dir) {
		t.Fatalf("got %v", err)
	}
}

func TestWrongPasswordsAreRefusedAndLimitedWithRetryAfter(t *testing.T) {
	b := start(t, config(t.TempDir()))
	limited := false
	for range 20 {
		resp, data := b.do(http.MethodPost, "/v1/login", "", api.Login{Name: "alice", Password: "wrong"})
		switch resp.StatusCode {
		case http.StatusUnauthorized:
			if limited {
				t.Fatal("the limit was lifted at once")
			}
		case http.StatusTooManyRequests:
			limited = true
			if resp.Header.Get("Retry-After") == "" {
				t.Fatal("no Retry-After")
			}
		default:
			t.Fatalf("%d %s", resp.StatusCode, data)
		}
	}
	if !limited {
		t.Fatal("twenty wrong passwords were not limited")
	}
}

func TestAWrongPasswordForANewNameAndAnEmptyOneAreRefused(t *testing.T) {
	b := start(t, config(t.TempDir()))
	status, e, _ := b.call(http.MethodPost, "/v1/join", "", api.Login{Name: "beta"})
	want(t, status, e, http.StatusUnauthorized, api.CodeUnauthorized)
	status, e, _ = b.call(http.MethodPost, "/v1/join", "", api.Login{Name: "Not A Name", Password: password})
	want(t, status, e, http.StatusBadRequest, api.CodeBadRequest)
}

func TestNobodyWithoutACredentialGetsIn(t *testing.T) {
	b := start(t, config(t.TempDir()))
	for _, path := range []string{"/v1/nodes", "/v1/tasks", "/v1/tasks/x", "/v1/events", "/v1/tunnel", "/v1/audit", "/v1/credentials", "/v1/whoami"} {
		for _, secret := range []string{"", "mesh_wrong", password} {
			status, e, _ := b.call(http.MethodGet, path, secret, nil)
			want(t, status, e, http.StatusUnauthorized, api.CodeUnauthorized)
		}
	}
}

func TestHealthSaysNothingMoreThanOK(t *testing.T) {
	b := start(t, config(t.TempDir()))
	for _, path := range []string{"/healthz", "/readyz"} {
		resp, data := b.do(http.MethodGet, path, "", nil)
		if resp.StatusCode != http.StatusOK || string(data) != "ok\n" {
			t.Errorf("%s: %d %q", path, resp.StatusCode, data)
		}
	}
}

func TestMetricsAreOpenToLoopbackAndBounded(t *testing.T) {
	b := start(t, config(t.TempDir()))
	for i := range 5 {
		b.do(http.MethodGet, "/v1/nonsense/"+strings.Repeat("x", i+1), "", nil)
	}
	resp, data := b.do(http.MethodGet, "/metrics", "", nil)
	if resp.StatusCode != http.StatusOK || !strings.Contains(string(data), "mesh_nodes_online 0") {
		t.Fatalf("%d %.200s", resp.StatusCode, data)
	}
	if strings.Contains(string(data), "nonsense") {
		t.Error("a path became a label")
	}
}

func TestARevokedCredentialIsRefusedAtOnce(t *testing.T) {
	b := start(t, config(t.TempDir()))
	op, alice := b.enroll("login", "boss", operator), b.enroll("login", "alice")
	if status, _, data := b.call(http.MethodGet, "/v1/nodes", alice, nil); status != http.StatusOK {
		t.Fatalf("%d %s", status, data)
	}
	status, e, _ := b.call(http.MethodPost, "/v1/revoke/alice", alice, nil)
	want(t, status, e, http.StatusForbidden, api.CodeForbidden)
	if status, _, data := b.call(http.MethodPost, "/v1/revoke/alice", op, nil); status != http.StatusNoContent {
		t.Fatalf("%d %s", status, data)
	}
	status, e, _ = b.call(http.MethodGet, "/v1/nodes", alice, nil)
	want(t, status, e, http.StatusUnauthorized, api.CodeRevoked)
}

func TestATakenNodeNameNeedsReplaceWhichRevokesTheOldOne(t *testing.T) {
	b := start(t, config(t.TempDir()))
	old := b.enroll("join", "beta")
	alice := b.enroll("login", "alice")
	if status, _, data := b.call(http.MethodPost, "/v1/tasks", alice, dispatch("beta", "t1", "wait")); status != http.StatusCreated {
		t.Fatalf("%d %s", status, data)
	}
	status, e, _ := b.call(http.MethodPost, "/v1/join", "", api.Login{Name: "beta", Password: password})
	want(t, status, e, http.StatusConflict, api.CodeNameTaken)
	status, e, _ = b.call(http.MethodPost, "/v1/login", "", api.Login{Name: "beta", Password: password})
	want(t, status, e, http.StatusConflict, api.CodeNameTaken)
	fresh := b.enroll("join", "beta", func(l *api.Login) { l.Replace = true })
	status, e, _ = b.call(http.MethodGet, "/v1/whoami", old, nil)
	want(t, status, e, http.StatusUnauthorized, api.CodeRevoked)
	if status, _, _ := b.call(http.MethodGet, "/v1/whoami", fresh, nil); status != http.StatusOK {
		t.Errorf("the new node: %d", status)
	}
	var task api.Task
	_, _, data := b.call(http.MethodGet, "/v1/tasks/t1", alice, nil)
	if err := json.Unmarshal(data, &task); err != nil || task.State != api.StateCanceled || task.Error.Code != api.TaskTargetReplaced {
		t.Errorf("the old one's task: %s", data)
	}
}

func TestBadInputGetsItsCode(t *testing.T) {
	b := start(t, config(t.TempDir()))
	b.enroll("join", "beta")
	alice, bob := b.enroll("login", "alice"), b.enroll("login", "bob")
	if status, _, data := b.call(http.MethodPost, "/v1/tasks", alice, dispatch("beta", "t1", "one")); status != http.StatusCreated {
		t.Fatalf("%d %s", status, data)
	}
	for _, c := range []struct {
		name, method, path, secret string
		body                       any
		status                     int
		code                       api.Code
	}{
		{"not JSON", "POST", "/v1/tasks", alice, "{", 400, api.CodeBadRequest},
		{"a number for a text", "POST", "/v1/tasks", alice, `{"text":5}`, 400, api.CodeBadRequest},
		{"an unknown target", "POST", "/v1/tasks", alice, dispatch("gamma", "t2", "x"), 404, api.CodeUnknownTarget},
		{"a controller as target", "POST", "/v1/tasks", alice, dispatch("bob", "t2", "x"), 404, api.CodeUnknownTarget},
		{"the same id with another text", "POST", "/v1/tasks", alice, dispatch("beta", "t1", "two"), 409, api.CodeTaskConflict},
		{"somebody else's id", "POST", "/v1/tasks", bob, dispatch("beta", "t1", "one"), 409, api.CodeTaskConflict},
		{"too large a body", "POST", "/v1/tasks", alice, strings.Repeat("x", api.MaxBody+1), 413, api.CodeTooLarge},
		{"somebody else's task", "GET", "/v1/tasks/t1", bob, nil, 404, api.CodeUnknownTask},
		{"cancelling somebody else's task", "POST", "/v1/tasks/t1/cancel", bob, nil, 404, api.CodeUnknownTask},
		{"answering what was not asked", "POST", "/v1/tasks/t1/answer", alice, api.Answer{Text: "x"}, 409, api.CodeQuestionGone},
		{"retrying what runs", "POST", "/v1/tasks/t1/retry", alice, nil, 409, api.CodeNotSettled},
		{"a forged sender", "POST", "/v1/envelopes?target=beta", alice, "[opencode-mesh v1]\nfrom: bob\ntask: t3\nmode: session\nreply: result-block\n---\nx", 403, api.CodeFromMismatch},
		{"a malformed envelope", "POST", "/v1/envelopes?target=beta", alice, "[opencode-mesh v1]\nfrom: alice\n", 400, api.CodeMalformedEnvelope},
		{"no envelope", "POST", "/v1/envelopes?target=beta", alice, "hello", 400, api.CodeMalformedEnvelope},
		{"an envelope of version 2", "POST", "/v1/envelopes?target=beta", alice, "[opencode-mesh v2]\nfrom: alice\ntask: t3\n---\nx", 400, api.CodeUnsupportedVersion},
		{"an unknown path", "GET", "/v1/nothing", alice, nil, 404, api.CodeNotFound},
		{"a wrong method", "DELETE", "/v1/nodes", alice, nil, 405, api.CodeMethodNotAllowed},
		{"an unknown state in a filter", "GET", "/v1/tasks?state=tired", alice, nil, 400, api.CodeBadRequest},
		{"the audit log for a controller", "GET", "/v1/audit", alice, nil, 403, api.CodeForbidden},
		{"a tunnel for a controller", "GET", "/v1/tunnel", alice, nil, 403, api.CodeForbidden},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, e, data := b.call(c.method, c.path, c.secret, c.body)
			if status != c.status || e == nil || e.Code != c.code {
				t.Errorf("got %d %s", status, data)
			}
			if bytes.Contains(data, []byte(c.secret)) {
				t.Error("the credential is in the answer")
			}
		})
	}
	t.Run("a malformed envelope names the line", func(t *testing.T) {
		_, e, _ := b.call("POST", "/v1/envelopes?target=beta", alice, "[opencode-mesh v1]\nfrom: alice\ntask t4\n---\nx")
		if e == nil || e.Line == 0 {
			t.Errorf("got %+v", e)
		}
	})
}

func TestAReadyMadeEnvelopeIsTaken(t *testing.T) {
	b := start(t, config(t.TempDir()))
	b.enroll("join", "beta")
	alice := b.enroll("login", "alice")
	status, _, data := b.call("POST", "/v1/envelopes?target=beta", alice, "[aoi-mesh v1]\r\nfrom: alice\r\ntask: t1\r\nmode: one-shot\r\nreply: result-block\r\n---\r\nthe body")
	var task api.Task
	if err := json.Unmarshal(data, &task); err != nil || status != http.StatusAccepted || task.Task != "t1" || task.Mode != "one-shot" {
		t.Fatalf("%d %s", status, data)
	}
}

func TestALongPollEndsWithTheHub(t *testing.T) {
	b := start(t, config(t.TempDir()))
	b.enroll("join", "beta")
	alice := b.enroll("login", "alice")
	b.call("POST", "/v1/tasks", alice, dispatch("beta", "t1", "x"))
	polled := make(chan int, 1)
	go func() {
		req, _ := http.NewRequest(http.MethodGet, b.hub.URL()+"/v1/tasks/t1?wait=60s", nil)
		req.Header.Set("Authorization", "Bearer "+alice)
		resp, err := b.hc.Do(req)
		if err != nil {
			polled <- 0
			return
		}
		_ = resp.Body.Close()
		polled <- resp.StatusCode
	}()
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-polled:
	case <-time.After(2 * time.Minute):
		t.Fatal("the poll outlived the hub")
	}
}

func TestTheAdminSocketActsOnTheRunningHub(t *testing.T) {
	b := start(t, config(t.TempDir()))
	alice := b.enroll("login", "alice")
	hc := local.Client(b.dir)
	post := func(path string, body any) int {
		j, _ := json.Marshal(body)
		resp, err := hc.Post("http://local"+path, "application/json", bytes.NewReader(j))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	if s := post("/v1/passwd", map[string]any{"password": "another one"}); s != http.StatusNoContent {
		t.Fatalf("passwd: %d", s)
	}
	if s, _, _ := b.call(http.MethodPost, "/v1/login", "", api.Login{Name: "carol", Password: password}); s != http.StatusUnauthorized {
		t.Errorf("the old password still opens: %d", s)
	}
	if s, _, _ := b.call(http.MethodGet, "/v1/whoami", alice, nil); s != http.StatusOK {
		t.Errorf("a credential ended with the password: %d", s)
	}
	if s := post("/v1/revoke/alice", nil); s != http.StatusNoContent {
		t.Errorf("revoke: %d", s)
	}
	if s, _, _ := b.call(http.MethodGet, "/v1/whoami", alice, nil); s != http.StatusUnauthorized {
		t.Errorf("alice is still in: %d", s)
	}
	resp, err := hc.Get("http://local/v1/link")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if data, _ := io.ReadAll(resp.Body); !strings.Contains(string(data), b.hub.JoinLink()) {
		t.Errorf("link: %s", data)
	}
}
