package opencodebin_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"opencode-mesh/test/opencodebin"
)

func TestFindReturnsABinaryOfTheExpectedRelease(t *testing.T) {
	bin := opencodebin.Find(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, "--version")
	cmd.Env = opencodebin.Env(t, opencodebin.Options{ModelURL: "http://127.0.0.1:9/v1"})
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(string(out)); got != opencodebin.Version {
		t.Errorf("version %q, want %q", got, opencodebin.Version)
	}
}

func TestFindPrefersTheVariable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "opencode")
	if err := os.WriteFile(file, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("OPENCODE_BIN", file)
	if got := opencodebin.Find(t); got != file {
		t.Errorf("got %s", got)
	}
}

func TestEnvIsIsolatedAndNamesTheModelServer(t *testing.T) {
	t.Setenv("MESH_PASSWORD", "secret")
	t.Setenv("OPENCODE_CONFIG", "/somewhere")
	home := t.TempDir()
	env := opencodebin.Env(t, opencodebin.Options{Home: home, ModelURL: "http://127.0.0.1:1/v1", Context: 5000,
		Permission: "allow", Config: map[string]any{"snapshot": true}})
	if !slices.Contains(env, "HOME="+home) {
		t.Errorf("HOME is not %s in %q", home, env)
	}
	for _, v := range env {
		if strings.HasPrefix(v, "MESH") || strings.HasPrefix(v, "OPENCODE_CONFIG") {
			t.Errorf("%s was passed on", v)
		}
	}
	raw, err := os.ReadFile(filepath.Join(home, ".config", "opencode", "opencode.json"))
	if err != nil {
		t.Fatal(err)
	}
	var c struct {
		Model      string
		Snapshot   bool
		Permission string
		Provider   map[string]struct {
			Options struct{ BaseURL string }
			Models  map[string]struct{ Limit struct{ Context int } }
		}
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		t.Fatal(err)
	}
	stub := c.Provider[opencodebin.Provider]
	if c.Model != "stub/stub-model" || !c.Snapshot || c.Permission != "allow" ||
		stub.Options.BaseURL != "http://127.0.0.1:1/v1" || stub.Models[opencodebin.Model].Limit.Context != 5000 {
		t.Errorf("configuration %s", raw)
	}
}
