package hub_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/tunnel"
)

// peer is a node that a test plays over a real tunnel.
type peer struct {
	t       *testing.T
	session *tunnel.Session
	hc      *http.Client
	srv     *http.Server
	served  sync.WaitGroup
	offers  chan api.Offer
	replies chan api.Reply
	paths   chan string
	mails   chan api.Mail
	told    chan api.MailReceipt
}

// dial opens a tunnel with a node's credential.
func (b *box) dial(secret string, header ...string) (*peer, error) {
	b.t.Helper()
	return b.dialWith(secret, tunnel.Config{}, header...)
}

// dialWith is dial with a tunnel of the test's.
func (b *box) dialWith(secret string, cfg tunnel.Config, header ...string) (*peer, error) {
	b.t.Helper()
	h := http.Header{"Authorization": {"Bearer " + secret}}
	for i := 0; i+1 < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	s, err := tunnel.Dial(context.Background(), tunnel.DialConfig{URL: strings.Replace(b.hub.URL(), "http", "ws", 1) + "/v1/tunnel", Header: h, Config: cfg})
	if err != nil {
		return nil, err
	}
	p := &peer{t: b.t, session: s, offers: make(chan api.Offer, 100), replies: make(chan api.Reply, 100), paths: make(chan string, 100),
		mails: make(chan api.Mail, 100), told: make(chan api.MailReceipt, 100)}
	p.hc = &http.Client{Transport: &http.Transport{DialContext: s.DialContext}}
	p.srv = &http.Server{Handler: http.HandlerFunc(p.serve)}
	p.served.Go(func() { _ = p.srv.Serve(s) })
	b.t.Cleanup(p.close)
	return p, nil
}

func (p *peer) close() {
	_ = p.session.Close()
	_ = p.srv.Close()
	p.hc.CloseIdleConnections()
	p.served.Wait()
}

// serve plays the node's side: it takes every offer.
func (p *peer) serve(w http.ResponseWriter, r *http.Request) {
	p.paths <- r.Method + " " + r.URL.Path
	switch {
	case strings.HasSuffix(r.URL.Path, "/answer"):
		var a api.Reply
		_ = json.NewDecoder(r.Body).Decode(&a)
		p.replies <- a
		_ = json.NewEncoder(w).Encode(api.Receipt{Triple: a.Triple, State: api.StateRunning})
	case r.URL.Path == "/v1/mail/receipts":
		var rs api.MailReceipts
		_ = json.NewDecoder(r.Body).Decode(&rs)
		done := api.MailSettled{IDs: []string{}}
		for _, rc := range rs.Receipts {
			p.told <- rc
			done.IDs = append(done.IDs, rc.ID)
		}
		_ = json.NewEncoder(w).Encode(done)
	case strings.HasPrefix(r.URL.Path, "/v1/mail/"):
		var m api.Mail
		_ = json.NewDecoder(r.Body).Decode(&m)
		p.mails <- m
		_ = json.NewEncoder(w).Encode(api.MailReceipt{ID: m.ID, State: api.MailDelivered})
	case r.URL.Path == "/v1/reconcile":
		var q api.Reconcile
		_ = json.NewDecoder(r.Body).Decode(&q)
		_ = json.NewEncoder(w).Encode(api.Reconciled{Tasks: make([]api.Receipt, len(q.Tasks))})
	default:
		var o api.Offer
		_ = json.NewDecoder(r.Body).Decode(&o)
		p.offers <- o
		w.WriteHeader(http.StatusAccepted)
		_ = json.NewEncoder(w).Encode(api.Receipt{Triple: o.Triple, State: api.StateAccepted})
	}
}

// call makes a request to the hub through the tunnel.
func (p *peer) call(method, path string, in, out any) (int, *api.Error) {
	p.t.Helper()
	b, err := json.Marshal(in)
	if err != nil {
		p.t.Fatal(err)
	}
	req, _ := http.NewRequest(method, "http://hub"+path, bytes.NewReader(b))
	resp, err := p.hc.Do(req)
	if err != nil {
		p.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	data, _ := io.ReadAll(resp.Body)
	var e api.ErrorBody
	_ = json.Unmarshal(data, &e)
	if out != nil && resp.StatusCode < 300 {
		if err := json.Unmarshal(data, out); err != nil {
			p.t.Fatal(err)
		}
	}
	return resp.StatusCode, e.Error
}

func hello(journal string, epoch uint64) api.Hello {
	return api.Hello{Protocol: api.ProtocolVersion, JournalID: journal, Epoch: epoch, OS: "linux", Arch: "amd64", Version: "test", Instance: journal, Workspaces: []string{"main"}}
}

// greeted is a peer whose hello was taken.
func (b *box) greeted(secret, journal string, epoch uint64) *peer {
	b.t.Helper()
	p, err := b.dial(secret)
	if err != nil {
		b.t.Fatal(err)
	}
	var w api.Welcome
	if status, e := p.call(http.MethodPost, "/v1/hello", hello(journal, epoch), &w); status != http.StatusOK {
		b.t.Fatalf("hello: %d %v", status, e)
	}
	if w.HubID == "" || w.Name == "" || w.HeartbeatMS == 0 {
		b.t.Errorf("welcome %+v", w)
	}
	return p
}

func (p *peer) ended() tunnel.Reason {
	p.t.Helper()
	select {
	case <-p.session.Done():
	case <-time.After(2 * time.Minute):
		p.t.Fatal("the tunnel stays open")
	}
	var c *tunnel.CloseError
	if !errors.As(p.session.Err(), &c) {
		p.t.Fatalf("ended with %v", p.session.Err())
	}
	return c.Reason
}

func (p *peer) offer() api.Offer {
	p.t.Helper()
	select {
	case o := <-p.offers:
		return o
	case <-time.After(2 * time.Minute):
		p.t.Fatal("no offer came")
		return api.Offer{}
	}
}

func (p *peer) reply() api.Reply {
	p.t.Helper()
	select {
	case a := <-p.replies:
		return a
	case <-time.After(2 * time.Minute):
		p.t.Fatal("no answer came")
		return api.Reply{}
	}
}

func TestAResultIsAcknowledgedOnceItIsOnDisk(t *testing.T) {
	b := start(t, config(t.TempDir()))
	beta, alice := b.enroll("join", "beta"), b.enroll("login", "alice")
	p := b.greeted(beta, "j1", 1)
	b.call(http.MethodPost, "/v1/tasks", alice, dispatch("beta", "t1", "do it"))
	o := p.offer()
	res := api.Result{Triple: o.Triple, JournalID: "j1", Epoch: 1, Outcome: api.Outcome{State: api.StateDone, Summary: "ok", Reply: "the reply"}}
	if status, e := p.call(http.MethodPut, "/v1/tasks/t1/result", res, nil); status != http.StatusOK {
		t.Fatalf("%d %v", status, e)
	}
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}
	b2 := start(t, config(b.dir))
	var task api.Task
	_, _, data := b2.call(http.MethodGet, "/v1/tasks/t1", alice, nil)
	if err := json.Unmarshal(data, &task); err != nil || task.State != api.StateDone || task.Reply != "the reply" || task.Text != "do it" {
		t.Errorf("after a restart: %s", data)
	}
}

func TestALargeReplyGoesThroughAndATooLargeOneDoesNotCutTheTunnel(t *testing.T) {
	t.Parallel()
	b := start(t, config(t.TempDir()))
	beta, alice := b.enroll("join", "beta"), b.enroll("login", "alice")
	p := b.greeted(beta, "j1", 1)
	b.call(http.MethodPost, "/v1/tasks", alice, dispatch("beta", "t1", "do it"))
	o := p.offer()
	res := api.Result{Triple: o.Triple, JournalID: "j1", Epoch: 1, Outcome: api.Outcome{State: api.StateDone, Reply: strings.Repeat("\x01", api.MaxReply+1)}}
	status, e := p.call(http.MethodPut, "/v1/tasks/t1/result", res, nil)
	want(t, status, e, http.StatusRequestEntityTooLarge, api.CodeTooLarge)
	res.Outcome.Reply = strings.Repeat("x", api.MaxTunnelBody)
	status, e = p.call(http.MethodPut, "/v1/tasks/t1/result", res, nil)
	want(t, status, e, http.StatusRequestEntityTooLarge, api.CodeTooLarge)
	res.Outcome.Reply = strings.Repeat("\x01", api.MaxReply) // each byte is six in JSON
	if status, e := p.call(http.MethodPut, "/v1/tasks/t1/result", res, nil); status != http.StatusOK {
		t.Fatalf("%d %v", status, e)
	}
}

func TestTheNewestProcessOfANameWinsOnceAndTheOlderIsTold(t *testing.T) {
	b := start(t, config(t.TempDir()))
	beta, op := b.enroll("join", "beta"), b.enroll("login", "boss", operator)
	old := b.greeted(beta, "j1", 1)
	b.greeted(beta, "j2", 1)
	if r := old.ended(); r != tunnel.ReasonSuperseded {
		t.Errorf("the older one ended with %s", r)
	}
	n := b.node(op, "beta")
	if n.State != api.NodeOnline || n.Superseded != 1 {
		t.Errorf("after the late close of the older one: %+v", n)
	}
}

func TestTheSameProcessMayComeBackWithoutBeingSuperseded(t *testing.T) {
	b := start(t, config(t.TempDir()))
	beta, op := b.enroll("join", "beta"), b.enroll("login", "boss", operator)
	old := b.greeted(beta, "j1", 1)
	b.greeted(beta, "j1", 2)
	if r := old.ended(); r == tunnel.ReasonSuperseded {
		t.Error("a reconnect was taken for a second process")
	}
	if n := b.node(op, "beta"); n.State != api.NodeOnline || n.Superseded != 0 {
		t.Errorf("%+v", n)
	}
}

func TestACopiedOrRestoredJournalIsForked(t *testing.T) {
	b := start(t, config(t.TempDir()))
	beta, op := b.enroll("join", "beta"), b.enroll("login", "boss", operator)
	b.greeted(beta, "j1", 5)
	copied, err := b.dial(beta)
	if err != nil {
		t.Fatal(err)
	}
	status, e := copied.call(http.MethodPost, "/v1/hello", hello("j1", 5), nil)
	want(t, status, e, http.StatusConflict, api.CodeJournalForked)
	if n := b.node(op, "beta"); len(n.Alarms) != 1 {
		t.Errorf("alarms %v", n.Alarms)
	}
	// With a journal of its own it comes in on the same tunnel, and the old journal
	// of an older epoch stays out after that too.
	if status, e := copied.call(http.MethodPost, "/v1/hello", hello("j2", 1), nil); status != http.StatusOK {
		t.Fatalf("%d %v", status, e)
	}
	again, err := b.dial(beta)
	if err != nil {
		t.Fatal(err)
	}
	status, e = again.call(http.MethodPost, "/v1/hello", hello("j1", 5), nil)
	want(t, status, e, http.StatusConflict, api.CodeJournalForked)
}

func TestACopyThatComesBesideItsLivingOriginalIsForkedWhateverItsEpoch(t *testing.T) {
	b := start(t, config(t.TempDir()))
	beta, op := b.enroll("join", "beta"), b.enroll("login", "boss", operator)
	original := b.greeted(beta, "j1", 5)
	copied, err := b.dial(beta)
	if err != nil {
		t.Fatal(err)
	}
	h := hello("j1", 9)
	h.Instance = "another process"
	status, e := copied.call(http.MethodPost, "/v1/hello", h, nil)
	want(t, status, e, http.StatusConflict, api.CodeJournalForked)
	if n := b.node(op, "beta"); len(n.Alarms) != 1 || n.Superseded != 0 {
		t.Errorf("%+v", n)
	}
	// The same process started anew after its death is no copy.
	original.close()
	if status, e := copied.call(http.MethodPost, "/v1/hello", h, nil); status != http.StatusOK {
		t.Errorf("%d %v", status, e)
	}
}

func TestRevokingANodeClosesItsTunnel(t *testing.T) {
	b := start(t, config(t.TempDir()))
	beta, op := b.enroll("join", "beta"), b.enroll("login", "boss", operator)
	p := b.greeted(beta, "j1", 1)
	if status, _, data := b.call(http.MethodPost, "/v1/revoke/beta", op, nil); status != http.StatusNoContent {
		t.Fatalf("%d %s", status, data)
	}
	if r := p.ended(); r != tunnel.ReasonRevoked {
		t.Errorf("ended with %s", r)
	}
	_, err := b.dial(beta)
	var refused *tunnel.RefusedError
	if !errors.As(err, &refused) || refused.Code != string(api.CodeRevoked) {
		t.Errorf("coming back: %v", err)
	}
}

func TestAStoppingHubTellsItsNodesToComeBack(t *testing.T) {
	b := start(t, config(t.TempDir()))
	p := b.greeted(b.enroll("join", "beta"), "j1", 1)
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}
	if r := p.ended(); r != tunnel.ReasonShutdown {
		t.Errorf("ended with %s", r)
	}
}

func TestADrainingTunnelDeliversAndTakesNoName(t *testing.T) {
	b := start(t, config(t.TempDir()))
	beta, alice := b.enroll("join", "beta"), b.enroll("login", "alice")
	p := b.greeted(beta, "j1", 1)
	b.call(http.MethodPost, "/v1/tasks", alice, dispatch("beta", "t1", "do it"))
	o := p.offer()
	newer := b.greeted(beta, "j2", 1)
	p.ended()
	drain, err := b.dial(beta, "Mesh-Tunnel", "drain")
	if err != nil {
		t.Fatal(err)
	}
	status, e := drain.call(http.MethodPost, "/v1/hello", hello("j1", 9), nil)
	want(t, status, e, http.StatusConflict, api.CodeSuperseded)
	res := api.Result{Triple: o.Triple, JournalID: "j1", Epoch: 1, Outcome: api.Outcome{State: api.StateDone, Summary: "finished"}}
	if status, e := drain.call(http.MethodPut, "/v1/tasks/t1/result", res, nil); status != http.StatusOK {
		t.Fatalf("%d %v", status, e)
	}
	select {
	case <-newer.session.Done():
		t.Error("the newer connection lost the name")
	default:
	}
}

func TestANodeOfAnotherProtocolIsTold(t *testing.T) {
	b := start(t, config(t.TempDir()))
	p, err := b.dial(b.enroll("join", "beta"))
	if err != nil {
		t.Fatal(err)
	}
	h := hello("j1", 1)
	h.Protocol = 99
	status, e := p.call(http.MethodPost, "/v1/hello", h, nil)
	want(t, status, e, http.StatusBadRequest, api.CodeUnsupportedVersion)
}

func TestANodeDispatchesUnderItsOwnNameOnly(t *testing.T) {
	b := start(t, config(t.TempDir()))
	alpha, beta := b.enroll("join", "alpha"), b.enroll("join", "beta")
	p := b.greeted(alpha, "ja", 1)
	q := b.greeted(beta, "jb", 1)
	if status, e := p.call(http.MethodPost, "/v1/tasks", dispatch("beta", "t1", "from alpha"), nil); status != http.StatusCreated {
		t.Fatalf("%d %v", status, e)
	}
	if o := q.offer(); o.Controller.Name != "alpha" || !strings.Contains(o.Text, "from: alpha") {
		t.Errorf("offer %+v", o)
	}
}

func TestEventsResumeWhereTheStreamBroke(t *testing.T) {
	b := start(t, config(t.TempDir()))
	b.enroll("join", "beta")
	alice := b.enroll("login", "alice")
	first, stop := b.events(alice, "")
	b.call(http.MethodPost, "/v1/tasks", alice, dispatch("beta", "t1", "one"))
	e := <-first
	stop()
	b.call(http.MethodPost, "/v1/tasks", alice, dispatch("beta", "t2", "two"))
	second, stop := b.events(alice, e.ID)
	defer stop()
	if e := <-second; e.Type != api.EventTask || !bytes.Contains(e.Data, []byte(`"t2"`)) {
		t.Errorf("resumed with %s %s", e.Type, e.Data)
	}
	third, stop := b.events(alice, "other-boot-1")
	defer stop()
	if e := <-third; e.Type != api.EventResync {
		t.Errorf("an unknown id gave %s", e.Type)
	}
}

func TestAControllerSeesItsOwnEventsOnly(t *testing.T) {
	b := start(t, config(t.TempDir()))
	b.enroll("join", "beta")
	alice, bob := b.enroll("login", "alice"), b.enroll("login", "bob")
	seen, stop := b.events(bob, "")
	defer stop()
	b.call(http.MethodPost, "/v1/tasks", alice, dispatch("beta", "t1", "hers"))
	b.call(http.MethodPost, "/v1/tasks", bob, dispatch("beta", "t2", "his"))
	if e := <-seen; !bytes.Contains(e.Data, []byte(`"t2"`)) {
		t.Errorf("bob sees %s", e.Data)
	}
}

func TestRevokingAControllerEndsItsStreams(t *testing.T) {
	b := start(t, config(t.TempDir()))
	op, alice := b.enroll("login", "boss", operator), b.enroll("login", "alice")
	seen, stop := b.events(alice, "")
	defer stop()
	b.call(http.MethodPost, "/v1/revoke/alice", op, nil)
	select {
	case _, open := <-seen:
		if open {
			t.Error("an event instead of the end")
		}
	case <-time.After(2 * time.Minute):
		t.Fatal("the stream stays open")
	}
}

// events opens an event stream; beats are left out. It returns once the stream is
// open.
func (b *box) events(secret, last string) (<-chan api.Event, func()) {
	b.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, b.hub.URL()+"/v1/events", nil)
	req.Header.Set("Authorization", "Bearer "+secret)
	if last != "" {
		req.Header.Set("Last-Event-ID", last)
	}
	resp, err := b.hc.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	out := make(chan api.Event, 100)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(out)
		defer resp.Body.Close()
		var e api.Event
		for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
			k, v, _ := strings.Cut(lines.Text(), ": ")
			switch k {
			case "id":
				e.ID = v
			case "event":
				e.Type = v
			case "data":
				e.Data = []byte(v)
			case "":
				if e.Type != api.EventBeat {
					out <- e
				}
				e = api.Event{}
			}
		}
	})
	stop := func() { cancel(); wg.Wait() }
	b.t.Cleanup(stop)
	return out, stop
}

// node is one node as an operator sees it.
func (b *box) node(secret, name string) api.Node {
	b.t.Helper()
	var list api.NodeList
	_, _, data := b.call(http.MethodGet, "/v1/nodes", secret, nil)
	if err := json.Unmarshal(data, &list); err != nil {
		b.t.Fatal(err)
	}
	for _, n := range list.Nodes {
		if n.Name == name {
			return n
		}
	}
	b.t.Fatalf("no node %s: %s", name, data)
	return api.Node{}
}
