// Package peers runs peers on several machines, each with the directories of its own that
// the original's environment names, a node as a real process and agents beside it, and one
// hub between them.
package peers

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/peers"
	"opencode-mesh/test/fleet"
	"opencode-mesh/test/peerstub"
)

func TestMain(m *testing.M) { fleet.Main(m) }

// patience bounds every wait; only a hang reaches it.
const patience = 4 * time.Minute

// await waits for something that comes by itself.
func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// mesh is machines and the hub that joins them.
type mesh struct {
	*fleet.Fleet
	t    *testing.T
	boss *fleet.Ctl
}

func newMesh(t *testing.T) *mesh {
	t.Helper()
	f := fleet.New(t, "--heartbeat", "1s", "--heartbeat-timeout", "1s")
	return &mesh{Fleet: f, t: t, boss: f.Ctl("boss", "--operator")}
}

// machine is one with a node.
type machine struct {
	*fleet.Node
	m    *mesh
	data string // its XDG_DATA_HOME
}

// machine starts a node that shows its agents as --peers says.
func (m *mesh) machine(name, show string) *machine {
	m.t.Helper()
	home, err := os.MkdirTemp("", "pm") // short: the path of a socket is
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = os.RemoveAll(home) })
	x := &machine{m: m, data: filepath.Join(home, "data")}
	x.Node = m.Node(name, fleet.Env("XDG_DATA_HOME="+x.data, "XDG_RUNTIME_DIR="+filepath.Join(home, "run")),
		fleet.Args("--peers", show, "--peers-option", "sweepMs=200"), m.Demo())
	m.boss.Online(name)
	return x
}

// agent starts an agent beside the node.
func (x *machine) agent(name string, change ...func(*peerstub.Config)) *peerstub.Peer {
	x.m.t.Helper()
	return x.again(name, nil, change...)
}

// again starts one that was there before.
func (x *machine) again(name string, mem *peerstub.Memory, change ...func(*peerstub.Config)) *peerstub.Peer {
	x.m.t.Helper()
	cfg := peerstub.Config{
		StorageDir: filepath.Join(x.data, "opencode-plugin-peers"), Session: "ses_" + x.Name + name, Name: name, Directory: "/srv/" + name, Policy: peers.PolicyAccept,
	}
	for _, f := range change {
		f(&cfg)
	}
	if mem == nil {
		return peerstub.Start(x.m.t, cfg)
	}
	return peerstub.Start(x.m.t, cfg, mem)
}

// sees waits until an agent is shown somebody, who can be written to.
func sees(t *testing.T, p *peerstub.Peer, name string) (found peers.Entry) {
	t.Helper()
	await(t, "a peer called "+name, func() bool {
		for _, e := range p.List() {
			if e.Name == name {
				found = e
				return true
			}
		}
		return false
	})
	return found
}

// send posts a message until it has a receipt, which must be queued.
func send(t *testing.T, p *peerstub.Peer, to, text string, via ...string) (id string) {
	t.Helper()
	id = peers.NewMessageID()
	await(t, "the receipt of "+text, func() bool {
		receipt, err := p.SendAs(id, sees(t, p, to), text, via...)
		if err != nil {
			return false // the node is away
		}
		if receipt != peers.Queued {
			t.Fatalf("the receipt of %q to %s is %q", text, to, receipt)
		}
		return true
	})
	return id
}

// ends waits for the final acknowledgement of a message, and has all of them say so.
func ends(t *testing.T, p *peerstub.Peer, id, status string) {
	t.Helper()
	await(t, "the acknowledgement of "+id+" as "+status, func() bool { return len(p.Acks(id)) > 0 })
	for _, a := range p.Acks(id) {
		if a.Status != status {
			t.Errorf("message %s ended as %q, want %q", id, a.Status, status)
		}
	}
}

// texts are what an agent took, and each once.
func texts(t *testing.T, p *peerstub.Peer) (list []string) {
	t.Helper()
	for _, g := range p.Messages() {
		if slices.Contains(list, g.Text) {
			t.Errorf("%q came twice", g.Text)
		}
		list = append(list, g.Text)
	}
	return list
}

// board is what the hub's operators see of the machine.
func (x *machine) board() (b api.PeerBoard) {
	x.m.t.Helper()
	x.m.boss.Get("/v1/nodes/"+x.Name+"/peers", &b)
	return b
}

// tools is an agent that has meshnode mcp and nothing else.
type tools struct {
	t   *testing.T
	in  io.WriteCloser
	out *bufio.Reader
	n   int
}

func (x *machine) tools(name string) *tools {
	t := x.m.t
	t.Helper()
	cmd := exec.Command(fleet.Bin(t, "meshnode"), "mcp", "--project", x.Work, "--data", x.Dir, "--peer-name", name)
	cmd.Env = []string{"HOME=" + t.TempDir(), "PATH=" + os.Getenv("PATH")}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	a := &tools{t: t, in: in, out: bufio.NewReader(out)}
	a.request("initialize", map[string]any{"protocolVersion": "2025-06-18", "capabilities": map[string]any{}, "clientInfo": map[string]any{"name": "test", "version": "1"}})
	_, _ = fmt.Fprintln(in, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return a
}

func (a *tools) request(method string, params any) []byte {
	a.t.Helper()
	a.n++
	data, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": a.n, "method": method, "params": params})
	if err == nil {
		_, err = fmt.Fprintf(a.in, "%s\n", data)
	}
	if err != nil {
		a.t.Fatal(err)
	}
	line, err := a.out.ReadBytes('\n')
	if err != nil {
		a.t.Fatalf("%s: %v", method, err)
	}
	return line
}

// call calls a tool.
func (a *tools) call(tool string, arguments map[string]any) string {
	a.t.Helper()
	var r struct {
		Result struct {
			Content []struct{ Text string }
			IsError bool
		}
	}
	line := a.request("tools/call", map[string]any{"name": tool, "arguments": arguments})
	if err := json.Unmarshal(line, &r); err != nil || len(r.Result.Content) == 0 || r.Result.IsError {
		a.t.Fatalf("%s: %s", tool, line)
	}
	return r.Result.Content[0].Text
}

// says calls a tool until its answer has a text in it.
func (a *tools) says(tool string, arguments map[string]any, want string) (got string) {
	a.t.Helper()
	await(a.t, tool+" to say "+want, func() bool {
		got = a.call(tool, arguments)
		return strings.Contains(got, want)
	})
	return got
}
