package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"opencode-mesh/protocol/api"
	"opencode-mesh/tunnel"
)

// inner makes a request of a node inside its tunnel.
func inner(t *testing.T, session *tunnel.Session, method, path string, body, out any) *api.Error {
	t.Helper()
	hc := &http.Client{Transport: &http.Transport{DialContext: session.DialContext, DisableKeepAlives: true}}
	data, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, "http://hub"+path, strings.NewReader(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := hc.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode > 299 {
		var e api.ErrorBody
		_ = json.NewDecoder(resp.Body).Decode(&e)
		return e.Error
	}
	if out != nil {
		if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
			t.Fatal(err)
		}
	}
	return nil
}

func nothing(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) }

func TestNodesSeeWhatTheOthersShowAndOperatorsSeeAll(t *testing.T) {
	s := newShop(t)
	alice, boss := s.enroll(login("alice", false)), s.enroll(login("boss", true))
	joined := s.enroll(join("beta"))
	alpha, beta := s.tunnelOf(s.enroll(join("alpha")), nothing), s.tunnelOf(joined, nothing)
	if status, e, _ := s.call(http.MethodGet, "/v1/peers", alice, nil); status != http.StatusForbidden || e.Code != api.CodeForbidden {
		t.Errorf("a controller: %d %v", status, e)
	}
	if status, _, _ := s.call(http.MethodPut, "/v1/peers", joined, api.PeerRoster{}); status != http.StatusMethodNotAllowed {
		t.Errorf("a list outside of a tunnel: %d", status)
	}
	var first, news api.PeerFleet
	if e := inner(t, beta, http.MethodGet, "/v1/peers", nil, &first); e != nil || len(first.Nodes) != 0 || first.Nodes == nil {
		t.Fatalf("%v %+v", e, first)
	}
	if e := inner(t, alpha, http.MethodPut, "/v1/peers", api.PeerRoster{Agents: []api.PeerAgent{{ID: "session-1", Name: "api", Directory: "/srv", StartedAt: 5}}}, nil); e != nil {
		t.Fatal(e)
	}
	if e := inner(t, beta, http.MethodGet, "/v1/peers?after="+first.Revision, nil, &news); e != nil || len(news.Nodes) != 1 || news.Nodes[0].Node != "alpha" || news.Nodes[0].NodeID == "" || news.Nodes[0].Agents[0].Directory != "/srv" {
		t.Fatalf("%v %+v", e, news)
	}
	var all api.PeerFleet
	if status, _, data := s.call(http.MethodGet, "/v1/peers", boss, nil); status != http.StatusOK || json.Unmarshal(data, &all) != nil || len(all.Nodes) != 1 || all.Nodes[0].Agents[0].Name != "api" {
		t.Fatalf("%d %s", status, data)
	}
	_ = alpha.Close() // and the list is gone, which is news
	if e := inner(t, beta, http.MethodGet, "/v1/peers?after="+news.Revision, nil, &all); e != nil || len(all.Nodes) != 0 {
		t.Fatalf("%v %+v", e, all)
	}
}

func TestWhatANodeSaysOfItsAgentsIsBoundedAndCleaned(t *testing.T) {
	s := newShop(t)
	boss := s.enroll(login("boss", true))
	session := s.tunnelOf(s.enroll(join("beta")), nothing)
	evil := "\x1b[2J\u202e" + strings.Repeat("x", 4<<10)
	list := []api.PeerAgent{{ID: "ok", Name: evil, Title: evil, Directory: evil, Status: evil, Policy: evil, StartedAt: -1}, {ID: "ok"}, {ID: ""}, {ID: "a\nb"}, {ID: strings.Repeat("i", api.MaxPeerID+1)}}
	if e := inner(t, session, http.MethodPut, "/v1/peers", api.PeerRoster{Agents: list}, nil); e != nil {
		t.Fatal(e)
	}
	_, _, data := s.call(http.MethodGet, "/v1/peers", boss, nil)
	var all api.PeerFleet
	if json.Unmarshal(data, &all) != nil || len(all.Nodes) != 1 || len(all.Nodes[0].Agents) != 1 {
		t.Fatalf("%.300s", data)
	}
	a := all.Nodes[0].Agents[0]
	if len(a.Name) > api.MaxPeerText || len(a.Directory) > 4*api.MaxPeerText || len(a.Status) > 64 || a.StartedAt != 0 || strings.ContainsAny(fmt.Sprint(a), "\x1b\u202e") {
		t.Errorf("%+v", a)
	}
	if e := inner(t, session, http.MethodPut, "/v1/peers", api.PeerRoster{Agents: make([]api.PeerAgent, api.MaxPeerAgents+1)}, nil); e == nil || e.Code != api.CodeTooLarge {
		t.Errorf("too many agents: %v", e)
	}
	if _, _, again := s.call(http.MethodGet, "/v1/peers", boss, nil); string(again) != string(data) {
		t.Errorf("what was refused changed the list: %.300s", again)
	}
}
