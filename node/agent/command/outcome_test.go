//go:build unix

package command_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"opencode-mesh/node/agent/command"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
)

func TestOutcomeFollowsReplyAndExitCode(t *testing.T) {
	question := `printf '[opencode-mesh-question v1]\ntask: t-1\nquestion: Which?\noptions: a | b\n[/opencode-mesh-question]\n'`
	for _, c := range []struct {
		name, script string
		state        api.State
		code         string
		summary      string
		flags        []api.Flag
	}{
		{"done by a result block", `say done "all good"`, api.StateDone, "", "all good", nil},
		{"partial by a result block", `say partial "half"`, api.StatePartial, "", "half", nil},
		{"failed by a result block", `say failed "no"`, api.StateFailed, "", "no", nil},
		{"keeps a result block despite an exit code", `say done "all good"; exit 3`, api.StateDone, "", "all good", nil},
		{"takes a reply without a block whole", `echo hello; echo world`, api.StateDone, "", "hello\nworld", []api.Flag{api.FlagFreeReply}},
		{"is done without output", `true`, api.StateDone, "", "the program ended without output", []api.Flag{api.FlagFreeReply}},
		{"ignores the block of another task", `task=t-2; say failed "quoted"; echo mine`, api.StateDone, "", "", []api.Flag{api.FlagFreeReply}},
		{"asks", question, api.StateQuestion, "", "", nil},
		{"fails with an exit code even when it asks", question + `; exit 1`, api.StateFailed, api.TaskExitCode, "the program ended with exit code 1", nil},
		{"fails with an exit code and shows the error output", `echo partial reply; echo "no such model" >&2; exit 7`, api.StateFailed, api.TaskExitCode, "no such model", nil},
		{"fails with a signal", `kill -9 $$`, api.StateFailed, api.TaskExitCode, "the program was ended by a signal: killed", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t, c.script)
			out := f.run(f.agent(), f.turn("t-1"))
			expect(t, out, c.state, c.code, c.flags...)
			if c.summary != "" && out.Summary != c.summary {
				t.Errorf("summary %q, want %q", out.Summary, c.summary)
			}
			if (out.State == api.StateQuestion) != (out.Question != nil) {
				t.Errorf("question %+v in state %s", out.Question, out.State)
			}
			if out.RanMS <= 0 {
				t.Errorf("ran for %d ms", out.RanMS)
			}
		})
	}
}

func TestOutcomeCarriesQuestionAndOptions(t *testing.T) {
	f := newFixture(t, `printf '[opencode-mesh-question v1]\ntask: t-1\nquestion: Which?\noptions: a | b\n[/opencode-mesh-question]\n'`)
	q := f.run(f.agent(), f.turn("t-1")).Question
	if q == nil || q.Kind != api.QuestionText || q.Text != "Which?" || fmt.Sprint(q.Options) != "[a b]" {
		t.Fatalf("question %+v", q)
	}
}

func TestProgramThatCannotRunFailsClearly(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "broken")
	if err := os.WriteFile(broken, []byte("#!/no/such/interpreter\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, program, message string }{
		{"when it does not exist", "no-such-program-here", `"no-such-program-here" cannot be run`},
		{"when it is not executable", plain, "permission denied"},
		{"when its interpreter is missing", broken, "could not be started"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t, "")
			out := f.run(f.agent(func(cfg *command.Config) { cfg.Command = []string{c.program} }), f.turn("t-1"))
			expect(t, out, api.StateFailed, api.TaskAgentUnavailable)
			if !strings.Contains(out.Error.Message, c.message) {
				t.Errorf("message %q lacks %q", out.Error.Message, c.message)
			}
		})
	}
	t.Run("when the workspace is missing", func(t *testing.T) {
		f := newFixture(t, "")
		if err := os.Remove(f.workspace); err != nil {
			t.Fatal(err)
		}
		out := f.run(f.agent(), f.turn("t-1"))
		expect(t, out, api.StateFailed, api.TaskBadWorkspace)
		if !strings.Contains(out.Summary, `"main"`) {
			t.Errorf("summary %q does not name the workspace", out.Summary)
		}
	})
	t.Run("when there is no shim", func(t *testing.T) {
		f := newFixture(t, "")
		out := f.run(f.agent(func(cfg *command.Config) { cfg.ShimCommand = []string{"/no/such/shim"} }), f.turn("t-1"))
		expect(t, out, api.StateFailed, api.TaskNotStarted)
	})
	t.Run("when the shim fails before it starts the program", func(t *testing.T) {
		f := newFixture(t, "")
		out := f.run(f.agent(func(cfg *command.Config) {
			cfg.ShimCommand = []string{"sh", "-c", "echo bad luck >&2; exit 1"}
		}), f.turn("t-1"))
		expect(t, out, api.StateFailed, api.TaskNotStarted)
		if !strings.Contains(out.Error.Message, "bad luck") {
			t.Errorf("message %q", out.Error.Message)
		}
	})
}

func TestProgramGetsWhatTheConfigurationSays(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*command.Config)
		want   func(envelope string) string
	}{
		{"the envelope", func(*command.Config) {}, func(e string) string { return e }},
		{"the body", func(cfg *command.Config) { cfg.Stdin = command.StdinBody }, func(string) string { return "do it\n" }},
		{"the conduct before the envelope", func(cfg *command.Config) { cfg.Conduct = true },
			func(e string) string { return mesh.Conduct() + "\n" + e }},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t, "cat > $0/input; pwd > $0/cwd")
			turn := f.turn("t-1")
			f.run(f.agent(c.change), turn)
			got, err := os.ReadFile(filepath.Join(f.dir, "input"))
			if want := c.want(turn.Text); err != nil || string(got) != want {
				t.Errorf("input %q, %v; want %q", got, err, want)
			}
			if got, err := filepath.EvalSymlinks(f.file("cwd")); err != nil || filepath.Base(got) != "ws" {
				t.Errorf("ran in %q, %v", got, err)
			}
		})
	}
}

func TestProgramSeesNoMeshVariableButItsToken(t *testing.T) {
	t.Setenv("MESH_PASSWORD", "secret")
	t.Setenv("MESHNODE_AGENT", "command")
	t.Setenv("MESH_TASK_TOKEN", "of another task")
	t.Setenv("OTHER", "kept")
	f := newFixture(t, "env > $0/env")
	f.run(f.agent(), f.turn("t-1"))
	var seen []string
	for line := range strings.SplitSeq(f.file("env"), "\n") {
		if strings.HasPrefix(line, "MESH") || strings.HasPrefix(line, "OTHER") {
			seen = append(seen, line)
		}
	}
	for _, want := range []string{"MESH_TASK_TOKEN=token-of-t-1", "OTHER=kept"} {
		if !strings.Contains(strings.Join(seen, "\n"), want) {
			t.Errorf("environment lacks %s", want)
		}
	}
	if len(seen) != 2 {
		t.Errorf("environment has %q", seen)
	}
}

func TestReplyThatIsTooLongBecomesAnArtifact(t *testing.T) {
	const limit = 1000
	short := func(cfg *command.Config) { cfg.MaxOutput = limit }
	script := `i=0; while [ $i -lt 100 ]; do echo "line $i äöü äöü"; i=$((i+1)); done; say done "read all of it"`

	t.Run("with the result read from its end", func(t *testing.T) {
		f := newFixture(t, script)
		out := f.run(f.agent(short), f.turn("t-1"))
		expect(t, out, api.StateDone, "", api.FlagTruncated)
		if len(out.Reply) > limit || len(out.Reply) < limit-4 || !strings.HasPrefix(out.Reply, "line 0 ") {
			t.Errorf("reply has %d bytes", len(out.Reply))
		}
		if len(out.Artifacts) != 1 {
			t.Fatalf("artifacts %q", out.Artifacts)
		}
		whole, err := os.ReadFile(filepath.Join(f.workspace, filepath.FromSlash(out.Artifacts[0])))
		if err != nil || !strings.HasPrefix(string(whole), out.Reply) || !strings.HasSuffix(string(whole), "[/opencode-mesh-result]\n") {
			t.Errorf("artifact has %d bytes, %v", len(whole), err)
		}
	})
	t.Run("but not outside the workspace", func(t *testing.T) {
		f := newFixture(t, `ln -s "$0" .opencode-mesh; `+script)
		out := f.run(f.agent(short), f.turn("t-1"))
		expect(t, out, api.StateDone, "", api.FlagTruncated)
		if len(out.Artifacts) > 0 {
			t.Errorf("artifacts %q", out.Artifacts)
		}
		if found, _ := filepath.Glob(filepath.Join(f.dir, "*.txt")); len(found) > 0 {
			t.Errorf("wrote %q", found)
		}
	})
}

func TestReplyIsAlwaysValidText(t *testing.T) {
	f := newFixture(t, `printf '\200\200\200\200\200\200\200\200x\377'`)
	out := f.run(f.agent(func(cfg *command.Config) { cfg.MaxOutput = 9 }), f.turn("t-1"))
	if out.Reply != "\uFFFDx" || out.Summary != "\uFFFDx\uFFFD" {
		t.Fatalf("reply %q, summary %q", out.Reply, out.Summary)
	}
}

func TestFloodOfOutputIsStopped(t *testing.T) {
	const most = 200_000
	f := newFixture(t, `echo begin; yes "$0"`)
	out := f.run(f.agent(func(cfg *command.Config) { cfg.MaxOutput, cfg.OutputCap = 1000, most }), f.turn("t-1"))
	expect(t, out, api.StateFailed, api.TaskOutputLimit, api.FlagTruncated)
	if info, err := os.Stat(f.runFile("t-1", "stdout")); err != nil || info.Size() != most {
		t.Errorf("stdout: %v, %v", info.Size(), err)
	}
	if !strings.HasPrefix(out.Reply, "begin\n") || len(out.Artifacts) != 1 {
		t.Errorf("reply of %d bytes, artifacts %q", len(out.Reply), out.Artifacts)
	}
}

func TestFloodOfErrorsKeepsItsEndOnly(t *testing.T) {
	f := newFixture(t, `i=0; while [ $i -lt 30 ]; do head -c 10000 /dev/zero | tr '\0' x >&2; echo >&2; i=$((i+1)); done; echo "the end" >&2; exit 1`)
	out := f.run(f.agent(), f.turn("t-1"))
	expect(t, out, api.StateFailed, api.TaskExitCode)
	if out.Summary != "the end" {
		t.Errorf("summary %.100q", out.Summary)
	}
	if info, err := os.Stat(f.runFile("t-1", "stderr")); err != nil || info.Size() > 128<<10 || info.Size() < 64<<10 {
		t.Errorf("stderr: %v, %v", info.Size(), err)
	}
}

func TestProgramThatLeavesItsOutputOpenStillEnds(t *testing.T) {
	t.Parallel() // it mostly waits
	f := newFixture(t, `sh -c 'echo $$ > "$0/left"; exec sleep 300' "$0" & say done "gone ahead"; while ! [ -s "$0/left" ]; do sleep 0.02; done`)
	out := f.run(f.agent(), f.turn("t-1"))
	kill(t, f.pid("left"), 9)
	expect(t, out, api.StateDone, "")
}

func TestFullDiskIsSaidAndNotTakenForAnEmptyReply(t *testing.T) {
	f := newFixture(t, `echo hello`)
	// A device that is always full stands in for the disk, where there is one.
	out := f.run(f.agent(func(cfg *command.Config) {
		cfg.MaxOutput, cfg.OutputCap = 1000, 1000
		cfg.ShimCommand = append([]string{"sh", "-c", `[ -e /dev/full ] && ln -s /dev/full "$3/stdout"; exec "$@"`, "sh"}, cfg.ShimCommand...)
	}), f.turn("t-1"))
	if _, err := os.Stat("/dev/full"); err != nil {
		expect(t, out, api.StateDone, "", api.FlagFreeReply)
		return
	}
	expect(t, out, api.StateFailed, api.TaskOutputLimit)
	if !strings.Contains(out.Error.Message, "no space left") {
		t.Errorf("message %q", out.Error.Message)
	}
}
