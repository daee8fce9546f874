package peers

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"opencode-mesh/node/peers/outbox"
	"opencode-mesh/node/peers/registry"
	"opencode-mesh/node/peers/spool"
	"opencode-mesh/protocol/peers"
)

// original is a peer as small as the sheet allows, of either version, whose answers a
// test chooses.
type original struct {
	*httptest.Server
	m     *machine
	token string
	took  chan string // method, path and body of each request
	serve func(w http.ResponseWriter, r *http.Request, body []byte)
}

func (m *machine) original() *original {
	o := &original{m: m, token: peers.NewToken(), took: make(chan string, 100)}
	o.serve = func(w http.ResponseWriter, r *http.Request, _ []byte) {
		if r.URL.Path == "/health" {
			fmt.Fprint(w, `{"ok":true}`)
			return
		}
		w.WriteHeader(http.StatusAccepted)
		fmt.Fprint(w, `{"status":"delivered"}`)
	}
	o.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		o.took <- r.Method + " " + r.RequestURI + " " + string(b)
		if r.Header.Get("Authorization") != "Bearer "+o.token || r.Header["User-Agent"] != nil {
			m.t.Errorf("headers %v", r.Header)
		}
		o.serve(w, r, b)
	}))
	m.t.Cleanup(o.Close)
	return o
}

// write puts an entry into the registry.
func (m *machine) write(name string, entry map[string]any) {
	m.t.Helper()
	dir := filepath.Join(m.storage, registry.Dir)
	b, err := json.Marshal(entry)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name), b, 0o600)
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

func (o *original) v1(id string) {
	o.m.write(id+".json", map[string]any{
		"version": 1, "instanceId": id, "name": "old", "pid": os.Getpid(), "directory": "/old", "inboxUrl": o.URL, "inboxToken": o.token,
		"activeSessionId": nil, "activeSessionTitle": nil, "inboundPolicy": "accept", "startedAt": 1, "heartbeatAt": time.Now().UnixMilli(),
	})
}

func (o *original) v2(id string, transport map[string]any) {
	if transport == nil {
		port := o.Listener.Addr().String()
		var n int
		fmt.Sscanf(port[strings.LastIndexByte(port, ':')+1:], "%d", &n)
		transport = map[string]any{"type": "tcp", "host": "127.0.0.1", "port": n}
	}
	o.m.write("0badcafe."+id+".v2.json", map[string]any{
		"version": 2, "endpointId": id, "processId": "0badcafe", "pid": os.Getpid(), "sessionId": "ses_o", "activeSessionId": "ses_o", "name": "orig",
		"directory": "/o", "transport": transport, "inboxToken": o.token, "startedAt": 1, "heartbeatAt": time.Now().UnixMilli(),
	})
}

func TestAPeerOfVersionOneWritesAndIsWrittenTo(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	s, o := m.start("alpha"), m.original()
	box := newInbox()
	id := s.agent("a", "", box)
	o.v1("0ldf00d1")
	sent := s.send(id, "0ldf00d1", "hello <old>")
	if sent.ReceiptStatus != peers.Delivered || sent.FinalStatus != "" {
		t.Errorf("record %+v", sent)
	}
	got := await(t, "the request", o.took)
	head, body, _ := strings.Cut(got, "{")
	var message map[string]any
	if err := json.Unmarshal([]byte("{"+body), &message); err != nil || head != "POST /message " {
		t.Fatalf("got %s %v", got, err)
	}
	if message["id"] != sent.MessageID || message["version"] != nil || !strings.Contains(body, "hello <old>") {
		t.Errorf("got %s", got)
	}
	// What a reader of version 1 finds of us.
	files, err := filepath.Glob(filepath.Join(m.storage, registry.Dir, "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	var ours map[string]any
	for _, f := range files {
		b, _ := os.ReadFile(f)
		var e map[string]any
		if json.Unmarshal(b, &e) == nil && e["version"] == 1.0 && e["instanceId"] != "0ldf00d1" {
			ours = e
		}
	}
	url, _ := ours["inboxUrl"].(string)
	token, _ := ours["inboxToken"].(string)
	req, err := http.NewRequest(http.MethodPost, url+"/message", strings.NewReader(v1Letter("m1", "0ldf00d1", "and back", time.Now().UnixMilli(), 1)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatalf("%v: %v", ours, err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusAccepted {
		t.Errorf("got %d", resp.StatusCode)
	}
	if r := await(t, "the message", box.got); r.Message.Text != "and back" || r.Message.From.InstanceID != "0ldf00d1" {
		t.Errorf("got %+v", r.Message)
	}
}

func TestAPeerOfVersionOneIsTriedTwiceWithTheSameMessage(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	s, o := m.start("alpha"), m.original()
	id := s.agent("a", "", newInbox())
	o.v1("0ldf00d2")
	answers := o.serve
	o.serve = func(w http.ResponseWriter, r *http.Request, b []byte) {
		if r.URL.Path != "/message" {
			answers(w, r, b)
			return
		}
		panic(http.ErrAbortHandler) // no answer
	}
	r, err := s.Send(t.Context(), id, s.peer("0ldf00d2"), "hello")
	if err == nil || !strings.Contains(err.Error(), "does not take the message") || r.Error == "" {
		t.Errorf("%+v %v", r, err)
	}
	one, two, health := await(t, "one", o.took), await(t, "two", o.took), await(t, "the look", o.took)
	if one != two || !strings.Contains(one, r.MessageID) || health != "GET /health " {
		t.Errorf("%s\n%s\n%s", one, two, health)
	}
	o.Close()
	if r, err = s.Send(t.Context(), id, s.peer("0ldf00d2"), "hello again"); !errors.Is(err, ErrOffline) || r.Error == "" {
		t.Errorf("%+v %v", r, err)
	}
}

func TestWhatAPeerMayAnswerAndWhatIsKeptOfIt(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	s, o := m.start("alpha", func(c *Config) { c.Options.SendRate = 100 }), m.original()
	id := s.agent("a", "", newInbox())
	o.v2("session-orig", nil)
	for _, c := range []struct {
		code          int
		body, receipt string
		fails, kept   bool // an error is returned, and kept
		unsent        bool
	}{
		{202, `{"status":"queued"}`, peers.Queued, false, false, false},
		{202, `{"status":""}`, "", true, true, false},
		{202, `queued`, "", true, true, false},
		{200, `{"status":"delivered"}`, "", true, true, false},
		{403, `{"status":"refused"}`, peers.Refused, false, false, false},
		{429, `{"status":"full"}`, peers.Full, false, false, false},
		{401, `{"error":"unauthorized"}`, "", true, false, true},
		{404, `{"error":"endpoint not found"}`, "", true, false, true},
		{400, `{"error":"stale message"}`, "", true, true, true},
		{500, `{"error":"internal error"}`, "", true, true, false},
		{307, `{"status":"queued"}`, "", true, true, true},
	} {
		o.serve = func(w http.ResponseWriter, _ *http.Request, b []byte) {
			// It is on disk before it is sent.
			var sent struct {
				ID string `json:"messageId"`
			}
			if err := json.Unmarshal(b, &sent); err != nil {
				t.Error(err)
			}
			if r, err := s.Outbox().Get(id, sent.ID); err != nil || r.ReceiptStatus != "" {
				t.Errorf("as it came: %+v %v", r, err)
			}
			if c.code == http.StatusTemporaryRedirect {
				w.Header().Set("Location", o.URL+"/message")
			}
			w.WriteHeader(c.code)
			fmt.Fprint(w, c.body)
		}
		r, err := s.Send(t.Context(), id, s.peer("session-orig"), "x")
		if (err != nil) != c.fails || r.ReceiptStatus != c.receipt || (r.Error != "") != c.kept {
			t.Errorf("%d %s: %+v %v", c.code, c.body, r, err)
		}
		if _, unsent := r.Unsent(); unsent != c.unsent || r.Awaits() == (c.unsent || c.receipt == peers.Full) {
			t.Errorf("%d: unsent %v, awaits its end %v: %+v", c.code, unsent, r.Awaits(), r)
		}
		await(t, "the request", o.took)
		if len(o.took) > 0 {
			t.Errorf("%d: posted again", c.code)
		}
	}
}

func TestAnAcknowledgementMayComeBeforeTheReceiptAndTwice(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	s, o := m.start("alpha"), m.original()
	id := s.agent("a", "", newInbox())
	o.v2("session-orig", nil)
	d, token := s.doors()["port"], s.token(id)
	o.serve = func(w http.ResponseWriter, _ *http.Request, b []byte) {
		var sent struct {
			ID string `json:"messageId"`
		}
		_ = json.Unmarshal(b, &sent)
		ack := strings.Replace(ackOf(id, sent.ID, peers.Delivered), "session-x", "session-orig", 1)
		for range 2 {
			if code, _ := d.raw(t, "POST", "/ack", token, ack); code != http.StatusAccepted {
				t.Errorf("got %d", code)
			}
		}
		w.WriteHeader(http.StatusAccepted)
		fmt.Fprint(w, `{"status":"queued"}`)
	}
	r := s.send(id, "session-orig", "x")
	if r.FinalStatus != peers.Delivered || r.ReceiptStatus != peers.Queued || r.AcknowledgedAt != 5 || r.Error != "" {
		t.Errorf("record %+v", r)
	}
}

func TestAnAcknowledgementComesAgainUntilItIsAnsweredWithExactly202(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	s, o := m.start("alpha"), m.original()
	id := s.agent("a", "", newInbox())
	o.v2("session-orig", nil)
	codes := []int{http.StatusOK, http.StatusInternalServerError, http.StatusAccepted}
	var n atomic.Int32
	o.serve = func(w http.ResponseWriter, _ *http.Request, _ []byte) {
		w.WriteHeader(codes[min(int(n.Add(1)), len(codes))-1])
		fmt.Fprint(w, `{"status":"accepted"}`)
	}
	s.doors()["port"].raw(t, "POST", "/message", s.token(id), letter("m", "session-orig", id, "x", time.Now().UnixMilli()))
	for range codes {
		if got := await(t, "the acknowledgement", o.took); !strings.HasPrefix(got, "POST /ack ") || !strings.Contains(got, `"status":"delivered"`) {
			t.Errorf("got %s", got)
		}
	}
	eventually(t, "the mark", func() bool {
		done, err := s.Records(id, spool.StateDone)
		return err == nil && len(done) == 1 && done[0].AckSentAt > 0
	})
}

func TestATimeOutIsAnUnknownOutcomeThatTheAcknowledgementClears(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	s, o := m.start("alpha"), m.original()
	id := s.agent("a", "", newInbox())
	o.v2("session-orig", nil)
	open := make(chan struct{})
	o.serve = func(http.ResponseWriter, *http.Request, []byte) { <-open }
	r, err := s.Send(t.Context(), id, s.peer("session-orig"), "x")
	close(open)
	var unknown *Unknown
	if !errors.As(err, &unknown) || r.Error == "" || strings.Contains(r.Error, o.token) {
		t.Errorf("%+v %v", r, err)
	}
	ack := strings.Replace(ackOf(id, r.MessageID, peers.Delivered), "session-x", "session-orig", 1)
	s.doors()["port"].raw(t, "POST", "/ack", s.token(id), ack)
	if r := s.awaitFinal(r); r.Error != "" {
		t.Errorf("record %+v", r)
	}
}

func TestDeadSocketsAreOfflineAndForeignHostsAreNotCalled(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	s, o := m.start("alpha", func(c *Config) { c.Options.SendRate = 100 }), m.original()
	id := s.agent("a", "", newInbox())
	for what, transport := range map[string]map[string]any{
		"no socket": {"type": "unix", "path": filepath.Join(m.runtime, "gone.sock")},
		"no port":   {"type": "tcp", "host": "127.0.0.1", "port": 1},
	} {
		o.v2("session-orig", transport)
		if r, err := s.Send(t.Context(), id, s.peer("session-orig"), what); !errors.Is(err, ErrOffline) || r.Error == "" {
			t.Errorf("%s: %+v %v", what, r, err)
		}
	}
	unsent := func(what string, r outbox.Record, err error) {
		t.Helper()
		why, unsent := r.Unsent()
		if err == nil || MayHaveArrived(err) || !unsent || r.Awaits() || !strings.Contains(r.Error, why) {
			t.Errorf("%s: %+v %q %v", what, r, why, err)
		}
		if waits, err := s.Awaiting(id); waits || err != nil {
			t.Errorf("%s: an acknowledgement is awaited, %v", what, err)
		}
	}
	for what, transport := range map[string]map[string]any{
		"a dead socket":     {"type": "unix", "path": filepath.Join(m.runtime, "gone.sock")},
		"an over-long path": {"type": "unix", "path": "/" + strings.Repeat("x", 200)},
		"no port":           {"type": "tcp", "host": "127.0.0.1", "port": 0},
		"a foreign host":    {"type": "tcp", "host": "192.0.2.1", "port": 80},
	} {
		o.v2("session-orig", transport)
		r, err := s.Send(t.Context(), id, s.peer("session-orig"), what)
		unsent(what, r, err)
	}
	o.v2("session-orig", nil)
	to := s.peer("session-orig")
	to.InboxToken = "a\r\nb"
	r, err := s.Send(t.Context(), id, to, "a token that cannot be")
	unsent("a token that cannot be", r, err)
	for _, host := range []string{"192.0.2.1", "example.org", "0.0.0.0", ""} {
		o.v2("session-orig", map[string]any{"type": "tcp", "host": host, "port": 80})
		_, err := s.Send(t.Context(), id, s.peer("session-orig"), "to "+host)
		if err == nil || !strings.Contains(err.Error(), "not this machine") {
			t.Errorf("%q: %v", host, err)
		}
	}
	if _, err := placeOf(peers.Entry{V1: true, InboxURL: "http://192.0.2.1:80"}); err == nil {
		t.Error("version 1 goes anywhere")
	}
	gone := s.peer("session-orig")
	gone.Alive, gone.Reason = false, registry.ReasonStale
	if _, err := s.Send(t.Context(), id, gone, "x"); !errors.Is(err, ErrOffline) {
		t.Errorf("stale: %v", err)
	}
}

func TestWhatIsNotSent(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	s := m.start("alpha")
	id, to := s.agent("a", "", newInbox()), s.agent("b", "", newInbox())
	refused := func(from, to, text string, want error) {
		t.Helper()
		if _, err := s.Send(t.Context(), from, s.peer(to), text); !errors.Is(err, want) {
			t.Errorf("got %v", err)
		}
	}
	refused(id, id, "x", ErrSelf)
	refused(id, to, " \n\t", ErrBlank)
	refused("session-none", to, "x", ErrNoEndpoint)
	for i := range peers.DefaultSendRate {
		s.send(id, to, fmt.Sprint(i))
	}
	var rate *RateError
	if _, err := s.Send(t.Context(), id, s.peer(to), "x"); !errors.As(err, &rate) {
		t.Errorf("got %v", err)
	}
	s.send(to, id, "the other way")
	list, err := s.Outbox().List(id)
	if err != nil || len(list) != peers.DefaultSendRate {
		t.Errorf("%d records, %v", len(list), err)
	}
}
