package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"opencode-mesh/auth"
	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/cmd/internal/clitest"
	"opencode-mesh/protocol/api"
)

func TestLoginKeepsACredentialThatOnlyItsOwnerReads(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	path := filepath.Join(w.Home, ".config", "opencode-mesh", "default.json")
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v %v", info, err)
	}
	if data, _ := os.ReadFile(path); strings.Contains(string(data), clitest.Password) {
		t.Error("the password is kept")
	}
	w.Want(0, []string{"nodes"})
	w.Want(cli.ExitNoAccess, []string{"credentials"}) // not an operator

	t.Run("in MESH_DIR if that is set, by profile", func(t *testing.T) {
		dir := t.TempDir()
		w.Set("MESH_DIR", dir)
		w.login("boss", "--operator", "--profile", "work")
		if _, err := os.Stat(filepath.Join(dir, "work.json")); err != nil {
			t.Error(err)
		}
		wantText(t, w.Want(0, []string{"credentials", "--profile", "work"}).Out, "boss", "operator")
		w.Want(cli.ExitNoAccess, []string{"nodes"}) // no default profile there
		w.Set("MESHCTL_PROFILE", "work")
		w.Want(0, []string{"nodes"})
	})
}

func TestLoginThatFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.hub.StartNode("alpha", clitest.Agent(obey))
	for _, c := range []struct {
		what string
		pw   string
		args []string
		code int
		says string
	}{
		{"wrong password", "wrong", []string{w.hub.Link, "--as", "desk"}, cli.ExitNoAccess, "unauthorized"},
		{"name of a node", clitest.Password, []string{w.hub.Link, "--as", "alpha"}, cli.ExitNoAccess, "--same-as-node"},
		{"bad name", clitest.Password, []string{w.hub.Link, "--as", "Desk!"}, cli.ExitUsage, "--as"},
		{"no name", clitest.Password, []string{w.hub.Link}, cli.ExitUsage, "--as"},
		{"no link", clitest.Password, []string{"--as", "desk"}, cli.ExitUsage, "meshhub link"},
		{"bad link", clitest.Password, []string{"hub.local:8443", "--as", "desk"}, cli.ExitUsage, "mesh://"},
		{"link with a password", clitest.Password, []string{"mesh://me:hunter2@hub:1", "--as", "desk"}, cli.ExitUsage, "MESH_PASSWORD"},
		{"bad profile", clitest.Password, []string{w.hub.Link, "--as", "desk", "--profile", "../x"}, cli.ExitUsage, "--profile"},
		{"certificate file of no use", clitest.Password, []string{w.hub.Link, "--as", "desk", "--ca", "x.pem"}, cli.ExitUsage, "https://"},
		{"nobody there", clitest.Password, []string{"mesh+plain://127.0.0.1:1", "--as", "desk"}, cli.ExitNoAccess, "refused"},
	} {
		t.Run(c.what, func(t *testing.T) {
			sh := shell(t)
			sh.Set("MESH_PASSWORD", c.pw)
			res := sh.Want(c.code, append([]string{"login"}, c.args...))
			wantText(t, res.Err, c.says)
			if strings.Contains(res.Err, c.pw) && c.pw != "wrong" || strings.Contains(res.Err, "hunter2") {
				t.Errorf("a password is repeated: %s", res.Err)
			}
			if left, _ := filepath.Glob(filepath.Join(sh.Home, ".config", "*", "*")); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
	t.Run("no password and no terminal", func(t *testing.T) {
		wantText(t, shell(t).Want(cli.ExitUsage, []string{"login", w.hub.Link, "--as", "desk"}).Err, "MESH_PASSWORD")
	})
	t.Run("not a hub", func(t *testing.T) {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) }))
		defer s.Close()
		sh := shell(t)
		sh.Set("MESH_PASSWORD", clitest.Password)
		wantText(t, sh.Want(cli.ExitNoAccess, []string{"login", s.URL, "--as", "desk"}).Err, "not a hub")
	})
}

func TestLoginAsTheNodeOfThisMachine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.hub.Enroll(auth.EnrollJoin, api.Login{Name: "alpha"})
	sh := shell(t)
	wantText(t, sh.Want(cli.ExitUsage, []string{"login", "--same-as-node"}).Err, "--node-data")
	if err := auth.SaveProfile(filepath.Join(sh.Home, ".local", "share", "opencode-mesh", "node", "node.json"), p); err != nil {
		t.Fatal(err)
	}
	sh.Want(0, []string{"login", "--same-as-node"})
	sh.Want(0, []string{"login", w.hub.Link, "--as", "alpha", "--same-as-node"})
	for _, args := range [][]string{
		{"login", "--same-as-node", "--as", "beta"},
		{"login", "--same-as-node", "--operator"},
		{"login", strings.Replace(w.hub.Link, "sha256:", "sha256:"+strings.Repeat("0", 64)+"&", 1)[:len(w.hub.Link)], "--same-as-node"},
		{"login", "mesh+plain://127.0.0.1:1", "--same-as-node"},
	} {
		sh.Want(cli.ExitUsage, args)
	}
	// One identity: what it dispatches is the node's.
	w.hub.StartNode("beta", clitest.Agent(obey))
	task := jsonLines(t, sh.Want(0, []string{"dispatch", "beta", "--json", "--", "do it"}).Out)[0]
	if task["controller"] != "alpha" {
		t.Errorf("the controller is %v", task["controller"])
	}
}

func TestWithoutALoginTheCommandsSaySo(t *testing.T) {
	sh := shell(t)
	for _, args := range [][]string{{"nodes"}, {"dispatch", "alpha", "--", "x"}, {"task", "list"}, {"watch"}, {"envelope", "alpha"}} {
		wantText(t, sh.Want(cli.ExitNoAccess, args).Err, "meshctl login")
	}
	dir := filepath.Join(sh.Home, ".config", "opencode-mesh")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "default.json"), []byte(`{"credential":"hunter2"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	res := sh.Want(cli.ExitNoAccess, []string{"nodes"})
	wantText(t, res.Err, "chmod 600")
	if strings.Contains(res.Err, "hunter2") {
		t.Errorf("the credential is shown: %s", res.Err)
	}
}

func TestARevokedCredentialIsNotAllowed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.login("boss", "--operator", "--profile", "boss")
	w.Want(0, []string{"revoke", "laptop", "--profile", "boss"})
	wantText(t, w.Want(cli.ExitNoAccess, []string{"nodes"}).Err, "revoked")
	w.Want(cli.ExitUsage, []string{"revoke", "nobody", "--profile", "boss"})
	w.Want(cli.ExitUsage, []string{"revoke", "No Body", "--profile", "boss"})
	wantText(t, w.Want(0, []string{"credentials", "--profile", "boss"}).Out, "revoked")
	wantText(t, w.Want(0, []string{"audit", "--profile", "boss"}).Out, "revoke", "laptop")
	if entries := jsonLines(t, w.Want(0, []string{"audit", "--json", "--profile", "boss"}).Out); len(entries) < 3 || entries[0]["action"] == nil {
		t.Errorf("audit: %v", entries)
	}
}

func TestAHubWithAnotherKeyIsNotTalkedTo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	other := clitest.StartHub(t)
	path := filepath.Join(w.Home, ".config", "opencode-mesh", "default.json")
	p, err := auth.LoadProfile(path)
	if err != nil {
		t.Fatal(err)
	}
	met, err := auth.ParseLink(other.Link)
	if err != nil {
		t.Fatal(err)
	}
	p.Link.Port = met.Port // the address now leads to another hub
	if err := auth.SaveProfile(path, p); err != nil {
		t.Fatal(err)
	}
	wantText(t, w.Want(cli.ExitNoAccess, []string{"dispatch", "alpha", "--", "x"}).Err, "key is not the one", met.Pin)
}
