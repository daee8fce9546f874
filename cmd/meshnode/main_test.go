package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/cmd/internal/clitest"
	"opencode-mesh/node/ocp/ocptest"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
)

func TestMain(m *testing.M) {
	ocptest.Main()
	if len(os.Args) > 1 && os.Args[1] == itself {
		os.Exit(NewMain(cli.System("MESHNODE")).Run(context.Background(), os.Args[2:]))
	}
	clitest.Main(m)
}

// machine is a shell with meshnode on a machine of its own.
type machine struct {
	*clitest.Shell
	t         *testing.T
	hub       *clitest.Hub
	data      string
	workspace string
}

func newMachine(t *testing.T, hub *clitest.Hub) *machine {
	t.Helper()
	m := &machine{
		Shell: clitest.NewShell(t, "MESHNODE", func(app *cli.App) func(context.Context, []string) int { return NewMain(app).Run }),
		t:     t, hub: hub, data: filepath.Join(t.TempDir(), "node"), workspace: t.TempDir(),
	}
	m.Set("MESHNODE_DATA", m.data)
	m.Set("MESH_PASSWORD", clitest.Password)
	return m
}

// join makes the machine a node.
func (m *machine) join(name string) {
	m.t.Helper()
	m.Want(0, []string{"join", m.hub.Link, "--name", name})
}

// demo is a command line that runs the node with the demo agent.
func (m *machine) demo(args ...string) []string {
	self, err := os.Executable()
	if err != nil {
		m.t.Fatal(err)
	}
	return append(append([]string{"run", "--workspace", "main=" + m.workspace, "--agent", "command"}, args...), "--", self, "demo-agent")
}

// online starts a command line and waits until the node is there.
func (m *machine) online(name string, args []string) *clitest.Running {
	m.t.Helper()
	r := m.Start(args)
	m.hub.AwaitState(name, api.NodeOnline)
	return r
}

// dispatch gives a task to a node and returns its id.
func (m *machine) dispatch(target, text string) string {
	m.t.Helper()
	id := mesh.NewID("overseer")
	_, err := m.hub.Operator.Dispatch(m.t.Context(), api.Dispatch{Text: text, Targets: []api.DispatchTarget{{Name: target, ID: id}}})
	if err != nil {
		m.t.Fatal(err)
	}
	return id
}

// wantText fails unless text holds all of the parts.
func wantText(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%q is missing in:\n%s", p, text)
		}
	}
}

// object decodes the one JSON object of a text.
func object(t *testing.T, text string) map[string]any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return v
}

func TestEveryCommandShowsAnExampleThatParses(t *testing.T) {
	clitest.Examples(t, NewMain(&cli.App{}).root())
}

func TestTheAgentsHelpersArePickedBeforeAnySetting(t *testing.T) {
	for args, want := range map[string]bool{"shim dir 1": true, "guard": true, "demo-agent": true, "": false, "run": false, "--config x shim": false} {
		if _, ok := helper(strings.Fields(args)); ok != want {
			t.Errorf("%q is a helper: %v", args, ok)
		}
	}
}
