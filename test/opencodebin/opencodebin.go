// Package opencodebin finds the real opencode binary for tests and gives it an
// environment of its own: home, configuration and data in a temporary directory,
// one model provider (package stubllm), and nothing that reaches for a network.
//
// A test that needs the binary fails without it and says how to install it; it
// is never skipped.
package opencodebin

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

const (
	// Version is the release that the tests are written for.
	Version = "1.18.33"
	// InstallTarget is the make target that installs it under .tools.
	InstallTarget = "make tools"
	// Provider is the one provider of the environment.
	Provider = "stub"
	// Model is its one model.
	Model = "stub-model"
	// DefaultContext is the context size of that model, in tokens.
	DefaultContext = 200000
)

// Find returns the path of the binary: $OPENCODE_BIN, or what npm installed in
// .tools at the root of the module.
func Find(tb testing.TB) string {
	tb.Helper()
	if bin := os.Getenv("OPENCODE_BIN"); bin != "" {
		if _, err := os.Stat(bin); err != nil {
			tb.Fatalf("OPENCODE_BIN names no file: %v", err)
		}
		return bin
	}
	for _, candidate := range candidates(moduleRoot(tb)) {
		if info, err := os.Stat(candidate); err == nil && info.Mode().IsRegular() {
			return candidate
		}
	}
	tb.Fatalf("the opencode binary is not installed: run `%s` (npm package opencode-ai@%s into .tools), or name one with OPENCODE_BIN",
		InstallTarget, Version)
	return ""
}

// candidates lists where npm puts the binary, the preferred place first. The
// postinstall script calls it opencode.exe on every system.
func candidates(root string) []string {
	modules := filepath.Join(root, ".tools", "node_modules")
	system, arch := runtime.GOOS, runtime.GOARCH
	if arch == "amd64" {
		arch = "x64"
	}
	name := "opencode"
	if runtime.GOOS == "windows" {
		name = "opencode.exe"
	}
	return []string{
		filepath.Join(modules, "opencode-ai", "bin", "opencode.exe"),
		filepath.Join(modules, "opencode-"+system+"-"+arch, "bin", name),
		filepath.Join(modules, "opencode-"+system+"-"+arch+"-baseline", "bin", name),
	}
}

// moduleRoot is the nearest directory above the test with a go.mod.
func moduleRoot(tb testing.TB) string {
	tb.Helper()
	dir, err := os.Getwd()
	if err != nil {
		tb.Fatalf("working directory: %v", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			tb.Fatal("no go.mod above the working directory")
		}
		dir = parent
	}
}

// Options say how the environment is to be.
type Options struct {
	// ModelURL is the base URL of the model server, "/v1" included.
	ModelURL string
	// Home is the home directory; "" makes a temporary one.
	Home string
	// Context is the model's context size in tokens; 0 is DefaultContext.
	Context int
	// Permission is opencode's permission setting; nil leaves its own defaults,
	// under which a path outside of the session's directory is asked for.
	Permission any
	// Config is merged over the top level of the configuration.
	Config map[string]any
}

// Env writes the configuration and returns a complete environment for the
// binary. It looks like a user's: a global configuration below the home
// directory and nothing in variables that a node might want to set.
func Env(tb testing.TB, o Options) []string {
	tb.Helper()
	if o.Home == "" {
		o.Home = tb.TempDir()
	}
	if o.Context == 0 {
		o.Context = DefaultContext
	}
	dirs := map[string]string{
		"XDG_DATA_HOME":   filepath.Join(o.Home, ".local", "share"),
		"XDG_CONFIG_HOME": filepath.Join(o.Home, ".config"),
		"XDG_CACHE_HOME":  filepath.Join(o.Home, ".cache"),
		"XDG_STATE_HOME":  filepath.Join(o.Home, ".local", "state"),
		// The binary unpacks native libraries there.
		"TMPDIR": filepath.Join(o.Home, "tmp"),
	}
	env := []string{
		"HOME=" + o.Home,
		"PATH=" + os.Getenv("PATH"),
		"OPENCODE_DISABLE_MODELS_FETCH=1",
		"OPENCODE_DISABLE_AUTOUPDATE=1",
		"OPENCODE_DISABLE_DEFAULT_PLUGINS=1",
		"OPENCODE_DISABLE_LSP_DOWNLOAD=1",
		"OPENCODE_DISABLE_CLAUDE_CODE=1",
		"OPENCODE_DISABLE_EXTERNAL_SKILLS=1",
		"OPENCODE_PURE=1",
		// It would install its plugin package into the configuration directory.
		"npm_config_registry=http://127.0.0.1:9",
		"npm_config_fetch_retries=0",
	}
	for name, dir := range dirs {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			tb.Fatalf("home: %v", err)
		}
		env = append(env, name+"="+dir)
	}
	file := filepath.Join(dirs["XDG_CONFIG_HOME"], "opencode", "opencode.json")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		tb.Fatalf("home: %v", err)
	}
	content, err := json.MarshalIndent(config(o), "", "  ")
	if err != nil {
		tb.Fatalf("configuration: %v", err)
	}
	if err := os.WriteFile(file, content, 0o600); err != nil {
		tb.Fatalf("configuration: %v", err)
	}
	return env
}

func config(o Options) map[string]any {
	c := map[string]any{
		"$schema":           "https://opencode.ai/config.json",
		"autoupdate":        false,
		"share":             "disabled",
		"snapshot":          false, // it doubles the time of a turn
		"model":             Provider + "/" + Model,
		"small_model":       Provider + "/" + Model,
		"enabled_providers": []string{Provider},
		"provider": map[string]any{Provider: map[string]any{
			"npm":     "@ai-sdk/openai-compatible", // bundled in the binary
			"name":    "Stub",
			"options": map[string]any{"baseURL": o.ModelURL, "apiKey": "stub"},
			"models": map[string]any{Model: map[string]any{
				"name": "Stub Model", "tool_call": true,
				"limit": map[string]any{"context": o.Context, "output": 8192},
			}},
		}},
	}
	if o.Permission != nil {
		c["permission"] = o.Permission
	}
	for k, v := range o.Config {
		c[k] = v
	}
	return c
}
