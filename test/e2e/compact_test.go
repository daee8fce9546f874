package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"opencode-mesh/protocol/api"
	"opencode-mesh/test/fleet"
	"opencode-mesh/test/opencodebin"
	"opencode-mesh/test/stubllm"
)

// acknowledged is what an agent replies to a hand-over.
const acknowledged = `REPLY:[opencode-mesh-result v1]\ntask: {task}\nstatus: done\nsummary: taken over\nartifacts: none\n[/opencode-mesh-result]`

// resumes and condenses tell the two turns of a compaction from each other and from
// all others; with an operation's id those of that one.
func resumes(id string) func(string) bool {
	return func(user string) bool { return strings.Contains(user, "mode: resume") && strings.Contains(user, id) }
}

func condenses(id string) func(string) bool {
	return func(user string) bool {
		return strings.Contains(user, "digest") && strings.Contains(user, "gen: ") && !strings.Contains(user, "mode: resume") && strings.Contains(user, id)
	}
}

// unchanged demands that a failed compaction left all as it was.
func unchanged(t *testing.T, ctl *fleet.Ctl, server *opencodebin.Server, before api.Session, digested int) {
	t.Helper()
	after := bound(t, ctl, "alpha")
	if after.Session == nil || *after.Session != *before.Session || after.Generation != before.Generation || len(after.Former) != len(before.Former) {
		t.Errorf("before %+v\nafter %+v", before, after)
	}
	if got := digests(ctl, "alpha"); len(got) != digested {
		t.Errorf("%d digests, want %d", len(got), digested)
	}
	if !there(t, server, *before.Session) {
		t.Error("the bound session is gone")
	}
}

func TestCompactionOnTheRealOpencode(t *testing.T) {
	t.Parallel()
	llm := stubllm.Start(t)
	server := served(t, llm)
	f := fleet.New(t)
	alpha := f.Node("alpha", using(server))
	f.Ctl("watcher").Healthy("alpha")
	// direct gives the two turns of a case's compactions their directives. Cases run
	// one after the other.
	direct := func(t *testing.T, digest, resume string) {
		t.Cleanup(llm.Direct(condenses(""), digest))
		t.Cleanup(llm.Direct(resumes(""), resume))
	}

	t.Run("digest, new session, hand-over, swap; the second merges", func(t *testing.T) {
		ctl := f.In(t).Ctl("merger")
		stop := llm.Direct(condenses(""), "USAGE:60000,10 FACTS:the door is blue | build with make")
		t.Cleanup(llm.Direct(resumes(""), "USAGE:9000,10 "+acknowledged))
		var sessions []string
		for i := range 3 { // more results than are handed over
			task := do(t, ctl, api.StateDone, "alpha", "--", fmt.Sprintf(`USAGE:124000,0 REPLY:[opencode-mesh-result v1]\ntask: {task}\nstatus: done\nsummary: result number %d\nartifacts: none\n[/opencode-mesh-result]`, i))
			if i == 0 {
				sessions = append(sessions, *task.Session)
			}
		}
		op, out := operate(t, ctl, "compact", "alpha")
		if out.Code != 0 || op.State != api.StateDone || op.Op != api.OpCompact || !op.NewSession || op.Error != nil || len(op.Flags) > 0 {
			t.Fatalf("%+v %+v", op, out)
		}
		if !has("62%", "digest 1", *op.Session)(op.Summary) {
			t.Errorf("summary %q", op.Summary)
		}
		s := bound(t, ctl, "alpha")
		sessions = append(sessions, *s.Session)
		if sessions[1] == sessions[0] || sessions[1] != *op.Session || s.Digest != 1 || len(s.Former) != 1 || s.Former[0].Session != sessions[0] || s.Former[0].Why != api.EndedCompact {
			t.Fatalf("bound %+v", s)
		}
		if s.Tokens == nil || s.Tokens.Total != 9010 {
			t.Errorf("tokens %+v", s.Tokens)
		}
		if !there(t, server, sessions[0]) {
			t.Error("the old session is gone")
		}
		texts := said(t, server, sessions[1])
		if len(texts) != 2 || !has("mode: resume", "- the door is blue\n- build with make", "gen: 1", "result number 1", "result number 2")(texts[0]) || strings.Contains(texts[0], "result number 0") {
			t.Errorf("the new session begins with %q", texts)
		}
		got := digests(ctl, "alpha")
		if len(got) != 1 || got[0].Generation != 1 || got[0].Task != op.Task || got[0].Session != sessions[0] || !slices.Equal(got[0].Facts, []string{"the door is blue", "build with make"}) {
			t.Errorf("digests %+v", got)
		}
		next := do(t, ctl, api.StateDone, "alpha", "--", "after the first USAGE:50000,0")
		if *next.Session != sessions[1] || next.NewSession {
			t.Errorf("%+v", next)
		}

		stop()
		t.Cleanup(llm.Direct(condenses(""), "FACTS:the door is green | build with make | tests pass"))
		op, out = operate(t, ctl, "compact", "alpha")
		if out.Code != 0 || op.State != api.StateDone || !strings.Contains(op.Summary, "digest 2") {
			t.Fatalf("%+v %+v", op, out)
		}
		request := asked(t, llm, condenses(op.Task))
		if !has("gen: 2", "- the door is blue\n- build with make")(request.User) {
			t.Errorf("the last digest is not there to be merged: %q", request.User)
		}
		got = digests(ctl, "alpha")
		if len(got) != 2 || got[0].Generation != 1 || got[1].Generation != 2 || got[1].Session != sessions[1] || !slices.Equal(got[1].Facts, []string{"the door is green", "build with make", "tests pass"}) {
			t.Errorf("digests %+v", got)
		}
		s = bound(t, ctl, "alpha")
		if s.Digest != 2 || len(s.Former) != 2 || slices.Contains(sessions, *s.Session) {
			t.Errorf("bound %+v", s)
		}
		if texts := said(t, server, *s.Session); !has("- the door is green\n- build with make\n- tests pass", "gen: 2")(texts[0]) || strings.Contains(texts[0], "door is blue") {
			t.Errorf("the third session begins with %q", texts)
		}
		if out := ctl.Run("session", "digest", "alpha"); out.Code != 0 || !has("the door is green", "tests pass")(out.Stdout) {
			t.Errorf("%+v", out)
		}
		if again, out := operate(t, ctl, "reset", "alpha"); again.State != api.StateDone {
			t.Errorf("%+v", out)
		}
		if got := digests(ctl, "alpha"); len(got) != 2 {
			t.Errorf("a reset took digests: %+v", got)
		}
	})
	t.Run("a malformed digest leaves all as it was", func(t *testing.T) {
		ctl := f.In(t).Ctl("mangler")
		do(t, ctl, api.StateDone, "alpha", "--", "one USAGE:124000,0")
		direct(t, "", acknowledged)
		before := bound(t, ctl, "alpha")
		for name, reply := range map[string]string{
			"no block":         "just words",
			"another gen":      `[opencode-mesh-digest v1]\ntask: {task}\ngen: 9\nfacts:\n- x\npending: none\nrefs: none\n[/opencode-mesh-digest]`,
			"another task":     `[opencode-mesh-digest v1]\ntask: other-1\ngen: {gen}\nfacts:\n- x\npending: none\nrefs: none\n[/opencode-mesh-digest]`,
			"no facts":         `[opencode-mesh-digest v1]\ntask: {task}\ngen: {gen}\npending: none\nrefs: none\n[/opencode-mesh-digest]`,
			"no closing mark":  `[opencode-mesh-digest v1]\ntask: {task}\ngen: {gen}\nfacts:\n- x\npending: none\nrefs: none`,
			"a question":       `[opencode-mesh-question v1]\ntask: {task}\nquestion: which?\n[/opencode-mesh-question]`,
			"a failed result":  `[opencode-mesh-result v1]\ntask: {task}\nstatus: failed\nsummary: cannot\nartifacts: none\n[/opencode-mesh-result]`,
			"more than enough": `[opencode-mesh-digest v1]\ntask: {task}\ngen: {gen}\nfacts:\n- ` + strings.Repeat("x", api.MaxDigest) + `\npending: none\nrefs: none\n[/opencode-mesh-digest]`,
		} {
			t.Run(name, func(t *testing.T) {
				t.Cleanup(llm.Direct(condenses(""), "REPLY:"+reply))
				op, out := operate(t, ctl, "compact", "alpha")
				if out.Code != 1 || op.State != api.StateFailed || op.Summary == "" && op.Error == nil {
					t.Errorf("%+v %+v", op, out)
				}
				unchanged(t, ctl, server, before, 0)
			})
		}
		if task := do(t, ctl, api.StateDone, "alpha", "--", "goes on"); *task.Session != *before.Session {
			t.Errorf("%+v", task)
		}
		if in := sessionsIn(t, server, alpha.Work); slices.Index(in, *before.Session) != 0 {
			t.Errorf("a session was made for nothing: %v", in)
		}
	})
	t.Run("a hand-over that is not acknowledged is rolled back", func(t *testing.T) {
		ctl := f.In(t).Ctl("refuser")
		do(t, ctl, api.StateDone, "alpha", "--", "one USAGE:124000,0")
		before, sessions := bound(t, ctl, "alpha"), len(sessionsIn(t, server, alpha.Work))
		for i, resume := range []string{
			strings.Replace(acknowledged, "status: done", "status: failed", 1), "FAIL:401",
			`REPLY:[opencode-mesh-question v1]\ntask: {task}\nquestion: what?\n[/opencode-mesh-question]`,
		} {
			func() {
				defer llm.Direct(resumes(""), resume)()
				defer llm.Direct(condenses(""), "FACTS:x")()
				op, out := operate(t, ctl, "compact", "alpha")
				if out.Code != 1 || op.State != api.StateFailed {
					t.Errorf("%s: %+v %+v", resume, op, out)
				}
				// The digests are kept: what was condensed is not lost.
				unchanged(t, ctl, server, before, i+1)
				if n := len(sessionsIn(t, server, alpha.Work)); n != sessions {
					t.Errorf("%s: %d sessions, there were %d", resume, n, sessions)
				}
			}()
		}
		direct(t, "FACTS:y", acknowledged)
		op, out := operate(t, ctl, "compact", "alpha")
		if op.State != api.StateDone || !strings.Contains(op.Summary, "digest 4") {
			t.Errorf("%+v %+v", op, out)
		}
	})
	t.Run("a reply without a result block is an acknowledgement too", func(t *testing.T) {
		ctl := f.In(t).Ctl("talker")
		first := do(t, ctl, api.StateDone, "alpha", "--", "one USAGE:124000,0")
		direct(t, "FACTS:x", "REPLY:understood")
		if op, out := operate(t, ctl, "compact", "alpha"); op.State != api.StateDone || *op.Session == *first.Session {
			t.Errorf("%+v %+v", op, out)
		}
	})
	t.Run("--auto-compact hands over before the dispatch, and only when it is full enough", func(t *testing.T) {
		ctl := f.In(t).Ctl("filler")
		direct(t, "FACTS:x", "USAGE:9000,0 "+acknowledged)
		first := do(t, ctl, api.StateDone, "alpha", "--", "one USAGE:158000,0")
		below := do(t, ctl, api.StateDone, "alpha", "--auto-compact", "80", "--", "two USAGE:160000,0")
		if *below.Session != *first.Session {
			t.Errorf("compacted below the mark: %+v", below)
		}
		above := do(t, ctl, api.StateDone, "alpha", "--auto-compact", "80", "--", "three USAGE:20000,0")
		if *above.Session == *first.Session {
			t.Errorf("not compacted: %+v", above)
		}
		texts := said(t, server, *above.Session)
		if len(texts) != 4 || !strings.Contains(texts[0], "mode: resume") || !strings.Contains(texts[2], "three") {
			t.Errorf("the new session holds %q", texts)
		}
		// One that fails does not stop the task.
		t.Cleanup(llm.Direct(condenses(""), "REPLY:no"))
		before := bound(t, ctl, "alpha")
		task := do(t, ctl, api.StateDone, "alpha", "--auto-compact", "10", "--", "four USAGE:20000,0")
		if *task.Session != *before.Session {
			t.Errorf("%+v", task)
		}
	})
	t.Run("a session that is too full for a digest hands over what is on record", func(t *testing.T) {
		ctl := f.In(t).Ctl("bursting")
		direct(t, "FACTS:the door is blue", acknowledged)
		do(t, ctl, api.StateDone, "alpha", "--", "one")
		if op, out := operate(t, ctl, "compact", "alpha"); op.State != api.StateDone {
			t.Fatalf("%+v", out)
		}
		full := do(t, ctl, api.StateFailed, "alpha", "--", "OVERFLOW")
		if !slices.Contains(full.Flags, api.FlagContextFull) {
			t.Fatalf("%+v", full)
		}
		op, out := operate(t, ctl, "compact", "alpha")
		if op.State != api.StateDone || !slices.Contains(op.Flags, api.FlagDigestFromRecord) || *op.Session == *full.Session {
			t.Fatalf("%+v %+v", op, out)
		}
		if texts := said(t, server, *op.Session); !strings.Contains(texts[0], "the door is blue") {
			t.Errorf("the new session begins with %q", texts)
		}
		if n := llm.Count(func(r stubllm.Request) bool { return condenses(op.Task)(r.User) }); n != 0 {
			t.Error("a full session was asked for a digest")
		}
		// The digest turn itself may be what does not fit.
		t.Cleanup(llm.Direct(condenses(""), "OVERFLOW"))
		do(t, ctl, api.StateDone, "alpha", "--", "goes on")
		op, out = operate(t, ctl, "compact", "alpha")
		if op.State != api.StateDone || !slices.Contains(op.Flags, api.FlagDigestFromRecord) {
			t.Errorf("%+v %+v", op, out)
		}
	})
	t.Run("a session that is gone cannot be condensed", func(t *testing.T) {
		ctl := f.In(t).Ctl("loser")
		direct(t, "FACTS:x", acknowledged)
		first := do(t, ctl, api.StateDone, "alpha", "--", "one")
		deleteSession(t, server, *first.Session)
		op, out := operate(t, ctl, "compact", "alpha")
		if out.Code != 1 || op.State != api.StateFailed || op.Error == nil || op.Error.Code != api.TaskSessionGone {
			t.Errorf("%+v %+v", op, out)
		}
		if task := do(t, ctl, api.StateDone, "alpha", "--", "two"); !there(t, server, *task.Session) || sessionOf(t, ctl, "alpha") != *task.Session {
			t.Errorf("%+v", task)
		}
	})
	t.Run("sessions that are deleted under a compaction", func(t *testing.T) {
		for _, turn := range []string{"digest", "resume"} {
			t.Run(turn, func(t *testing.T) {
				ctl := f.In(t).Ctl("under-" + turn)
				first := do(t, ctl, api.StateDone, "alpha", "--", "one")
				gate := "deleted-" + turn
				match := condenses
				if turn == "digest" {
					direct(t, "GATE:"+gate, acknowledged)
				} else {
					direct(t, "FACTS:kept", "GATE:"+gate+" "+acknowledged)
					match = resumes
				}
				id := "under-" + turn + "-op"
				if status, answer := ctl.API("POST", "/v1/bindings/-/alpha/compact", api.Operate{ID: id}); status != 201 {
					t.Fatalf("%d %s", status, answer)
				}
				asked(t, llm, match(id))
				victim := *first.Session
				if turn == "resume" {
					victim = sessionsIn(t, server, alpha.Work)[0]
					if victim == *first.Session {
						t.Fatal("no new session")
					}
				}
				deleteSession(t, server, victim)
				llm.Open(gate)
				op := waited(t, ctl, id)
				if op.State != api.StateFailed {
					t.Errorf("%+v", op)
				}
				task := do(t, ctl, api.StateDone, "alpha", "--", "goes on")
				if now := sessionOf(t, ctl, "alpha"); now != *task.Session || !there(t, server, now) || turn == "resume" && now != *first.Session {
					t.Errorf("bound %s, first %s: %+v", now, *first.Session, task)
				}
			})
		}
	})
	t.Run("a compaction that is canceled leaves all as it was", func(t *testing.T) {
		for _, turn := range []string{"digest", "resume"} {
			t.Run(turn, func(t *testing.T) {
				ctl := f.In(t).Ctl("cancels-" + turn)
				do(t, ctl, api.StateDone, "alpha", "--", "one")
				before := bound(t, ctl, "alpha")
				match := condenses
				if turn == "digest" {
					direct(t, "HANG", acknowledged)
				} else {
					direct(t, "FACTS:kept", "HANG")
					match = resumes
				}
				id := "cancels-" + turn + "-op"
				if status, answer := ctl.API("POST", "/v1/bindings/-/alpha/compact", api.Operate{ID: id}); status != 201 {
					t.Fatalf("%d %s", status, answer)
				}
				asked(t, llm, match(id))
				if out := ctl.Run("task", "cancel", id); out.Code != 0 {
					t.Fatalf("%+v", out)
				}
				if op := waited(t, ctl, id); op.State != api.StateCanceled {
					t.Errorf("%+v", op)
				}
				kept := 0
				if turn == "resume" {
					kept = 1
				}
				unchanged(t, ctl, server, before, kept)
			})
		}
	})
}
