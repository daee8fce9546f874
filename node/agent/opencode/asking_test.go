package opencode_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"opencode-mesh/node/agent"
	"opencode-mesh/node/agent/opencode"
	"opencode-mesh/protocol/api"
)

// askings makes a turn ask several things at once, of its own session if they name
// no other.
func askings(kind string, asks ...map[string]any) func(f *fakeServer, p fakePrompt) {
	return func(f *fakeServer, p fakePrompt) {
		if len(f.prompts) > 1 { // sent again: it goes on
			f.finish(p, resultBlock(p, "done", "went on"))
			return
		}
		f.work(p)
		for _, ask := range asks {
			if ask["sessionID"] == nil {
				ask["sessionID"] = p.Session
			}
			f.asks[kind] = append(f.asks[kind], ask)
			f.event(p.Session, kind+".asked", ask)
		}
	}
}

func permission(id, kind string, patterns ...string) map[string]any {
	return map[string]any{"id": id, "permission": kind, "patterns": patterns}
}

// asks runs a turn that asks something; rules are the node's.
func asks(t *testing.T, host *records, kind string, list []map[string]any, rules ...string) (*fakeServer, <-chan ended, func(error)) {
	t.Helper()
	f := newFake(t)
	f.onPrompt = askings(kind, list...)
	turn := newTurn(t, "alpha-1-aaaa", "x")
	cfg := forFake(f, turn.Workspace.Dir)
	for _, s := range rules {
		r, err := opencode.ParsePermissionRule(s)
		if err != nil {
			t.Fatal(err)
		}
		cfg.PermissionRules = append(cfg.PermissionRules, r)
	}
	done, cancel := begin(t, start(t, cfg), turn, host)
	return f, done, cancel
}

func wantReplies(t *testing.T, f *fakeServer, want ...string) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.replies) != len(want) {
		t.Fatalf("replies %q, want %q", f.replies, want)
	}
	for i, w := range want {
		if !strings.HasPrefix(f.replies[i], w) {
			t.Errorf("reply %q, want %q", f.replies[i], w)
		}
	}
}

func TestAPermissionIsPutToTheController(t *testing.T) {
	for _, c := range []struct {
		answer, reply string
		flags         []api.Flag
	}{
		{"once", `{"reply":"once"}`, nil},
		{"always", `{"reply":"always"}`, nil},
		{"reject use the copy in the workspace", `{"message":"use the copy in the workspace","reply":"reject"}`, []api.Flag{api.FlagPermissionRejected}},
		// Without words the turn would end.
		{"reject", `{"message":"The controller rejected this.`, []api.Flag{api.FlagPermissionRejected}},
		{"certainly not", `{"message":"certainly not","reply":"reject"}`, []api.Flag{api.FlagPermissionRejected}},
		{"once more", `{"message":"once more","reply":"reject"}`, []api.Flag{api.FlagPermissionRejected}},
	} {
		t.Run(c.answer, func(t *testing.T) {
			ask := permission("per_1", "bash", "git push origin main")
			ask["metadata"] = map[string]any{"command": "git push origin \x1b[31mmain\nrm -rf /", "diff": "long", "n": 1}
			ask["always"] = []string{"git push *"}
			host := patient()
			f, done, _ := asks(t, host, "permission", []map[string]any{ask})
			q := host.asked(t, 1)
			if q.id != "per_1" || q.Kind != api.QuestionPermission || !slices.Equal(q.Options, []string{"once", "always", "reject"}) {
				t.Errorf("asked %+v", q)
			}
			if want := "opencode asks for the permission bash git push origin main\ncommand: git push origin main\n  rm -rf /\n" +
				"\"always\" allows in this workspace, until opencode ends: git push *"; q.Text != want {
				t.Errorf("text %q, want %q", q.Text, want)
			}
			wantReplies(t, f)
			q.answer <- c.answer
			expect(t, settle(t, done), api.StateDone, "", c.flags...)
			wantReplies(t, f, "permission per_1: "+c.reply)
		})
	}
	t.Run("and rejected with words when nobody answers", func(t *testing.T) {
		host := newRecords()
		f, done, _ := asks(t, host, "permission", []map[string]any{permission("per_1", "external_directory", "/etc/*")})
		expect(t, settle(t, done), api.StateDone, "", api.FlagPermissionRejected)
		wantReplies(t, f, `permission per_1: {"message":"Nobody is here`)
		host.awaitNote(t, "rejected: external_directory /etc/*")
	})
	t.Run("a command is not cut in silence", func(t *testing.T) {
		ask := permission("per_1", "bash", "x")
		ask["metadata"] = map[string]any{"command": strings.Repeat("x", 5000)}
		host := patient()
		_, _, _ = asks(t, host, "permission", []map[string]any{ask})
		if q := host.asked(t, 1); !strings.Contains(q.Text, "… and 913 bytes more") || len(q.Text) > 5000 {
			t.Errorf("text %q", q.Text)
		}
	})
}

func TestTheNodesPolicyDecidesPermissions(t *testing.T) {
	for _, c := range []struct {
		name  string
		rules []string
		ask   map[string]any
		want  string // once, reject, or "" when the controller is asked
	}{
		{"allow", []string{"bash:git *=allow"}, permission("p", "bash", "git status"), "once"},
		{"deny", []string{"bash:git push *=deny"}, permission("p", "bash", "git push"), "reject"},
		{"ask", []string{"bash:git *=ask", "*=deny"}, permission("p", "bash", "git log"), ""},
		{"the first that matches", []string{"bash:git status*=allow", "bash:git *=deny"}, permission("p", "bash", "git status -s"), "once"},
		{"no pattern means all", []string{"external_directory=allow"}, permission("p", "external_directory", "/etc/*"), "once"},
		{"the type must match", []string{"bash=allow"}, permission("p", "edit", "x"), ""},
		{"the glob must match", []string{"bash:ls=allow"}, permission("p", "bash", "lsof"), ""},
		{"the most restrictive of several", []string{"bash:ls *=allow", "bash:rm *=deny"}, permission("p", "bash", "ls x", "rm y", "cat z"), "reject"},
		{"asking is more restrictive than allowing", []string{"bash:ls *=allow"}, permission("p", "bash", "ls x", "cat z"), ""},
		{"a glob with = and ?", []string{"bash:make CC=?cc=allow"}, permission("p", "bash", "make CC=gcc"), "once"},
		{"nothing in particular", []string{"bash=allow"}, permission("p", "bash"), "once"},
	} {
		t.Run(c.name, func(t *testing.T) {
			host := patient()
			f, done, _ := asks(t, host, "permission", []map[string]any{c.ask}, c.rules...)
			switch c.want {
			case "":
				host.asked(t, 1).answer <- "once"
				expect(t, settle(t, done), api.StateDone, "")
				return
			case "reject":
				expect(t, settle(t, done), api.StateDone, "", api.FlagPermissionRejected)
				wantReplies(t, f, `permission p: {"message":"This machine's policy denies it.`)
			default:
				expect(t, settle(t, done), api.StateDone, "")
				wantReplies(t, f, `permission p: {"reply":"once"}`)
			}
			if len(host.questions) != 0 {
				t.Errorf("asked %+v", host.questions[0])
			}
		})
	}
}

func TestPermissionRulesAreRead(t *testing.T) {
	for s, want := range map[string]opencode.PermissionRule{
		"bash=deny":                       {Type: "bash", Glob: "*", Action: "deny"},
		"bash:git push *=ask":             {Type: "bash", Glob: "git push *", Action: "ask"},
		"external_directory:C:/a=b/*=ask": {Type: "external_directory", Glob: "C:/a=b/*", Action: "ask"},
		" * = allow ":                     {Type: "*", Glob: "*", Action: "allow"},
	} {
		if got, err := opencode.ParsePermissionRule(s); err != nil || got != want {
			t.Errorf("%q: %+v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "bash", "bash=", "bash=maybe", "=allow", ":x=allow", "bash:=allow", "git push=allow"} {
		if got, err := opencode.ParsePermissionRule(s); err == nil {
			t.Errorf("%q was read as %+v", s, got)
		}
	}
}

func TestSeveralAsksAtOnce(t *testing.T) {
	two := func() []map[string]any {
		return []map[string]any{permission("per_1", "bash", "one"), permission("per_2", "bash", "two")}
	}
	t.Run("are put one after the other, and all are answered", func(t *testing.T) {
		host := patient()
		f, done, _ := asks(t, host, "permission", two())
		host.asked(t, 1).answer <- "once"
		if q := host.asked(t, 2); q.id != "per_2" {
			t.Errorf("second %+v", q)
		} else {
			q.answer <- "always"
		}
		expect(t, settle(t, done), api.StateDone, "")
		wantReplies(t, f, `permission per_1: {"reply":"once"}`, `permission per_2: {"reply":"always"}`)
	})
	t.Run("a rejection waits for the others, which it would take with it", func(t *testing.T) {
		host := patient()
		f, done, _ := asks(t, host, "permission", two())
		host.asked(t, 1).answer <- "reject no"
		host.asked(t, 2).answer <- "once"
		expect(t, settle(t, done), api.StateDone, "", api.FlagPermissionRejected)
		wantReplies(t, f, `permission per_2: {"reply":"once"}`, `permission per_1: {"message":"no"`)
		if len(f.prompts) != 1 {
			t.Errorf("%d prompts", len(f.prompts))
		}
	})
	t.Run("several rejections end the turn in opencode, and it goes on here", func(t *testing.T) {
		host := patient()
		f, done, _ := asks(t, host, "permission", two())
		host.asked(t, 1).answer <- "reject no"
		host.asked(t, 2).answer <- "reject no again"
		out := settle(t, done)
		expect(t, out, api.StateDone, "", api.FlagPermissionRejected)
		wantReplies(t, f, `permission per_1: {"message":"no"`)
		if len(f.prompts) != 2 || f.prompts[0].MessageID != f.prompts[1].MessageID || f.prompts[0].Parts[0].ID != f.prompts[1].Parts[0].ID {
			t.Errorf("prompts %+v", f.prompts)
		}
	})
	t.Run("do not keep a turn of another session from its own", func(t *testing.T) {
		host := patient()
		f, done, _ := asks(t, host, "permission", two())
		first := host.asked(t, 1)
		other := newTurn(t, "alpha-1-bbbb", "x")
		other.Session.Key = "c2/main"
		f.locked(func() { f.onPrompt = nil })
		cfg := forFake(f, other.Workspace.Dir)
		expect(t, run(t, start(t, cfg), other, newRecords()), api.StateDone, "")
		first.answer <- "once"
		host.asked(t, 2).answer <- "once"
		expect(t, settle(t, done), api.StateDone, "")
	})
}

func TestAnAskThatIsGoneIsWithdrawn(t *testing.T) {
	t.Run("because a human answered it in opencode", func(t *testing.T) {
		host := patient()
		f, done, _ := asks(t, host, "permission", []map[string]any{permission("per_1", "bash", "one")})
		q := host.asked(t, 1)
		f.locked(func() {
			session := f.prompts[0].Session
			f.asks["permission"] = nil
			f.event(session, "permission.replied", map[string]any{"requestID": "per_1", "reply": "once"})
		})
		host.await(t, "a withdrawal", func() bool { return q.ended != nil })
		f.locked(func() { f.goOn(f.prompts[0].Session, false) })
		expect(t, settle(t, done), api.StateDone, "")
		wantReplies(t, f)
	})
	t.Run("because the turn is over", func(t *testing.T) {
		host := patient()
		f, done, _ := asks(t, host, "permission", []map[string]any{permission("per_1", "bash", "one")})
		q := host.asked(t, 1)
		f.locked(func() { f.finish(f.prompts[0], resultBlock(f.prompts[0], "done", "well")) })
		expect(t, settle(t, done), api.StateDone, "")
		if q.ended == nil {
			t.Error("it still waits")
		}
	})
	t.Run("because the session does nothing any more", func(t *testing.T) {
		f := newFake(t)
		f.onPrompt = askings("permission", permission("per_1", "bash", "one"))
		turn := newTurn(t, "alpha-1-aaaa", "x")
		cfg := forFake(f, turn.Workspace.Dir)
		cfg.StallAfter = time.Hour
		host := patient()
		done, _ := begin(t, start(t, cfg), turn, host)
		q := host.asked(t, 1)
		f.locked(func() { f.idle(f.prompts[0].Session) })
		host.await(t, "a withdrawal", func() bool { return q.ended != nil })
		f.locked(func() { f.finish(f.prompts[0], resultBlock(f.prompts[0], "done", "well")) })
		expect(t, settle(t, done), api.StateDone, "")
	})
	t.Run("because the session is gone", func(t *testing.T) {
		host := patient()
		f, done, _ := asks(t, host, "permission", []map[string]any{permission("per_1", "bash", "one")})
		q := host.asked(t, 1)
		f.locked(func() {
			f.remove(f.prompts[0].Session)
			f.asks["permission"] = nil
			f.dropStreams()
		})
		expect(t, settle(t, done), api.StateFailed, api.TaskInterrupted, api.FlagMayHaveRun)
		if q.ended == nil {
			t.Error("it still waits")
		}
	})
	t.Run("because the task was canceled", func(t *testing.T) {
		host := patient()
		_, done, cancel := asks(t, host, "permission", []map[string]any{permission("per_1", "bash", "one")})
		q := host.asked(t, 1)
		cancel(agent.ErrCanceled)
		expect(t, settle(t, done), api.StateCanceled, "")
		if q.ended == nil {
			t.Error("it still waits")
		}
	})
}

func TestASubAgentsAsksAreTheTurnsAndAStrangersAreNot(t *testing.T) {
	f := newFake(t)
	turn := newTurn(t, "alpha-1-aaaa", "x")
	f.onPrompt = func(f *fakeServer, p fakePrompt) {
		f.add(&fakeSession{ID: "ses_child", Dir: turn.Workspace.Dir, Parent: p.Session})
		f.add(&fakeSession{ID: "ses_grandchild", Dir: turn.Workspace.Dir, Parent: "ses_child"})
		f.add(&fakeSession{ID: "ses_stranger", Dir: turn.Workspace.Dir})
		f.busy["ses_grandchild"] = map[string]any{"type": "busy"}
		theirs, ours := permission("per_s", "bash", "x"), permission("per_1", "bash", "y")
		theirs["sessionID"], ours["sessionID"] = "ses_stranger", "ses_grandchild"
		askings("permission", theirs, ours)(f, p)
	}
	host := patient()
	done, _ := begin(t, start(t, forFake(f, turn.Workspace.Dir)), turn, host)
	q := host.asked(t, 1)
	if q.id != "per_1" || !strings.HasPrefix(q.Text, "a sub-agent of opencode asks") {
		t.Errorf("asked %+v", q)
	}
	q.answer <- "once"
	expect(t, settle(t, done), api.StateDone, "")
	wantReplies(t, f, `permission per_1: {"reply":"once"}`)
	if len(host.questions) != 1 {
		t.Errorf("%d questions", len(host.questions))
	}
}

func TestWhatAnAbortedTurnLeftBehindIsNotAsked(t *testing.T) {
	f := newFake(t)
	turn := newTurn(t, "alpha-1-aaaa", "x")
	f.locked(func() {
		f.add(&fakeSession{ID: "ses_one", Dir: turn.Workspace.Dir})
		f.asks["permission"] = []map[string]any{{"id": "per_old", "sessionID": "ses_one", "permission": "bash"}}
	})
	turn.Session.ID = "ses_one"
	f.onPrompt = func(f *fakeServer, p fakePrompt) { f.work(p) }
	host := patient()
	a := start(t, forFake(f, turn.Workspace.Dir))
	done, cancel := begin(t, a, turn, host)
	host.awaitSeen(t)
	crash(t, done, cancel)
	// Nor by the next process of the node.
	again := patient()
	done, _ = begin(t, a, resumed(turn, host), again)
	f.mu.Lock()
	before := f.looks
	f.mu.Unlock()
	f.await("two looks", func() bool { return f.looks >= before+4 })
	f.locked(func() { f.finish(f.prompts[0], resultBlock(f.prompts[0], "done", "well")) })
	expect(t, settle(t, done), api.StateDone, "")
	if len(host.questions)+len(again.questions) != 0 {
		t.Error("it was asked")
	}
}

func TestARestartedNodeAsksAgainUnderTheSameID(t *testing.T) {
	f := newFake(t)
	turn := newTurn(t, "alpha-1-aaaa", "x")
	f.onPrompt = askings("permission", permission("per_1", "bash", "one"), permission("per_2", "bash", "two"))
	a, host := start(t, forFake(f, turn.Workspace.Dir)), patient()
	done, cancel := begin(t, a, turn, host)
	host.asked(t, 1).answer <- "reject not that one" // kept back: it would take the other one with it
	host.asked(t, 2)
	crash(t, done, cancel)
	if host.questions[1].ended == nil {
		t.Error("the old process still asks")
	}
	wantReplies(t, f)
	again := patient()
	done, _ = begin(t, a, resumed(turn, host), again)
	q := again.asked(t, 1)
	if q.id != "per_2" {
		t.Errorf("asked %+v", q)
	}
	q.answer <- "once"
	expect(t, settle(t, done), api.StateDone, "", api.FlagPermissionRejected)
	wantReplies(t, f, `permission per_2: {"reply":"once"}`, `permission per_1: {"message":"not that one"`)
	if len(again.questions) != 1 {
		t.Error("what was answered is asked again")
	}
}

func TestARejectionIsToldByTheNextProcessToo(t *testing.T) {
	f := newFake(t)
	turn := newTurn(t, "alpha-1-aaaa", "x")
	other := permission("per_2", "bash", "two")
	f.onPrompt = func(f *fakeServer, p fakePrompt) {
		f.add(&fakeSession{ID: "ses_child", Dir: turn.Workspace.Dir, Parent: p.Session})
		other["sessionID"] = "ses_child"
		askings("permission", permission("per_1", "bash", "one"), other)(f, p)
	}
	a, host := start(t, forFake(f, turn.Workspace.Dir)), patient()
	done, cancel := begin(t, a, turn, host)
	host.asked(t, 1).answer <- "reject no"
	f.await("the rejection", func() bool { return len(f.replies) == 1 })
	host.await(t, "its record", func() bool { return strings.Contains(string(host.checkpoint), "permission_rejected") })
	host.asked(t, 2)
	crash(t, done, cancel)
	again := patient()
	done, _ = begin(t, a, resumed(turn, host), again)
	again.asked(t, 1).answer <- "once"
	f.await("the other answer", func() bool { return len(f.replies) == 2 })
	f.locked(func() { f.finish(f.prompts[0], resultBlock(f.prompts[0], "done", "well")) })
	expect(t, settle(t, done), api.StateDone, "", api.FlagPermissionRejected)
}

func TestAnAnswerThatDoesNotArriveIsGivenAgain(t *testing.T) {
	host := patient()
	f, done, _ := asks(t, host, "permission", []map[string]any{permission("per_1", "bash", "one")})
	q := host.asked(t, 1)
	lost := 2
	f.locked(func() {
		f.lose = func(path string) bool { lost--; return lost >= 0 && strings.HasSuffix(path, "/reply") }
	})
	q.answer <- "once"
	expect(t, settle(t, done), api.StateDone, "")
	wantReplies(t, f, `permission per_1: {"reply":"once"}`)
	if len(host.questions) != 1 {
		t.Error("it was asked again")
	}
}

func TestANativeQuestionIsPutToTheController(t *testing.T) {
	option := func(labels ...string) []any {
		var out []any
		for _, l := range labels {
			out = append(out, map[string]any{"label": l, "description": "d"})
		}
		return out
	}
	one := func(q map[string]any) []map[string]any {
		return []map[string]any{{"id": "que_1", "questions": []any{q}}}
	}
	for _, c := range []struct {
		name, answer, reply string
		several             bool
	}{
		{"by label", "Main", `{"answers":[["main"]]}`, false},
		{"in own words", "neither, take v2", `{"answers":[["neither, take v2"]]}`, false},
		{"by several labels", "main, Develop", `{"answers":[["main","develop"]]}`, true},
		{"by several labels where one is wanted", "main, develop", `{"answers":[["main, develop"]]}`, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			host := patient()
			f, done, _ := asks(t, host, "question", one(map[string]any{"question": "Which\x07 branch?", "options": option("main", "develop"), "multiple": c.several}))
			q := host.asked(t, 1)
			if q.id != "que_1" || q.Kind != api.QuestionText || q.Text != "Which branch?" || !slices.Equal(q.Options, []string{"main", "develop"}) {
				t.Errorf("asked %+v", q)
			}
			q.answer <- c.answer
			expect(t, settle(t, done), api.StateDone, "")
			wantReplies(t, f, "question que_1: "+c.reply)
		})
	}
	several := func(n int) []map[string]any {
		var list []any
		for i := range n {
			list = append(list, map[string]any{"question": fmt.Sprintf("Q%d?", i+1), "options": option("yes", "no")})
		}
		return []map[string]any{{"id": "que_1", "questions": list}}
	}
	t.Run("several of one ask have an answer each", func(t *testing.T) {
		host := patient()
		f, done, _ := asks(t, host, "question", several(2))
		for i, answer := range []string{"yes", "no"} {
			q := host.asked(t, i+1)
			if q.id != fmt.Sprintf("que_1/%d", i+1) || q.Text != fmt.Sprintf("Q%d?", i+1) {
				t.Errorf("asked %+v", q)
			}
			wantReplies(t, f)
			q.answer <- answer
		}
		expect(t, settle(t, done), api.StateDone, "")
		wantReplies(t, f, `question que_1: {"answers":[["yes"],["no"]]}`)
	})
	t.Run("too many of one ask are cut off", func(t *testing.T) {
		host := newRecords()
		f, done, _ := asks(t, host, "question", several(20))
		expect(t, settle(t, done), api.StateDone, "", api.FlagAssumed)
		if len(host.questions) != 16 || strings.Count(f.replies[0], "ask again") != 4 {
			t.Errorf("%d questions, replies %q", len(host.questions), f.replies)
		}
	})
	t.Run("nobody answers: go on by assumption", func(t *testing.T) {
		f, done, _ := asks(t, newRecords(), "question", several(2))
		expect(t, settle(t, done), api.StateDone, "", api.FlagAssumed)
		if len(f.replies) != 1 || strings.Count(f.replies[0], "Nobody is here") != 2 {
			t.Errorf("replies %q", f.replies)
		}
	})
	t.Run("a policy of permissions says nothing about it", func(t *testing.T) {
		host := patient()
		_, done, _ := asks(t, host, "question", one(map[string]any{"question": "Which?"}), "*=deny")
		host.asked(t, 1).answer <- "this"
		expect(t, settle(t, done), api.StateDone, "")
	})
}
