package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"opencode-mesh/auth"
	"opencode-mesh/hub/access"
	hubapi "opencode-mesh/hub/api"
	"opencode-mesh/hub/events"
	"opencode-mesh/hub/mail"
	"opencode-mesh/hub/metrics"
	"opencode-mesh/hub/registry"
	"opencode-mesh/hub/relay"
	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
	"opencode-mesh/store/bolt"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// overHTTP2 is the version of a hub that a test calls by that protocol.
const overHTTP2 = "h2"

const password = "correct horse"

// shop is the handlers on a real store, served on loopback.
type shop struct {
	t      testing.TB
	store  *lens
	access *access.Access
	bus    *events.Bus
	api    *hubapi.Server
	url    string
	hc     *http.Client
	// helloAllow are whom the nodes of tunnelOf take anything from; none: everybody.
	helloAllow []string
}

// lens lets a test stand between the handlers and their store.
type lens struct {
	store.Store
	fail     error  // of what lists identities
	identity func() // runs after an identity was read
	busy     atomic.Bool
	listed   atomic.Int32 // how often bindings were
	curves   atomic.Int32 // how many series were read
	noted    func() error // says what becomes of a change of a node's record
}

func (l *lens) Bindings(ctx context.Context, controller, target string) ([]store.Binding, error) {
	l.listed.Add(1)
	return l.Store.Bindings(ctx, controller, target)
}

func (l *lens) NewestFills(ctx context.Context, of []store.Binding, n int) ([][]api.Fill, error) {
	l.curves.Add(int32(len(of)))
	return l.Store.NewestFills(ctx, of, n)
}

func (l *lens) PutNodeRecord(ctx context.Context, n store.NodeRecord) (store.NodeRecord, error) {
	if l.noted != nil {
		if err := l.noted(); err != nil {
			return n, err
		}
	}
	return l.Store.PutNodeRecord(ctx, n)
}

func (l *lens) Identities(ctx context.Context) ([]store.Identity, error) {
	if l.fail != nil {
		return nil, l.fail
	}
	return l.Store.Identities(ctx)
}

func (l *lens) Identity(ctx context.Context, id string) (store.Identity, error) {
	who, err := l.Store.Identity(ctx, id)
	if l.identity != nil && l.busy.CompareAndSwap(false, true) {
		l.identity()
	}
	return who, err
}

type clock struct{}

func (clock) Now() time.Time  { return time.Now().UTC() }
func (clock) MayExpire() bool { return true }

func newShop(t testing.TB, opts ...func(*hubapi.Config)) *shop {
	t.Helper()
	st, err := bolt.Open(bolt.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	s := &shop{t: t, store: &lens{Store: st}, bus: events.New("g", "b")}
	zero := func() float64 { return 0 }
	m := metrics.New("test", metrics.Gauges{NodesOnline: zero, Subscribers: zero, Writable: zero, MailWaiting: func() (float64, float64) { return 0, 0 }, OpenTasks: func() map[api.State]int { return nil }})
	verifier, err := auth.NewVerifier(auth.VerifierConfig{Check: func(hash, pw string) (bool, error) { return pw == password, nil }})
	if err != nil {
		t.Fatal(err)
	}
	limiter, err := auth.NewLimiter(auth.LimiterConfig{PerAddress: 1000, PerName: 1000})
	if err != nil {
		t.Fatal(err)
	}
	s.access = access.New(access.Config{Store: s.store, Verifier: verifier, Limiter: limiter, Now: clock{}.Now, Log: log, Failed: m.LoginRefused})
	if err := s.access.SetPassword(context.Background(), password); err != nil {
		t.Fatal(err)
	}
	rl, err := relay.New(context.Background(), relay.Config{Store: s.store, Bus: s.bus, Clock: clock{}, Observer: m, Log: log, Secret: make([]byte, 32)})
	if err != nil {
		t.Fatal(err)
	}
	office, err := mail.New(context.Background(), mail.Config{Store: s.store, Clock: clock{}, Observer: m, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	cfg := hubapi.Config{Access: s.access, Store: s.store, Relay: rl, Mail: office, Registry: registry.New(), Bus: s.bus, Metrics: m, Now: clock{}.Now, Log: log, JoinLink: func() string { return "mesh://x" }}
	for _, o := range opts {
		o(&cfg)
	}
	s.api = hubapi.New(cfg)
	srv := httptest.NewUnstartedServer(s.api.Public())
	srv.Config.WriteTimeout = cfg.EventTimeout // of the whole request, as the hub sets it; zero in most tests
	srv.EnableHTTP2 = true
	if cfg.Version == overHTTP2 {
		srv.StartTLS()
	} else {
		srv.Start()
	}
	s.url, s.hc = srv.URL, srv.Client()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		s.api.Close(ctx)
		srv.Close()
		_ = st.Close()
	})
	return s
}

// enroll joins or logs in.
func (s *shop) enroll(do func(*access.Access) (api.Issued, error)) string {
	s.t.Helper()
	is, err := do(s.access)
	if err != nil {
		s.t.Fatal(err)
	}
	return is.Credential
}

func login(name string, operator bool) func(*access.Access) (api.Issued, error) {
	return func(a *access.Access) (api.Issued, error) {
		return a.Login(context.Background(), peer, api.Login{Name: name, Password: password, Operator: operator})
	}
}

func join(name string) func(*access.Access) (api.Issued, error) {
	return func(a *access.Access) (api.Issued, error) {
		return a.Join(context.Background(), peer, api.Login{Name: name, Password: password})
	}
}

// call makes a request and returns the status, the error and the body.
func (s *shop) call(method, path, secret string, body any) (int, *api.Error, []byte) {
	s.t.Helper()
	resp := s.open(method, path, secret, body)
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	var e api.ErrorBody
	_ = json.Unmarshal(data, &e)
	return resp.StatusCode, e.Error, data
}

// open makes a request whose answer may go on.
func (s *shop) open(method, path, secret string, body any) *http.Response {
	s.t.Helper()
	var r io.Reader
	switch v := body.(type) {
	case nil:
	case string:
		r = strings.NewReader(v)
	default:
		j, err := json.Marshal(v)
		if err != nil {
			s.t.Fatal(err)
		}
		r = bytes.NewReader(j)
	}
	req, err := http.NewRequest(method, s.url+path, r)
	if err != nil {
		s.t.Fatal(err)
	}
	if secret != "" {
		req.Header.Set("Authorization", "Bearer "+secret)
	}
	resp, err := s.hc.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp
}
