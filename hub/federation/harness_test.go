package federation_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"opencode-mesh/hub/federation"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/ocp"
	"opencode-mesh/store/bolt"
)

var (
	desk = federation.Asker{Party: api.Party{ID: "id_desk", Name: "desk"}}
	boss = federation.Asker{Party: api.Party{ID: "id_boss", Name: "boss"}, Operator: true}
)

// machine is a node that answers as it is told.
type machine struct {
	party  api.Party
	answer func(api.ContextAsk) (api.ContextAnswer, error)
	wait   func(context.Context) // before it answers
	scopes []string              // of its provider

	mu       sync.Mutex
	asked    []api.ContextAsk
	consents map[string]*api.ContextConsent
}

func (m *machine) Party() api.Party { return m.party }

func (m *machine) Ask(ctx context.Context, ask api.ContextAsk) (api.ContextAnswer, error) {
	if m.wait != nil {
		m.wait(ctx)
	}
	m.mu.Lock()
	m.asked = append(m.asked, ask)
	m.mu.Unlock()
	return m.answer(ask)
}

func (m *machine) Providers(context.Context) (api.ContextProviders, error) {
	return api.ContextProviders{Providers: []api.ContextProvider{{ID: "memory", Name: "what \x1b[31mit remembers", DataFlow: ocp.DataFlow{EgressScopes: m.scopes}, Shown: ocp.Subject{}.Digest()}}}, nil
}

func (m *machine) Consent(_ context.Context, provider string, c *api.ContextConsent) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.consents[provider] = c
	return nil
}

func (m *machine) times() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.asked)
}

// fleet are the nodes that are online, by name.
type fleet struct{ list []*machine }

func (f *fleet) Online(context.Context, federation.Asker) (nodes []federation.Node, err error) {
	for _, m := range f.list {
		nodes = append(nodes, m)
	}
	return nodes, nil
}

func (f *fleet) Named(_ context.Context, _ federation.Asker, name string) (federation.Node, error) {
	i := slices.IndexFunc(f.list, func(m *machine) bool { return m.party.Name == name })
	switch {
	case name == "away":
		return nil, api.Errorf(api.CodeNodeOffline, "node away is offline")
	case i < 0:
		return nil, api.Errorf(api.CodeNotFound, "there is no node %s", name)
	}
	return f.list[i], nil
}

// gives makes a machine whose providers give frames, one leg each.
func gives(name string, legs ...api.ContextAnswerLeg) *machine {
	return &machine{
		party: api.Party{ID: "id_" + name, Name: name}, consents: map[string]*api.ContextConsent{},
		answer: func(api.ContextAsk) (api.ContextAnswer, error) { return api.ContextAnswer{Legs: legs}, nil },
	}
}

func leg(provider string, frames ...ocp.Frame) api.ContextAnswerLeg {
	return api.ContextAnswerLeg{
		ContextLeg: api.ContextLeg{Provider: provider, Outcome: api.ContextFrames},
		Result:     ocp.Result{Frames: frames},
	}
}

// frame is one whose content costs a number of tokens.
func frame(id string, score float32, tokens int) ocp.Frame {
	content := id + strings.Repeat("x", max(0, 4*tokens-len(id)))
	return ocp.Frame{ID: id, Kind: ocp.KindFact, Title: "about " + id, Content: content, Score: score, TokenCost: ocp.TokenCost(content), CitationLabel: id}
}

// rig is a Federation with its nodes on a store of its own.
type rig struct {
	t *testing.T
	*federation.Federation
	fleet *fleet
	again func() *federation.Federation // another one on the same store
	close func()
}

func newRig(t *testing.T, list ...*machine) *rig {
	t.Helper()
	s, err := bolt.Open(bolt.Config{Dir: t.TempDir(), BallastBytes: 1 << 12})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, fleet: &fleet{list: list}, close: sync.OnceFunc(func() { _ = s.Close() })}
	t.Cleanup(r.close)
	r.again = func() *federation.Federation {
		return federation.New(federation.Config{Store: s, Nodes: r.fleet, Now: time.Now})
	}
	r.Federation = r.again()
	return r
}

// trusts has an asker consent to nodes.
func (r *rig) trusts(a federation.Asker, nodes ...string) {
	r.t.Helper()
	for _, n := range nodes {
		if err := r.Consent(r.t.Context(), a, n, api.ContextConsent{Scope: "goals of tasks"}); err != nil {
			r.t.Fatal(err)
		}
	}
}

func (r *rig) query(a federation.Asker, maxTokens, maxFrames uint32, nodes ...string) api.ContextResult {
	r.t.Helper()
	out, err := r.Query(r.t.Context(), a, api.ContextQuery{
		Query: ocp.Query{Goal: "open the door", MaxTokens: maxTokens, MaxFrames: maxFrames}, Nodes: nodes, Compose: true,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

func ids(frames []ocp.Cited) (list []string) {
	for _, f := range frames {
		list = append(list, f.Node+"/"+f.Provider+"/"+f.Frame.ID)
	}
	return list
}
