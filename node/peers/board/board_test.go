package board_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"

	"opencode-mesh/node/peers/board"
	"opencode-mesh/node/peers/outbox"
	"opencode-mesh/node/peers/registry"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/peers"
)

// machine is a registry, an outbox and a relay that say what a test has them say.
type machine struct {
	agents   []registry.Peer
	own      []string
	outbox   *outbox.Outbox
	proxies  map[string]string // to their nodes
	messages []api.PeerMessage
	more     bool
	err      error
}

func (m *machine) Agents(context.Context) ([]registry.Peer, error) { return m.agents, m.err }
func (m *machine) Endpoints() []string                             { return m.own }
func (m *machine) DeskIdentity() (string, string, error)           { return "session-desk", "beta", nil }
func (m *machine) Outbox() *outbox.Outbox                          { return m.outbox }
func (m *machine) Exports(p registry.Peer) bool                    { return p.Name == "shown" }
func (m *machine) NodeOf(id string) string                         { return m.proxies[id] }
func (m *machine) Messages(int) ([]api.PeerMessage, bool, error)   { return m.messages, m.more, nil }
func (m *machine) agent(id, process, name, dir string, at float64) {
	m.add(id, "ses_"+id, process, name, dir, at, "")
}
func (m *machine) add(id, session, process, name, dir string, at float64, reason string) {
	m.agents = append(m.agents, registry.Peer{Alive: reason == "", Reason: reason, Entry: peers.Entry{
		EndpointID: id, SessionID: session, ProcessID: process, Name: name, Directory: dir, StartedAt: at,
	}})
}

func newMachine(t *testing.T) *machine {
	clock := time.UnixMilli(1_700_000_000_000)
	return &machine{proxies: map[string]string{}, outbox: outbox.New(t.TempDir(), func() time.Time { clock = clock.Add(time.Second); return clock })}
}

func (m *machine) look(t *testing.T) api.PeerBoard {
	t.Helper()
	out, err := board.New(board.Config{Service: m, Relay: m}).Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestABoardHasTheAgentsOfItsMachineFirstAndThenThoseOfOthers(t *testing.T) {
	m := newMachine(t)
	m.agent("session-a", "p1", "alpha/x", "alpha:/srv", 1)
	m.proxies["session-a"] = "alpha"
	m.add("session-b", "session-b", "p2", "gamma/y", "gamma:/srv", 2, "") // that another node publishes here
	m.agent("session-c", "p3", "shown", "/srv/c", 3)
	m.agent("session-d", "p4", "hidden", "/srv/d", 4)
	m.agent("session-e", "p4", "hidden", "/srv/d", 5) // of the same process, later
	m.add("session-f", "ses_f", "p5", "gone", "/srv/f", 6, registry.ReasonGone)
	var got []string
	for _, a := range m.look(t).Agents {
		got = append(got, fmt.Sprintf("%s/%s/%s/%v/%s", a.ID, a.Name, a.Node, a.Visible, a.Offline))
	}
	want := []string{
		"session-c/shown//true/", "session-e/hidden//false/", "session-f/gone//false/" + registry.ReasonGone,
		"session-a/alpha/x/alpha/false/", "session-b/gamma/y/gamma/false/",
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got\n%q\nwant\n%q", got, want)
	}
}

func TestABoardHasWhatTheNodeSentAndCarriedEachOnce(t *testing.T) {
	m := newMachine(t)
	m.own = []string{"session-mcp", "session-proxy"}
	m.proxies["session-proxy"] = "alpha"
	m.agent("session-mcp", "p1", "helper", "/srv", 1)
	send := func(from, id, to string) {
		t.Helper()
		if err := m.outbox.Begin(outbox.Record{MessageID: id, FromEndpoint: from, ToEndpoint: to, ToName: "name of " + to, Text: strings.Repeat("é", 1000)}); err != nil {
			t.Fatal(err)
		}
	}
	send("session-desk", "m1", "session-local")
	send("session-mcp", "m2", "session-gone") // whose proxy is published no more
	send("session-plugin", "m3", "session-local")
	if err := m.outbox.Receipt("session-desk", "m1", peers.Queued); err != nil {
		t.Fatal(err)
	}
	if _, err := m.outbox.Ack(peers.Ack{MessageID: "m1", FromEndpoint: "session-desk", ToEndpoint: "session-local", Status: peers.Delivered, AcknowledgedAt: 7}); err != nil {
		t.Fatal(err)
	}
	at := func(s int64) time.Time { return time.UnixMilli(1_700_000_000_000 + 1000*s).UTC() }
	m.messages = []api.PeerMessage{
		{ID: "m4", Way: api.PeerBrought, From: "session-proxy", To: "session-mcp", Node: "alpha", CreatedAt: at(100)},
		{ID: "m5", Way: api.PeerCarried, From: "session-plugin", To: "session-proxy", Node: "alpha", CreatedAt: at(0)},
		{ID: "m2", Way: api.PeerCarried, From: "session-mcp", To: "session-gone", Node: "alpha", CreatedAt: at(0)},
	}
	b := m.look(t)
	var got []string
	for _, x := range b.Messages {
		got = append(got, fmt.Sprintf("%s %s %s>%s %q>%q %s %s/%s", x.Way, x.ID, x.From, x.To, x.FromName, x.ToName, x.Node, x.Receipt, x.Final))
	}
	want := []string{
		`brought m4 session-proxy>session-mcp "">"helper" alpha /`,
		`sent m2 session-mcp>session-gone "helper">"name of session-gone" alpha /`,
		`sent m1 session-desk>session-local "beta">"name of session-local"  queued/delivered`,
		`carried m5 session-plugin>session-proxy "">"" alpha /`,
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if x := b.Messages[1]; len(x.Text) != api.MaxPeerPreview || !x.Truncated {
		t.Errorf("a text of 2,000 bytes: %d, truncated %v", len(x.Text), x.Truncated)
	}
	if b.More {
		t.Error("it says that there is more")
	}
}

func TestABoardIsBoundedAndSaysSo(t *testing.T) {
	m := newMachine(t)
	for i := range api.MaxPeerSeen + 1 {
		m.agent(fmt.Sprintf("session-%04d", i), fmt.Sprintf("p%d", i), strings.Repeat("n", 4096), "/"+strings.Repeat("d", 4096), float64(i))
	}
	m.agents[0].StartedAt = 1e300
	b := m.look(t)
	if len(b.Agents) != api.MaxPeerSeen || !b.More || len(b.Agents[0].Name) != api.MaxPeerText || len(b.Agents[0].Directory) != 4*api.MaxPeerText || b.Agents[0].StartedAt != 0 {
		t.Errorf("%d agents, more %v, the first %.100v", len(b.Agents), b.More, b.Agents[0])
	}
	m = newMachine(t)
	for i := range api.MaxPeerMessages + 1 {
		if err := m.outbox.Begin(outbox.Record{MessageID: fmt.Sprint(i), FromEndpoint: "session-desk", ToEndpoint: "session-x", Text: "hi"}); err != nil {
			t.Fatal(err)
		}
	}
	if b := m.look(t); len(b.Messages) != api.MaxPeerMessages || !b.More || b.Messages[0].ID != fmt.Sprint(api.MaxPeerMessages) {
		t.Errorf("%d messages, more %v, the first %s", len(b.Messages), b.More, b.Messages[0].ID)
	}
	m = newMachine(t)
	m.more = true
	if b := m.look(t); !b.More || b.Agents == nil || b.Messages == nil {
		t.Errorf("an empty board: %+v", b)
	}
}

func TestANodeWithoutPeersAndOneInTroubleSaySo(t *testing.T) {
	ask := func(cfg board.Config) (int, *api.Error) {
		t.Helper()
		mux := chi.NewRouter()
		board.New(cfg).Routes(mux)
		rec := httptest.NewRecorder()
		mux.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/v1/peers/board", nil))
		if rec.Code == http.StatusOK {
			return rec.Code, nil
		}
		return rec.Code, api.DecodeError(rec.Code, rec.Body.Bytes())
	}
	if status, e := ask(board.Config{}); e == nil || e.Code != api.CodeRefused {
		t.Errorf("without peers: %d %v", status, e)
	}
	m := newMachine(t)
	if status, _ := ask(board.Config{Service: m, Relay: m}); status != http.StatusOK {
		t.Errorf("with them: %d", status)
	}
	m.err = errors.New("open /secret/path: no")
	if status, e := ask(board.Config{Service: m, Relay: m}); e == nil || e.Code != api.CodeInternal || strings.Contains(e.Message, "secret") {
		t.Errorf("a registry that cannot be read: %d %v", status, e)
	}
}
