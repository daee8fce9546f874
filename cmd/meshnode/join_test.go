package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"opencode-mesh/auth"
	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/cmd/internal/clitest"
	"opencode-mesh/protocol/api"
)

func TestJoinKeepsACredentialThatOnlyItsOwnerReads(t *testing.T) {
	t.Parallel()
	m := newMachine(t, clitest.StartHub(t))
	res := m.Want(0, []string{"join", m.hub.Link, "--name", "alpha"})
	wantText(t, res.Err, "alpha", "meshnode run")
	if res.Out != "" {
		t.Errorf("stdout carries %q", res.Out)
	}
	path := filepath.Join(m.data, "node.json")
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v %v", info, err)
	}
	p, err := auth.LoadProfile(path)
	if err != nil || p.Name != "alpha" || p.Role != api.RoleNode {
		t.Errorf("profile %+v %v", p, err)
	}
	if left, _ := filepath.Glob(filepath.Join(m.data, ".*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestATakenNameIsTakenOverOnRequestOnly(t *testing.T) {
	t.Parallel()
	hub := clitest.StartHub(t)
	first := newMachine(t, hub)
	first.join("alpha")
	running := first.online("alpha", first.demo())

	second := newMachine(t, hub)
	wantText(t, second.Want(cli.ExitNoAccess, []string{"join", hub.Link, "--name", "alpha"}).Err, "name_taken", "--replace")
	second.Want(0, []string{"join", hub.Link, "--name", "alpha", "--replace"})

	res := running.Wait()
	if res.Code != cli.ExitNoAccess {
		t.Errorf("the replaced node ended with %d", res.Code)
	}
	wantText(t, res.Err, "revoked", "join the hub again")
	second.online("alpha", second.demo())
}

func TestAJoinThatFails(t *testing.T) {
	t.Parallel()
	hub := clitest.StartHub(t)
	file := filepath.Join(t.TempDir(), "a file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what, password string
		args           []string
		code           int
		says           string
	}{
		{"wrong password", "wrong", []string{hub.Link, "--name", "beta"}, cli.ExitNoAccess, "unauthorized"},
		{"no name", clitest.Password, []string{hub.Link}, cli.ExitUsage, "--name"},
		{"bad name", clitest.Password, []string{hub.Link, "--name", "-x"}, cli.ExitUsage, "--name"},
		{"bad link", clitest.Password, []string{"hub:8443", "--name", "beta"}, cli.ExitUsage, "mesh://"},
		{"no link", clitest.Password, []string{"--name", "beta"}, cli.ExitUsage, "accepts 1 arg"},
		{"no password", "", []string{hub.Link, "--name", "beta"}, cli.ExitUsage, "MESH_PASSWORD"},
		{"certificate file of no use", clitest.Password, []string{hub.Link, "--name", "beta", "--ca", "x.pem"}, cli.ExitUsage, "https://"},
		{"certificate file that is missing", clitest.Password, []string{"https://127.0.0.1:1", "--name", "beta", "--ca", "/nowhere.pem"}, cli.ExitUsage, "/nowhere.pem"},
		{"nobody there", clitest.Password, []string{"mesh+plain://127.0.0.1:1", "--name", "beta"}, cli.ExitNoAccess, "refused"},
		{"another key", clitest.Password, []string{hub.Link[:len(hub.Link)-4] + "0000", "--name", "beta"}, cli.ExitNoAccess, "key is not the one"},
		{"no directory", clitest.Password, []string{hub.Link, "--name", "beta", "--data", file}, cli.ExitNotDone, "a file"},
	} {
		t.Run(c.what, func(t *testing.T) {
			m := newMachine(t, hub)
			m.Env = m.Env[:len(m.Env)-1]
			if c.password != "" {
				m.Set("MESH_PASSWORD", c.password)
			}
			res := m.Want(c.code, append([]string{"join"}, c.args...))
			wantText(t, res.Err, c.says)
			if strings.Contains(res.Err, clitest.Password) {
				t.Errorf("the password is repeated: %s", res.Err)
			}
		})
	}
	t.Run("none of them took the name", func(t *testing.T) {
		newMachine(t, hub).join("beta")
	})
}

func TestRunJoinsFirstAndOnce(t *testing.T) {
	t.Parallel()
	m := newMachine(t, clitest.StartHub(t))
	r := m.online("alpha", m.demo("--hub", m.hub.Link, "--name", "alpha"))
	if res := r.Stop(); res.Code != 0 || res.Out != "" {
		t.Errorf("exit code %d, stdout %q: %s", res.Code, res.Out, res.Err)
	}
	m.hub.AwaitState("alpha", api.NodeOffline)
	m.Env = m.Env[:len(m.Env)-1] // the password is not needed any more
	r = m.online("alpha", m.demo("--hub", m.hub.Link, "--name", "alpha"))
	r.Stop()
	r = m.online("alpha", m.demo())
	r.Stop()

	t.Run("and not under another name", func(t *testing.T) {
		wantText(t, m.Want(cli.ExitUsage, m.demo("--name", "beta")).Err, "alpha", "beta", "--data")
	})
	t.Run("and not at another hub", func(t *testing.T) {
		wantText(t, m.Want(cli.ExitUsage, m.demo("--hub", clitest.StartHub(t).Link)).Err, "another hub", "meshnode join")
		wantText(t, m.Want(cli.ExitUsage, m.demo("--hub", "nonsense")).Err, "mesh://")
	})
	t.Run("but at another address of the same hub, which is kept", func(t *testing.T) {
		moved := strings.Replace(m.hub.Link, "127.0.0.1", "localhost", 1)
		m.hub.AwaitState("alpha", api.NodeOffline)
		m.online("alpha", m.demo("--hub", moved)).Stop()
		if p, err := auth.LoadProfile(filepath.Join(m.data, "node.json")); err != nil || p.Link.String() != moved {
			t.Errorf("kept %v %v", p.Link, err)
		}
	})
}

func TestRunWaitsForAHubThatIsNotUpYet(t *testing.T) {
	t.Parallel() // it waits between its tries
	m := newMachine(t, clitest.StartHub(t))
	m.hub.Stop()
	r := m.Start(m.demo("--hub", m.hub.Link, "--name", "alpha"))
	r.Err.AwaitText(t, "cannot join yet")
	m.hub.Restart()
	m.hub.AwaitState("alpha", api.NodeOnline)
	if res := r.Stop(); res.Code != 0 {
		t.Errorf("exit code %d", res.Code)
	}

	t.Run("until it is told to stop", func(t *testing.T) {
		m := newMachine(t, m.hub)
		m.hub.Stop()
		r := m.Start(m.demo("--hub", m.hub.Link, "--name", "beta"))
		r.Err.AwaitText(t, "cannot join yet")
		if res := r.Stop(); res.Code != 0 {
			t.Errorf("exit code %d: %s", res.Code, res.Err)
		}
	})
	t.Run("but not when it refuses", func(t *testing.T) {
		m := newMachine(t, m.hub)
		m.hub.Restart()
		m.Set("MESH_PASSWORD", "wrong")
		wantText(t, m.Want(cli.ExitNoAccess, m.demo("--hub", m.hub.Link, "--name", "beta")).Err, "the password is wrong")
	})
}

func TestRunWithoutAHubSaysWhatToDo(t *testing.T) {
	t.Parallel()
	m := newMachine(t, nil)
	wantText(t, m.Want(cli.ExitUsage, m.demo()).Err, "meshnode join", "--hub")
	wantText(t, m.Want(cli.ExitUsage, m.demo("--hub", "mesh+plain://127.0.0.1:1")).Err, "--name")
}
