package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"opencode-mesh/auth"
	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/cmd/internal/clitest"
	"opencode-mesh/protocol/api"
)

func TestMain(m *testing.M) { clitest.Main(m) }

// shell is a person's shell with meshhub.
func shell(t *testing.T) *clitest.Shell {
	t.Helper()
	return clitest.NewShell(t, "MESHHUB", func(app *cli.App) func(context.Context, []string) int { return NewMain(app).Run })
}

// box is a data directory and a shell that knows the password.
type box struct {
	*clitest.Shell
	t    *testing.T
	data string
}

func newBox(t *testing.T) *box {
	t.Helper()
	b := &box{Shell: shell(t), t: t, data: filepath.Join(t.TempDir(), "hub")}
	b.Set("MESHHUB_DATA", b.data)
	b.Set("MESH_PASSWORD", clitest.Password)
	return b
}

var twoLines = regexp.MustCompile(`^listening (\S+)\njoin (\S+)\n$`)

// serve starts the hub and returns it with its URL and link.
func (b *box) serve(args ...string) (r *clitest.Running, url, link string) {
	b.t.Helper()
	r = b.Start(append([]string{"serve", "--listen", "127.0.0.1:0"}, args...))
	r.Out.Await(b.t, "two lines", func(s string) bool { return strings.Count(s, "\n") >= 2 })
	m := twoLines.FindStringSubmatch(r.Out.String())
	if m == nil {
		b.t.Fatalf("stdout carries %q", r.Out)
	}
	return r, m[1], m[2]
}

// enroll tries to get a credential.
func enroll(t *testing.T, link, path, name, password string) (auth.Profile, error) {
	t.Helper()
	l, err := auth.ParseLink(link)
	if err != nil {
		t.Fatal(err)
	}
	hc, err := l.HTTPClient("")
	if err != nil {
		t.Fatal(err)
	}
	defer hc.CloseIdleConnections()
	is, err := auth.Enroll(context.Background(), hc, l, path, api.Login{Name: name, Password: password})
	return auth.NewProfile(l, "", is), err
}

func mustEnroll(t *testing.T, link, path, name string) auth.Profile {
	t.Helper()
	p, err := enroll(t, link, path, name, clitest.Password)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// jsonLines decodes one object per line.
func jsonLines(t *testing.T, text string) []map[string]any {
	t.Helper()
	var out []map[string]any
	for line := range strings.Lines(text) {
		var v map[string]any
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		out = append(out, v)
	}
	return out
}

// wantText fails unless text holds all of the parts.
func wantText(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%q is missing in:\n%s", p, text)
		}
	}
}

func TestEveryCommandShowsAnExampleThatParses(t *testing.T) {
	clitest.Examples(t, NewMain(&cli.App{}).root())
}

func TestCommandsThatLookAfterDataDoNotMakeAny(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	for _, args := range [][]string{
		{"link"}, {"nodes"}, {"credentials"}, {"revoke", "alpha"}, {"check"}, {"compact"}, {"backup", filepath.Join(b.Home, "x")},
	} {
		wantText(t, b.Want(cli.ExitUsage, args).Err, b.data, "--data")
	}
	if _, err := os.Stat(b.data); err == nil {
		t.Error("a data directory was made")
	}
}
