package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"opencode-mesh/protocol/api"
)

func TestChannelsAreShownToOperatorsAlone(t *testing.T) {
	s := newShop(t)
	alice, boss := s.enroll(login("alice", false)), s.enroll(login("boss", true))
	beta := s.enroll(join("beta"))
	for _, path := range []string{"/v1/nodes/beta/channels", "/v1/nodes/beta/channels/p.review/messages"} {
		for who, secret := range map[string]string{"a controller": alice, "a node": beta} {
			if status, e, _ := s.call(http.MethodGet, path, secret, nil); status != http.StatusForbidden || e.Code != api.CodeForbidden {
				t.Errorf("%s by %s: %d", path, who, status)
			}
		}
		resp := s.open(http.MethodGet, path, boss, nil)
		var e api.ErrorBody
		_ = json.NewDecoder(resp.Body).Decode(&e)
		resp.Body.Close()
		if resp.StatusCode != http.StatusBadGateway || e.Error.Code != api.CodeNodeOffline || resp.Header.Get("Retry-After") != "5" {
			t.Errorf("%s of a node that is away: %d %v, Retry-After %q", path, resp.StatusCode, e.Error, resp.Header.Get("Retry-After"))
		}
		if status, e, _ := s.call(http.MethodGet, strings.Replace(path, "beta", "nobody", 1), boss, nil); status != http.StatusNotFound || e.Code != api.CodeUnknownTarget {
			t.Errorf("%s of nobody: %d %v", path, status, e)
		}
	}
	asked := make(chan string, 9)
	s.tunnelOf(beta, func(w http.ResponseWriter, r *http.Request) {
		asked <- r.URL.String()
		if strings.HasSuffix(r.URL.Path, "messages") {
			_ = json.NewEncoder(w).Encode(api.ChannelMessages{Messages: []api.ChannelMessage{{ID: "m1", From: "A", Content: "hello"}}, Next: "7.a"})
			return
		}
		_ = json.NewEncoder(w).Encode(api.ChannelList{Channels: []api.Channel{{ID: "p.review", Name: "review"}}})
	})
	var list api.ChannelList
	if status, _, data := s.call(http.MethodGet, "/v1/nodes/beta/channels", boss, nil); status != http.StatusOK || json.Unmarshal(data, &list) != nil || len(list.Channels) != 1 || list.Channels[0].Members == nil {
		t.Errorf("%d %s", status, data)
	}
	if got := <-asked; got != "/v1/opencomms/channels" {
		t.Errorf("asked for %s", got)
	}
	var page api.ChannelMessages
	if status, _, data := s.call(http.MethodGet, "/v1/nodes/beta/channels/p.a%2Fb.c/messages?limit=3&before=9.b", boss, nil); status != http.StatusOK || json.Unmarshal(data, &page) != nil || page.Next != "7.a" || page.Messages[0].Content != "hello" {
		t.Errorf("%d %s", status, data)
	}
	if got := <-asked; got != "/v1/opencomms/channels/p/a%2Fb.c/messages?before=9.b&limit=3" {
		t.Errorf("asked for %s", got)
	}
	for _, limit := range []string{"0", "201", "x"} {
		if status, _, _ := s.call(http.MethodGet, "/v1/nodes/beta/channels/p.c/messages?limit="+limit, boss, nil); status != http.StatusBadRequest {
			t.Errorf("limit %s: %d", limit, status)
		}
	}
	if len(asked) != 0 {
		t.Errorf("the node was asked all the same: %s", <-asked)
	}
}

func TestANodeCannotAnswerForItsChannelsInTheHubsName(t *testing.T) {
	s := newShop(t)
	boss := s.enroll(login("boss", true))
	var refusal api.Code
	session := s.tunnelOf(s.enroll(join("beta")), func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Set-Cookie", "mesh-session=x")
		w.WriteHeader(refusal.Status())
		_ = json.NewEncoder(w).Encode(api.ErrorBody{Error: api.Errorf(refusal, "\x1b[2Jno %s", strings.Repeat("x", 1<<16))})
	})
	for code, want := range map[api.Code][2]api.Code{
		api.CodeUnauthorized: {api.CodeUnavailable, api.CodeUnavailable}, // would send a browser to the login
		api.CodeRevoked:      {api.CodeUnavailable, api.CodeUnavailable},
		api.CodeInternal:     {api.CodeUnavailable, api.CodeUnavailable},
		api.CodeRefused:      {api.CodeRefused, api.CodeRefused},
		api.CodeNotFound:     {api.CodeNotSupported, api.CodeNotFound},
	} {
		refusal = code
		for i, path := range []string{"/v1/nodes/beta/channels", "/v1/nodes/beta/channels/p.c/messages"} {
			resp := s.open(http.MethodGet, path, boss, nil)
			var e api.ErrorBody
			_ = json.NewDecoder(resp.Body).Decode(&e)
			resp.Body.Close()
			if e.Error.Code != want[i] || len(e.Error.Message) > 1024 || strings.Contains(e.Error.Message, "\x1b") || len(resp.Header["Set-Cookie"]) != 0 {
				t.Errorf("a node that says %s at %s: %.200v %v", code, path, e.Error, resp.Header)
			}
		}
	}
	_ = session.Close()
	for {
		_, e, _ := s.call(http.MethodGet, "/v1/nodes/beta/channels", boss, nil)
		if e.Code == api.CodeNodeOffline {
			break
		}
		if e.Code != api.CodeUnavailable {
			t.Fatalf("a tunnel that ends: %v", e)
		}
	}
}

func TestWhatANodeSaysOfItsChannelsIsBoundedAndCleaned(t *testing.T) {
	s := newShop(t)
	boss := s.enroll(login("boss", true))
	evil := "\x1b[2J\u202e<script>" + strings.Repeat("x", 20<<10)
	s.tunnelOf(s.enroll(join("beta")), func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "messages") {
			p := api.ChannelMessages{Next: evil}
			for range 30 {
				p.Messages = append(p.Messages, api.ChannelMessage{ID: evil, From: evil, To: evil, Type: evil, Status: evil, ReplyTo: evil, Content: "line\n\tone\x00" + evil, At: time.Now()})
			}
			_ = json.NewEncoder(w).Encode(p)
			return
		}
		l := api.ChannelList{Problems: []api.ChannelProblem{{Project: evil, Message: evil}}}
		for range 40 {
			l.Channels = append(l.Channels, api.Channel{ID: evil, Project: evil, Name: evil, Description: evil, Linked: []string{evil}, Members: []api.ChannelMember{{Role: evil, Host: evil, Mode: evil}}})
		}
		l.Channels = append(l.Channels, make([]api.Channel, api.MaxChannels)...)
		l.Channels[1].Members = make([]api.ChannelMember, api.MaxChannelMembers+1)
		_ = json.NewEncoder(w).Encode(l)
	})
	var list api.ChannelList
	_, _, data := s.call(http.MethodGet, "/v1/nodes/beta/channels", boss, nil)
	if err := json.Unmarshal(data, &list); err != nil || len(list.Channels) != api.MaxChannels || !list.More || len(list.Channels[1].Members) != api.MaxChannelMembers || list.Channels[0].Name == "" {
		t.Errorf("%v: %d channels", err, len(list.Channels))
	}
	bad := func(what string, v any, most int) {
		t.Helper()
		if text := fmt.Sprint(v); len(text) > most || strings.ContainsAny(text, "\x1b\x00\u202e") {
			t.Errorf("%s: %d bytes, %.100q", what, len(text), text)
		}
	}
	bad("channel", list.Channels[0], 3<<10)
	bad("problem", list.Problems, 2<<10)
	var page api.ChannelMessages
	_, _, data = s.call(http.MethodGet, "/v1/nodes/beta/channels/p.c/messages?limit=20", boss, nil)
	if err := json.Unmarshal(data, &page); err != nil || len(page.Messages) != 20 {
		t.Fatalf("%v: %d messages", err, len(page.Messages))
	}
	m := page.Messages[0]
	if !strings.HasPrefix(m.Content, "line\n\tone") || !m.Truncated {
		t.Errorf("%.40q, truncated %v", m.Content, m.Truncated)
	}
	bad("message", m, api.MaxChannelContent+1<<10)
	bad("next", page.Next, api.MaxChannelText)
}

func TestChannelsOfANodeThatTakesNothingFromSomebodyAreHiddenFromIt(t *testing.T) {
	s := newShop(t)
	boss, other := s.enroll(login("boss", true)), s.enroll(login("other", true))
	s.helloAllow = []string{"boss"}
	s.tunnelOf(s.enroll(join("beta")), func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"channels":[]}`)) })
	for secret, want := range map[string]int{boss: http.StatusOK, other: http.StatusForbidden} {
		for _, path := range []string{"/v1/nodes/beta/channels", "/v1/nodes/beta/channels/p.c/messages"} {
			if status, e, _ := s.call(http.MethodGet, path, secret, nil); status != want || want != http.StatusOK && e.Code != api.CodeRefused {
				t.Errorf("%s: %d %v, want %d", path, status, e, want)
			}
		}
	}
}
