package forward_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"opencode-mesh/auth"
	"opencode-mesh/hub/client"
	"opencode-mesh/hub/client/forward"
	"opencode-mesh/hub/framed"
	"opencode-mesh/protocol/api"
)

func TestMain(m *testing.M) {
	if addr := os.Getenv(childEnv); addr != "" {
		os.Exit(childForward(addr))
	}
	goleak.VerifyTestMain(m)
}

// patience bounds every wait; only a hang reaches it.
const patience = 2 * time.Minute

var credential, _ = auth.NewSecret()

const prefix = "/v1/nodes/beta/services/web"

// hub is one that passes requests for the service on to a handler, as the service's
// own server would see them, and raw streams to stream.
type hub struct {
	*httptest.Server
	t       *testing.T
	service http.HandlerFunc
	stream  func(net.Conn)
	refuse  atomic.Pointer[api.Error] // what raw streams get instead
}

func newHub(t *testing.T, service http.HandlerFunc) *hub {
	t.Helper()
	h := &hub{t: t, service: service}
	h.Server = httptest.NewServer(h)
	t.Cleanup(h.Close)
	return h
}

func (h *hub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get(api.HeaderAuthorization) != "Bearer "+credential {
		h.t.Errorf("%s %s comes without the credential", r.Method, r.RequestURI)
	}
	r.Header.Del(api.HeaderAuthorization)
	path, ok := strings.CutPrefix(r.RequestURI, prefix)
	if !ok {
		h.t.Errorf("the hub is asked for %s", r.RequestURI)
		return
	}
	if r.Header.Get("Upgrade") == api.UpgradeStream {
		if e := h.refuse.Load(); e != nil {
			w.WriteHeader(e.Code.Status())
			_ = json.NewEncoder(w).Encode(api.ErrorBody{Error: e})
			return
		}
		conn := raw{upgraded(h.t, w, api.UpgradeStream).(buffered), nil}
		conn.Stream = framed.New(conn.buffered)
		h.stream(conn)
		_ = conn.Close()
		return
	}
	r.RequestURI = path
	h.service(w, r)
}

// upgraded switches protocols and returns the connection with what was read of it.
func upgraded(t *testing.T, w http.ResponseWriter, protocol string) net.Conn {
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		t.Error(err)
		panic(http.ErrAbortHandler)
	}
	_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+protocol+"\r\n\r\n")
	return buffered{conn.(*net.TCPConn), rw.Reader}
}

type buffered struct {
	*net.TCPConn
	r *bufio.Reader
}

// raw is a raw stream at the hub's end.
type raw struct {
	buffered
	*framed.Stream
}

func (r raw) Read(p []byte) (int, error)  { return r.Stream.Read(p) }
func (r raw) Write(p []byte) (int, error) { return r.Stream.Write(p) }
func (r raw) CloseWrite() error           { return r.Stream.CloseWrite() }

// ReadFrom and WriteTo are there because those of the connection would be taken.
func (r raw) ReadFrom(src io.Reader) (int64, error) { return io.Copy(struct{ io.Writer }{r}, src) }
func (r raw) WriteTo(dst io.Writer) (int64, error)  { return io.Copy(dst, struct{ io.Reader }{r}) }
func (r raw) Close() error                          { return r.Stream.Close() }

func (b buffered) Read(p []byte) (int, error) { return b.r.Read(p) }

// serviceOf is the service as a client of the hub has it.
func (h *hub) serviceOf() *client.Service {
	h.t.Helper()
	svc, err := serviceAt(h.URL, auth.Secret(credential))
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(svc.Close)
	return svc
}

func serviceAt(url string, secret auth.Secret) (*client.Service, error) {
	link, err := auth.ParseLink(url)
	if err != nil {
		return nil, err
	}
	c, err := client.New(auth.Profile{Link: link, Name: "laptop", Credential: secret}, "")
	if err != nil {
		return nil, err
	}
	return c.Service("beta", "web")
}

// start forwards the service and returns where, and how to end it.
func (h *hub) start(cfg forward.Config) (f *forward.Forward, stop func()) {
	h.t.Helper()
	cfg.Service = h.serviceOf()
	l, err := forward.Listen("")
	if err != nil {
		h.t.Fatal(err)
	}
	f = forward.New(l, cfg)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- f.Serve(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		select {
		case err := <-served:
			if err != nil {
				h.t.Errorf("the forward ended with %v", err)
			}
		case <-time.After(patience):
			h.t.Fatal("the forward does not end")
		}
	}
	h.t.Cleanup(stop)
	return f, stop
}

// browser is a client without connections to leave behind.
func browser(t *testing.T) *http.Client {
	tr := &http.Transport{DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: patience}
}

// get sends a request and returns the answer with its body.
func get(t *testing.T, url string, change ...func(*http.Request)) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range change {
		c(r)
	}
	resp, err := browser(t).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

// dial opens a connection to a forward.
func dial(t *testing.T, f *forward.Forward) *net.TCPConn {
	t.Helper()
	_, addr, _ := strings.Cut(f.URL(), "://")
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	return conn.(*net.TCPConn)
}
