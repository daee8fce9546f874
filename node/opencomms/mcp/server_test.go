package mcp

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"opencode-mesh/node/mcp"
	"opencode-mesh/node/opencomms"
	"opencode-mesh/node/opencomms/engine"
	ocm "opencode-mesh/protocol/opencomms"
)

// patience is how long a test waits for something that must come.
const patience = 2 * time.Minute

func TestAPushMemberIsWokenForWhatWasSentInItsPause(t *testing.T) {
	dir := t.TempDir()
	p, err := opencomms.Open(dir, opencomms.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []engine.NewMember{
		{Session: "sess_a", Role: "A", RolePrompt: "x", Mode: ocm.ModePull, Surface: ocm.SurfaceMCP},
		{Session: "ses_push", Role: "B", RolePrompt: "x", Mode: ocm.ModePush},
	} {
		if _, err = p.Create(t.Context(), engine.CreateRequest{Channel: "c", Member: &m}); engine.CodeOf(err) == engine.ChannelExists {
			_, err = p.Join(t.Context(), engine.JoinRequest{Channel: "c", Member: m})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	in, client := io.Pipe()
	answers, out := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		m := New(Config{Project: p, Member: "sess_a"})
		err := mcp.Run(context.Background(), mcp.Config{Tools: m.Tools(), In: in, Out: out})
		m.Close()
		ended <- err
		out.Close()
	}()
	fmt.Fprint(client, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}
{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"opencomms_send","arguments":{"channel":"c","content":"x"}}}
`)
	r := bufio.NewReader(answers)
	for range 2 {
		if line, err := r.ReadString('\n'); err != nil || !strings.Contains(line, `"result"`) {
			t.Fatalf("%s, %v", line, err)
		}
	}
	file := filepath.Join(dir, ".opencomms", "state.json")
	sent, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	changes, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	rewritten := false
	for range p.Watch(changes) {
		if now, err := os.Stat(file); err == nil && !os.SameFile(now, sent) && !rewritten {
			rewritten = true
			stop() // ends the watch
		}
	}
	if !rewritten {
		t.Error("the file is as it was after the send")
	}
	client.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
