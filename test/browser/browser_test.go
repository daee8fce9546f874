//go:build browser

// Package browser works a node's real opencode as a person does who sits elsewhere:
// in a browser and in a terminal, through meshctl, hub and node. It needs Chromium
// and tmux (make tools-browser) and belongs to make test-all.
package browser

import (
	"testing"

	"opencode-mesh/test/fleet"
	"opencode-mesh/test/opencodebin"
	"opencode-mesh/test/stubllm"
)

func TestMain(m *testing.M) { fleet.Main(m) }

// seat is a controller of a mesh whose node alpha supervises a real opencode.
type seat struct {
	ctl  *fleet.Ctl
	node *fleet.Node
	// env is an environment for an opencode on the controller's side.
	env []string
}

func newSeat(t *testing.T, nodeArgs ...string) seat {
	t.Helper()
	llm := stubllm.Start(t)
	f := fleet.New(t)
	env, bin := opencodebin.Env(t, opencodebin.Options{ModelURL: llm.URL()}), opencodebin.Find(t)
	n := f.Node("alpha", fleet.Environ(env), fleet.Args(append([]string{"--agent", "opencode", "--opencode-bin", bin}, nodeArgs...)...))
	ctl := f.Ctl("desk")
	ctl.Healthy("alpha")
	return seat{ctl: ctl, node: n, env: opencodebin.Env(t, opencodebin.Options{ModelURL: llm.URL()})}
}
