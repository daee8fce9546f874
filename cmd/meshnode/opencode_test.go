package main

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"opencode-mesh/protocol/mesh"
	"opencode-mesh/test/opencodebin"
	"opencode-mesh/test/stubllm"
)

func TestOpencodeReadsTheInstalledInstructionsBesideItsUsers(t *testing.T) {
	t.Parallel() // the real opencode takes a while to start
	m := newMachine(t, nil)
	model := stubllm.Start(t)
	own := filepath.Join(m.Home, "own.md")
	if err := replaceFile(own, []byte("the user's own instructions")); err != nil {
		t.Fatal(err)
	}
	env := opencodebin.Env(t, opencodebin.Options{ModelURL: model.URL(), Home: m.Home, Config: map[string]any{"instructions": []string{own}}})
	m.Want(0, []string{"instructions", "--install"})

	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, opencodebin.Find(t), "run", "hello")
	cmd.Env, cmd.Dir = env, m.workspace
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var systems []string
	for _, r := range model.Requests() {
		systems = append(systems, r.System)
	}
	all := strings.Join(systems, "\n")
	if !strings.Contains(all, strings.TrimSpace(mesh.Conduct())) || !strings.Contains(all, "the user's own instructions") {
		t.Errorf("the model was told:\n%s", all)
	}
}
