package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
	"opencode-mesh/tunnel"
)

// nodes lists them as somebody sees them.
func (s *shop) nodes(secret string) map[string]api.Node {
	s.t.Helper()
	var list api.NodeList
	status, _, data := s.call(http.MethodGet, "/v1/nodes", secret, nil)
	if err := json.Unmarshal(data, &list); err != nil || status != http.StatusOK {
		s.t.Fatalf("%d %s", status, data)
	}
	out := map[string]api.Node{}
	for _, n := range list.Nodes {
		out[n.Name] = n
	}
	return out
}

// bind notes that a controller's session on a node is so full.
func (s *shop) bind(controller, target string, percent int64, used time.Time) {
	s.t.Helper()
	ids := map[string]string{}
	for _, name := range []string{controller, target} {
		id, err := s.store.IdentityByName(context.Background(), name)
		if err != nil {
			s.t.Fatal(err)
		}
		ids[name] = id.ID
	}
	_, err := s.store.PutBinding(context.Background(), store.Binding{
		BindingKey: store.BindingKey{Controller: ids[controller], Target: ids[target], Workspace: fmt.Sprint("w", percent)},
		Generation: 1, LastUsed: used, Tokens: &api.Tokens{Total: percent, Limit: 100},
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

func TestTheFillOfASessionIsTheCallersOwn(t *testing.T) {
	s := newShop(t)
	alice, bob, op := s.enroll(login("alice", false)), s.enroll(login("bob", false)), s.enroll(login("boss", true))
	for _, n := range []string{"n0", "n1", "n2"} {
		s.enroll(join(n))
	}
	now := time.Now().UTC()
	s.bind("alice", "n0", 10, now)
	s.bind("alice", "n0", 20, now.Add(time.Minute)) // the last one used
	s.bind("alice", "n0", 30, now.Add(-time.Minute))
	s.bind("bob", "n0", 90, now.Add(time.Hour))
	s.bind("bob", "n1", 50, now)
	s.bind("boss", "n0", 40, now)
	for who, want := range map[string]map[string]string{
		alice: {"n0": "20", "n1": "none", "n2": "none"},
		bob:   {"n0": "90", "n1": "50", "n2": "none"},
		op:    {"n0": "40", "n1": "50", "n2": "none"}, // its own, else that of whoever used the node last
	} {
		for name, n := range s.nodes(who) {
			got := "none"
			if n.CtxPercent != nil {
				got = fmt.Sprint(*n.CtxPercent)
			}
			if got != want[name] {
				t.Errorf("%s: %s, want %s", name, got, want[name])
			}
		}
	}
}

func TestANodeThatLeftSaysWhyAndWhen(t *testing.T) {
	s := newShop(t)
	boss := s.enroll(login("boss", true))
	before := time.Now().Add(-time.Second)
	beta := s.enroll(join("beta"))
	nothing := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) }
	session := s.tunnelOf(beta, nothing)
	if n := s.nodes(boss)["beta"]; n.State != api.NodeOnline || n.LastError != "" || n.LastErrorAt != nil || n.Sessions {
		t.Fatalf("%+v", n)
	}
	_ = session.CloseWith(tunnel.ReasonProtocol)
	var n api.Node
	eventually(t, "the reason is noted", func() bool {
		n = s.nodes(boss)["beta"]
		return n.State == api.NodeOffline && n.LastError != ""
	})
	if n.LastErrorAt == nil || n.LastErrorAt.Before(before) || !n.LastErrorAt.Equal(n.Since) {
		t.Errorf("%+v", n)
	}
	was := n.Since
	session = s.tunnelOf(beta, nothing, 2)
	_ = session.Close() // as a node that is stopped
	eventually(t, "that it left is noted", func() bool {
		n = s.nodes(boss)["beta"]
		return n.State == api.NodeOffline && n.Since.After(was) && n.LastError == ""
	})
	if n.LastErrorAt != nil {
		t.Errorf("%+v", n)
	}
}

func TestAListingOfNodesSaysHowTheirSessionsFilledUp(t *testing.T) {
	s := newShop(t)
	alice, bob := s.enroll(login("alice", false)), s.enroll(login("bob", false))
	for name, points := range map[string]int{"n0": 0, "n1": 3, "n2": 101} {
		s.enroll(join(name))
		s.filled("alice", name, points)
	}
	list := func(secret, query string) map[string]api.Node {
		status, _, data := s.call(http.MethodGet, "/v1/nodes"+query, secret, nil)
		var out api.NodeList
		if err := json.Unmarshal(data, &out); err != nil || status != http.StatusOK {
			t.Fatalf("%d %s", status, data)
		}
		nodes := map[string]api.Node{}
		for _, n := range out.Nodes {
			nodes[n.Name] = n
		}
		return nodes
	}
	if n := list(alice, "")["n2"]; n.CtxFills != nil {
		t.Errorf("fills that nobody asked for: %v", n.CtxFills)
	}
	nodes := list(alice, "?fills=20")
	if got := nodes["n2"].CtxFills; len(got) != 20 || got[0] != 8 || got[19] != 10 || len(nodes["n1"].CtxFills) != 3 || len(nodes["n0"].CtxFills) != 0 {
		t.Errorf("%v, %v", got, nodes["n1"].CtxFills)
	}
	// A curve goes on with its session, and what did not change is not read again.
	read := s.store.curves.Load()
	b, err := s.store.Binding(context.Background(), store.BindingKey{Controller: s.party("alice").ID, Target: s.party("n2").ID, Workspace: "main"})
	if err != nil {
		t.Fatal(err)
	}
	for _, total := range []int64{500, 9000} {
		if b, err = s.store.PutBinding(context.Background(), b, api.Fill{Tokens: api.Tokens{Total: total, Limit: 1000}}); err != nil {
			t.Fatal(err)
		}
		list(alice, "?fills=20")
		if got := list(alice, "?fills=20")["n2"].CtxFills; len(got) != 20 || got[0] > 10 || got[19] != int(min(total/10, 127)) {
			t.Errorf("then %v", got)
		}
	}
	if got := list(alice, "?fills=3&name=n2"); len(got) != 1 || len(got["n2"].CtxFills) != 3 {
		t.Errorf("one of them: %v", got)
	}
	if n := s.store.curves.Load() - read; n != 2 {
		t.Errorf("%d curves were read for 2 that changed", n)
	}
	if n := list(bob, "?fills=20")["n2"]; n.CtxFills != nil || n.CtxPercent != nil {
		t.Errorf("bob sees %v", n)
	}
	if status, _, _ := s.call(http.MethodGet, "/v1/nodes?fills=65", alice, nil); status != http.StatusBadRequest {
		t.Errorf("%d", status)
	}
}

func TestListingNodesReadsTheBindingsOnceAndNotPerNode(t *testing.T) {
	s := newShop(t)
	op := s.enroll(login("boss", true))
	for i := range 10 {
		s.enroll(join(fmt.Sprint("n", i)))
	}
	s.store.listed.Store(0)
	if n := len(s.nodes(op)); n != 10 {
		t.Errorf("%d nodes", n)
	}
	if n := s.store.listed.Load(); n > 2 {
		t.Errorf("the bindings were read %d times for 10 nodes", n)
	}
}

func TestATakeoverThatCannotBeNotedIsOneAllTheSame(t *testing.T) {
	s := newShop(t)
	beta, op := s.enroll(join("beta")), s.enroll(login("boss", true))
	hello := func(instance string) int {
		t.Helper()
		session, err := tunnel.Dial(context.Background(), tunnel.DialConfig{
			URL: strings.Replace(s.url, "http", "ws", 1) + "/v1/tunnel", Header: http.Header{"Authorization": {"Bearer " + beta}},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = session.Close() })
		hc := &http.Client{Transport: &http.Transport{DialContext: session.DialContext}}
		t.Cleanup(hc.CloseIdleConnections)
		body := fmt.Sprintf(`{"protocol":%d,"journal_id":%q,"epoch":1,"instance":%q}`, api.ProtocolVersion, "j"+instance, instance)
		resp, err := hc.Post("http://hub/v1/hello", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	if status := hello("p1"); status != http.StatusOK {
		t.Fatalf("%d", status)
	}
	writes := 0
	s.store.noted = func() error {
		if writes++; writes > 1 { // the hello itself gets through
			return store.ErrFull
		}
		return nil
	}
	if status := hello("p2"); status != http.StatusOK {
		t.Errorf("%d", status)
	}
	if n := s.nodes(op)["beta"]; n.State != api.NodeOnline {
		t.Errorf("node %+v", n)
	}
}
