package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"opencode-mesh/auth"
	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/cmd/internal/clitest"
	"opencode-mesh/node/agent"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
)

func TestMain(m *testing.M) { clitest.Main(m) }

// shell is a person's shell with meshctl.
func shell(t *testing.T) *clitest.Shell {
	t.Helper()
	return clitest.NewShell(t, "MESHCTL", func(app *cli.App) func(context.Context, []string) int { return NewMain(app).Run })
}

// world is a hub and a shell that is logged in as laptop.
type world struct {
	*clitest.Shell
	t   *testing.T
	hub *clitest.Hub
}

func newWorld(t *testing.T, nodes ...string) *world {
	t.Helper()
	w := &world{Shell: shell(t), t: t, hub: clitest.StartHub(t)}
	w.login("laptop")
	for _, name := range nodes {
		w.hub.StartNode(name, clitest.Agent(obey))
	}
	return w
}

// stubHub is a shell that is logged in at a hub which answers as told.
func stubHub(t *testing.T, answer http.HandlerFunc) *clitest.Shell {
	t.Helper()
	hub := httptest.NewServer(answer)
	t.Cleanup(hub.Close)
	link, err := auth.ParseLink(hub.URL)
	if err != nil {
		t.Fatal(err)
	}
	sh := shell(t)
	secret, _ := auth.NewSecret()
	p := auth.Profile{Link: link, HubID: "h", IdentityID: "i", Name: "laptop", Role: api.RoleController, Credential: auth.Secret(secret)}
	if err := auth.SaveProfile(filepath.Join(sh.Home, ".config", "opencode-mesh", "default.json"), p); err != nil {
		t.Fatal(err)
	}
	return sh
}

func (w *world) login(name string, args ...string) {
	w.t.Helper()
	w.Set("MESH_PASSWORD", clitest.Password)
	w.Want(0, append([]string{"login", w.hub.Link, "--as", name}, args...))
	w.Env = w.Env[:len(w.Env)-1]
}

// obey is what the nodes' agent does: the first word of the task says how it ends.
func obey(ctx context.Context, t agent.Turn) (api.Outcome, error) {
	env, err := mesh.ParseEnvelope(t.Text)
	if err != nil {
		return api.Outcome{}, err
	}
	word, rest, _ := strings.Cut(strings.TrimSpace(env.Body), " ")
	out := api.Outcome{
		State: api.StateDone, Summary: rest, Reply: "the reply to " + t.Task, Session: "ses_1", NewSession: true,
		Tokens: &api.Tokens{Total: 130000, Limit: 200000}, Artifacts: []string{"out/report.html"}, RanMS: 1500,
	}
	if t.Kind != api.TurnTask {
		out.Summary = "answered: " + strings.TrimSpace(env.Body)
		return out, nil
	}
	switch word {
	case "hang":
		<-ctx.Done()
		return out, context.Cause(ctx)
	case "fail":
		out.State = api.StateFailed
	case "partial":
		out.State = api.StatePartial
	case "break":
		return out, errors.New("the agent broke")
	case "ask":
		return api.Outcome{State: api.StateQuestion, Question: &api.Asked{Kind: api.QuestionText, Text: "Which database?", Options: []string{"staging", "production"}}}, nil
	case "raw":
		out.Reply = "two\x1b[2J\n\tlines\n"
	case "long":
		out.Summary, out.Flags = strings.Repeat("long ", 100), []api.Flag{api.FlagSummaryTooLong}
	case "escape":
		out.Summary = "red \x1b[31malert\x07 and\r\na bell"
		out.Artifacts = []string{"out/\x1b]0;title\x07evil.txt"}
	}
	return out, nil
}

// jsonLines decodes one object per line.
func jsonLines(t *testing.T, text string) []map[string]any {
	t.Helper()
	var out []map[string]any
	for line := range strings.Lines(text) {
		var v map[string]any
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		out = append(out, v)
	}
	return out
}

// wantText fails unless text holds all of the parts.
func wantText(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%q is missing in:\n%s", p, text)
		}
	}
}

// tasks are all tasks that there are.
func (w *world) tasks() []map[string]any {
	w.t.Helper()
	return jsonLines(w.t, w.Want(0, []string{"task", "list", "--json"}).Out)
}

// dispatched starts a task and returns its id.
func (w *world) dispatched(target, text string) string {
	w.t.Helper()
	return jsonLines(w.t, w.Want(0, []string{"dispatch", target, "--detach", "--json", "--", text}).Out)[0]["task"].(string)
}

// eventually asks until something holds that comes about by itself.
func (w *world) eventually(what string, holds func() bool) {
	w.t.Helper()
	for until := time.Now().Add(30 * time.Second); !holds(); {
		if time.Now().After(until) {
			w.t.Fatalf("waited in vain for %s", what)
		}
	}
}

func onTerminal(app *cli.App) { app.StdoutTerminal = true }

func typed(text string) func(*cli.App) {
	return func(app *cli.App) { app.Stdin = strings.NewReader(text) }
}

func TestEveryCommandShowsAnExampleThatParses(t *testing.T) {
	clitest.Examples(t, NewMain(&cli.App{}).root())
}

func TestCompletionIsThereForFourShells(t *testing.T) {
	for sh, marker := range map[string]string{"bash": "__start_meshctl", "zsh": "#compdef meshctl", "fish": "complete -c meshctl", "powershell": "Register-ArgumentCompleter"} {
		wantText(t, shell(t).Want(0, []string{"completion", sh}).Out, marker)
	}
	if out := shell(t).Want(0, []string{"__complete", "dispatch", "--dead"}).Out; !strings.Contains(out, "--deadline") {
		t.Errorf("flags are not completed: %s", out)
	}
}

func TestADispatchFromInsideATaskSaysSo(t *testing.T) {
	sh := stubHub(t, func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get(api.TaskTokenHeader); got != "token-of-the-task" {
			t.Errorf("the hub sees the token %q", got)
		}
		_ = json.NewEncoder(w).Encode(api.Dispatched{Tasks: []api.Task{{Task: "t1", Target: "beta", State: api.StateQueued}}})
	})
	sh.Set("MESH_TASK_TOKEN", "token-of-the-task")
	sh.Want(0, []string{"dispatch", "beta", "--detach", "--", "x"})
}
