package provider_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"opencode-mesh/node/ocp/inspect"
	"opencode-mesh/node/ocp/memory"
	"opencode-mesh/node/ocp/provider"
	"opencode-mesh/protocol/ocp"
)

// all asks an index for everything.
type all struct{ x *memory.Index }

func (a all) Query(ctx context.Context, q ocp.Query) (ocp.Result, error) {
	return a.x.Query(ctx, q, memory.Scope{All: true})
}

// filled makes an index that has more for the probe of the suite than fits in its budget.
func filled(t *testing.T) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "memory")
	x, err := memory.Open(memory.Config{Path: dir})
	if err != nil {
		t.Fatal(err)
	}
	var items []memory.Item
	for i := range 24 {
		content := fmt.Sprintf("conformance probe %d: the most relevant frames ", i) + strings.Repeat("über <tags> & \"quotes\" ", 10*i)
		items = append(items, memory.Item{
			ID: fmt.Sprintf("item-%d", i), Kind: memory.Kinds()[i%len(memory.Kinds())], Title: fmt.Sprintf("Probe %d", i), Content: content,
			Label: fmt.Sprintf("probe %d of beta", i), URI: "mesh://beta/probe", Controller: "c", Target: "t", At: time.Date(2026, 1, 1, i, 0, 0, 0, time.UTC),
			Provenance: []ocp.Provenance{{Type: "file", URI: "notes.md", Range: "L1-2", Digest: fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(content)))}},
			Relations:  []ocp.Relation{{Rel: "of", TargetURI: "mesh://beta", DisplayName: "beta"}},
		})
	}
	if err := x.Put(context.Background(), items); err != nil {
		t.Fatal(err)
	}
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// inspected fails for everything that the runner finds, and makes sure that there was
// something to look at.
func inspected(t *testing.T, p *inspect.Provider) {
	t.Helper()
	meeting, err := p.Meet(t.Context())
	if err != nil || meeting.Result == nil || len(meeting.Result.Frames) < 2 {
		t.Fatalf("the probe found %+v, %v", meeting.Result, err)
	}
	report := p.Check(t.Context())
	passed := 0
	for _, c := range report.Checks {
		switch c.Status {
		case inspect.Fail:
			t.Errorf("%s: %s", c.Name, c.Evidence)
		case inspect.Pass:
			passed++
		}
	}
	if passed < 9 {
		t.Errorf("only %d checks passed: %+v", passed, report.Checks)
	}
}

func TestTheConformanceRunnerFindsNothing(t *testing.T) {
	dir := filled(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range []string{ocp.VersionOCP, ocp.VersionContextgraph, ocp.VersionContextgraphDraft} {
		o := inspect.Options{Version: version, Goal: "conformance probe"}
		t.Run("stdio "+version, func(t *testing.T) { inspected(t, inspect.Stdio([]string{self, word, dir}, o)) })
		t.Run("http "+version, func(t *testing.T) {
			x, err := memory.Open(memory.Config{Path: dir})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = x.Close() }()
			s := httptest.NewServer(remembering(x).Handler(provider.HTTPConfig{Token: "secret"}))
			defer s.Close()
			o := o
			o.Token = "secret"
			inspected(t, inspect.HTTP(s.URL+"/ocp", o))
		})
	}
}
