package mcp_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"opencode-mesh/test/fleet"
)

// pinned is the inspector's version in the Makefile, whose directory has it too.
var pinned = regexp.MustCompile(`(?m)^INSPECTOR +\?= (\S+)$`)

// inspector is the start of the command line of the official MCP inspector.
func inspector(t *testing.T) []string {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	version := pinned.FindSubmatch(makefile)
	if version == nil {
		t.Fatal("the Makefile names no version of the inspector")
	}
	launcher := filepath.Join(root, ".tools", "mcp-inspector-"+string(version[1]), "node_modules", "@modelcontextprotocol", "inspector", "clients", "launcher", "build", "index.js")
	if _, err := os.Stat(launcher); err != nil {
		t.Fatalf("the MCP inspector is not installed: run `make tools` (%v)", err)
	}
	node, err := exec.LookPath("node")
	if err != nil {
		t.Fatalf("the MCP inspector needs Node.js 20 or newer: %v", err)
	}
	return []string{node, launcher, "--cli"}
}

// inspect runs one method of the inspector against a member's server.
func inspect(t *testing.T, dir, member string, method ...string) map[string]any {
	t.Helper()
	line := append(inspector(t), "-e", "OPENCOMMS_MEMBER_ID="+member, fleet.Bin(t, "meshnode"), "mcp", "--project", dir)
	line = append(line, method...)
	cmd := exec.CommandContext(t.Context(), line[0], line[1:]...)
	cmd.Env = environ(t, "")
	cmd.Dir = t.TempDir()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s\n%s", strings.Join(method, " "), err, out.String(), errs.String())
	}
	var m map[string]any
	if err := json.Unmarshal(out.Bytes(), &m); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(method, " "), err, out.String())
	}
	return m
}

func TestTheOfficialInspectorListsAndCallsTools(t *testing.T) {
	dir := project(t, "sess_a", "sess_b")
	// With --strict, what is wrong with a schema ends the inspector with an error.
	tools := list(t, inspect(t, dir, "sess_a", "--method", "tools/list", "--strict"), "tools")
	if len(tools) != len(allTools)-1 {
		t.Errorf("%d tools are listed, want %d", len(tools), len(allTools)-1)
	}
	for _, tool := range tools {
		if _, known := allTools[tool["name"].(string)]; !known {
			t.Errorf("%v", tool)
		}
	}
	call := func(member, tool string, pairs ...string) map[string]any {
		t.Helper()
		m := inspect(t, dir, member, append([]string{"--method", "tools/call", "--tool-name", tool, "--tool-arg"}, pairs...)...)
		if m["isError"] != false {
			t.Fatalf("%s: %v", tool, m)
		}
		r := object(t, list(t, m, "content")[0]["text"].(string))
		if r["ok"] != true {
			t.Fatalf("%s: %v", tool, r)
		}
		data, _ := r["data"].(map[string]any)
		return data
	}
	call("sess_a", "opencomms_create", "channel=review", "role=Builder", "role_prompt=Build")
	call("sess_b", "opencomms_join", "channel=review", "role=Reviewer", "role_prompt=Review")
	call("sess_a", "opencomms_send", "channel=review", "content=hello from the inspector", "broadcast=true")
	if m := list(t, call("sess_b", "opencomms_pull", "channel=review"), "messages"); len(m) != 1 || !strings.Contains(m[0]["framed"].(string), "hello from the inspector") {
		t.Errorf("%v", m)
	}
}
