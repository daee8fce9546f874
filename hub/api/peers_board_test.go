package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"opencode-mesh/protocol/api"
)

func TestTheBoardOfANodesPeersIsForOperatorsAlone(t *testing.T) {
	s := newShop(t)
	alice, boss, other := s.enroll(login("alice", false)), s.enroll(login("boss", true)), s.enroll(login("other", true))
	beta := s.enroll(join("beta"))
	for who, secret := range map[string]string{"a controller": alice, "a node": beta} {
		if status, e, _ := s.call(http.MethodGet, "/v1/nodes/beta/peers", secret, nil); status != http.StatusForbidden || e.Code != api.CodeForbidden {
			t.Errorf("%s: %d", who, status)
		}
	}
	if status, e, _ := s.call(http.MethodGet, "/v1/nodes/beta/peers", boss, nil); status != http.StatusBadGateway || e.Code != api.CodeNodeOffline {
		t.Errorf("of a node that is away: %d %v", status, e)
	}
	s.helloAllow = []string{"boss"}
	answer := func(w http.ResponseWriter) { _, _ = w.Write([]byte(`{}`)) }
	asked := make(chan string, 9)
	s.tunnelOf(beta, func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Method + " " + r.URL.String()
		answer(w)
	})
	if status, e, _ := s.call(http.MethodGet, "/v1/nodes/beta/peers", other, nil); status != http.StatusForbidden || e.Code != api.CodeRefused || len(asked) != 0 {
		t.Errorf("somebody whom the node takes nothing from: %d %v", status, e)
	}
	if status, _, data := s.call(http.MethodGet, "/v1/nodes/beta/peers", boss, nil); status != http.StatusOK || strings.TrimSpace(string(data)) != `{"agents":[],"messages":[]}` {
		t.Errorf("an empty board: %d %s", status, data)
	}
	if got := <-asked; got != "GET /v1/peers/board" {
		t.Errorf("the node was asked for %s", got)
	}
	for code, want := range map[api.Code]api.Code{
		api.CodeNotFound: api.CodeNotSupported, api.CodeRefused: api.CodeRefused, api.CodeUnauthorized: api.CodeUnavailable,
	} {
		answer = func(w http.ResponseWriter) {
			w.WriteHeader(code.Status())
			_ = json.NewEncoder(w).Encode(api.ErrorBody{Error: api.Errorf(code, "no")})
		}
		if status, e, _ := s.call(http.MethodGet, "/v1/nodes/beta/peers", boss, nil); e.Code != want {
			t.Errorf("a node that says %s: %d %v", code, status, e)
		}
	}
}

func TestWhatANodeSaysOfItsPeersIsBoundedAndCleaned(t *testing.T) {
	s := newShop(t)
	boss := s.enroll(login("boss", true))
	evil := "\x1b[2J\u202e<script>" + strings.Repeat("x", 20<<10)
	s.tunnelOf(s.enroll(join("beta")), func(w http.ResponseWriter, _ *http.Request) {
		b := api.PeerBoard{
			Agents:   []api.PeerSeen{{PeerAgent: api.PeerAgent{ID: evil, Name: evil, Title: evil, Directory: evil, Status: evil, Policy: evil, StartedAt: -1}, Node: evil, Offline: evil}},
			Messages: []api.PeerMessage{{ID: evil, Way: evil, From: evil, FromName: evil, To: evil, ToName: evil, Node: evil, Text: "line\n\tone\x00" + evil, Receipt: evil, Final: evil, Error: evil}},
		}
		b.Agents = append(b.Agents, make([]api.PeerSeen, api.MaxPeerSeen)...)
		b.Messages = append(b.Messages, make([]api.PeerMessage, api.MaxPeerMessages)...)
		_ = json.NewEncoder(w).Encode(b)
	})
	var b api.PeerBoard
	_, _, data := s.call(http.MethodGet, "/v1/nodes/beta/peers", boss, nil)
	if err := json.Unmarshal(data, &b); err != nil || len(b.Agents) != api.MaxPeerSeen || len(b.Messages) != api.MaxPeerMessages || !b.More {
		t.Fatalf("%v: %d agents, %d messages, more %v", err, len(b.Agents), len(b.Messages), b.More)
	}
	for what, v := range map[string]any{"agent": b.Agents[0], "message": b.Messages[0]} {
		if text := fmt.Sprint(v); len(text) > 4<<10 || strings.ContainsAny(text, "\x1b\x00\u202e") {
			t.Errorf("%s: %d bytes, %.100q", what, len(text), text)
		}
	}
	if m, a := b.Messages[0], b.Agents[0]; !strings.HasPrefix(m.Text, "line\n\tone") || !m.Truncated || len(m.Text) > api.MaxPeerPreview || a.Name == "" || a.StartedAt != 0 {
		t.Errorf("%.40q, truncated %v, %d bytes; %q at %d", m.Text, m.Truncated, len(m.Text), a.Name, a.StartedAt)
	}
}
