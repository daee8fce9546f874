package cli_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"opencode-mesh/auth"
	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/protocol/api"
)

func TestErrorsBecomeExitCodes(t *testing.T) {
	for _, c := range []struct {
		err  error
		code int
		says string
	}{
		{nil, cli.ExitOK, ""},
		{errors.New("disk gone"), cli.ExitNotDone, "error: disk gone\n"},
		{cli.Usage("bad %s", "flag"), cli.ExitUsage, "error: bad flag\n"},
		{fmt.Errorf("task x: %w", cli.Exit(cli.ExitNoAccess, errors.New("revoked"))), cli.ExitNoAccess, "error: task x: revoked\n"},
		{cli.Exit(cli.ExitWaiting, nil), cli.ExitWaiting, ""}, // all was said already
	} {
		p := newProgram()
		p.work = func(*cobra.Command) error { return c.err }
		p.want(t, c.code, []string{"work"})
		if p.err.String() != c.says {
			t.Errorf("%v: said %q, want %q", c.err, p.err.String(), c.says)
		}
	}
}

func TestAnswersOfTheMeshBecomeExitCodes(t *testing.T) {
	for _, c := range []struct {
		err  error
		code int
	}{
		{api.Errorf(api.CodeUnauthorized, "x"), cli.ExitNoAccess},
		{api.Errorf(api.CodeRevoked, "x"), cli.ExitNoAccess},
		{api.Errorf(api.CodeForbidden, "x"), cli.ExitNoAccess},
		{api.Errorf(api.CodeFromMismatch, "x"), cli.ExitNoAccess},
		{api.Errorf(api.CodeHopLimit, "x"), cli.ExitNoAccess},
		{api.Errorf(api.CodeRateLimited, "x"), cli.ExitNoAccess},
		{api.Errorf(api.CodeQueueFull, "x"), cli.ExitNoAccess},
		{api.Errorf(api.CodeDiskFull, "x"), cli.ExitNoAccess},
		{api.Errorf(api.CodeInternal, "x"), cli.ExitNoAccess},
		{&auth.PinMismatchError{Want: "a", Got: "b"}, cli.ExitNoAccess},
		{api.Errorf(api.CodeUnknownTarget, "x"), cli.ExitUsage},
		{api.Errorf(api.CodeUnknownTask, "x"), cli.ExitUsage},
		{api.Errorf(api.CodeTaskConflict, "x"), cli.ExitUsage},
		{api.Errorf(api.CodeMalformedEnvelope, "x"), cli.ExitUsage},
		{api.Errorf(api.CodeTooLarge, "x"), cli.ExitUsage},
		{api.Errorf(api.CodeAlreadySettled, "x"), cli.ExitNotDone},
		{api.Errorf(api.CodeNotSettled, "x"), cli.ExitNotDone},
		{api.Errorf(api.CodeAlreadyAnswered, "x"), cli.ExitNotDone},
		{api.Errorf(api.CodeQuestionGone, "x"), cli.ExitNotDone},
		{api.Errorf(api.CodeConflict, "x"), cli.ExitNotDone},
		{api.Errorf(api.CodeNotSupported, "x"), cli.ExitUsage},
		{errors.New("x"), cli.ExitNotDone},
		{cli.Exit(cli.ExitQuestion, api.Errorf(api.CodeInternal, "x")), cli.ExitQuestion},
	} {
		p := newProgram()
		p.work = func(*cobra.Command) error { return cli.Coded(fmt.Errorf("in context: %w", c.err)) }
		p.want(t, c.code, []string{"work"}, "x")
	}
}

func TestWrongCommandLinesAreErrorsOfUsage(t *testing.T) {
	for _, c := range []struct{ args, says string }{
		{"wrok", `no command "wrok"`},
		{"group lsit", `no command "lsit"`},
		{"work --bogus", "--bogus"},
		{"work --max-count many", "many"},
		{"work extra", "extra"},
		{"other", "accepts 1 arg"},
		{"completion tcsh", `no command "tcsh"`},
		{"work --log-level loud --loud", ""},
	} {
		p := newProgram()
		p.work = func(cmd *cobra.Command) error {
			_, err := p.app.Log(cmd)
			return err
		}
		p.want(t, cli.ExitUsage, strings.Fields(c.args), c.says)
		if p.out.Len() > 0 {
			t.Errorf("%s: stdout carries %q", c.args, p.out.String())
		}
	}
}

func TestACommandThatLogsNothingChecksTheLevelToo(t *testing.T) {
	p := newProgram()
	p.work = func(*cobra.Command) error { return nil }
	p.want(t, cli.ExitUsage, []string{"work", "--log-level", "loud"}, "--log-level is debug, info, warn or error")
	p = newProgram()
	p.work = func(*cobra.Command) error { return nil }
	p.want(t, cli.ExitOK, []string{"work", "--log-level", "WARN"})
}

func TestACommandWithoutItsSubcommandShowsHelp(t *testing.T) {
	for _, args := range []string{"", "group"} {
		p := newProgram()
		p.want(t, 0, strings.Fields(args))
		if !strings.Contains(p.out.String(), "Available Commands") {
			t.Errorf("%q: %s", args, p.out.String())
		}
	}
}

func TestCobrasOwnCommandsShowAnExampleToo(t *testing.T) {
	for _, args := range []string{"help", "completion", "completion bash", "completion zsh", "completion fish", "completion powershell"} {
		p := newProgram()
		p.want(t, 0, append(strings.Fields(args), "--help"))
		if !strings.Contains(p.out.String(), "Examples:\n") {
			t.Errorf("%s --help has no example:\n%s", args, p.out.String())
		}
	}
}

func TestTheLogIsTextForPeopleAndJSONForPrograms(t *testing.T) {
	logged := func(terminal bool, level string) string {
		p := newProgram("MESHX_LOG_LEVEL=" + level)
		p.app.StderrTerminal = terminal
		p.work = func(cmd *cobra.Command) error {
			log, err := p.app.Log(cmd)
			if err == nil {
				log.Info("hello", "who", "world")
				log.Debug("hidden")
			}
			return err
		}
		p.want(t, 0, []string{"work"})
		if p.out.Len() > 0 {
			t.Errorf("stdout carries %q", p.out.String())
		}
		return p.err.String()
	}
	var line map[string]any
	if err := json.Unmarshal([]byte(logged(false, "info")), &line); err != nil || line["msg"] != "hello" || line["who"] != "world" {
		t.Errorf("not one line of JSON: %v %v", line, err)
	}
	if text := logged(true, "info"); !strings.Contains(text, "msg=hello") || strings.Contains(text, "hidden") {
		t.Errorf("text: %q", text)
	}
	if text := logged(true, "error"); text != "" {
		t.Errorf("level error shows %q", text)
	}
}

func TestDirectoriesComeFromMESH_DIROrHome(t *testing.T) {
	dirs := func(env ...string) (data, config string, err error) {
		a := &cli.App{Env: env}
		data, err = a.DataDir("node")
		if err == nil {
			config, err = a.ConfigDir()
		}
		return data, config, err
	}
	data, config, err := dirs("HOME=/home/ann")
	if err != nil || data != filepath.Join("/home/ann", ".local", "share", "opencode-mesh", "node") || config != filepath.Join("/home/ann", ".config", "opencode-mesh") {
		t.Errorf("from HOME: %s %s %v", data, config, err)
	}
	data, config, err = dirs("HOME=/home/ann", "MESH_DIR=/srv/mesh")
	if err != nil || data != filepath.Join("/srv/mesh", "node") || config != "/srv/mesh" {
		t.Errorf("from MESH_DIR: %s %s %v", data, config, err)
	}
	data, _, err = dirs("USERPROFILE=/users/ann", "HOME=")
	if err != nil || !strings.HasPrefix(data, "/users/ann") {
		t.Errorf("from USERPROFILE: %s %v", data, err)
	}
	_, _, err = dirs()
	var exit *cli.ExitError
	if !errors.As(err, &exit) || exit.Code != cli.ExitUsage {
		t.Errorf("from nothing: %v", err)
	}
}

func TestChildrenInheritNoVariableOfTheMesh(t *testing.T) {
	t.Setenv("MESH_PASSWORD", "secret")
	t.Setenv("MESHCTL_PROFILE", "work")
	t.Setenv("UNRELATED_MESH", "kept")
	a := cli.System("MESHCTL")
	for _, kv := range os.Environ() {
		if strings.HasPrefix(kv, "MESH") {
			t.Errorf("a child would see %s", kv)
		}
	}
	if os.Getenv("UNRELATED_MESH") != "kept" {
		t.Error("another variable is gone")
	}
	if v, ok := a.Getenv("MESH_PASSWORD"); !ok || v != "secret" {
		t.Error("the command itself cannot see the password any more")
	}
	if v, _ := a.Getenv("MESHCTL_PROFILE"); v != "work" {
		t.Error("the command itself cannot see its settings any more")
	}
}

func TestListsAreTablesOrJSONLines(t *testing.T) {
	type row struct {
		Name string `json:"name"`
	}
	list := func(args ...string) string {
		p := newProgram()
		p.work = func(cmd *cobra.Command) error {
			return cli.List(p.app, cmd, []row{{"a"}, {"bb"}}, "NAME\tX", func(r row) string { return r.Name + "\t" + cli.Or("\x1b[31m") })
		}
		p.want(t, 0, append([]string{"work"}, args...))
		return p.out.String()
	}
	if got := list(); got != "NAME  X\na     -\nbb    -\n" {
		t.Errorf("table: %q", got)
	}
	if got := list("--json"); got != "{\"name\":\"a\"}\n{\"name\":\"bb\"}\n" {
		t.Errorf("json: %q", got)
	}
}
