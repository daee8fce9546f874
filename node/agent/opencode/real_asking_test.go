package opencode_test

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"opencode-mesh/node/agent/opencode"
	"opencode-mesh/protocol/api"
	"opencode-mesh/test/opencodebin"
)

// rules reads permission rules.
func rules(t *testing.T, list ...string) []opencode.PermissionRule {
	t.Helper()
	var out []opencode.PermissionRule
	for _, s := range list {
		r, err := opencode.ParsePermissionRule(s)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}

func TestTheRealServerAsks(t *testing.T) {
	needProc(t)
	r := newReal(t)
	// The user's own settings, in their configuration and in a variable.
	r.cfg.Env = append(opencodebin.Env(t, opencodebin.Options{ModelURL: r.model.URL(), Home: r.home,
		Permission: map[string]any{"bash": map[string]any{"*": "allow", "echo forbidden*": "deny"}}}),
		`OPENCODE_PERMISSION={"bash":{"echo secret*":"deny"}}`)
	r.cfg.PermissionRules = rules(t, "bash:touch *=ask", "bash:rm *=deny", "external_directory:/etc/ssl/*=allow")
	a := start(t, r.cfg)
	dir := r.cfg.Workspaces[0].Dir

	for _, c := range []struct {
		name, task, body string
		answers          []string
		text             string // of the first question
		reply            string // what the model was told, at the end
		flags            []api.Flag
	}{
		{name: "once, and the turn goes on", task: "alpha-1-once", body: "TOOL:cat /etc/hostname && echo read-it", answers: []string{"once"},
			text:  "opencode asks for the permission external_directory /etc/*\ncommand: cat /etc/hostname && echo read-it\n\"always\" allows",
			reply: "read-it"},
		{name: "reject with words, which the model hears", task: "alpha-1-rej", body: "TOOL:cat /etc/hostname", answers: []string{"reject use the notes"},
			text: "external_directory", reply: "feedback: use the notes", flags: []api.Flag{api.FlagPermissionRejected}},
		{name: "reject without words", task: "alpha-1-rej0", body: "TOOL:cat /etc/hostname", answers: []string{"reject"},
			text: "external_directory", reply: "feedback: The controller rejected this", flags: []api.Flag{api.FlagPermissionRejected}},
		{name: "a sub-agent's", task: "alpha-1-sub", body: `TOOLNAME:task TOOLARGS:{"description":"sub","prompt":"TOOL:cat /etc/hosts","subagent_type":"general"}`,
			answers: []string{"once"}, text: "a sub-agent of opencode asks for the permission external_directory /etc/*", reply: "localhost"},
		{name: "what opencode itself would allow, because a rule says so", task: "alpha-1-rule", body: "TOOL:touch made.txt && echo touched", answers: []string{"once"},
			text: "opencode asks for the permission bash touch made.txt, echo touched\ncommand: touch made.txt && echo touched\n", reply: "touched"},
		{name: "but not what a rule denies", task: "alpha-1-deny", body: "TOOL:rm made.txt",
			reply: "feedback: This machine's policy denies it", flags: []api.Flag{api.FlagPermissionRejected}},
		{name: "nor what a rule allows", task: "alpha-1-allow", body: "TOOL:ls -d /etc/ssl/certs", reply: "/etc/ssl/certs"},
		{name: "nor what the user's configuration denies", task: "alpha-1-forb", body: "TOOL:echo forbidden", reply: "has specified a rule which prevents you"},
		{name: "nor what the user's variable denies", task: "alpha-1-secr", body: "TOOL:echo secret", reply: "has specified a rule which prevents you"},
		{name: "two at once, both are allowed", task: "alpha-1-two", body: "TOOL:touch one.txt\nTOOL:touch two.txt", answers: []string{"once", "once"},
			text: "touch one.txt"},
		{name: "two at once, one is rejected", task: "alpha-1-half", body: "TOOL:touch three.txt\nTOOL:touch four.txt", answers: []string{"reject no", "once"},
			text: "touch three.txt", flags: []api.Flag{api.FlagPermissionRejected}},
		{name: "two at once, both are rejected and the turn goes on", task: "alpha-1-none", body: "TOOL:touch five.txt\nTOOL:touch six.txt", answers: []string{"reject no", "reject no"},
			text: "touch five.txt", reply: "rejected permission", flags: []api.Flag{api.FlagPermissionRejected}},
		{name: "always, and from then on no more", task: "alpha-1-alw", body: "TOOL:cat /etc/hostname && cat /etc/hostname && echo all", answers: []string{"always"},
			text: "external_directory", reply: "all"},
		{name: "no more", task: "alpha-1-alw2", body: "TOOL:cat /etc/hosts", reply: "localhost"},
	} {
		t.Run(c.name, func(t *testing.T) {
			host := patient()
			done, _ := begin(t, a, r.turn(t, c.task, c.body), host)
			for i, answer := range c.answers {
				q := host.asked(t, i+1)
				if i == 0 && !strings.Contains(q.Text, c.text) {
					t.Errorf("asked %q", q.Text)
				}
				q.answer <- answer
			}
			out := settle(t, done)
			expect(t, out, api.StateDone, "", c.flags...)
			if !strings.Contains(out.Reply, c.reply) || out.Summary != "stub ok" {
				t.Errorf("reply %q", out.Reply)
			}
			if len(host.questions) != len(c.answers) {
				t.Errorf("%d questions", len(host.questions))
			}
		})
	}
	t.Run("and does what was allowed only", func(t *testing.T) {
		var found []string
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if filepath.Ext(e.Name()) == ".txt" {
				found = append(found, e.Name())
			}
		}
		if want := []string{"four.txt", "made.txt", "one.txt", "two.txt"}; !slices.Equal(found, want) {
			t.Errorf("found %q, want %q", found, want)
		}
	})
	t.Run("and a human's answer in opencode withdraws the question", func(t *testing.T) {
		host := patient()
		done, _ := begin(t, a, r.turn(t, "alpha-1-tui", "TOOL:touch tui.txt"), host)
		q := host.asked(t, 1)
		url, user, password, ok := a.Server()
		if !ok {
			t.Fatal("no server")
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/permission/"+q.id+"/reply?directory="+dir, strings.NewReader(`{"reply":"once"}`))
		if err != nil {
			t.Fatal(err)
		}
		req.SetBasicAuth(user, password)
		req.Header.Set("Content-Type", "application/json")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		expect(t, settle(t, done), api.StateDone, "")
		if q.ended == nil {
			t.Error("it was not withdrawn")
		}
		http.DefaultClient.CloseIdleConnections()
	})
}
