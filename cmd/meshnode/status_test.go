package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/cmd/internal/clitest"
	"opencode-mesh/node"
	"opencode-mesh/node/link"
	"opencode-mesh/node/mail"
	"opencode-mesh/node/opencomms/push"
	"opencode-mesh/node/tasks"
	"opencode-mesh/protocol/api"
)

func TestStatusShowsLinkAgentTasksAndJournal(t *testing.T) {
	t.Parallel()
	m := newMachine(t, clitest.StartHub(t))
	wantText(t, m.Want(cli.ExitNoAccess, []string{"status"}).Err, m.data, "meshnode run")
	wantText(t, m.Want(cli.ExitNoAccess, []string{"held"}).Err, m.data)
	m.join("alpha")
	r := m.online("alpha", m.demo("--max-parallel", "3", "--service", "web=http://127.0.0.1:80", "--accept-from", "overseer"))
	id := m.dispatch("alpha", "SLEEP:1m")
	m.hub.AwaitTask(id, api.StateRunning)

	out := m.Want(0, []string{"status"}).Out
	wantText(t, out, "alpha", "online", "command, healthy", "accept, only from overseer", "main", "web", "1 running (at most 3)", id, "from overseer", "journal-")
	s := object(t, m.Want(0, []string{"status", "--json"}).Out)
	if s["name"] != "alpha" || s["link"].(map[string]any)["state"] != "online" || s["agent"].(map[string]any)["health"] != "healthy" {
		t.Errorf("got %v", s)
	}
	t.Run("also while the hub is away", func(t *testing.T) {
		m.hub.Stop()
		for { // the link finds out by itself
			if out := m.Want(0, []string{"status"}).Out; !strings.Contains(out, "online") {
				wantText(t, out, "since", "1 running")
				break
			}
		}
	})
	r.Stop()
}

func TestAStatusForPeopleSaysWhatIsWrong(t *testing.T) {
	var out bytes.Buffer
	err := printStatus(&out, node.Status{
		Name: "alpha", Link: link.Status{State: link.StateWaiting, LastError: "refused\x1b[2J", RetryAt: time.Now().Add(time.Hour)},
		Agent:  api.AgentStatus{Kind: "opencode", Version: "1.18.33", Health: api.HealthUnhealthy, Detail: "no answer", Memory: 300 << 20, Warnings: []string{"no password is set"}},
		Tasks:  tasks.Snapshot{Path: "/j.db", Remembered: 7, Undelivered: 2, Held: 1, Waiting: 3, Disk: "disk is full"},
		Forked: []tasks.Snapshot{{Path: "/old.db.forked"}},
		Mail:   mail.Snapshot{Waiting: 5, Unsent: 2, Disk: "read-only"},
		Push: []push.Project{{Dir: "/src/shop", Delivering: []string{"ses_a", "ses_b"}, Problem: "no model\x1b[2J"},
			{Dir: "/src/plugged", Off: "the plugin opencomms.js delivers here"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	wantText(t, out.String(), "waiting, since", "refused, next try in", "opencode 1.18.33, unhealthy, 300 MiB, no answer", "no password is set",
		"3 waiting, 1 held", "/j.db, 7 known, 2 results not delivered yet, disk is full", "2 not sent yet, 3 on their way, read-only", "/old.db.forked",
		"/src/shop, pushed, 2 sessions delivered to, no model", "/src/plugged, not pushed: the plugin opencomms.js delivers here")
	if strings.Contains(out.String(), "\x1b") {
		t.Errorf("got %q", out.String())
	}
}

func TestANodeWhoseAgentIsAwaySaysSo(t *testing.T) {
	t.Parallel()
	m := newMachine(t, clitest.StartHub(t))
	m.join("alpha")
	r := m.online("alpha", []string{"run", "--workspace", m.workspace, "--opencode", "http://127.0.0.1:1"})
	m.hub.Await("an unreachable agent", func(list []api.Node) bool { return list[0].Agent.Health == api.HealthUnreachable })
	wantText(t, m.Want(0, []string{"status"}).Out, "opencode, unreachable")
	if res := r.Stop(); res.Code != 0 {
		t.Errorf("exit code %d: %s", res.Code, res.Err)
	}
}
