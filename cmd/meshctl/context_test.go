package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/cmd/internal/clitest"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
	"opencode-mesh/protocol/ocp"
)

// contextHub is a hub that answers context queries with a result and keeps tasks.
type contextHub struct {
	*clitest.Shell

	mu      sync.Mutex // guards the following
	result  api.ContextResult
	refusal *api.Error // of queries
	queries []api.ContextQuery
	made    []api.Dispatch
	asked   []string // other requests, with their bodies
	records api.ContextRecords
	list    api.ContextProviders
}

func newContextHub(t *testing.T) *contextHub {
	h := &contextHub{}
	h.Shell = stubHub(t, func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		defer h.mu.Unlock()
		body, _ := io.ReadAll(r.Body)
		switch path := r.URL.Path; {
		case path == "/v1/context/query":
			var q api.ContextQuery
			_ = json.Unmarshal(body, &q)
			h.queries = append(h.queries, q)
			if h.refusal != nil {
				fail(w, h.refusal)
				return
			}
			out := h.result
			if q.Compose && len(out.Frames) > 0 {
				text, usage := ocp.Compose(out.Frames, mesh.NewNonce())
				out.Text, out.Usage = text, &usage
			}
			_ = json.NewEncoder(w).Encode(out)
		case path == "/v1/tasks" && r.Method == http.MethodPost:
			var d api.Dispatch
			_ = json.Unmarshal(body, &d)
			h.made = append(h.made, d)
			_ = json.NewEncoder(w).Encode(api.Dispatched{Tasks: []api.Task{{Task: d.Targets[0].ID, Target: d.Targets[0].Name, State: api.StateQueued}}})
		case strings.HasPrefix(path, "/v1/tasks/"):
			for _, d := range h.made {
				if id := strings.TrimPrefix(path, "/v1/tasks/"); d.Targets[0].ID == id {
					_ = json.NewEncoder(w).Encode(api.Task{Task: id, Text: d.Text})
					return
				}
			}
			fail(w, api.Errorf(api.CodeNotFound, "no such task"))
		case path == "/v1/nodes":
			_ = json.NewEncoder(w).Encode(api.NodeList{Nodes: []api.Node{{Name: "beta"}}})
		case path == "/v1/context/providers":
			_ = json.NewEncoder(w).Encode(h.list)
		case path == "/v1/context/queries":
			h.asked = append(h.asked, r.URL.RequestURI())
			_ = json.NewEncoder(w).Encode(h.records)
		default:
			h.asked = append(h.asked, r.Method+" "+r.URL.EscapedPath()+" "+strings.TrimSpace(string(body)))
			w.WriteHeader(http.StatusNoContent)
		}
	})
	return h
}

func fail(w http.ResponseWriter, e *api.Error) {
	w.WriteHeader(e.Code.Status())
	_ = json.NewEncoder(w).Encode(api.ErrorBody{Error: e})
}

func cited(node, id, content string) ocp.Cited {
	return ocp.Cited{Node: node, Provider: "memory", Frame: ocp.Frame{
		ID: id, Kind: ocp.KindFact, Title: "Signing\x1b[2J", Content: content, Score: 0.75, TokenCost: ocp.TokenCost(content), CitationLabel: "digest 3 of beta",
	}}
}

// found is a result with one frame of beta, and a leg for each outcome.
func found() api.ContextResult {
	return api.ContextResult{
		ID: "ctx_1", Frames: []ocp.Cited{cited("beta", "f1", "the key is in the safe\x1b]0;t\x07\n\nsecond")}, Tokens: 10,
		Legs: []api.ContextLeg{{Node: "beta", Provider: "memory", Outcome: api.ContextFrames, Found: 1, Used: 1, Tokens: 10}},
	}
}

func TestAQueryPrintsWhatWasFoundAndWhatItCost(t *testing.T) {
	h := newContextHub(t)
	h.result = found()
	r := h.Want(0, []string{"context", "query", "how to sign", "--max-tokens", "500", "--max-frames", "3", "--kind", "fact", "--anchor", "a.go", "--as-of", "2026-01-31T13:00:00+01:00", "--node", "beta"})
	want := "[1] digest 3 of beta\n    Signing\n    fact, from beta/memory, score 0.75, 9 tokens\n  | the key is in the safe\n  | \n  | second\n"
	if r.Out != want {
		t.Errorf("got\n%q\nwant\n%q", r.Out, want)
	}
	wantText(t, r.Err, "1 frame, 10 of 500 tokens, 1 provider; query ctx_1")
	q := h.queries[0]
	if q.Goal != "how to sign" || q.MaxTokens != 500 || q.MaxFrames != 3 || len(q.Kinds) != 1 || q.Anchors[0] != "a.go" || q.AsOf != "2026-01-31T12:00:00Z" || q.Nodes[0] != "beta" || q.Compose {
		t.Errorf("asked %+v", q)
	}
	got := jsonLines(t, h.Want(0, []string{"context", "query", "x", "--json"}).Out)
	if len(got) != 1 || got[0]["id"] != "ctx_1" || len(got[0]["legs"].([]any)) != 1 {
		t.Errorf("got %v", got)
	}
	if q := h.queries[1]; q.MaxTokens != api.DefaultContextTokens || q.MaxFrames != api.DefaultContextFrames || q.Nodes != nil {
		t.Errorf("asked %+v", q)
	}
}

func TestTheExitCodeOfAQuerySaysWhoDidNotAnswer(t *testing.T) {
	leg := func(provider, outcome string) api.ContextLeg {
		return api.ContextLeg{Node: "beta", Provider: provider, Outcome: outcome, Error: "why\x1b[2J", Claimed: 9000}
	}
	good := api.ContextLeg{Node: "alpha", Provider: "memory", Outcome: api.ContextFrames}
	for _, c := range []struct {
		legs  []api.ContextLeg
		named int // exit code with --node
		code  int
		says  string
	}{
		{[]api.ContextLeg{good}, cli.ExitOK, cli.ExitOK, "0 frames"},
		{nil, cli.ExitNoAccess, cli.ExitNoAccess, "meshctl context consent NODE --scope TEXT"},
		{[]api.ContextLeg{good, leg("", api.ContextAsks)}, cli.ExitNoAccess, cli.ExitNotDone, "beta: not asked, nothing was sent: why; consent with: meshctl context consent beta --scope TEXT"},
		{[]api.ContextLeg{good, leg("", api.ContextFailed)}, cli.ExitNoAccess, cli.ExitNotDone, "beta: failed: why"},
		{[]api.ContextLeg{good, leg("docs", api.ContextAsks)}, cli.ExitOK, cli.ExitOK, "meshctl context consent beta/docs --scope TEXT"},
		{[]api.ContextLeg{good, leg("docs", api.ContextFailed)}, cli.ExitNotDone, cli.ExitNotDone, "beta/docs: failed: why"},
		{[]api.ContextLeg{good, leg("docs", api.ContextLiar)}, cli.ExitNotDone, cli.ExitNotDone, "it gave 9000 tokens"},
		{[]api.ContextLeg{good, leg("docs", api.ContextFlood)}, cli.ExitNotDone, cli.ExitNotDone, "more frames"},
		{[]api.ContextLeg{leg("", api.ContextAsks), leg("docs", api.ContextFailed)}, cli.ExitNoAccess, cli.ExitNotDone, ""},
		{[]api.ContextLeg{leg("docs", api.ContextFrames)}, cli.ExitOK, cli.ExitOK, "some of it does not count: why"},
	} {
		h := newContextHub(t)
		h.result = api.ContextResult{ID: "ctx_1", Legs: c.legs}
		h.Want(c.named, []string{"context", "query", "x", "--node", "beta"})
		r := h.Want(c.code, []string{"context", "query", "x"})
		if !strings.Contains(r.Err, c.says) || strings.Contains(r.Err, "\x1b") {
			t.Errorf("%v says %q", c.legs, r.Err)
		}
	}
}

func TestAQueryThatMakesNoSenseIsNotSent(t *testing.T) {
	h := newContextHub(t)
	for _, args := range [][]string{
		{}, {""}, {" "}, {"two", "words"}, {"x", "--max-tokens", "0"}, {"x", "--max-tokens", "-1"}, {"x", "--max-tokens", "131073"}, {"x", "--max-frames", "257"},
		{"x", "--kind", "novel"}, {"x", "--as-of", "yesterday"}, {"x", "--node", "No Name"}, {strings.Repeat("x", api.MaxContextGoal+1)},
	} {
		h.Want(cli.ExitUsage, append([]string{"context", "query"}, args...))
	}
	if len(h.queries) > 0 {
		t.Errorf("asked %+v", h.queries)
	}
	h.refusal = api.Errorf(api.CodeForbidden, "not you")
	h.Want(cli.ExitNoAccess, []string{"context", "query", "x"})
}

func TestConsentsAreGivenAndTakenBack(t *testing.T) {
	h := newContextHub(t)
	h.list.Providers = []api.ContextProvider{{ID: "beta", Name: "beta\x1b[2J", Where: "https://b.example", DataFlow: ocp.DataFlow{Reads: true, Egress: true}, Shown: "sha256:1"}}
	wantText(t, h.Want(0, []string{"context", "consent", "beta", "--scope", "goals go to beta"}).Err,
		"beta calls itself beta, is at https://b.example, and what it does with data is: reads, leaves this machine\n", "meshctl context revoke beta")
	h.Want(0, []string{"context", "consent", "beta/docs", "--scope", "s"})
	h.Want(0, []string{"context", "revoke", "beta/docs"})
	if got, want := strings.Join(h.asked, "\n"), strings.Join([]string{
		`PUT /v1/context/consents/beta {"scope":"goals go to beta","shown":"sha256:1"}`,
		`PUT /v1/context/consents/beta/docs {"scope":"s","shown":"nothing"}`,
		`DELETE /v1/context/consents/beta/docs `,
	}, "\n"); got != want {
		t.Errorf("asked\n%s", got)
	}
	for _, args := range [][]string{
		{"consent"}, {"consent", "beta"}, {"consent", "beta", "--scope", " "}, {"consent", "No Name", "--scope", "s"}, {"consent", "a/b/c", "--scope", "s"},
		{"revoke"}, {"revoke", "a/"}, {"revoke", "a", "b"}, {"bogus"},
	} {
		h.Want(cli.ExitUsage, append([]string{"context"}, args...))
	}
}

func TestProvidersAreListedWithTheirConsents(t *testing.T) {
	h := newContextHub(t)
	at := time.Date(2026, 11, 30, 10, 0, 0, 0, time.Local)
	h.list.Providers = []api.ContextProvider{
		{ID: "beta", Name: "beta", DataFlow: ocp.DataFlow{Egress: true}, NeedsConsent: true, Consent: &api.ContextConsent{Scope: "goals\x1b[2J", GrantedAt: at}},
		{ID: "beta/docs", Name: "Docs", Kinds: []string{"doc", "snippet"}, Where: "https://docs.example", DataFlow: ocp.DataFlow{Egress: true}, NeedsConsent: true, Error: "down"},
		{ID: "beta/memory", Name: "memory"},
		{ID: "gamma", Name: "gamma", NeedsConsent: true, Consent: &api.ContextConsent{Scope: "s"}, Changed: []string{"URL"}},
	}
	out := h.Want(0, []string{"context", "providers"}).Out
	want := "" +
		"ID           NAME    KINDS        SENDS ON  CONSENT                      WHERE\n" +
		"beta         beta    -            yes       2026-11-30 10:00:00: goals   -\n" +
		"beta/docs    Docs    doc snippet  yes       needed                       https://docs.example (down)\n" +
		"beta/memory  memory  -            no        not needed                   -\n" +
		"gamma        gamma   -            no        needed again, changed: URL   -\n"
	if strings.Join(strings.Fields(out), " ") != strings.Join(strings.Fields(want), " ") {
		t.Errorf("got\n%swant\n%s", out, want)
	}
	if got := jsonLines(t, h.Want(0, []string{"context", "providers", "--json"}).Out); len(got) != 4 || got[1]["id"] != "beta/docs" {
		t.Errorf("got %v", got)
	}
}

func TestTheLogListsWhatQueriesCostAndWhereTheyWent(t *testing.T) {
	h := newContextHub(t)
	h.records = api.ContextRecords{More: true, Queries: []api.ContextRecord{{
		ID: "ctx_1", At: time.Now(), Asker: api.Party{Name: "laptop"}, Goal: "how to\x1b[2J sign", MaxTokens: 500, Tokens: 12, Tasks: []string{"laptop-1"},
		Frames: []ocp.Used{{Number: 1}}, Legs: []api.ContextLeg{{Node: "beta", Provider: "memory", Outcome: api.ContextFrames}, {Node: "gamma", Outcome: api.ContextFailed}},
	}}}
	r := h.Want(0, []string{"context", "log", "--limit", "7"})
	wantText(t, r.Out, "laptop", "12/500", "beta/memory gamma (failed)", "laptop-1", "how to sign")
	wantText(t, r.Err, "--limit")
	if h.asked[0] != "/v1/context/queries?limit=7" {
		t.Errorf("asked %v", h.asked)
	}
	if got := jsonLines(t, h.Want(0, []string{"context", "log", "--json"}).Out); len(got) != 1 || got[0]["id"] != "ctx_1" {
		t.Errorf("got %v", got)
	}
	h.Want(cli.ExitUsage, []string{"context", "log", "--limit", "0"})
}

func TestADispatchHasItsContextBelowTheText(t *testing.T) {
	h := newContextHub(t)
	h.result = found()
	h.result.Legs = append(h.result.Legs, api.ContextLeg{Node: "gamma", Outcome: api.ContextAsks, Error: "no consent"})
	r := h.Want(0, []string{"dispatch", "beta", "--detach", "--context", "how to sign", "--context-tokens", "900", "--context-node", "beta", "--context-node", "gamma", "--", "sign the release"})
	wantText(t, r.Err, "1 frame, ", "of 900 tokens, 1 provider; query ctx_1", "gamma: not asked, nothing was sent: no consent")
	if q := h.queries[0]; q.Goal != "how to sign" || q.MaxTokens != 900 || !q.Compose || fmt.Sprint(q.Nodes) != "[beta gamma]" {
		t.Errorf("asked %+v", q)
	}
	d := h.made[0]
	quote, ok := strings.CutPrefix(d.Text, "sign the release\n\n")
	if !ok || !ocp.IsQuote(quote) || !strings.Contains(quote, "[1] digest 3 of beta") || d.ContextQuery != "ctx_1" {
		t.Errorf("dispatched %q, query %q", d.Text, d.ContextQuery)
	}
	// A text that has its end of line already is parted by one blank line, too.
	h.Want(0, []string{"dispatch", "beta", "--detach", "--context", "g"}, typed("sign the release\n"))
	if !strings.HasPrefix(h.made[1].Text, "sign the release\n\n"+quote[:20]) {
		t.Errorf("dispatched %q", h.made[1].Text)
	}
}

func TestADispatchGoesWithoutContextWhenNothingIsFound(t *testing.T) {
	h := newContextHub(t)
	h.result = api.ContextResult{ID: "ctx_1", Legs: []api.ContextLeg{}}
	r := h.Want(0, []string{"dispatch", "beta", "--detach", "--context", "g", "--", "do it"})
	wantText(t, r.Err, "0 frames", "nobody was asked")
	if d := h.made[0]; d.Text != "do it" || d.ContextQuery != "" {
		t.Errorf("dispatched %+v", d)
	}
}

func TestContextThatCannotBeAskedForStopsTheDispatch(t *testing.T) {
	h := newContextHub(t)
	for _, args := range [][]string{
		{"--context", ""}, {"--context", " "}, {"--context-tokens", "5"}, {"--context-node", "beta"}, {"--context", "g", "--context-tokens", "0"}, {"--context", "g", "--context-node", "No Name"},
	} {
		h.Want(cli.ExitUsage, append(append([]string{"dispatch", "beta", "--detach"}, args...), "--", "do it"))
	}
	if len(h.queries) > 0 {
		t.Errorf("asked %+v", h.queries)
	}
	h.refusal = api.Errorf(api.CodeNotFound, "no node is named gamma")
	wantText(t, h.Want(cli.ExitUsage, []string{"dispatch", "beta", "--detach", "--context", "g", "--context-node", "gamma", "--", "do it"}).Err, "nothing was dispatched")
	if len(h.made) > 0 {
		t.Errorf("dispatched %+v", h.made)
	}
}

func TestWhatDoesNotFitIsLeftOutAndTheTaskNeverCut(t *testing.T) {
	h := newContextHub(t)
	h.result = found()
	big := cited("beta", "f2", strings.Repeat("x", 300<<10))
	h.result.Frames = append(h.result.Frames, big, cited("beta", "f3", "small"))
	task := strings.Repeat("t", 800<<10)
	r := h.Want(0, []string{"dispatch", "beta", "--detach", "--context", "g"}, typed(task))
	wantText(t, r.Err, "1 frame left out", "2 frames")
	text := h.made[0].Text
	if !strings.HasPrefix(text, task+"\n\n") || len(text) > api.MaxText || !strings.Contains(text, "small") || strings.Contains(text, "xxx") {
		t.Errorf("dispatched %d bytes", len(text))
	}
	// No room at all.
	h.result.Frames = []ocp.Cited{big}
	r = h.Want(0, []string{"dispatch", "beta", "--detach", "--context", "g"}, typed(task))
	wantText(t, r.Err, "1 frame left out", "0 frames")
	if d := h.made[1]; d.Text != task || d.ContextQuery != "" {
		t.Errorf("dispatched %d bytes for query %q", len(d.Text), d.ContextQuery)
	}
}

func TestARepeatUnderTheSameIDIsTheSameDispatch(t *testing.T) {
	h := newContextHub(t)
	h.result = found()
	args := []string{"dispatch", "beta", "--detach", "--id", "laptop-1", "--context", "g", "--", "sign"}
	h.Want(0, args)
	h.result.Frames = []ocp.Cited{cited("beta", "f9", "something else is found now")}
	wantText(t, h.Want(0, args).Err, "dispatched before")
	if len(h.queries) != 1 || h.made[0].Text != h.made[1].Text {
		t.Errorf("asked %d times, the text is another: %v", len(h.queries), h.made[0].Text != h.made[1].Text)
	}
	// Another task under the id is not taken for it: the hub says that they differ.
	h.Want(0, append(args[:len(args)-1:len(args)-1], "sign it"))
	if !strings.HasPrefix(h.made[2].Text, "sign it\n\n") || len(h.queries) != 2 {
		t.Errorf("dispatched %q", h.made[2].Text)
	}
}
