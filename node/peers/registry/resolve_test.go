package registry_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"opencode-mesh/node/peers/registry"
	"opencode-mesh/protocol/peers"
)

func peer(id, name string, alive bool) registry.Peer {
	p := registry.Peer{Entry: peers.Entry{EndpointID: id, ProcessID: id, Name: name}, Alive: alive}
	if !alive {
		p.Reason = registry.ReasonStale
	}
	return p
}

func TestTargetsAreFound(t *testing.T) {
	list := []registry.Peer{
		peer("session-1", "alpha", true),
		peer("session-2", "beta", true),
		peer("session-3", "beta", false),
		peer("session-4", "gamma", false),
		peer("session-5", "twin", true),
		peer("session-6", "twin", true),
		peer("0000000a", "old", true),
		peer("odd id!", "session-1", true),
		peer("session-7", "session-8", true),
		peer("delta", "epsilon", true),
		peer("session-9", "delta", true),
		peer("session-10", "", true),
		peer("zeta", "eta", false),
		peer("session-11", "zeta", true),
		peer("session-12", "beta/foo", true),
	}
	for _, c := range []struct {
		target, want string
		err          error
	}{
		{"session-1", "session-1", nil}, // and not the agent with that name
		{"alpha", "session-1", nil},
		{"Alpha", "", registry.ErrUnknown},
		{" alpha", "", registry.ErrUnknown},
		{"beta", "session-2", nil}, // the other one is offline
		{"beta/foo", "session-12", nil},
		{"session-3", "", registry.ErrOffline},
		{"gamma", "", registry.ErrOffline},
		{"twin", "", registry.ErrAmbiguous},
		{"session-5", "session-5", nil},
		{"0000000a", "0000000a", nil},
		{"old", "0000000a", nil},
		{"odd id!", "odd id!", nil},
		{"session-8", "", registry.ErrUnknown}, // meant as an id
		{"workspace-1", "", registry.ErrUnknown},
		{"delta", "delta", nil},           // the id before the name
		{"zeta", "", registry.ErrOffline}, // the id, though there is such a name
		{"", "", registry.ErrUnknown},     // and not the one without a name
		{"nobody", "", registry.ErrUnknown},
	} {
		got, err := registry.Resolve(list, c.target)
		if got.EndpointID != c.want || !errors.Is(err, c.err) {
			t.Errorf("%q is %q, %v, want %q, %v", c.target, got.EndpointID, err, c.want, c.err)
		}
	}
}

func TestAnAmbiguousNameTellsTheIDs(t *testing.T) {
	list := []registry.Peer{peer("session-5", "twin", true), peer("session-6", "twin", true), peer("session-7", "twin", false)}
	_, err := registry.Resolve(list, "twin")
	if err == nil || !strings.Contains(err.Error(), "session-5, session-6") || strings.Contains(err.Error(), "session-7") {
		t.Errorf("it says %v", err)
	}
	list = nil
	for i := range 30 {
		list = append(list, peer(fmt.Sprintf("session-%02d", i), "many", true))
	}
	_, err = registry.Resolve(list, "many")
	if err == nil || !strings.Contains(err.Error(), "session-19, or 10 more") || strings.Contains(err.Error(), "session-20") {
		t.Errorf("it says %v", err)
	}
}

func TestAnOfflineTargetTellsWhy(t *testing.T) {
	if _, err := registry.Resolve([]registry.Peer{peer("session-5", "x", false)}, "x"); err == nil || !strings.Contains(err.Error(), registry.ReasonStale) {
		t.Errorf("it says %v", err)
	}
}
