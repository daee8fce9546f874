// Package linktest is a hub for tests of nodes: real tunnels on a loopback port,
// the rules of hello, and channels that show what nodes say. It stores nothing on
// disk and offers nothing by itself; tests call nodes through Conn.
package linktest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"

	"opencode-mesh/auth"
	"opencode-mesh/protocol/api"
	"opencode-mesh/tunnel"
)

// HubID is the id that a Hub has unless a test changes it.
const HubID = "hub-test"

// room is how much the channels hold; more is a fault of the test.
const room = 10000

// Hub is a hub for one node identity.
type Hub struct {
	// Conns gets every tunnel whose hello was taken, Drains every drain tunnel.
	Conns, Drains chan *Conn
	// Hellos gets every hello, taken or not.
	Hellos   chan api.Hello
	Results  chan api.Result
	Progress chan api.Progress
	// Asks gets every question of a running turn, and every withdrawal.
	Asks    chan api.Ask
	Reports chan api.NodeReport
	// Mails gets every mail that a node sends, MailAsked every connection over which it
	// asks what the hub has; that is always nothing.
	Mails     chan api.Mail
	MailAsked chan *Conn

	tb     testing.TB
	server *httptest.Server
	link   auth.Link
	cfg    tunnel.Config
	secret string

	mu     sync.Mutex // guards the following fields
	id     string
	refuse *api.Error // answer to every upgrade, nil: taken
	hello  func(api.Hello) *api.Error
	result func(api.Result) *api.Error
	ask    func(api.Ask) *api.Error
	epochs map[string]uint64
	now    *Conn // the present connection
	all    []*Conn
	dials  []time.Time
	closed bool
	wg     sync.WaitGroup
}

// Conn is one tunnel of a node.
type Conn struct {
	Session *tunnel.Session
	Hello   api.Hello
	Drain   bool
	hub     *Hub
	client  *http.Client
}

// New starts a hub that ends with the test.
func New(tb testing.TB, cfg tunnel.Config) *Hub {
	tb.Helper()
	secret, _ := auth.NewSecret()
	h := &Hub{
		Conns: make(chan *Conn, room), Drains: make(chan *Conn, room), Hellos: make(chan api.Hello, room),
		Results: make(chan api.Result, room), Progress: make(chan api.Progress, room),
		Asks: make(chan api.Ask, room), Reports: make(chan api.NodeReport, room),
		Mails: make(chan api.Mail, room), MailAsked: make(chan *Conn, room),
		tb: tb, cfg: cfg, secret: secret, id: HubID, epochs: map[string]uint64{},
	}
	h.server = httptest.NewServer(http.HandlerFunc(h.accept))
	host, port, err := net.SplitHostPort(strings.TrimPrefix(h.server.URL, "http://"))
	if err != nil {
		tb.Fatal(err)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		tb.Fatal(err)
	}
	h.link = auth.Link{Scheme: auth.SchemePlain, Host: host, Port: uint16(n)}
	tb.Cleanup(h.close)
	return h
}

// Profile is the credential of the node that this hub knows.
func (h *Hub) Profile() auth.Profile {
	return auth.Profile{
		Link: h.link, HubID: HubID, IdentityID: "id-node", Name: "node", Role: api.RoleNode,
		Credential: auth.Secret(h.secret),
	}
}

// Refuse answers every further upgrade with an error; nil ends that.
func (h *Hub) Refuse(e *api.Error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refuse = e
}

// AnswerHello decides on further hellos after the epoch rule did.
func (h *Hub) AnswerHello(f func(api.Hello) *api.Error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hello = f
}

// AnswerResult decides on further results; nil takes all.
func (h *Hub) AnswerResult(f func(api.Result) *api.Error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.result = f
}

// AnswerAsk decides on further questions and withdrawals; nil takes all.
func (h *Hub) AnswerAsk(f func(api.Ask) *api.Error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ask = f
}

// SetID makes it another hub.
func (h *Hub) SetID(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.id = id
}

// SawEpoch makes the hub believe that a journal has been further on.
func (h *Hub) SawEpoch(journal string, epoch uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.epochs[journal] = epoch
}

// Dials are the times of all upgrades so far.
func (h *Hub) Dials() []time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]time.Time(nil), h.dials...)
}

// Cut ends all tunnels for a reason.
func (h *Hub) Cut(r tunnel.Reason) {
	h.mu.Lock()
	all := h.all
	h.all = nil
	h.mu.Unlock()
	for _, c := range all {
		_ = c.Session.CloseWith(r)
	}
}

func (h *Hub) close() {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.server.Close()
	h.Cut(tunnel.ReasonShutdown)
	h.wg.Wait()
}

// accept is GET /v1/tunnel.
func (h *Hub) accept(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	h.dials = append(h.dials, time.Now())
	refuse, closed := h.refuse, h.closed
	h.mu.Unlock()
	switch {
	case closed:
		return
	case r.Header.Get("Authorization") != "Bearer "+h.secret:
		refuse = api.Errorf(api.CodeUnauthorized, "no such credential")
	case r.URL.Path != "/v1/tunnel":
		refuse = api.Errorf(api.CodeNotFound, "nothing here")
	}
	if refuse != nil {
		answer(w, refuse.Code.Status(), api.ErrorBody{Error: refuse})
		return
	}
	s, err := tunnel.Accept(w, r, h.cfg)
	if err != nil {
		return
	}
	c := &Conn{Session: s, Drain: r.Header.Get("Mesh-Tunnel") == "drain", hub: h}
	c.client = &http.Client{Transport: &http.Transport{DialContext: s.DialContext, MaxIdleConnsPerHost: 256}}
	h.mu.Lock()
	h.all = append(h.all, c)
	h.mu.Unlock()
	h.wg.Go(func() {
		srv := &http.Server{Handler: c.routes()}
		_ = srv.Serve(s)
		_ = s.Close()
		c.client.CloseIdleConnections()
	})
	if c.Drain {
		h.Drains <- c
	}
}

// routes is what a hub serves inside the tunnel.
func (c *Conn) routes() http.Handler {
	h := c.hub
	mux := chi.NewRouter()
	mux.Post("/v1/hello", func(w http.ResponseWriter, r *http.Request) {
		var hello api.Hello
		if !read(w, r, &hello) {
			return
		}
		h.Hellos <- hello
		if e := c.greet(hello); e != nil {
			answer(w, e.Code.Status(), api.ErrorBody{Error: e})
			return
		}
		h.mu.Lock()
		id := h.id
		h.mu.Unlock()
		answer(w, http.StatusOK, api.Welcome{HubID: id, Name: "node", IdentityID: "id-node", Version: "test"})
		h.Conns <- c
	})
	mux.Put("/v1/status", func(w http.ResponseWriter, r *http.Request) {
		var report api.NodeReport
		if read(w, r, &report) {
			h.Reports <- report
			w.WriteHeader(http.StatusNoContent)
		}
	})
	mux.Post("/v1/mail/known", func(w http.ResponseWriter, r *http.Request) {
		var q api.MailQuery
		if read(w, r, &q) {
			h.MailAsked <- c
			answer(w, http.StatusOK, api.MailKnown{Unknown: q.IDs, NowMS: time.Now().UnixMilli()})
		}
	})
	mux.Put("/v1/mail/{id}", func(w http.ResponseWriter, r *http.Request) {
		var m api.Mail
		if read(w, r, &m) {
			h.Mails <- m
			answer(w, http.StatusAccepted, api.MailReceipt{ID: m.ID, State: api.MailQueued})
		}
	})
	mux.Put("/v1/tasks/{id}/progress", func(w http.ResponseWriter, r *http.Request) {
		var p api.Progress
		if read(w, r, &p) {
			h.Progress <- p
			w.WriteHeader(http.StatusNoContent)
		}
	})
	mux.Put("/v1/tasks/{id}/question", func(w http.ResponseWriter, r *http.Request) {
		var ask api.Ask
		if !read(w, r, &ask) {
			return
		}
		h.mu.Lock()
		decide := h.ask
		h.mu.Unlock()
		if decide != nil {
			if e := decide(ask); e != nil {
				answer(w, e.Code.Status(), api.ErrorBody{Error: e})
				return
			}
		}
		h.Asks <- ask
		w.WriteHeader(http.StatusNoContent)
	})
	mux.Put("/v1/tasks/{id}/result", func(w http.ResponseWriter, r *http.Request) {
		var res api.Result
		if !read(w, r, &res) {
			return
		}
		h.mu.Lock()
		decide := h.result
		h.mu.Unlock()
		if decide != nil {
			if e := decide(res); e != nil {
				answer(w, e.Code.Status(), api.ErrorBody{Error: e})
				return
			}
		}
		h.Results <- res
		answer(w, http.StatusOK, struct{}{})
	})
	return mux
}

// greet applies the rules of a hello: the epoch must grow, and the newest process
// of a name takes it over.
func (c *Conn) greet(hello api.Hello) *api.Error {
	h := c.hub
	h.mu.Lock()
	if c.Drain {
		h.mu.Unlock()
		return api.Errorf(api.CodeSuperseded, "a draining tunnel takes no name")
	}
	if hello.Epoch <= h.epochs[hello.JournalID] {
		h.mu.Unlock()
		return api.Errorf(api.CodeJournalForked, "epoch %d was seen", hello.Epoch)
	}
	if h.hello != nil {
		if e := h.hello(hello); e != nil {
			h.mu.Unlock()
			return e
		}
	}
	h.epochs[hello.JournalID] = hello.Epoch
	c.Hello = hello
	older := h.now
	h.now = c
	h.mu.Unlock()
	if older != nil && older.Hello.Instance != hello.Instance {
		_ = older.Session.CloseWith(tunnel.ReasonSuperseded)
	}
	return nil
}

// Call makes a call to the node; a refusal is an *api.Error.
func (c *Conn) Call(method, path string, in, out any) (status int, err error) {
	data, err := json.Marshal(in)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://node"+path, bytes.NewReader(data))
	if err != nil {
		return 0, err
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return 0, err
	case resp.StatusCode > 299:
		return resp.StatusCode, api.DecodeError(resp.StatusCode, body)
	case out == nil:
		return resp.StatusCode, nil
	}
	return resp.StatusCode, json.Unmarshal(body, out)
}

// Offer offers a task of controller alpha, as first turn of its first attempt
// unless change says otherwise.
func (c *Conn) Offer(id string, change ...func(*api.Offer)) (status int, rc api.Receipt, err error) {
	o := api.Offer{
		Triple: api.Triple{Task: id, Attempt: 1, Turn: 1}, HubID: HubID, JournalID: c.Hello.JournalID, Epoch: c.Hello.Epoch,
		Hash: "hash-" + id, Seq: 1, Kind: api.TurnTask, Controller: api.Party{ID: "id-alpha", Name: "alpha"},
		CreatedMS: time.Now().UnixMilli(), TTLMS: 1000, Mode: "session", Binding: api.Binding{Generation: 1}, Text: "do " + id,
	}
	for _, f := range change {
		f(&o)
	}
	status, err = c.Call(http.MethodPut, "/v1/tasks/"+id, o, &rc)
	return status, rc, err
}

// Take offers a task that the node must take.
func (c *Conn) Take(id string, change ...func(*api.Offer)) {
	c.hub.tb.Helper()
	if status, rc, err := c.Offer(id, change...); err != nil || status != http.StatusAccepted {
		c.hub.tb.Fatalf("offer of %s: %d %+v %v", id, status, rc, err)
	}
}

// Reply answers a question of a turn that runs on this connection.
func (c *Conn) Reply(a api.Ask, text string) (status int, err error) {
	rp := api.Reply{Triple: a.Triple, JournalID: c.Hello.JournalID, Epoch: c.Hello.Epoch, Question: a.Question, Text: text}
	return c.Call(http.MethodPost, "/v1/tasks/"+a.Task+"/answer", rp, nil)
}

func read(w http.ResponseWriter, r *http.Request, v any) bool {
	if err := json.NewDecoder(r.Body).Decode(v); err != nil {
		answer(w, http.StatusBadRequest, api.ErrorBody{Error: api.Errorf(api.CodeBadRequest, "%v", err)})
		return false
	}
	return true
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(v); err != nil {
		panic(fmt.Sprintf("encode a test answer: %v", err))
	}
}

// Await receives from a channel or fails the test.
func Await[T any](tb testing.TB, c <-chan T, what string) T {
	tb.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(20 * time.Second):
		tb.Fatalf("waited in vain for %s", what)
		panic("unreachable")
	}
}
