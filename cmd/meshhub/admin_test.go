package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"opencode-mesh/auth"
	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/cmd/internal/clitest"
	"opencode-mesh/hub/client"
	"opencode-mesh/protocol/api"
)

// beside runs a test beside a running hub and on a stopped one.
func beside(t *testing.T, name string, prepare func(t *testing.T, link string), check func(t *testing.T, b *box)) {
	t.Helper()
	for _, running := range []bool{true, false} {
		what := name + " of a stopped hub"
		if running {
			what = name + " beside a running hub"
		}
		t.Run(what, func(t *testing.T) {
			b := newBox(t)
			r, _, link := b.serve()
			prepare(t, link)
			if !running {
				r.Stop()
			}
			check(t, b)
		})
	}
}

// works reports whether a credential is taken.
func works(t *testing.T, p auth.Profile) bool {
	t.Helper()
	c, err := client.New(p, "")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = c.Nodes(context.Background())
	switch api.ErrorCode(err) {
	case "":
		return true
	case api.CodeRevoked, api.CodeUnauthorized:
		return false
	}
	t.Fatal(err)
	return false
}

func TestLinkIsTheOneThatServePrinted(t *testing.T) {
	t.Parallel()
	var served string
	beside(t, "link", func(_ *testing.T, link string) { served = link }, func(t *testing.T, b *box) {
		if res := b.Want(0, []string{"link"}); res.Out != served+"\n" {
			t.Errorf("got %q, want %q", res.Out, served)
		}
	})
	t.Run("and a hub that never served has none", func(t *testing.T) {
		b := newBox(t)
		b.Want(0, []string{"passwd"})
		wantText(t, b.Want(cli.ExitNotDone, []string{"link"}).Err, "meshhub serve")
	})
}

func TestListings(t *testing.T) {
	t.Parallel()
	beside(t, "nodes and credentials", func(t *testing.T, link string) {
		mustEnroll(t, link, auth.EnrollJoin, "alpha")
		mustEnroll(t, link, auth.EnrollLogin, "laptop")
	}, func(t *testing.T, b *box) {
		nodes := jsonLines(t, b.Want(0, []string{"nodes", "--json"}).Out)
		if len(nodes) != 1 || nodes[0]["name"] != "alpha" || nodes[0]["state"] != "offline" {
			t.Errorf("nodes: %v", nodes)
		}
		wantText(t, b.Want(0, []string{"nodes"}).Out, "NAME", "alpha", "offline")
		creds := b.Want(0, []string{"credentials", "--json"}).Out
		if got := jsonLines(t, creds); len(got) != 2 || got[0]["name"] != "alpha" || got[0]["role"] != "node" || got[1]["role"] != "controller" {
			t.Errorf("credentials: %v", got)
		}
		if strings.Contains(creds, "hash") || strings.Contains(creds, `"credential"`) {
			t.Errorf("a listing holds a secret: %s", creds)
		}
		wantText(t, b.Want(0, []string{"credentials"}).Out, "LAST USED", "laptop")
	})
}

func TestRevokeEndsANameAtOnce(t *testing.T) {
	t.Parallel()
	var p auth.Profile
	beside(t, "revoke", func(t *testing.T, link string) {
		p = mustEnroll(t, link, auth.EnrollLogin, "laptop")
		if !works(t, p) {
			t.Fatal("a fresh credential is refused")
		}
	}, func(t *testing.T, b *box) {
		wantText(t, b.Want(cli.ExitUsage, []string{"revoke", "nobody"}).Err, "nobody")
		b.Want(cli.ExitUsage, []string{"revoke"})
		b.Want(0, []string{"revoke", "laptop"})
		if got := jsonLines(t, b.Want(0, []string{"credentials", "--json"}).Out); got[0]["revoked_at"] == nil {
			t.Errorf("credentials: %v", got)
		}
	})
	t.Run("whoever holds it finds out with the next request", func(t *testing.T) {
		b := newBox(t)
		_, _, link := b.serve()
		p := mustEnroll(t, link, auth.EnrollLogin, "laptop")
		b.Want(0, []string{"revoke", "laptop"})
		if works(t, p) {
			t.Error("the credential still works")
		}
	})
}

func TestPasswdSetsTheFirstPassword(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.Want(0, []string{"passwd"})
	b.Env = b.Env[:len(b.Env)-1] // no MESH_PASSWORD any more
	_, _, link := b.serve()
	mustEnroll(t, link, auth.EnrollLogin, "laptop")
}

func TestPasswdChangesThePasswordAndKeepsCredentials(t *testing.T) {
	t.Parallel()
	var p auth.Profile
	beside(t, "passwd", func(t *testing.T, link string) {
		p = mustEnroll(t, link, auth.EnrollLogin, "laptop")
	}, func(t *testing.T, b *box) {
		b.Set("MESH_PASSWORD", "a new one")
		b.Want(0, []string{"passwd"})
		link := serving(t, b)
		if _, err := enroll(t, link, auth.EnrollLogin, "desk", clitest.Password); api.ErrorCode(err) != api.CodeUnauthorized {
			t.Errorf("the old password gives %v", err)
		}
		if _, err := enroll(t, link, auth.EnrollLogin, "desk", "a new one"); err != nil {
			t.Errorf("the new password gives %v", err)
		}
		if p.Link, _ = auth.ParseLink(link); !works(t, p) {
			t.Error("the credential ended with the password")
		}
		b.Want(0, []string{"passwd", "--revoke-all"})
		if works(t, p) {
			t.Error("the credential outlived --revoke-all")
		}
	})
	t.Run("asks twice on a terminal", func(t *testing.T) {
		sh := shell(t)
		sh.Set("MESH_DIR", t.TempDir())
		answers := []string{"one", "two"}
		type_ := func(app *cli.App) {
			app.StdinTerminal = true
			app.ReadPassword = func() (string, error) {
				a := answers[0]
				answers = answers[1:]
				return a, nil
			}
		}
		sh.Want(cli.ExitUsage, []string{"passwd"}, type_)
		answers = []string{"same", "same"}
		sh.Want(0, []string{"passwd"}, type_)
	})
	t.Run("does not ask without one", func(t *testing.T) {
		sh := shell(t)
		sh.Set("MESH_DIR", t.TempDir())
		wantText(t, sh.Want(cli.ExitUsage, []string{"passwd"}).Err, "MESH_PASSWORD")
	})
}

// serving makes sure that a hub runs on the data and returns its link.
func serving(t *testing.T, b *box) string {
	t.Helper()
	link := strings.TrimSpace(b.Want(0, []string{"link"}).Out)
	if l, err := auth.ParseLink(link); err == nil {
		if hc, err := l.HTTPClient(""); err == nil {
			defer hc.CloseIdleConnections()
			if resp, err := hc.Get(l.BaseURL() + "/healthz"); err == nil {
				_ = resp.Body.Close()
				return link
			}
		}
	}
	_, _, link = b.serve()
	return link
}

func TestBackupAndRestore(t *testing.T) {
	t.Parallel()
	var p auth.Profile
	beside(t, "backup", func(t *testing.T, link string) {
		p = mustEnroll(t, link, auth.EnrollLogin, "laptop")
		mustEnroll(t, link, auth.EnrollJoin, "alpha")
		mustEnroll(t, link, auth.EnrollLogin, "old-desk")
	}, func(t *testing.T, b *box) {
		b.Want(0, []string{"revoke", "old-desk"})
		file := filepath.Join(t.TempDir(), "mesh.bak")
		b.Want(0, []string{"backup", file})
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("backup: %v %v", info, err)
		}
		whole, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		wantText(t, b.Want(cli.ExitUsage, []string{"backup", file}).Err, file)
		if again, _ := os.ReadFile(file); string(again) != string(whole) {
			t.Error("the refused backup changed the file")
		}
		if left, _ := filepath.Glob(filepath.Join(filepath.Dir(file), ".*")); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}

		if res := b.Want(cli.ExitNotDone, []string{"restore", file}); !strings.Contains(res.Err, "not overwritten") && !strings.Contains(res.Err, "in use") {
			t.Errorf("restore over a hub: %s", res.Err)
		}

		other := filepath.Join(t.TempDir(), "restored")
		res := b.Want(0, []string{"restore", file, "--data", other})
		valid, revoked, _ := strings.Cut(res.Err, "revoked before, and still:\n")
		wantText(t, valid, "valid from now on:\n", "laptop (controller)", "alpha (node)", "undone")
		wantText(t, revoked, "old-desk (controller)", "meshhub revoke NAME")
		b.Want(0, []string{"check", "--data", other})
		r, _, link := b.serve("--data", other)
		if p.Link, _ = auth.ParseLink(link); !works(t, p) {
			t.Error("a credential of the backup is refused")
		}
		r.Stop()

		third := filepath.Join(t.TempDir(), "restored")
		b.Want(0, []string{"restore", file, "--data", third, "--revoke-all"})
		_, _, link = b.serve("--data", third)
		if p.Link, _ = auth.ParseLink(link); works(t, p) {
			t.Error("a credential outlived --revoke-all")
		}
	})
	t.Run("restore takes nothing but a backup", func(t *testing.T) {
		b := newBox(t)
		file := filepath.Join(t.TempDir(), "junk")
		if err := os.WriteFile(file, []byte(strings.Repeat("junk", 5000)), 0o600); err != nil {
			t.Fatal(err)
		}
		wantText(t, b.Want(cli.ExitNotDone, []string{"restore", file}).Err, file)
		b.Want(cli.ExitNotDone, []string{"restore", "/nowhere"})
		b.Want(cli.ExitUsage, []string{"link"}) // nothing was made
	})
	t.Run("a backup that cannot be written leaves nothing behind", func(t *testing.T) {
		b := newBox(t)
		b.Want(0, []string{"passwd"})
		b.Want(cli.ExitNotDone, []string{"backup", filepath.Join(t.TempDir(), "no", "such", "dir")})
	})
}

func TestCheckFindsDamage(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.Want(0, []string{"passwd"})
	if res := b.Want(0, []string{"check"}); res.Out != "ok\n" {
		t.Errorf("a sound store: %q", res.Out)
	}
	path := filepath.Join(b.data, "hub.db")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := 2 * 4096; i < len(data); i++ { // everything but the two meta pages
		data[i] = 0xA5
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	res := b.Want(cli.ExitNotDone, []string{"check"})
	wantText(t, res.Out+res.Err, "page")
}

func TestCompactSaysWhatItGained(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.Want(0, []string{"passwd"})
	wantText(t, b.Want(0, []string{"compact"}).Out, "bytes before", "after")
	b.Want(0, []string{"check"})
}
