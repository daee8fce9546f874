package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/protocol/mesh"
)

func TestInstructionsHoldTheConductAndHowToKnowAnEnvelope(t *testing.T) {
	t.Parallel()
	out := newMachine(t, nil).Want(0, []string{"instructions"}).Out
	wantText(t, out, mesh.Conduct(), "first non-blank line", "[aoi-mesh v1]", "ordinary text")
	if mesh.IsEnvelope(out) {
		t.Error("the instructions look like a task")
	}
}

func TestInstallingInstructionsTouchesNothingOfOthers(t *testing.T) {
	t.Parallel()
	read := func(t *testing.T, path string) string {
		t.Helper()
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	prepare := func(t *testing.T, files map[string]string) (m *machine, dir string) {
		t.Helper()
		m = newMachine(t, nil)
		dir = filepath.Join(m.Home, ".opencode")
		for name, text := range files {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return m, dir
	}
	t.Run("with nothing there", func(t *testing.T) {
		m, dir := prepare(t, nil)
		res := m.Want(0, []string{"instructions", "--install"})
		wantText(t, res.Err, filepath.Join(dir, "opencode-mesh.md"))
		if res.Out != "" {
			t.Errorf("stdout carries %q", res.Out)
		}
		wantText(t, read(t, filepath.Join(dir, "opencode-mesh.md")), mesh.Conduct())
		config := read(t, filepath.Join(dir, "opencode.jsonc"))
		wantText(t, config, `"instructions": ["`+filepath.Join(dir, "opencode-mesh.md")+`"]`)

		t.Run("again brings the text up to date and nothing else", func(t *testing.T) {
			changed := strings.Replace(config, "{", "{ // mine now", 1)
			if err := os.WriteFile(filepath.Join(dir, "opencode.jsonc"), []byte(changed), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "opencode-mesh.md"), []byte("old"), 0o600); err != nil {
				t.Fatal(err)
			}
			m.Want(0, []string{"instructions", "--install"})
			wantText(t, read(t, filepath.Join(dir, "opencode-mesh.md")), mesh.Conduct())
			if got := read(t, filepath.Join(dir, "opencode.jsonc")); got != changed {
				t.Errorf("got %s", got)
			}
			if entries, _ := os.ReadDir(dir); len(entries) != 2 {
				t.Errorf("got %v", entries)
			}
		})
	})
	for mine, ours := range map[string]string{"opencode.json": "opencode.jsonc", "opencode.jsonc": "opencode.json"} {
		t.Run("beside somebody's "+mine, func(t *testing.T) {
			m, dir := prepare(t, map[string]string{mine: `{"theme":"mine"}`})
			m.Want(0, []string{"instructions", "--install"})
			if got := read(t, filepath.Join(dir, mine)); got != `{"theme":"mine"}` {
				t.Errorf("got %s", got)
			}
			wantText(t, read(t, filepath.Join(dir, ours)), "opencode-mesh.md")
		})
	}
	t.Run("not at all when both files are somebody's", func(t *testing.T) {
		m, dir := prepare(t, map[string]string{"opencode.json": "{}", "opencode.jsonc": "{}"})
		wantText(t, m.Want(cli.ExitNotDone, []string{"instructions", "--install"}).Err, dir, `"instructions"`, "opencode-mesh.md")
		if entries, _ := os.ReadDir(dir); len(entries) != 2 {
			t.Errorf("got %v", entries)
		}
	})
}
