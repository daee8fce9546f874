package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"opencode-mesh/test/fleet"
	"opencode-mesh/test/opencodebin"
	"opencode-mesh/test/stubllm"
)

// TestTheExampleOfTheOpenCommsPageWorksAsPrinted runs every command of a console
// block, in a project that the page calls /home/me/src/shop.
func TestTheExampleOfTheOpenCommsPageWorksAsPrinted(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "shop")
	fleet.Shell(t, t.TempDir(), "mkdir '"+dir+"'")
	p := &page{real: map[string]string{}, shell: func(line string) string {
		return strings.ReplaceAll(fleet.Shell(t, dir, line), dir, "/home/me/src/shop")
	}}
	commands := consoles(t, "docs/opencomms.md")
	if len(commands) < 10 {
		t.Errorf("only %d commands are on the page", len(commands))
	}
	for _, c := range commands {
		p.run(t, c)
	}
}

// TestAnAgentOfOpencodeTalksThroughWhatInstallMemberWrote is the way of a message
// from a person to an agent and back: opencode starts the server that its
// configuration names, and the model uses its tools.
func TestAnAgentOfOpencodeTalksThroughWhatInstallMemberWrote(t *testing.T) {
	t.Parallel()
	llm := stubllm.Start(t)
	dir := t.TempDir()
	comms := func(line string) string { return fleet.Shell(t, dir, "meshnode opencomms "+line) }
	comms("create review")
	comms("install-member --host opencode --id builder")
	if out := comms("join review --as opencode --role Builder --prompt 'Build.'"); !strings.Contains(out, "builder is Builder") {
		t.Fatal(out)
	}
	comms("join review --as reviewer --role Reviewer --prompt 'Review.'")
	comms("send review --to Builder -- which branch is this")

	server := opencodebin.Serve(t, opencodebin.Options{ModelURL: llm.URL()}, dir)
	var servers map[string]struct{ Status, Error string }
	if status := server.Call(t, "GET", "/mcp", nil, &servers); status != 200 || servers["opencomms"].Status != "connected" {
		t.Fatalf("%d: %+v", status, servers)
	}
	var session struct{ ID string }
	if status := server.Call(t, "POST", "/session", map[string]any{}, &session); status != 200 {
		t.Fatalf("POST /session: %d", status)
	}
	// prompt has the model call a tool, and returns what the model then said.
	prompt := func(tool string, args map[string]any) string {
		t.Helper()
		data, err := json.Marshal(args)
		if err != nil {
			t.Fatal(err)
		}
		var answer struct{ Parts []struct{ Type, Text string } }
		status := server.Call(t, "POST", "/session/"+session.ID+"/message", map[string]any{
			"parts": []any{map[string]any{"type": "text", "text": fmt.Sprintf("TOOLNAME:opencomms_%s TOOLARGS:%s", tool, data)}},
		}, &answer)
		var text strings.Builder
		for _, part := range answer.Parts {
			text.WriteString(part.Text)
		}
		if status != 200 {
			t.Fatalf("prompt: %d", status)
		}
		return text.String()
	}
	if said := prompt("opencomms_pull", map[string]any{"channel": "review"}); !strings.Contains(said, `tool output: {"ok":true`) {
		t.Errorf("the model read %s", said)
	}
	if out := comms("history review"); !strings.Contains(out, "Operator to Builder  manual  delivered") {
		t.Errorf("the agent's pull took nothing:\n%s", out)
	}
	prompt("opencomms_send", map[string]any{"channel": "review", "to": "Reviewer", "content": "this is main"})
	if out := comms("inbox review --as Reviewer"); !strings.Contains(out, "Builder in review  manual  pending") || !strings.Contains(out, "  | this is main") {
		t.Errorf("the agent's message is not there:\n%s", out)
	}

	t.Run("a second member of the host is started by the command that is printed", func(t *testing.T) {
		_, command, ok := strings.Cut(comms("install-member --host opencode --id second"), "by\n\n")
		if !ok || !strings.HasSuffix(strings.TrimSpace(command), " opencode") {
			t.Fatal(command)
		}
		// The same environment for another program than its interface.
		line := strings.TrimSuffix(strings.TrimSpace(command), "opencode") + "'" + opencodebin.Find(t) + "' debug config"
		out := fleet.Shell(t, dir, line, opencodebin.Env(t, opencodebin.Options{ModelURL: llm.URL()})...)
		if !strings.Contains(out, `"OPENCOMMS_MEMBER_ID": "second"`) || strings.Contains(out, "builder") {
			t.Errorf("got %s", out)
		}
	})
}
