package node_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"opencode-mesh/node"
	"opencode-mesh/node/link/linktest"
	"opencode-mesh/node/ocp/host"
	"opencode-mesh/node/ocp/memory"
	"opencode-mesh/node/ocp/ocptest"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/ocp"
	"opencode-mesh/tunnel"
)

// web is a provider over HTTP that keeps what it is sent.
type web struct {
	mu   sync.Mutex // guards sent
	sent strings.Builder
}

func (w *web) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	w.mu.Lock()
	w.sent.Write(body)
	w.mu.Unlock()
	r.Body = io.NopCloser(strings.NewReader(string(body)))
	ocptest.Handler(ocptest.Good).ServeHTTP(rw, r)
}

func (w *web) has(text string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Contains(w.sent.String(), text)
}

// withWeb gives a node an HTTP provider.
func withWeb(t *testing.T) (*web, func(*node.Config)) {
	w := new(web)
	s := httptest.NewServer(w)
	t.Cleanup(s.Close)
	return w, func(c *node.Config) { c.ContextProviders = []host.Provider{{Name: "web", URL: s.URL}} }
}

// wantRefusal fails unless an error has this code.
func wantRefusal(t *testing.T, err error, code api.Code) {
	t.Helper()
	e, ok := err.(*api.Error) //nolint:errorlint // as it comes from the wire
	if !ok || e.Code != code {
		t.Errorf("%v; want %s", err, code)
	}
}

// remember puts items of two controllers into a node's memory.
func remember(t *testing.T, p *process) {
	t.Helper()
	var items []memory.Item
	for _, c := range []string{"alpha", "beta"} {
		items = append(items, memory.Item{
			ID: "item-" + c, Kind: ocp.KindEpisode, Title: "A task of " + c, Content: "the release is signed for " + c, Label: "result of " + c,
			Controller: "id-" + c, Target: "id-node", At: time.Unix(1e9, 0),
		})
	}
	if err := node.MemoryOf(p.node).Put(t.Context(), items); err != nil {
		t.Fatal(err)
	}
}

// titles are the outcome of a leg and those of its frames.
func titles(a api.ContextAnswer, provider string) string {
	var out []string
	for _, l := range a.Legs {
		if l.Provider == provider {
			out = append(out, l.Outcome)
			for _, f := range l.Result.Frames {
				out = append(out, f.Title)
			}
		}
	}
	slices.Sort(out[min(1, len(out)):]) // equals have no order
	return strings.Join(out, ", ")
}

func TestTheHubAsksANodesProvidersAndSeesOfItsMemoryWhatTheAskerDispatched(t *testing.T) {
	hub := linktest.New(t, tunnel.Config{})
	sent, opt := withWeb(t)
	p := launch(t, hub, t.TempDir(), opt)
	c := linktest.Await(t, hub.Conns, "the node")
	remember(t, p)
	ask := func(who string, operator bool) (a api.ContextAnswer) {
		t.Helper()
		in := api.ContextAsk{Query: ocp.Query{Goal: "how the release is signed"}, Asker: api.Party{ID: "id-" + who, Name: who}, Operator: operator}
		if _, err := c.Call(http.MethodPost, "/v1/ocp/query", in, &a); err != nil {
			t.Fatal(err)
		}
		return a
	}
	for _, want := range []struct {
		who      string
		operator bool
		memory   string
	}{
		{"alpha", false, "frames, A task of alpha"}, {"beta", false, "frames, A task of beta"}, {"gamma", false, "frames"},
		{"gamma", true, "frames, A task of alpha, A task of beta"},
	} {
		a := ask(want.who, want.operator)
		if got := titles(a, "memory"); got != want.memory || len(a.Legs) != 2 || a.Legs[1].Outcome != api.ContextAsks {
			t.Errorf("%s: %s, want %s; %+v", want.who, got, want.memory, a.Legs)
		}
	}
	if sent.has("query") {
		t.Fatal("the goal was sent without consent")
	}

	var list api.ContextProviders
	if _, err := c.Call(http.MethodGet, "/v1/ocp/providers", nil, &list); err != nil || len(list.Providers) != 2 ||
		list.Providers[0].ID != "memory" || list.Providers[0].NeedsConsent || list.Providers[1].ID != "web" || !list.Providers[1].NeedsConsent {
		t.Fatalf("%+v, %v", list, err)
	}
	if _, err := c.Call(http.MethodPut, "/v1/ocp/consents/web", api.ContextConsent{Scope: "to the web", GrantedBy: "boss"}, nil); err != nil {
		t.Fatal(err)
	}
	if got := titles(ask("alpha", false), "web"); !strings.HasPrefix(got, "frames, ") || !sent.has("how the release is signed") {
		t.Errorf("%s", got)
	}
	list, err := node.NewOperator(p.dir).ContextProviders(t.Context())
	if err != nil || list.Providers[1].Consent == nil || list.Providers[1].Consent.GrantedBy != "boss" {
		t.Errorf("%+v, %v", list, err)
	}
	if _, err := c.Call(http.MethodDelete, "/v1/ocp/consents/web", nil, nil); err != nil {
		t.Fatal(err)
	}
	if got := titles(ask("alpha", false), "web"); got != api.ContextAsks {
		t.Errorf("%s", got)
	}

	_, err = c.Call(http.MethodPut, "/v1/ocp/consents/other", api.ContextConsent{Scope: "x"}, nil)
	wantRefusal(t, err, api.CodeNotFound)
	_, err = c.Call(http.MethodDelete, "/v1/ocp/consents/other", nil, nil)
	wantRefusal(t, err, api.CodeNotFound)
	_, err = c.Call(http.MethodPost, "/v1/ocp/query", api.ContextAsk{}, nil)
	wantRefusal(t, err, api.CodeBadRequest)
	_, err = c.Call(http.MethodPost, "/v1/ocp/query", strings.Repeat("x", 2<<20), nil)
	wantRefusal(t, err, api.CodeTooLarge)
	p.quit()
}

func TestANodeWithoutContextAnswersItsOwnerOnly(t *testing.T) {
	hub := linktest.New(t, tunnel.Config{})
	_, opt := withWeb(t)
	p := launch(t, hub, t.TempDir(), opt, func(c *node.Config) { c.NoContext = true })
	c := linktest.Await(t, hub.Conns, "the node")
	remember(t, p)
	for _, r := range []struct{ method, path string }{
		{http.MethodPost, "/v1/ocp/query"}, {http.MethodGet, "/v1/ocp/providers"},
		{http.MethodPut, "/v1/ocp/consents/web"}, {http.MethodDelete, "/v1/ocp/consents/web"},
	} {
		_, err := c.Call(r.method, r.path, struct{}{}, nil)
		wantRefusal(t, err, api.CodeRefused)
	}
	o := node.NewOperator(p.dir)
	if err := o.Consent(t.Context(), "web", api.ContextConsent{Scope: "to the web"}); err != nil {
		t.Fatal(err)
	}
	a, err := o.QueryContext(t.Context(), ocp.Query{Goal: "how the release is signed"})
	if got := titles(a, "memory"); err != nil || !strings.Contains(got, "alpha") || !strings.Contains(got, "beta") || !strings.HasPrefix(titles(a, "web"), "frames, ") {
		t.Errorf("%+v, %v", a, err)
	}
	if err := o.RevokeConsent(t.Context(), "web"); err != nil {
		t.Fatal(err)
	}
	wantRefusal(t, o.RevokeConsent(t.Context(), "web"), api.CodeNotFound)
	p.quit()
}

func TestAnAnswerThatIsTooLargeForTheTunnelLosesOneProvidersFramesOnly(t *testing.T) {
	hub := linktest.New(t, tunnel.Config{})
	// Each frame is within its bounds; written as JSON they are six times as long.
	large := func(q ocp.Query, frames int) ocp.Result {
		r := ocp.Result{}
		for i := range frames {
			r.Frames = append(r.Frames, ocp.Frame{
				ID: strconv.Itoa(i), Kind: ocp.KindDoc, Title: q.Goal, CitationLabel: "l",
				Provenance: []ocp.Provenance{{Type: "file", URI: strings.Repeat("\x01", 30_000)}},
			})
		}
		return r
	}
	launch(t, hub, t.TempDir(), func(c *node.Config) {
		c.NoMemory = true
		for name, n := range map[string]int{"first": 2, "large": 60, "last": 2} {
			c.ContextProviders = append(c.ContextProviders, host.Provider{Name: name, Source: sized(func(q ocp.Query) ocp.Result { return large(q, n) })})
		}
	})
	c := linktest.Await(t, hub.Conns, "the node")
	var a api.ContextAnswer
	if _, err := c.Call(http.MethodPost, "/v1/ocp/query", api.ContextAsk{Query: ocp.Query{Goal: "g", MaxFrames: 100}, Operator: true}, &a); err != nil {
		t.Fatal(err)
	}
	for provider, want := range map[string]string{"first": "frames, g, g", "large": "failed", "last": "frames, g, g"} {
		if got := titles(a, provider); got != want {
			t.Errorf("%s: %s, want %s", provider, got, want)
		}
	}
}

// sized is a provider within the node's process.
type sized func(ocp.Query) ocp.Result

func (s sized) Query(_ context.Context, q ocp.Query, _ memory.Scope) (ocp.Result, error) {
	return s(q), nil
}
