package main

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"opencode-mesh/auth"
	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/cmd/internal/clitest"
	"opencode-mesh/node"
	"opencode-mesh/node/agent"
	"opencode-mesh/node/peers"
	"opencode-mesh/protocol/api"
)

func TestRunHandsTasksToTheProgram(t *testing.T) {
	t.Parallel()
	m := newMachine(t, clitest.StartHub(t))
	m.join("alpha")
	if err := os.WriteFile(filepath.Join(m.workspace, "notes.txt"), []byte("a line\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := m.online("alpha", m.demo())
	task := m.hub.AwaitTask(m.dispatch("alpha", "count"), api.StateDone)
	wantText(t, task.Summary, "1 files, 1 lines", m.workspace)
	if res := r.Stop(); res.Code != 0 || res.Out != "" {
		t.Errorf("exit code %d, stdout %q", res.Code, res.Out)
	}
}

func TestWhatAProgramGets(t *testing.T) {
	t.Parallel()
	m := newMachine(t, clitest.StartHub(t))
	m.join("alpha")
	m.Set("MESHNODE_LOG_LEVEL", "warn")
	m.Set("KEPT", "yes")
	for _, c := range []struct {
		what      string
		args      []string
		has, lack []string
	}{
		{"the envelope", []string{"--", "cat"}, []string{"[opencode-mesh v1]\n", "from: overseer\n", "---\nthe text"}, []string{"Act at once"}},
		{"the text alone", []string{"--stdin", "body", "--", "cat"}, []string{"the text"}, []string{"[opencode-mesh v1]"}},
		{"the conduct before the envelope", []string{"--conduct", "--", "cat"}, []string{"Act at once", "[opencode-mesh v1]\nfrom: overseer\n"}, nil},
		{"no variable of the mesh but its token", []string{"--", "env"}, []string{"KEPT=yes\n", "MESH_TASK_TOKEN="}, []string{"MESH_PASSWORD", "MESHNODE_", clitest.Password}},
	} {
		t.Run(c.what, func(t *testing.T) {
			r := m.online("alpha", append([]string{"run", "--workspace", m.workspace, "--agent", "command"}, c.args...))
			task := m.hub.AwaitTask(m.dispatch("alpha", "the text"), api.StateDone)
			wantText(t, task.Reply, c.has...)
			for _, lack := range c.lack {
				if strings.Contains(task.Reply, lack) {
					t.Errorf("%q is in:\n%s", lack, task.Reply)
				}
			}
			r.Stop()
			m.hub.AwaitState("alpha", api.NodeOffline)
		})
	}
}

func TestRunRefusesBadFlagsBeforeItJoins(t *testing.T) {
	t.Parallel()
	m := newMachine(t, clitest.StartHub(t))
	file := filepath.Join(m.workspace, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ args, says string }{
		{"--workspace /nowhere", "/nowhere"},
		{"--workspace main=/nowhere", "main"},
		{"--workspace main=", "[NAME=]DIR"},
		{"--workspace x=" + file, "not a directory"},
		{"--workspace a=. --workspace a=/", "two workspaces"},
		{"--workspace sp@ce=.", "NAME=DIR"},
		{"--agent magic", "--agent"},
		{"--agent command", "after --"},
		{"extra", "extra"},
		{"extra -- cat", "extra"},
		{"-- cat", "--agent command"},
		{"--agent command --model a/b -- cat", "--model goes with --agent opencode"},
		{"--agent command --opencode http://x -- cat", "--opencode goes with"},
		{"--stdin body", "--stdin goes with --agent command"},
		{"--conduct", "--conduct goes with"},
		{"--peers some", "off, names or all"},
		{"--peers names", "say which"},
		{"--peers all --peers-name x", "go with names"},
		{"--peers names --peers-name [", "pattern"},
		{"--peers= ", "--peers is empty"},
		{"--peers-policy maybe", "accept, auto, hold or refuse"},
		{"--peers-permissions maybe", "ask, allow or deny"},
		{"--peers-permissions-remote maybe", "ask, allow or deny"},
		{"--peers-option maxQueue", "KEY=VALUE"},
		{"--peers-option maxqueue=1", "maxQueue"},
		{"--peers-option maxQueue=0", "maxQueue"},
		{"--peers-option staleMs=10000", "heartbeatMs"},
		{"--no-peers --peers all", "--no-peers"},
		{"--no-peers --peers-option maxQueue=1", "--no-peers"},
		{"--agent command --stdin half -- cat", "half"},
		{"--agent command --stdin body --conduct -- cat", "conduct"},
		{"--model nonsense", "provider/model"},
		{"--opencode mailto:x", "http://host:port"},
		{"--permissions maybe", "permissions are ask, allow or deny"},
		{"--permissions=", "--permissions is ask, allow or deny"},
		{"--permission bash", "--permission"},
		{"--permission bash:ls=perhaps", "ask, allow or deny"},
		{"--agent command --permissions deny -- cat", "--permissions goes with --agent opencode"},
		{"--agent command --permission bash=deny -- cat", "--permission goes with --agent opencode"},
		{"--agent command --opencomms-push -- cat", "--opencomms-push goes with --agent opencode"},
		{"--policy maybe", "--policy"},
		{"--max-parallel -1", "--max-parallel"},
		{"--max-parallel many", "--max-parallel"},
		{"--deadline -1s", "--deadline"},
		{"--stop-timeout -1s", "--stop-timeout"},
		{"--accept-from=", "--accept-from"},
		{"--service web", "web"},
		{"--service web=ftp://x", "http://HOST:PORT"},
		{"--service web=tcp://x", "tcp://HOST:PORT"},
		{"--service Web=http://x:1", "NAME=URL"},
		{"--service a=http://x:1 --service a=http://y:1", "twice"},
		{"--log-level loud", "--log-level"},
	} {
		t.Run(c.args, func(t *testing.T) {
			res := m.Want(cli.ExitUsage, append([]string{"run", "--hub", m.hub.Link, "--name", "alpha"}, strings.Fields(c.args)...))
			wantText(t, res.Err, c.says)
		})
	}
	if _, err := os.Stat(m.data); err == nil {
		t.Error("a data directory was made")
	}
	if list, err := m.hub.Operator.Nodes(t.Context()); err != nil || len(list) > 0 {
		t.Errorf("joined: %v %v", list, err)
	}
}

func TestWorkspacesHaveNamesAndAbsolutePaths(t *testing.T) {
	base := t.TempDir()
	odd := filepath.Join(base, "My Project=2")
	if err := os.Mkdir(odd, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Chdir(base)
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		list []string
		want []agent.Workspace
	}{
		{nil, []agent.Workspace{{Name: "default", Dir: here}}},
		{[]string{"main=.", "up=.."}, []agent.Workspace{{Name: "main", Dir: here}, {Name: "up", Dir: filepath.Dir(here)}}},
		{[]string{odd}, []agent.Workspace{{Name: "my-project-2", Dir: odd}}},
		{[]string{"Big_one.v2=" + odd}, []agent.Workspace{{Name: "Big_one.v2", Dir: odd}}},
	} {
		if got, err := workspaces(c.list); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%q: %v %v", c.list, got, err)
		}
	}
	if _, err := workspaces([]string{"/"}); err == nil {
		t.Error("the root has a name")
	}
}

func TestServicesAreNamedURLs(t *testing.T) {
	got, err := services([]string{"web=http://127.0.0.1:80", "db=tcp://[::1]:5432", "sec=https://host"})
	if err != nil || len(got) != 3 || got["db"] != "tcp://[::1]:5432" {
		t.Errorf("got %v %v", got, err)
	}
	_, err = services([]string{"web=http://me:hunter2@host:bad"})
	if err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("got %v", err)
	}
}

func TestTheServiceOpencodeIsOfferedAndFilteredUnlessTheOwnerSaysOtherwise(t *testing.T) {
	m := NewMain(cli.System("MESHNODE"))
	for flags, want := range map[string][2]bool{ // offered, filtered
		"": {true, true}, "--no-opencode-service": {false, true}, "--opencode-filter=false": {true, false},
	} {
		cmd := m.run()
		if err := cmd.ParseFlags(append(strings.Fields(flags), "--agent", "command", "--", "true")); err != nil {
			t.Fatal(err)
		}
		cfg, err := m.config(cmd, cmd.Flags().Args(), t.TempDir(), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if got := [2]bool{!cfg.NoOpencode, !cfg.NoFilter}; got != want {
			t.Errorf("%q: got %v", flags, got)
		}
	}
}

func TestThePartOfANodeInPeersIsWhatItsOwnerSays(t *testing.T) {
	m := NewMain(cli.System("MESHNODE"))
	read := func(flags string) node.Config {
		t.Helper()
		cmd := m.run()
		if err := cmd.ParseFlags(append(strings.Fields(flags), "--agent", "command", "--", "true")); err != nil {
			t.Fatal(err)
		}
		cfg, err := m.config(cmd, cmd.Flags().Args(), t.TempDir(), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return cfg
	}
	c := read("")
	if c.NoPeers || c.Peers.Show != peers.ShowOff || c.Peers.Permissions != peers.PermissionsAllow || c.Peers.PermissionsRemote != peers.PermissionsAsk {
		t.Errorf("without flags: %+v", c.Peers)
	}
	if !read("--no-peers").NoPeers {
		t.Error("it takes part")
	}
	p := read("--peers names --peers-name a* --peers-dir d --peers-policy hold --peers-permissions deny --peers-permissions-remote allow --peers-option maxQueue=7 --peers-option sweepMs=500").Peers
	if !p.Shows("abc") || p.Shows("b") || !filepath.IsAbs(p.StorageDir) || p.Policy != "hold" || p.Permissions != "deny" || p.PermissionsRemote != "allow" ||
		p.Options.MaxQueue != 7 || p.Options.Sweep != 500*time.Millisecond || p.Options.MaxHeld != 100 {
		t.Errorf("got %+v", p)
	}
}

func TestARevokedNodeEndsWithWhatToDo(t *testing.T) {
	t.Parallel()
	m := newMachine(t, clitest.StartHub(t))
	m.join("alpha")
	r := m.online("alpha", m.demo())
	running := m.dispatch("alpha", "SLEEP:1m")
	m.hub.AwaitTask(running, api.StateRunning)
	if err := m.hub.Operator.Revoke(t.Context(), "alpha"); err != nil {
		t.Fatal(err)
	}
	res := r.Wait()
	if res.Code != cli.ExitNoAccess {
		t.Errorf("exit code %d", res.Code)
	}
	wantText(t, res.Err, "error: ", "revoked", "join the hub again")
	t.Run("and so does the next start", func(t *testing.T) {
		wantText(t, m.Want(cli.ExitNoAccess, m.demo()).Err, "revoked", "join the hub again")
	})
}

func TestANodeMeetsAnotherHub(t *testing.T) {
	t.Parallel()
	m := newMachine(t, clitest.StartHub(t))
	m.join("alpha")
	path := filepath.Join(m.data, "node.json")
	joined, err := auth.LoadProfile(path)
	if err != nil {
		t.Fatal(err)
	}
	other, err := auth.ParseLink(clitest.StartHub(t).Link)
	if err != nil {
		t.Fatal(err)
	}
	t.Run("with another key", func(t *testing.T) {
		p := joined
		p.Link.Port = other.Port
		if err := auth.SaveProfile(path, p); err != nil {
			t.Fatal(err)
		}
		wantText(t, m.Want(cli.ExitNoAccess, m.demo()).Err, "key is not the one", "join")
	})
	t.Run("that does not know it", func(t *testing.T) {
		p := joined
		p.Link = other
		if err := auth.SaveProfile(path, p); err != nil {
			t.Fatal(err)
		}
		wantText(t, m.Want(cli.ExitNoAccess, m.demo()).Err, "join the hub again")
	})
	t.Run("with a damaged credential file", func(t *testing.T) {
		if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		wantText(t, m.Want(cli.ExitNoAccess, m.demo()).Err, path, "join the hub again")
	})
}

func TestASecondNodeOnTheSameDataNamesFileAndHolder(t *testing.T) {
	t.Parallel() // it waits a moment for the holder to go
	m := newMachine(t, clitest.StartHub(t))
	m.join("alpha")
	m.online("alpha", m.demo())
	res := m.Want(cli.ExitNotDone, m.demo())
	wantText(t, res.Err, filepath.Join(m.data, "journal-"), fmt.Sprintf("pid %d ", os.Getpid()))
}

func TestAnUnreadableJournalStopsTheNode(t *testing.T) {
	t.Parallel()
	m := newMachine(t, clitest.StartHub(t))
	m.join("alpha")
	m.online("alpha", m.demo()).Stop()
	journals, _ := filepath.Glob(filepath.Join(m.data, "journal-*.db"))
	if len(journals) != 1 {
		t.Fatalf("journals: %v", journals)
	}
	junk := []byte(strings.Repeat("junk", 4096))
	if err := os.WriteFile(journals[0], junk, 0o600); err != nil {
		t.Fatal(err)
	}
	wantText(t, m.Want(cli.ExitNotDone, m.demo()).Err, journals[0])
	if now, _ := os.ReadFile(journals[0]); string(now) != string(junk) {
		t.Error("it was made anew")
	}
}

func TestPoliciesOfANode(t *testing.T) {
	t.Parallel()
	m := newMachine(t, clitest.StartHub(t))
	m.join("alpha")
	t.Run("refuse", func(t *testing.T) {
		r := m.online("alpha", m.demo("--policy", "refuse"))
		m.hub.AwaitTask(m.dispatch("alpha", "x"), api.StateRefused)
		r.Stop()
		m.hub.AwaitState("alpha", api.NodeOffline)
	})
	t.Run("from some controllers only", func(t *testing.T) {
		r := m.online("alpha", m.demo("--accept-from", "laptop", "--accept-from", "desk"))
		m.hub.AwaitTask(m.dispatch("alpha", "x"), api.StateRefused)
		r.Stop()
		m.hub.AwaitState("alpha", api.NodeOffline)
	})
	t.Run("hold", func(t *testing.T) {
		r := m.online("alpha", m.demo("--policy", "hold"))
		one, two := m.dispatch("alpha", "the \x1b[31mfirst"), m.dispatch("alpha", "the second")
		m.hub.AwaitTask(one, api.StateHeld)
		m.hub.AwaitTask(two, api.StateHeld)
		res := m.Want(0, []string{"held"})
		wantText(t, res.Out, one+"  from overseer", "\n  the first\n", two, "\n  the second\n")
		if strings.Contains(res.Out, "\x1b") {
			t.Errorf("got %q", res.Out)
		}
		if line, _, _ := strings.Cut(m.Want(0, []string{"held", "--json"}).Out, "\n"); object(t, line)["task"] != one {
			t.Errorf("got %s", line)
		}
		m.Want(0, []string{"held", "release", one})
		m.Want(0, []string{"held", "refuse", two})
		m.hub.AwaitTask(one, api.StateDone)
		m.hub.AwaitTask(two, api.StateRefused)
		if res := m.Want(0, []string{"held"}); res.Out != "" {
			t.Errorf("still held: %q", res.Out)
		}
		m.Want(cli.ExitUsage, []string{"held", "release", one})
		m.Want(cli.ExitUsage, []string{"held", "release"})
		m.Want(cli.ExitUsage, []string{"held", "refuse", "../x"})
		m.Want(cli.ExitUsage, []string{"held", "free", one})
		r.Stop()
	})
}
