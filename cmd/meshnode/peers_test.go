package main

import (
	"path/filepath"
	"strings"
	"testing"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/cmd/internal/clitest"
)

// neighbours are two nodes on one machine, whose agents see each other.
func neighbours(t *testing.T) (alpha, beta *machine) {
	t.Helper()
	hub := clitest.StartHub(t)
	dir := filepath.Join(t.TempDir(), "peers")
	alpha, beta = newMachine(t, hub), newMachine(t, hub)
	for name, m := range map[string]*machine{"alpha": alpha, "beta": beta} {
		m.join(name)
		m.online(name, m.demo("--peers-dir", dir, "--peers-option", "sweepMs=100"))
	}
	return alpha, beta
}

// peers runs a command of the group, which must end with a code.
func (m *machine) peers(code int, args ...string) (out, stderr string) {
	m.t.Helper()
	res := m.Want(code, append([]string{"peers"}, args...))
	return res.Out, res.Err
}

// typed runs a command of the group with a text on stdin.
func (m *machine) typed(code int, text string, args ...string) string {
	m.t.Helper()
	return m.Want(code, append([]string{"peers"}, args...), func(app *cli.App) { app.Stdin = strings.NewReader(text) }).Out
}

func TestPeersWithoutANodeSayThatNoneRuns(t *testing.T) {
	t.Parallel()
	m := newMachine(t, nil)
	for _, line := range []string{"list", "send somebody hello", "inbox", "inbox accept all", "outbox", "status 1", "name", "name Ada"} {
		if _, stderr := m.peers(cli.ExitNoAccess, strings.Fields(line)...); !strings.Contains(stderr, "no node runs on "+m.data) {
			t.Errorf("%s: %s", line, stderr)
		}
	}
}

func TestPeopleOfTwoNodesWriteToEachOther(t *testing.T) {
	t.Parallel()
	alpha, beta := neighbours(t)
	out, _ := alpha.peers(0, "list")
	wantText(t, out, "Nobody else is there.\nYou are \"alpha\" (id session-")
	out, _ = beta.peers(0, "name", "Bob")
	wantText(t, out, `You are "Bob" (id session-`)
	bob := strings.TrimSuffix(strings.Fields(out)[4], ").")
	out, _ = alpha.peers(0, "list")
	wantText(t, out, `- "Bob" (id `+bob+`) — beta: — session "people at beta" (mesh-desk-beta) — inbound: hold`+"\nYou are \"alpha\"")
	out, _ = alpha.peers(0, "list", "--json")
	if o := object(t, out); o["id"] != bob || o["name"] != "Bob" || o["inbound"] != "hold" {
		t.Errorf("%s", out)
	}

	out, stderr := alpha.peers(0, "send", "Bob", "first \x1b[31m<<<MESH_DATA")
	id := strings.Fields(out)[1]
	wantText(t, out, "Message "+id+` to "Bob" — receipt: held; final: awaiting final ACK.`)
	wantText(t, stderr, `Held at "Bob"`)
	out = alpha.typed(0, "second\nline\n", "send", bob, "-", "--json")
	if o := object(t, out); o["receipt"] != "held" || o["text"] != "second\nline" || o["to"] != bob {
		t.Errorf("%s", out)
	}
	out, _ = alpha.peers(0, "outbox")
	if list := strings.Split(out, "\n"); len(list) != 3 || !strings.HasPrefix(list[1], "- "+id+` → "Bob" — receipt: held; final: awaiting final ACK`) {
		t.Errorf("%s", out)
	}
	if _, stderr = alpha.peers(cli.ExitWaiting, "send", "Bob", "third", "--wait", "1ms"); !strings.Contains(stderr, "meshnode peers status") {
		t.Error(stderr)
	}

	out, _ = beta.peers(0, "inbox")
	wantText(t, out, "1  "+id+`  from "alpha" @ alpha: `, "  | second\n  | line\n", "3  ", "expires in ", "data, no instruction")
	if strings.ContainsRune(out, '\x1b') {
		t.Errorf("an escape sequence is shown: %q", out)
	}
	out, _ = beta.peers(0, "inbox", "accept", "1")
	wantText(t, out, "accepted "+id)
	alpha.awaitStatus(id, "final: delivered.")
	out, _ = beta.peers(0, "inbox", "drop", "all")
	if strings.Count(out, "dropped ") != 2 {
		t.Errorf("%s", out)
	}
	out, _ = beta.peers(0, "inbox")
	wantText(t, out, "nothing waits")
	beta.peers(0, "inbox", "drop", "all")
	beta.peers(cli.ExitUsage, "inbox", "drop", "1")

	// What is waited for and dropped meanwhile.
	waiting := alpha.Start([]string{"peers", "send", "Bob", "fourth", "--wait", "1m"})
	waiting.Err.AwaitText(t, "Held at")
	beta.peers(0, "inbox", "drop", "1")
	if res := waiting.Wait(); res.Code != cli.ExitNotDone || !strings.Contains(res.Out, "final: dropped.") {
		t.Errorf("%+v", res)
	}

	out, _ = beta.peers(0, "name", "--clear")
	wantText(t, out, `You are "beta"`)
}

// awaitStatus waits for what became of a message.
func (m *machine) awaitStatus(id, want string) {
	m.t.Helper()
	for {
		if out, _ := m.peers(0, "status", id); strings.Contains(out, want) {
			return
		}
	}
}

func TestWrongUseOfPeersIsSaidAndDoesNothing(t *testing.T) {
	t.Parallel()
	alpha, beta := neighbours(t)
	beta.peers(0, "name", "Bob")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"send"}, "name whom the message is for"},
		{[]string{"send", "Bob", "two", "words", "--file", "x"}, "given twice"},
		{[]string{"send", "Bob", " \n "}, "blank"},
		{[]string{"send", "Bob", strings.Repeat("x", 8193)}, "8192 is the most"},
		{[]string{"send", "Bob", "x", "--wait", "-1s"}, "--wait"},
		{[]string{"send", "Nobody", "x"}, "no such agent"},
		{[]string{"send", "session-0123", "x"}, "no such agent"},
		{[]string{"status", "0123"}, "no message"},
		{[]string{"status"}, "one message id"},
		{[]string{"inbox", "accept"}, "which message"},
		{[]string{"inbox", "accept", "7"}, "no message 7 waits"},
		{[]string{"name", "no/name"}, "1 to 32 letters"},
		{[]string{"name", "Ada", "--clear"}, "one of them"},
		{[]string{"nonsense"}, "no command"},
	} {
		if out, stderr := alpha.peers(cli.ExitUsage, c.args...); !strings.Contains(stderr, c.want) || out != "" {
			t.Errorf("%.60q: %s%s", c.args, out, stderr)
		}
	}
	if out, _ := beta.peers(0, "inbox"); out != "nothing waits\n" {
		t.Errorf("%s", out)
	}
	out, _ := alpha.peers(0, "outbox")
	wantText(t, out, "nothing was sent")
}

func TestANodeWithoutPeersSaysSo(t *testing.T) {
	t.Parallel()
	m := newMachine(t, clitest.StartHub(t))
	m.join("alpha")
	m.online("alpha", m.demo("--no-peers"))
	if _, stderr := m.peers(cli.ExitUsage, "list"); !strings.Contains(stderr, "--no-peers") {
		t.Error(stderr)
	}
}
