//go:build browser

package dashboard

import (
	"context"
	"log/slog"
	"net/http"
	"path/filepath"
	"testing"

	"opencode-mesh/auth"
	"opencode-mesh/node/link"
	"opencode-mesh/protocol/api"
	"opencode-mesh/test/fleet"
)

// fakeNode is a machine that answers the hub as a test says: what a real node would
// never say.
type fakeNode struct {
	handler http.Handler
	drained chan struct{}
}

// newFakeNode joins one and connects it until the test ends.
func newFakeNode(t *testing.T, f *fleet.Fleet, name string, handler http.Handler) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	if out := f.Join(f.Hub.Link, "--name", name, "--data", dir); out.Code != 0 {
		t.Fatalf("%+v", out)
	}
	profile, err := auth.LoadProfile(filepath.Join(dir, "node.json"))
	if err != nil {
		t.Fatal(err)
	}
	l, err := link.New(link.Config{Profile: profile, Host: &fakeNode{handler: handler, drained: make(chan struct{})}, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = l.Run(ctx) // it ends with the test
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
}

func (n *fakeNode) Hello(context.Context) (api.Hello, error) {
	return api.Hello{Protocol: api.ProtocolVersion, JournalID: "j1", Epoch: 1, Agent: api.AgentStatus{Kind: "fake", Health: api.HealthHealthy}, Instance: "one"}, nil
}

func (n *fakeNode) Fork(context.Context) error { return nil }
func (n *fakeNode) Welcomed(api.Welcome)       {}
func (n *fakeNode) Handler() http.Handler      { return n.handler }
func (n *fakeNode) Attach(*link.Client)        {}
func (n *fakeNode) Detach()                    {}
func (n *fakeNode) Changed() <-chan struct{}   { return nil }
func (n *fakeNode) Supersede()                 {}
func (n *fakeNode) Revoke()                    {}
func (n *fakeNode) Drained() <-chan struct{}   { return n.drained }
func (n *fakeNode) Report(context.Context) api.NodeReport {
	return api.NodeReport{Agent: api.AgentStatus{Kind: "fake", Health: api.HealthHealthy}}
}
