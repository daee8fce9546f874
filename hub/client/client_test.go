package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"opencode-mesh/auth"
	"opencode-mesh/hub/client"
	"opencode-mesh/protocol/api"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// credential is one of the right form.
var credential, _ = auth.NewSecret()

// call is a request as the hub saw it.
type call struct {
	method, path, body string
	header             http.Header
}

// stub is a hub that answers as told and remembers what it was asked.
type stub struct {
	*httptest.Server
	t *testing.T

	mu    sync.Mutex // guards the following field
	calls []call
}

// newStub starts a hub; answer gets the number of the request, from 1.
func newStub(t *testing.T, answer func(n int, w http.ResponseWriter, r *http.Request)) *stub {
	t.Helper()
	s := &stub{t: t}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		s.calls = append(s.calls, call{r.Method, r.URL.String(), string(body), r.Header.Clone()})
		n := len(s.calls)
		s.mu.Unlock()
		answer(n, w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *stub) seen() []call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

func profile(t *testing.T, link string) auth.Profile {
	t.Helper()
	l, err := auth.ParseLink(link)
	if err != nil {
		t.Fatal(err)
	}
	return auth.Profile{Link: l, HubID: "hub", IdentityID: "id_1", Name: "laptop", Role: api.RoleController, Credential: auth.Secret(credential)}
}

// client makes a client of the hub.
func (s *stub) client(token string) *client.Client {
	s.t.Helper()
	c, err := client.New(profile(s.t, s.URL), token)
	if err != nil {
		s.t.Fatal(err)
	}
	c.Hasten(time.Minute)
	s.t.Cleanup(c.Close)
	return c
}

func refuse(w http.ResponseWriter, code api.Code) {
	w.WriteHeader(code.Status())
	_ = json.NewEncoder(w).Encode(api.ErrorBody{Error: api.Errorf(code, "no")})
}

func give(w http.ResponseWriter, v any) { _ = json.NewEncoder(w).Encode(v) }

// hangUp breaks the connection without an answer.
func hangUp(http.ResponseWriter) { panic(http.ErrAbortHandler) }

var dispatch = api.Dispatch{
	Targets: []api.DispatchTarget{{Name: "alpha", ID: "laptop-1-aaaa"}, {Name: "beta", ID: "laptop-1-bbbb"}},
	Text:    "run the tests\n", Mode: "session", TTLMS: 5000,
}

func TestADispatchIsSentAgainWithTheSameIDs(t *testing.T) {
	for _, c := range []struct {
		what string
		fail func(w http.ResponseWriter)
	}{
		{"after a broken connection", hangUp},
		{"after an answer cut short", func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, `{"tasks":[`)
		}},
		{"while the hub shuts down", func(w http.ResponseWriter) { refuse(w, api.CodeShuttingDown) }},
		{"while the store is read-only", func(w http.ResponseWriter) { refuse(w, api.CodeReadOnly) }},
		{"while the hub's disk is full", func(w http.ResponseWriter) { refuse(w, api.CodeDiskFull) }},
		{"behind a proxy that has no hub", func(w http.ResponseWriter) { w.WriteHeader(http.StatusBadGateway) }},
	} {
		t.Run(c.what, func(t *testing.T) {
			s := newStub(t, func(n int, w http.ResponseWriter, _ *http.Request) {
				if n < 3 {
					c.fail(w)
					return
				}
				give(w, api.Dispatched{Tasks: []api.Task{{Task: "laptop-1-aaaa"}, {Task: "laptop-1-bbbb"}}})
			})
			tasks, err := s.client("").Dispatch(context.Background(), dispatch)
			if err != nil || len(tasks) != 2 {
				t.Fatalf("got %v %v", tasks, err)
			}
			calls := s.seen()
			if len(calls) != 3 || calls[0].method != http.MethodPost || calls[0].path != "/v1/tasks" {
				t.Fatalf("calls: %+v", calls)
			}
			var sent api.Dispatch
			if err := json.Unmarshal([]byte(calls[0].body), &sent); err != nil || sent.Targets[1].ID != "laptop-1-bbbb" || sent.Text != dispatch.Text {
				t.Errorf("sent %+v %v", sent, err)
			}
			for _, again := range calls[1:] {
				if again.body != calls[0].body {
					t.Errorf("a repeat has another body:\n%s\n%s", calls[0].body, again.body)
				}
			}
		})
	}
}

func TestARefusalIsNotRepeated(t *testing.T) {
	for _, code := range []api.Code{api.CodeUnknownTarget, api.CodeUnauthorized, api.CodeRevoked, api.CodeTaskConflict, api.CodeQueueFull, api.CodeTooLarge, api.CodeInternal, api.CodeRateLimited} {
		s := newStub(t, func(_ int, w http.ResponseWriter, _ *http.Request) { refuse(w, code) })
		_, err := s.client("").Dispatch(context.Background(), dispatch)
		if api.ErrorCode(err) != code || len(s.seen()) != 1 {
			t.Errorf("%s: got %v after %d calls", code, err, len(s.seen()))
		}
	}
}

func TestRepeatsEndAfterAWhile(t *testing.T) {
	s := newStub(t, func(_ int, w http.ResponseWriter, _ *http.Request) { hangUp(w) })
	_, err := s.client("").Nodes(context.Background())
	if !errors.Is(err, client.ErrUnreachable) || len(s.seen()) != client.Tries {
		t.Errorf("got %v after %d calls", err, len(s.seen()))
	}
}

func TestWhatMustNotHappenTwiceIsSentOnce(t *testing.T) {
	for what, do := range map[string]func(c *client.Client) error{
		"retry": func(c *client.Client) error {
			_, err := c.Retry(context.Background(), "t1")
			return err
		},
		"answer": func(c *client.Client) error {
			_, err := c.Answer(context.Background(), "t1", api.Answer{Text: "yes"})
			return err
		},
		"abandon": func(c *client.Client) error {
			_, err := c.Abandon(context.Background(), "t1")
			return err
		},
		"revoke": func(c *client.Client) error { return c.Revoke(context.Background(), "old") },
	} {
		s := newStub(t, func(_ int, w http.ResponseWriter, _ *http.Request) { refuse(w, api.CodeUnavailable) })
		if err := do(s.client("")); api.ErrorCode(err) != api.CodeUnavailable || len(s.seen()) != 1 {
			t.Errorf("%s: got %v after %d calls", what, err, len(s.seen()))
		}
	}
}

func TestRequestsSayWhoAsksAndForWhichTask(t *testing.T) {
	s := newStub(t, func(_ int, w http.ResponseWriter, _ *http.Request) { give(w, struct{}{}) })
	c := s.client("token-of-a-task")
	if c.Name() != "laptop" {
		t.Errorf("name is %q", c.Name())
	}
	ctx := context.Background()
	_, err1 := c.Cancel(ctx, "a/b")
	_, err2 := c.Envelope(ctx, api.Dispatch{Targets: []api.DispatchTarget{{Name: "beta&x"}}, Text: "[opencode-mesh v1]\n", New: true, Workspace: "shop", TTLMS: 1, AutoAnswer: "^y", AutoCompact: 80})
	_, err3 := c.Tasks(ctx, url.Values{"state": {"done"}})
	_, err4 := c.Credentials(ctx)
	_, err5 := c.Audit(ctx, url.Values{"before": {"7"}, "action": {"join"}})
	_, err6 := c.Channels(ctx, "b/x")
	_, err7 := c.ChannelMessages(ctx, "b", "p.c/d", 3, "9.a")
	if err := errors.Join(err1, err2, err3, err4, err5, err6, err7); err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, call := range s.seen() {
		paths = append(paths, call.method+" "+call.path)
		if call.header.Get("Authorization") != "Bearer "+credential || call.header.Get(api.TaskTokenHeader) != "token-of-a-task" {
			t.Errorf("%s: header %v", call.path, call.header)
		}
	}
	want := []string{"POST /v1/tasks/a%2Fb/cancel", "POST /v1/envelopes?auto_answer=%5Ey&auto_compact=80&new=true&target=beta%26x&ttl_ms=1&workspace=shop", "GET /v1/tasks?state=done", "GET /v1/credentials", "GET /v1/audit?action=join&before=7", "GET /v1/nodes/b%2Fx/channels", "GET /v1/nodes/b/channels/p.c%2Fd/messages?before=9.a&limit=3"}
	if !slices.Equal(paths, want) {
		t.Errorf("got %q", paths)
	}
	if got := s.seen()[1]; got.body != "[opencode-mesh v1]\n" || !strings.HasPrefix(got.header.Get("Content-Type"), "text/plain") {
		t.Errorf("envelope: %+v", got)
	}
}

func TestWaitGoesOnThroughRestartsOfTheHub(t *testing.T) {
	s := newStub(t, func(n int, w http.ResponseWriter, r *http.Request) {
		if !r.URL.Query().Has("wait") {
			t.Errorf("no long poll: %s", r.URL)
		}
		switch {
		case n == 1:
			give(w, api.Task{Task: "t1", State: api.StateRunning})
		case n < client.Tries+5:
			hangUp(w)
		case n == client.Tries+5:
			give(w, api.Task{Task: "t1", State: api.StateUnknown}) // no end (semantics 8)
		default:
			give(w, api.Task{Task: "t1", State: api.StateDone})
		}
	})
	lost := 0
	task, err := s.client("").Wait(context.Background(), "t1", func(error) { lost++ })
	if err != nil || task.State != api.StateDone || lost <= client.Tries {
		t.Errorf("got %v %v, lost %d times", task.State, err, lost)
	}
}

func TestWaitEndsWithAQuestionARefusalOrItsContext(t *testing.T) {
	s := newStub(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		give(w, api.Task{Task: "t1", State: api.StateQuestion})
	})
	if task, err := s.client("").Wait(context.Background(), "t1", nil); err != nil || task.State != api.StateQuestion {
		t.Errorf("question: %v %v", task.State, err)
	}
	s = newStub(t, func(_ int, w http.ResponseWriter, _ *http.Request) { refuse(w, api.CodeRevoked) })
	if _, err := s.client("").Wait(context.Background(), "t1", nil); api.ErrorCode(err) != api.CodeRevoked {
		t.Errorf("refusal: %v", err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	why := errors.New("waited enough")
	s = newStub(t, func(_ int, _ http.ResponseWriter, r *http.Request) {
		cancel(why)
		<-r.Context().Done()
	})
	if _, err := s.client("").Wait(ctx, "t1", nil); !errors.Is(err, why) {
		t.Errorf("context: %v", err)
	}
}

func TestAnotherKeyIsNeitherTrustedNorTriedAgain(t *testing.T) {
	var asked, dials atomic.Int32
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	proxy := countingProxy(t, s.Listener.Addr().String(), func() { dials.Add(1) })
	c, err := client.New(profile(t, "mesh://"+proxy+"?pin=sha256:"+strings.Repeat("ab", 32)), "")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.Hasten(time.Minute)
	for what, do := range map[string]func() error{
		"call": func() error { _, err := c.Dispatch(context.Background(), dispatch); return err },
		"wait": func() error { _, err := c.Wait(context.Background(), "t1", nil); return err },
		"events": func() error {
			return c.Events(context.Background(), func(api.Event) error { return nil }, nil)
		},
	} {
		dials.Store(0)
		if err := do(); !errors.Is(err, auth.ErrPinMismatch) || client.Passing(err) {
			t.Errorf("%s: got %v", what, err)
		}
		if dials.Load() != 1 || asked.Load() != 0 {
			t.Errorf("%s: %d connections, %d requests", what, dials.Load(), asked.Load())
		}
	}
}

// countingProxy passes connections on and counts them.
func countingProxy(t *testing.T, to string, count func()) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			count()
			out, err := net.Dial("tcp", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			for _, pair := range [][2]net.Conn{{in, out}, {out, in}} {
				wg.Go(func() {
					_, _ = io.Copy(pair[0], pair[1])
					_ = pair[0].Close()
				})
			}
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return l.Addr().String()
}

func TestNoErrorHoldsTheCredential(t *testing.T) {
	for what, answer := range map[string]func(w http.ResponseWriter, r *http.Request){
		"broken":   func(w http.ResponseWriter, _ *http.Request) { hangUp(w) },
		"no JSON":  func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") },
		"redirect": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "http://127.0.0.2:1/x", 307) },
		"echo": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, r.Header.Get("Authorization"))
		},
	} {
		s := newStub(t, func(_ int, w http.ResponseWriter, r *http.Request) { answer(w, r) })
		c := s.client("")
		_, err := c.Nodes(context.Background())
		if err == nil || strings.Contains(err.Error(), credential) {
			t.Errorf("%s: %v", what, err)
		}
		if text := fmt.Sprintf("%v %+v %#v", c, c, c); strings.Contains(text, credential) {
			t.Errorf("a printed client shows the credential: %s", text)
		}
	}
}

func TestARedirectElsewhereIsFinal(t *testing.T) {
	s := newStub(t, func(_ int, w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "http://127.0.0.2:1/x", 307) })
	if _, err := s.client("").Nodes(context.Background()); !errors.Is(err, auth.ErrForeignRedirect) || len(s.seen()) != 1 {
		t.Errorf("got %v after %d calls", err, len(s.seen()))
	}
}

func TestACanceledCallIsNotRepeated(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	s := newStub(t, func(_ int, _ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	})
	if _, err := s.client("").Nodes(ctx); !errors.Is(err, context.Canceled) || len(s.seen()) != 1 {
		t.Errorf("got %v after %d calls", err, len(s.seen()))
	}
}
