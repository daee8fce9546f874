// Package e2e drives the real binaries and the real opencode as a person does:
// through meshctl, with a model server that answers by directives in the text.
package e2e

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"opencode-mesh/protocol/api"
	"opencode-mesh/test/fleet"
	"opencode-mesh/test/opencodebin"
	"opencode-mesh/test/stubllm"
)

func TestMain(m *testing.M) { fleet.Main(m) }

// opencode makes a node that supervises a real opencode of its own.
func opencode(t *testing.T, llm *stubllm.Server) fleet.NodeOption {
	t.Helper()
	env := opencodebin.Env(t, opencodebin.Options{ModelURL: llm.URL()})
	bin := opencodebin.Find(t)
	return func(n *fleet.Node) {
		fleet.Environ(env)(n)
		fleet.Args("--agent", "opencode", "--opencode-bin", bin)(n)
	}
}

// bounded ends what waits for something that never comes.
func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// one demands exactly one task.
func one(t *testing.T, tasks []api.Task, out fleet.Output) api.Task {
	t.Helper()
	if len(tasks) != 1 {
		t.Fatalf("%d tasks: %+v", len(tasks), out)
	}
	return tasks[0]
}

// TestTheRealOpencodeWorksForTheFleet is one fleet for all of its cases, because
// two opencode servers take a while to start.
func TestTheRealOpencodeWorksForTheFleet(t *testing.T) {
	t.Parallel()
	llm := stubllm.Start(t)
	f := fleet.New(t)
	alpha := f.Node("alpha", opencode(t, llm))
	f.Node("beta", opencode(t, llm))
	ctl := f.Ctl("desk")
	for _, name := range []string{"alpha", "beta"} {
		n := ctl.Healthy(name)
		if n.Agent.Kind != "opencode" || n.Agent.Version != opencodebin.Version {
			t.Errorf("%s: agent %+v", name, n.Agent)
		}
	}

	t.Run("a task to both nodes comes back done, with session and context fill", func(t *testing.T) {
		tasks, out := ctl.Dispatch("--all", "--", "say hello USAGE:20000,100")
		if out.Code != 0 || len(tasks) != 2 {
			t.Fatalf("%+v", out)
		}
		for _, task := range tasks {
			if task.State != api.StateDone || task.Summary != "stub ok" || task.Session == nil || !strings.HasPrefix(*task.Session, "ses") || !task.NewSession {
				t.Errorf("task %+v", task)
			}
			if task.Tokens == nil || task.Tokens.Total != 20100 || task.Tokens.Limit != opencodebin.DefaultContext || task.CtxPercent == nil || *task.CtxPercent != 10 {
				t.Errorf("tokens %+v, ctx %v", task.Tokens, task.CtxPercent)
			}
		}
	})
	t.Run("the second dispatch enters the same session", func(t *testing.T) {
		before, out := ctl.Dispatch("alpha", "--", "first")
		after, _ := ctl.Dispatch("alpha", "--", "second")
		a, b := one(t, before, out), one(t, after, out)
		if *a.Session != *b.Session || b.NewSession {
			t.Errorf("sessions %s and %s, new %v", *a.Session, *b.Session, b.NewSession)
		}
		if n := ctl.Online("alpha"); n.CtxPercent == nil {
			t.Error("nodes shows no context fill")
		}
	})
	t.Run("--new starts another one", func(t *testing.T) {
		before, out := ctl.Dispatch("alpha", "--", "first")
		after, _ := ctl.Dispatch("alpha", "--new", "--", "second")
		if a, b := one(t, before, out), one(t, after, out); *a.Session == *b.Session || !b.NewSession {
			t.Errorf("sessions %s and %s, new %v", *a.Session, *b.Session, b.NewSession)
		}
	})
	t.Run("two controllers never share a session", func(t *testing.T) {
		mine, out := ctl.Dispatch("alpha", "--", "mine")
		theirs, _ := f.Ctl("laptop").Dispatch("alpha", "--", "theirs")
		if a, b := one(t, mine, out), one(t, theirs, out); *a.Session == *b.Session {
			t.Errorf("both in %s", *a.Session)
		}
	})
	t.Run("a reply without a block is a free reply", func(t *testing.T) {
		tasks, out := ctl.Dispatch("alpha", "--", "REPLY:just some words")
		task := one(t, tasks, out)
		if out.Code != 0 || task.State != api.StateDone || task.Summary != "just some words" || !slices.Contains(task.Flags, api.FlagFreeReply) {
			t.Errorf("%+v %+v", task, out)
		}
	})
	t.Run("a failed task says so and exits 1", func(t *testing.T) {
		id := "e2e-failed-1"
		tasks, out := ctl.Dispatch("alpha", "--id", id, "--", `REPLY:[opencode-mesh-result v1]\ntask: `+id+`\nstatus: failed\nsummary: no compiler\nartifacts: none\n[/opencode-mesh-result]`)
		task := one(t, tasks, out)
		if out.Code != 1 || task.State != api.StateFailed || task.Summary != "no compiler" || task.Error != nil {
			t.Errorf("%+v %+v", task, out)
		}
	})
	t.Run("artifacts are named", func(t *testing.T) {
		id := "e2e-artifacts-1"
		tasks, out := ctl.Dispatch("alpha", "--id", id, "--", `REPLY:[opencode-mesh-result v1]\ntask: `+id+`\nstatus: partial\nsummary: half\nartifacts: out/a.txt, out/b.txt\n[/opencode-mesh-result]`)
		task := one(t, tasks, out)
		if out.Code != 1 || task.State != api.StatePartial || !slices.Equal(task.Artifacts, []string{"out/a.txt", "out/b.txt"}) {
			t.Errorf("%+v %+v", task, out)
		}
	})
	t.Run("a question waits for its answer in the same session", func(t *testing.T) {
		tasks, out := ctl.Dispatch("alpha", "--", "ASK before you start")
		task := one(t, tasks, out)
		if out.Code != 5 || task.State != api.StateQuestion || task.Question == nil || len(task.Question.Options) != 2 {
			t.Fatalf("%+v %+v", task, out)
		}
		if out := ctl.Run("task", "answer", task.Task, "1"); out.Code != 0 {
			t.Fatalf("answer: %+v", out)
		}
		done, out := ctl.Tasks("task", "wait", task.Task)
		after := one(t, done, out)
		if out.Code != 0 || after.State != api.StateDone || *after.Session != *task.Session || after.Turn != 2 {
			t.Errorf("%+v %+v", after, out)
		}
	})
	t.Run("a tool call runs in the workspace", func(t *testing.T) {
		tasks, out := ctl.Dispatch("alpha", "--", "TOOL:echo made by the agent > made.txt")
		task := one(t, tasks, out)
		if out.Code != 0 || task.State != api.StateDone {
			t.Fatalf("%+v %+v", task, out)
		}
		b, err := os.ReadFile(filepath.Join(alpha.Work, "made.txt"))
		if err != nil || string(b) != "made by the agent\n" {
			t.Errorf("%q, %v", b, err)
		}
	})
	t.Run("leave that the node's own server wants is a question", func(t *testing.T) {
		task := do(t, ctl, api.StateQuestion, "alpha", "--", "TOOL:cat "+outside(t))
		if task.Question.Kind != api.QuestionPermission {
			t.Errorf("%+v", task.Question)
		}
		if out := ctl.Run("task", "answer", task.Task, "once"); out.Code != 0 {
			t.Fatalf("answer: %+v", out)
		}
		if after := waited(t, ctl, task.Task); after.State != api.StateDone || !strings.Contains(shownTask(t, ctl, task.Task).Reply, "plum") {
			t.Errorf("%+v", after)
		}
	})
	t.Run("a slow turn is waited for, and a wait that ends leaves it running", func(t *testing.T) {
		tasks, out := ctl.Dispatch("alpha", "--timeout", "1s", "--", "GATE:waited")
		task := one(t, tasks, out)
		if out.Code != 4 || task.State.Settled() || !strings.Contains(out.Stderr, task.Task) {
			t.Fatalf("%+v %+v", task, out)
		}
		llm.Open("waited")
		done, out := ctl.Tasks("task", "wait", task.Task)
		if after := one(t, done, out); out.Code != 0 || after.State != api.StateDone || after.StartedAt == nil {
			t.Errorf("%+v %+v", after, out)
		}
	})
	t.Run("a cancel reaches the model", func(t *testing.T) {
		tasks, _ := ctl.Dispatch("alpha", "--detach", "--", "SLOW:300")
		id := tasks[0].Task
		if _, err := llm.WaitFor(bounded(t), func(r stubllm.Request) bool { return strings.Contains(r.User, id) }); err != nil {
			t.Fatal(err)
		}
		if out := ctl.Run("task", "cancel", id); out.Code != 0 {
			t.Fatalf("%+v", out)
		}
		done, out := ctl.Tasks("task", "wait", id)
		if after := one(t, done, out); out.Code != 1 || after.State != api.StateCanceled {
			t.Errorf("%+v %+v", after, out)
		}
		if _, err := llm.WaitFor(bounded(t), func(r stubllm.Request) bool { return strings.Contains(r.User, id) && r.Aborted }); err != nil {
			t.Error(err)
		}
	})
	t.Run("one failure of the provider is ridden out", func(t *testing.T) {
		tasks, out := ctl.Dispatch("beta", "--", "FAIL:500:1")
		if task := one(t, tasks, out); out.Code != 0 || task.State != api.StateDone {
			t.Errorf("%+v %+v", task, out)
		}
	})
	t.Run("a provider that refuses fails the task with its words", func(t *testing.T) {
		for _, code := range []string{"401", "429"} {
			tasks, out := ctl.Dispatch("beta", "--", "FAIL:"+code)
			task := one(t, tasks, out)
			if out.Code != 1 || task.State != api.StateFailed || !strings.Contains(task.Summary, "stub failure "+code) || !slices.Contains(task.Flags, api.FlagProviderError) {
				t.Errorf("%s: %+v %+v", code, task, out)
			}
		}
	})
	t.Run("an envelope goes in as text and the reply comes out as text", func(t *testing.T) {
		out := ctl.RunStdin("[opencode-mesh v1]\nfrom: desk\ntask: e2e-envelope-1\nmode: session\nreply: result-block\n---\nhello", "envelope", "alpha")
		if out.Code != 0 || !strings.Contains(out.Stdout, "[opencode-mesh-result v1]") || !strings.Contains(out.Stdout, "task: e2e-envelope-1") {
			t.Errorf("%+v", out)
		}
	})
	t.Run("the stopped node leaves no opencode behind", func(t *testing.T) {
		status := alpha.Run("status", "--json")
		if status.Code != 0 {
			t.Fatalf("%+v", status)
		}
		if code := alpha.Stop(); code != 0 {
			t.Errorf("exit %d", code)
		}
		if left := processesIn(t, alpha.Work); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	})
}

// processesIn lists the processes whose working directory is dir.
func processesIn(t *testing.T, dir string) []string {
	t.Helper()
	procs, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, p := range procs {
		if at, err := os.Readlink(p); err == nil && at == dir {
			cmd, _ := os.ReadFile(filepath.Join(filepath.Dir(p), "cmdline"))
			out = append(out, strings.ReplaceAll(string(cmd), "\x00", " "))
		}
	}
	return out
}
