//go:build unix

package command_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"opencode-mesh/node/agent/command"
	"opencode-mesh/protocol/api"
)

func TestDirNamesAreSafeAndTellTriplesApart(t *testing.T) {
	for _, c := range []struct {
		triple api.Triple
		want   string
	}{
		{api.Triple{Task: "alpha-m5x2k9-7f3q", Attempt: 1, Turn: 2}, "alpha-m5x2k9-7f3q.1.2"},
		{api.Triple{Task: "Alpha", Attempt: 1, Turn: 1}, "%41lpha.1.1"},
		{api.Triple{Task: "con", Attempt: 1, Turn: 1}, "%63on.1.1"},
		{api.Triple{Task: "COM1.x", Attempt: 1, Turn: 1}, "%43%4f%4d1.x.1.1"},
		{api.Triple{Task: "console", Attempt: 1, Turn: 1}, "console.1.1"},
		{api.Triple{Task: "..", Attempt: 1, Turn: 1}, ""},
		{api.Triple{Task: "../x", Attempt: 1, Turn: 1}, ""},
		{api.Triple{Task: "a/b", Attempt: 1, Turn: 1}, ""},
		{api.Triple{Task: "", Attempt: 1, Turn: 1}, ""},
		{api.Triple{Task: strings.Repeat("A", 65), Attempt: 1, Turn: 1}, ""},
		{api.Triple{Task: "a", Attempt: 0, Turn: 1}, ""},
		{api.Triple{Task: "a", Attempt: 1, Turn: -1}, ""},
	} {
		got, err := command.DirName(c.triple)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%+v: %q, %v; want %q", c.triple, got, err, c.want)
		}
	}

	triples := rapid.Custom(func(t *rapid.T) api.Triple {
		return api.Triple{
			Task:    rapid.StringMatching(`[A-Ca-c0-2][A-Ca-c0-2._-]{0,5}`).Draw(t, "task"),
			Attempt: rapid.IntRange(1, 3).Draw(t, "attempt"),
			Turn:    rapid.IntRange(1, 3).Draw(t, "turn"),
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := triples.Draw(t, "a"), triples.Draw(t, "b")
		nameA, errA := command.DirName(a)
		nameB, errB := command.DirName(b)
		if errA != nil || errB != nil {
			t.Fatal(errA, errB)
		}
		if (a == b) != strings.EqualFold(nameA, nameB) {
			t.Fatalf("%+v is %q and %+v is %q", a, nameA, b, nameB)
		}
	})
}

func TestChildEnvironmentKeepsEverythingButTheMesh(t *testing.T) {
	env := []string{"PATH=/bin", "MESH_PASSWORD=x", "MESHHUB_DATA=x", "MESH=x", "MESHES", "mesh_kept=1", "=C:=x", ""}
	got := command.ChildEnv(env, "")
	if want := []string{"PATH=/bin", "mesh_kept=1", "=C:=x", ""}; !slices.Equal(got, want) {
		t.Errorf("without a token: %q", got)
	}
	if got := command.ChildEnv(env, "abc"); got[len(got)-1] != "MESH_TASK_TOKEN=abc" || len(got) != 5 {
		t.Errorf("with a token: %q", got)
	}
}

func TestConfigIsChecked(t *testing.T) {
	good := command.Config{Command: []string{"sh"}, RunsDir: t.TempDir(), ShimCommand: []string{"shim"}}
	if _, err := command.New(good); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, message string
		change        func(*command.Config)
	}{
		{"no program", "no program", func(c *command.Config) { c.Command = nil }},
		{"empty program", "no program", func(c *command.Config) { c.Command = []string{"", "x"} }},
		{"odd stdin", `"prompt"`, func(c *command.Config) { c.Stdin = "prompt" }},
		{"conduct with body", "conduct", func(c *command.Config) { c.Conduct, c.Stdin = true, command.StdinBody }},
		{"no runs directory", "directory for runs", func(c *command.Config) { c.RunsDir = "" }},
		{"no shim", "shim", func(c *command.Config) { c.ShimCommand = nil }},
		{"too large a reply", "largest reply", func(c *command.Config) { c.MaxOutput = api.MaxReply + 1 }},
		{"negative reply", "largest reply", func(c *command.Config) { c.MaxOutput = -1 }},
		{"negative cap", "output cap", func(c *command.Config) { c.OutputCap = -1 }},
		{"cap below the reply", "below", func(c *command.Config) { c.OutputCap = 10 }},
		{"negative grace", "duration", func(c *command.Config) { c.KillGrace = -time.Second }},
		{"negative interval", "duration", func(c *command.Config) { c.PollInterval = -1 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := good
			c.change(&cfg)
			if _, err := command.New(cfg); err == nil || !strings.Contains(err.Error(), c.message) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestStatusFollowsTheProgram(t *testing.T) {
	f := newFixture(t, "")
	dir := t.TempDir()
	t.Chdir(dir)
	a := f.agent(func(cfg *command.Config) { cfg.Command = []string{"./tool"} })
	if a.Kind() != "command" || a.HasSessions() {
		t.Errorf("kind %q, sessions %t", a.Kind(), a.HasSessions())
	}
	st := a.Status(t.Context())
	if st.Kind != "command" || st.Health != api.HealthUnreachable || !strings.Contains(st.Detail, "tool") {
		t.Errorf("without the program: %+v", st)
	}
	if err := os.WriteFile("tool", []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir()) // the path counts from where the agent was made
	if st := a.Status(t.Context()); st.Health != api.HealthHealthy || st.Detail != "" {
		t.Errorf("with the program: %+v", st)
	}
}

func TestTailHoldsTheEndOfWhateverIsWritten(t *testing.T) {
	const size = 16
	dir := t.TempDir()
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		f, err := os.Create(filepath.Join(dir, fmt.Sprint(n)))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		w := command.NewTail(f, size)
		var all string
		for _, s := range rapid.SliceOf(rapid.StringMatching(`[a-z]{0,40}`)).Draw(t, "writes") {
			if n, err := io.WriteString(w, s); n != len(s) || err != nil {
				t.Fatalf("wrote %d of %d, %v", n, len(s), err)
			}
			all += s
		}
		got, err := os.ReadFile(f.Name())
		if err != nil || len(got) > 2*size || len(got) < min(size, len(all)) || !strings.HasSuffix(all, string(got)) {
			t.Fatalf("file has %q of %q, %v", got, all, err)
		}
	})
}

func TestSpoolStopsAtItsCapAndSaysSoOnce(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	full := 0
	w, finish := command.NewSpool(f, 10, func() { full++ })
	for i, s := range []string{"12345", "67890", "", "x", "yz"} {
		if n, err := io.WriteString(w, s); n != len(s) || err != nil {
			t.Fatalf("wrote %d of %d, %v", n, len(s), err)
		}
		if want := 0; i < 3 && full != want {
			t.Fatalf("full after %d bytes", 10)
		}
	}
	if err := finish(); err != nil || full != 1 {
		t.Fatalf("full %d times, %v", full, err)
	}
	if got, err := os.ReadFile(f.Name()); err != nil || string(got) != "1234567890" {
		t.Fatalf("file has %q, %v", got, err)
	}
}
