package client_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"opencode-mesh/hub/client"
	"opencode-mesh/protocol/api"
)

func TestSessionsAreAskedForByWhatIsNamed(t *testing.T) {
	s := newStub(t, func(_ int, w http.ResponseWriter, _ *http.Request) { give(w, struct{}{}) })
	c, ctx := s.client(""), context.Background()
	_, err1 := c.Sessions(ctx, "", "", 0)
	_, err2 := c.Sessions(ctx, "ci", "beta", 9)
	_, err3 := c.Session(ctx, client.Caller, "be/ta", "a&b")
	_, err4 := c.Digests(ctx, "ci", "beta", "shop")
	_, err5 := c.Digests(ctx, client.Caller, "beta", "")
	_, err6 := c.Artifacts(ctx, "t/1")
	if err := errors.Join(err1, err2, err3, err4, err5, err6); err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, call := range s.seen() {
		paths = append(paths, call.method+" "+call.path)
	}
	want := []string{
		"GET /v1/bindings?", "GET /v1/bindings?controller=ci&fills=9&target=beta", "GET /v1/bindings/-/be%2Fta?workspace=a%26b",
		"GET /v1/digests?controller=ci&target=beta&workspace=shop", "GET /v1/digests?controller=-&target=beta", "GET /v1/tasks/t%2F1/artifacts",
	}
	if !slices.Equal(paths, want) {
		t.Errorf("got %q", paths)
	}
}

func TestAnOperationIsSentAgainWithTheSameID(t *testing.T) {
	s := newStub(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n < 3 {
			hangUp(w)
		}
		give(w, api.Task{Task: "laptop-1-aaaa", Op: api.OpCompact})
	})
	task, err := s.client("").Operate(context.Background(), client.Caller, "beta", api.OpCompact, api.Operate{ID: "laptop-1-aaaa", Workspace: "shop"})
	if err != nil || task.Op != api.OpCompact {
		t.Fatalf("%+v %v", task, err)
	}
	calls := s.seen()
	if len(calls) != 3 || calls[0].method != http.MethodPost || calls[0].path != "/v1/bindings/-/beta/compact" || calls[0].body != calls[2].body || !strings.Contains(calls[0].body, "laptop-1-aaaa") {
		t.Errorf("calls: %+v", calls)
	}
}
