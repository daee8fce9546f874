package main

import (
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/cmd/internal/clitest"
	"opencode-mesh/node/ocp/host"
	"opencode-mesh/node/ocp/ocptest"
)

func TestTheOwnerListsConsentsAsksAndRevokes(t *testing.T) {
	t.Parallel()
	m := newMachine(t, clitest.StartHub(t))
	wantText(t, m.Want(cli.ExitNoAccess, []string{"ocp", "providers"}).Err, m.data)
	m.join("alpha")
	s := httptest.NewServer(ocptest.Handler(ocptest.Good))
	t.Cleanup(s.Close)
	program := ocptest.Args(ocptest.LyingCosts)
	r := m.online("alpha", m.demo("--context-provider", "web="+s.URL, "--context-provider", "liar='"+strings.Join(program, "' '")+"'"))

	wantText(t, m.Want(0, []string{"ocp", "providers"}).Out, "memory", "web", "test provider 1", "doc fact", "reads, leaves this machine", "needed", "not needed", s.URL)
	res := m.Want(cli.ExitNotDone, []string{"ocp", "query", "a goal"})
	wantText(t, res.Err, "memory: 0 frames", "web: consent required", "meshnode ocp consent web --scope", "liar: budget lie", "broke the budget")
	wantText(t, m.Want(0, []string{"ocp", "consent", "web", "--scope", "goals go there"}).Err, "web calls itself test provider, is at "+s.URL, "meshnode ocp revoke web")
	wantText(t, m.Want(0, []string{"ocp", "providers"}).Out, ": goals go there")
	wantText(t, m.Want(cli.ExitNotDone, []string{"ocp", "query", "a goal"}).Out, "[1] notes L1-2\n    A frame\n", "doc, from web, score 0.50, 5 tokens", "  | what is known of it")
	wantText(t, m.Want(0, []string{"ocp", "query", "a goal", "--kind", "episode", "--json"}).Out, `"provider":"memory"`, `"outcome":"frames"`)
	wantText(t, m.Want(0, []string{"ocp", "providers", "--json"}).Out, `"granted_by":"the owner of the machine"`)
	m.Want(0, []string{"ocp", "revoke", "web"})
	if res := m.Want(cli.ExitUsage, []string{"ocp", "revoke", "web"}); !strings.Contains(res.Err, "no consent to web") {
		t.Errorf("%s", res.Err)
	}
	for _, args := range [][]string{
		{"consent", "web"}, {"consent", "--scope", "x"}, {"consent", "A B", "--scope", "x"}, {"revoke"}, {"query"}, {"query", " "}, {"query", "a", "b"},
		{"query", "a", "--max-tokens", "0"}, {"query", "a", "--max-frames", "257"}, {"query", "a", "--kind", "song"}, {"query", "a", "--as-of", "now"},
	} {
		m.Want(cli.ExitUsage, append([]string{"ocp"}, args...))
	}
	r.Stop()
}

func TestContextProvidersAreCheckedBeforeTheNodeStarts(t *testing.T) {
	t.Parallel()
	read := func(args ...string) ([]host.Provider, error) {
		f := pflag.NewFlagSet("run", pflag.ContinueOnError)
		contextFlags(f)
		if err := f.Parse(args); err != nil {
			t.Fatal(err)
		}
		return contextProviders(f)
	}
	token, empty := filepath.Join(t.TempDir(), "token"), filepath.Join(t.TempDir(), "empty")
	for path, text := range map[string]string{token: "hunter2\nmore\n", empty: "\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	list, err := read("--context-provider", `code="`+self+`"  --root '/srv/my code' ""`, "--context-provider", "web=https://x.example/ocp?k=v", "--context-token", "web="+token)
	if err != nil || len(list) != 2 || list[1].URL != "https://x.example/ocp?k=v" || list[1].Token != "hunter2" ||
		!slices.Equal(list[0].Command, []string{self, "--root", "/srv/my code", ""}) {
		t.Errorf("%+v, %v", list, err)
	}
	for _, c := range []struct{ args, text string }{
		{"--context-provider web", "NAME=CMD"},
		{"--context-provider Web=x", "a-z"},
		{"--context-provider memory=https://x.example/", "own memory"},
		{"--context-provider a=https://x.example/ --context-provider a=https://x.example/", "named twice"},
		{"--context-provider a=", "no program and no URL"},
		{"--context-provider a=/no/such/program", "/no/such/program"},
		{"--context-provider a='x", "not closed"},
		{"--context-provider a=http://secret.example/", "https://"},
		{"--context-provider a=https://u:secret@x.example/", "user or password"},
		{"--context-token a=" + token, "no --context-provider"},
		{"--context-token a", "NAME=FILE"},
		{"--context-provider a=https://x.example/ --context-token a=/no/such/file", "--context-token"},
		{"--context-provider a=https://x.example/ --context-token a=" + empty, "empty"},
		{"--context-provider a=https://x.example/ --context-token a=" + token + " --context-token a=" + token, "named twice"},
	} {
		_, err := read(strings.Fields(c.args)...)
		if err == nil || !strings.Contains(err.Error(), c.text) || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v; want %q", c.args, err, c.text)
		}
	}
}
