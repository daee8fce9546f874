package main

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/cmd/internal/clitest"
	"opencode-mesh/node/agent"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
)

// keeper is an agent whose sessions fill up with each task, and that can be asked for
// a digest of them.
type keeper struct {
	mu    sync.Mutex // guards the following fields
	made  int
	fills map[string]int // session → tasks that it ran
	tells bool           // whether it gives a digest when asked
}

var digestGen = regexp.MustCompile(`(?m)^gen: ([0-9]+)`)

func (k *keeper) run(_ context.Context, t agent.Turn) (api.Outcome, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	id, fresh := t.Session.ID, false
	if id == "" {
		k.made++
		id, fresh = fmt.Sprint("ses_", k.made), true
	}
	out := api.Outcome{State: api.StateDone, Session: id, NewSession: fresh, RanMS: 1}
	switch t.Kind {
	case api.TurnDelete:
		delete(k.fills, id)
		return out, nil
	case api.TurnDigest:
		m := digestGen.FindStringSubmatch(t.Text)
		if !k.tells || m == nil {
			out.Reply, out.Summary = "no idea", "no idea"
			break
		}
		gen, _ := strconv.Atoi(m[1])
		out.Reply, _ = mesh.Digest{Task: t.Task, Gen: gen, Facts: []string{"build with make", fmt.Sprint("handed over ", gen, " times")}, Pending: "the rest"}.Format()
	case api.TurnResume:
		k.fills[id] = -1 // next to nothing in it
		out.Summary = "taken over"
	default:
		out.Summary = "it is " + id
	}
	k.fills[id]++
	out.Tokens = &api.Tokens{Total: int64(31000*k.fills[id] + 1000), Limit: 100000}
	return out, nil
}

func TestASessionIsCompactedResetAndCleared(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := &keeper{fills: map[string]int{}, tells: true}
	w.hub.StartNode("beta", clitest.Agent(k.run))
	session := func(code int, args ...string) clitest.Result {
		t.Helper()
		return w.Want(code, append([]string{"session"}, args...))
	}
	wantText(t, session(cli.ExitNotDone, "compact", "beta").Err, "no session")
	for range 2 {
		w.Want(0, []string{"dispatch", "beta", "--", "x"})
	}
	// The fill is stored beside the result and may come a moment later.
	filled := func(ctx string) {
		t.Helper()
		w.eventually("the fill", func() bool { return strings.Contains(session(0, "list").Out, "ctx "+ctx) })
	}
	filled("63%")
	wantText(t, session(0, "list").Out, "beta    main       ses_1", "  -       -          ctx 63%\n")
	wantText(t, session(0, "compact", "beta").Out, "beta  compact  done", "digest 1", "ses_2")
	wantText(t, session(0, "show", "beta").Out, "beta  main  ses_2", "digest      1\n", "ses_1    compact")
	wantText(t, session(0, "digest", "beta").Out, "digest 1  ", "facts\n  build with make\n  handed over 1 times\npending\n  the rest\nrefs\n  none\n")
	wantText(t, w.Want(0, []string{"dispatch", "beta", "--", "x"}).Out, "it is ses_2")
	w.Want(0, []string{"dispatch", "beta", "--", "x"})
	filled("63%")
	w.Want(0, []string{"dispatch", "beta", "--auto-compact", "60", "--", "x"}) // compacts first
	wantText(t, session(0, "digest", "beta", "--diff").Out, "digest 1 -> 2\nfacts\n    build with make\n  - handed over 1 times\n  + handed over 2 times\n")
	wantText(t, session(0, "list").Out, "ses_3")

	k.mu.Lock()
	k.tells = false
	k.mu.Unlock()
	wantText(t, session(cli.ExitNotDone, "compact", "beta").Out, "beta  compact  failed")
	wantText(t, session(0, "list").Out, "ses_3") // as it was

	session(cli.ExitUsage, "clear", "beta")
	wantText(t, session(0, "clear", "beta", "--yes").Out, "beta  clear  done")
	wantText(t, session(0, "list").Out, "beta    main       -")
	wantText(t, w.Want(0, []string{"dispatch", "beta", "--", "x"}).Out, "it is ses_4")
	wantText(t, session(0, "reset", "beta").Out, "beta  reset  done")
	wantText(t, w.Want(0, []string{"dispatch", "beta", "--", "x"}).Out, "it is ses_5")
	out := w.Want(0, []string{"task", "list"}).Out
	wantText(t, out, "laptop -> beta  compact  done", "laptop -> beta  compact  failed", "laptop -> beta  clear  done", "laptop -> beta  reset  done")
}

func TestOperatorsLookAfterSessionsOfOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := &keeper{fills: map[string]int{}, tells: true}
	w.hub.StartNode("beta", clitest.Agent(k.run))
	w.login("boss", "--operator", "--profile", "boss")
	w.login("ci", "--profile", "ci")
	w.Want(0, []string{"dispatch", "beta", "--", "x"})
	w.Want(cli.ExitUsage, []string{"session", "show", "beta", "--profile", "ci", "--controller", "laptop"})
	w.Want(cli.ExitUsage, []string{"session", "reset", "beta", "--profile", "ci", "--controller", "laptop"})
	boss := []string{"--profile", "boss", "--controller", "laptop"}
	wantText(t, w.Want(0, []string{"session", "list", "--profile", "boss"}).Out, "CONTROLLER", "laptop      beta")
	wantText(t, w.Want(0, append([]string{"session", "compact", "beta"}, boss...)).Out, "compact  done")
	wantText(t, w.Want(0, append([]string{"session", "digest", "beta"}, boss...)).Out, "digest 1")
	wantText(t, w.Want(0, []string{"audit", "--profile", "boss"}).Out, "session_compact", "laptop -> beta")
}

func TestAnAgentWithoutSessionsHasNoneToCompact(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.hub.StartNode("beta", clitest.DemoAgent(t))
	wantText(t, w.Want(cli.ExitUsage, []string{"session", "compact", "beta"}).Err, "not_supported")
}
