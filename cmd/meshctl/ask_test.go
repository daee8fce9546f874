package main

import (
	"context"
	"strings"
	"testing"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/cmd/internal/clitest"
	"opencode-mesh/node/agent"
	"opencode-mesh/protocol/api"
)

// asker is an agent that asks leave in the middle of each turn, tells what it does and
// says what it was answered.
type asker struct{ clitest.Agent }

// Run implements agent.Agent.
func (asker) Run(ctx context.Context, t agent.Turn, h agent.Host) (api.Outcome, error) {
	h.Progress(api.Activity{Tool: "bash: git\x1b[2J push", Line: "about to push", Tokens: &api.Tokens{Total: 12300, Limit: 20000}})
	if strings.Contains(t.Text, "linger") {
		<-ctx.Done()
		return api.Outcome{State: api.StateCanceled}, nil
	}
	answer, err := h.Ask(ctx, "per_1", api.Asked{Kind: api.QuestionPermission, Text: "bash: git push origin", Options: []string{api.PermitOnce, api.PermitAlways, api.PermitReject}})
	return api.Outcome{State: api.StateDone, Summary: "answered " + answer, Reply: answer, Session: "ses_1"}, err
}

func TestAPermissionIsAskedForAndAnsweredFromTheCommandLine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.hub.StartNode("beta", asker{clitest.Agent(obey)})
	for answer, want := range map[string]string{"2": "answered always", "once": "answered once", "reject not today": "answered reject not today"} {
		res := w.Want(cli.ExitQuestion, []string{"dispatch", "beta", "--auto-answer", "first", "--", "push it"}) // no policy grants a permission
		wantText(t, res.Out, "beta  question", "bash: git push origin", "2) always", "once|always|reject [MESSAGE]")
		id := w.tasks()[0]["task"].(string)
		w.Want(cli.ExitUsage, []string{"task", "answer", id, "perhaps"})
		w.Want(0, append([]string{"task", "answer", id}, strings.Fields(answer)...))
		wantText(t, w.Want(0, []string{"task", "wait", id}).Out, want)
	}
}

func TestWhatANodesAgentDoesReachesTheTableAndTheWatcher(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.hub.StartNode("beta", asker{clitest.Agent(obey)})
	watch := w.Start([]string{"watch"})
	table := w.Start([]string{"dispatch", "beta", "--id", "t1", "--", "linger"}, onTerminal, func(app *cli.App) { app.Size = func() (int, int) { return 200, 24 } })
	table.Out.AwaitText(t, "12.3k tokens  bash: git push · about to push")
	watch.Out.AwaitText(t, "laptop -> beta  running  t1  ctx 62%  bash: git push · about to push\n")
	wantText(t, w.Want(0, []string{"task", "show", "t1"}).Out, "  bash: git push\n", "  12.3k tokens\n")
	w.Want(0, []string{"task", "cancel", "t1"})
	table.Wait()
	watch.Stop()
}

func TestQuestionsAreAnsweredByPolicyWithoutAWait(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "alpha")
	for policy, want := range map[string]string{"first": "): staging", "^prod": "): production"} {
		res := w.Want(0, []string{"dispatch", "alpha", "--auto-answer", policy, "--", "ask"})
		wantText(t, res.Out, "alpha  done", want)
		wantText(t, w.Want(0, []string{"task", "show", w.tasks()[0]["task"].(string)}).Out, "policy")
	}
	for _, policy := range []string{"none", "nothing fits"} {
		w.Want(cli.ExitQuestion, []string{"dispatch", "alpha", "--auto-answer", policy, "--", "ask"})
	}
}
