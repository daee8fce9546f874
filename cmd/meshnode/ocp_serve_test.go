package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/cmd/internal/clitest"
	"opencode-mesh/node"
	"opencode-mesh/node/ocp/provider"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/ocp"
)

// itself is the first argument of a child that is meshnode.
const itself = "meshnode-under-test"

// ask is a host's conversation.
const ask = `{"type":"handshake","protocol_version":"contextgraph/1.0"}` + "\n" +
	`{"type":"query","id":"1","query":{"goal":"walrus","max_frames":8,"max_tokens":1000}}` + "\n" + `{"type":"shutdown"}` + "\n"

func saying(text string) func(*cli.App) {
	return func(app *cli.App) { app.Stdin = strings.NewReader(text) }
}

func TestServeGivesHostsWhatTheRunningNodeRemembers(t *testing.T) {
	t.Parallel()
	m := newMachine(t, clitest.StartHub(t))
	m.join("alpha")
	r := m.online("alpha", m.demo())
	m.hub.AwaitTask(m.dispatch("alpha", "count the walrus"), api.StateDone)
	r.Stop()
	r = m.online("alpha", m.demo()) // what is new is asked for after a hello
	o := node.NewOperator(m.data)
	for until := time.Now().Add(60 * time.Second); ; {
		got, err := o.Remembered(t.Context(), ocp.Query{Goal: "walrus", MaxFrames: 8, MaxTokens: 1000})
		if err != nil || time.Now().After(until) {
			t.Fatalf("remembered %v, %v", got, err)
		}
		if len(got.Frames) > 0 {
			break
		}
	}
	lines := strings.Split(m.Want(0, []string{"ocp", "serve", "--stdio"}, saying(ask)).Out, "\n")
	if len(lines) != 3 || lines[2] != "" {
		t.Fatalf("answered %q", lines)
	}
	wantText(t, lines[0], `"protocol_version":"contextgraph/1.0"`, "opencode-mesh memory")
	wantText(t, lines[1], `"id":"1"`, `"kind":"episode"`, "walrus")

	// A foreign host starts it with an environment of PATH and HOME.
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := []string{"ocp", "inspect", "stdio", "--query", "walrus", "--", self, itself, "ocp", "serve", "--stdio", "--data", m.data}
	wantText(t, m.Want(0, child).Out, "frame  ", "conformant")

	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("a secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	served := m.Start([]string{"ocp", "serve", "--http", "127.0.0.1:0", "--token-file", token})
	served.Out.AwaitText(t, "\n")
	url := strings.TrimSuffix(strings.TrimPrefix(served.Out.String(), "listening "), "\n")
	wantText(t, m.Want(0, []string{"ocp", "inspect", "http", "--query", "walrus", "--protocol", "contextgraph/1.0", "--token-file", token, url}).Out, "frame  ", "conformant")
	m.Want(cli.ExitNotDone, []string{"ocp", "inspect", "http", url})
	if res := served.Stop(); res.Code != 0 {
		t.Errorf("exit code %d: %s", res.Code, res.Err)
	}
	r.Stop()
	res := m.Want(0, []string{"ocp", "serve", "--stdio"}, saying(ask))
	wantText(t, res.Out, `"code":"unavailable"`, "meshnode run")
	wantText(t, res.Err, "no node runs")
}

func TestServeRefusesAWrongCommandLine(t *testing.T) {
	t.Parallel()
	m := newMachine(t, nil)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{}, {"--stdio", "--http", "127.0.0.1:0"}, {"--stdio", "--token-file", token}, {"--http", "7700"}, {"--http", "0.0.0.0:0"}, {"--http", ":0"},
		{"--http", "192.0.2.7:0"}, {"--http", "example.org:0"}, {"--http", "127.0.0.1:0", "--token-file", token}, {"--http", "127.0.0.1:0", "--token-file", ""}, {"x", "--stdio"},
	} {
		m.Want(cli.ExitUsage, append([]string{"ocp", "serve"}, args...))
	}
}

// sourceFunc is a provider's source as a function.
type sourceFunc func(context.Context) (ocp.Result, error)

func (f sourceFunc) Query(ctx context.Context, _ ocp.Query) (ocp.Result, error) { return f(ctx) }

func TestAnAnswerThatIsBeingGivenIsGivenWholeBeforeServingEnds(t *testing.T) {
	t.Parallel()
	in, host := io.Pipe()
	defer host.Close()
	var out bytes.Buffer
	m := &Main{app: &cli.App{Stdin: in, Stdout: &out}}
	asked := make(chan struct{})
	p := provider.New(provider.Config{Name: "test", Version: "1", Source: sourceFunc(func(ctx context.Context) (ocp.Result, error) {
		close(asked)
		<-ctx.Done()
		return ocp.Result{}, &ocp.Error{Code: ocp.CodeShuttingDown, Message: "the last answer"}
	})})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- m.serveStdio(ctx, p) }()
	go func() { _, _ = io.WriteString(host, strings.TrimSuffix(ask, `{"type":"shutdown"}`+"\n")) }()
	<-asked
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if got := out.String(); strings.Count(got, "\n") != 2 || !strings.HasSuffix(got, "the last answer\"}\n") {
		t.Errorf("answered %q", got)
	}
}
