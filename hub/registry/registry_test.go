package registry_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"opencode-mesh/hub/registry"
	"opencode-mesh/store"
	"opencode-mesh/tunnel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair opens a tunnel: the hub's end of it, and the node's.
func pair(t *testing.T) (hub, node *tunnel.Session) {
	t.Helper()
	accepted := make(chan *tunnel.Session, 1)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s, err := tunnel.Accept(w, r, tunnel.Config{})
		if err != nil {
			t.Error(err)
		}
		accepted <- s
	}))
	node, err := tunnel.Dial(context.Background(), tunnel.DialConfig{URL: strings.Replace(srv.URL, "http", "ws", 1)})
	if err != nil {
		t.Fatal(err)
	}
	hub = <-accepted
	t.Cleanup(func() {
		_ = node.Close()
		_ = hub.Close()
		srv.Close()
	})
	return hub, node
}

func conn(s *tunnel.Session, instance string) *registry.Conn {
	return &registry.Conn{Identity: store.Identity{ID: "id_beta", Name: "beta"}, Session: s, Instance: instance, Since: time.Now()}
}

func TestTheNewestConnectionOfANameWinsAndTheOlderIsTold(t *testing.T) {
	for name, c := range map[string]struct {
		instance string
		reason   tunnel.Reason
	}{
		"another process":  {"p2", tunnel.ReasonSuperseded},
		"the same process": {"p1", tunnel.ReasonNone},
	} {
		t.Run(name, func(t *testing.T) {
			g := registry.New()
			s1, n1 := pair(t)
			s2, _ := pair(t)
			older, newer := conn(s1, "p1"), conn(s2, c.instance)
			if superseded, ok := g.Register(older); superseded || !ok {
				t.Fatalf("the first: %v, %v", superseded, ok)
			}
			if superseded, ok := g.Register(newer); superseded != (c.reason == tunnel.ReasonSuperseded) || !ok {
				t.Errorf("the second: %v, %v", superseded, ok)
			}
			<-n1.Done()
			if !tunnel.IsReason(n1.Err(), c.reason) {
				t.Errorf("the older one ended with %v", n1.Err())
			}
			if got, ok := g.Locate("id_beta"); !ok || got != newer || g.Online() != 1 {
				t.Errorf("%v, %v, %d online", got, ok, g.Online())
			}
			if g.Unregister(older) {
				t.Error("a late end of the older one marked the newer offline")
			}
			if !g.Unregister(newer) || g.Unregister(newer) || g.Online() != 0 {
				t.Error("the newer one did not leave once")
			}
		})
	}
}

func TestAConnectionThatHasEndedPushesNobodyOut(t *testing.T) {
	g := registry.New()
	living, _ := pair(t)
	dead, _ := pair(t)
	_ = dead.Close()
	c := conn(living, "p1")
	g.Register(c)
	if _, ok := g.Register(conn(dead, "p2")); ok {
		t.Error("a dead connection was taken")
	}
	if got, _ := g.Locate("id_beta"); got != c || living.Err() != nil {
		t.Errorf("%v has the name; %v", got, living.Err())
	}
}

func TestRegisteringTwiceChangesNothing(t *testing.T) {
	g := registry.New()
	s, _ := pair(t)
	c := conn(s, "p1")
	g.Register(c)
	if superseded, ok := g.Register(c); superseded || !ok || s.Err() != nil {
		t.Errorf("%v, %v, %v", superseded, ok, s.Err())
	}
	if _, ok := g.Locate("id_nobody"); ok {
		t.Error("nobody is connected")
	}
}
