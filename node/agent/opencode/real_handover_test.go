package opencode_test

import (
	"slices"
	"strings"
	"testing"

	"opencode-mesh/node/agent"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
	"opencode-mesh/test/opencodebin"
)

// oper makes a turn of an operation in the agent's workspace.
func (r *real) oper(t *testing.T, kind, session, task, body string) agent.Turn {
	t.Helper()
	turn := r.turn(t, task, body)
	turn.Kind, turn.Session.ID = kind, session
	if kind == api.TurnResume {
		turn.Mode, turn.Session.Generation, turn.Session.Compaction = mesh.ModeResume, 2, task
	}
	return turn
}

func TestTheRealServerHandsOver(t *testing.T) {
	needProc(t)
	r := newReal(t)
	a := start(t, r.cfg)
	old := run(t, a, r.turn(t, "alpha-1-work", "work USAGE:150000,100"), newRecords()).Session

	t.Run("gives a digest of a session that is there", func(t *testing.T) {
		out := run(t, a, r.oper(t, api.TurnDigest, old, "alpha-1-comp", "write a digest\ngen: 3"), newRecords())
		if d, err := mesh.FindDigest("alpha-1-comp", 3, out.Reply); err != nil || len(d.Facts) == 0 {
			t.Errorf("digest %+v, %v in %+v", d, err, out)
		}
		if out.State != api.StateDone || out.Session != old || out.NewSession {
			t.Errorf("outcome %+v", out)
		}
	})
	t.Run("says that a context is full", func(t *testing.T) {
		out := run(t, a, r.oper(t, api.TurnDigest, old, "alpha-1-full", "a digest OVERFLOW"), newRecords())
		expect(t, out, api.StateFailed, "", api.FlagContextFull, api.FlagProviderError)
	})
	t.Run("gives none of a session that is gone", func(t *testing.T) {
		out := run(t, a, r.oper(t, api.TurnDigest, "ses_000000000000000000000000", "alpha-1-gone", "a digest"), newRecords())
		expect(t, out, api.StateFailed, api.TaskSessionGone)
	})

	abandoned := run(t, a, r.oper(t, api.TurnResume, "", "alpha-1-aban", "acknowledge"), newRecords()).Session
	fresh := ""
	t.Run("makes the session of a hand-over anew, without that of an abandoned one", func(t *testing.T) {
		turn := r.oper(t, api.TurnResume, "", "alpha-1-hand", "acknowledge USAGE:3000,10")
		out := run(t, a, turn, newRecords())
		expect(t, out, api.StateDone, "")
		if out.Session == old || out.Session == abandoned || !out.NewSession || out.Tokens.Total != 3010 || out.Tokens.Limit != opencodebin.DefaultContext {
			t.Errorf("outcome %+v", out)
		}
		fresh = out.Session
		if gone := run(t, a, r.oper(t, api.TurnDigest, abandoned, "alpha-1-abnd", "a digest"), newRecords()); gone.Error == nil || gone.Error.Code != api.TaskSessionGone {
			t.Errorf("the abandoned session is there: %+v", gone)
		}
		// The same compaction again, as after a crash that kept everything from the
		// records: the same session, and no second prompt.
		requests := len(r.model.Requests())
		if again := run(t, a, turn, newRecords()); again.Session != fresh || len(r.model.Requests()) != requests {
			t.Errorf("again %+v after %d more requests", again, len(r.model.Requests())-requests)
		}
	})
	t.Run("and ordinary turns find it by its name only", func(t *testing.T) {
		turn := r.turn(t, "alpha-1-next", "go on")
		turn.Session.Generation, turn.Session.ID = 2, fresh
		if out := run(t, a, turn, newRecords()); out.Session != fresh || out.NewSession {
			t.Errorf("outcome %+v", out)
		}
		turn = r.turn(t, "alpha-1-lost", "go on")
		turn.Session.Generation = 2
		if out := run(t, a, turn, newRecords()); out.Session == fresh || !out.NewSession {
			t.Errorf("outcome %+v", out)
		}
	})
	t.Run("deletes a session, and again", func(t *testing.T) {
		for range 2 {
			expect(t, run(t, a, r.oper(t, api.TurnDelete, old, "alpha-1-clea", ""), newRecords()), api.StateDone, "")
		}
		out := run(t, a, r.oper(t, api.TurnDigest, old, "alpha-1-dele", "a digest"), newRecords())
		expect(t, out, api.StateFailed, api.TaskSessionGone)
	})
	t.Run("deletes a session that is at work, and the work ends", func(t *testing.T) {
		// By another node's turn: this one's would be waited for.
		cfg := r.cfg
		url, user, password, _ := a.Server()
		cfg.URL, cfg.Username, cfg.Password = url, user, password
		host := newRecords()
		turn := r.turn(t, "alpha-1-busy", "TOOL:sleep "+nap(21))
		turn.Session.ID = fresh
		done, _ := begin(t, start(t, cfg), turn, host)
		eventually(t, "the tool runs", func() bool { return len(withArgument(t, nap(21))) > 0 })
		expect(t, run(t, a, r.oper(t, api.TurnDelete, fresh, "alpha-1-clr2", ""), newRecords()), api.StateDone, "")
		eventually(t, "the tool is gone", func() bool { return len(withArgument(t, nap(21))) == 0 })
		if out := settle(t, done); out.State != api.StateFailed {
			t.Errorf("outcome %+v", out)
		}
	})
	t.Run("and cleans up what controllers left, with the last result's summary", func(t *testing.T) {
		kept := run(t, a, r.turn(t, "alpha-1-kept", "x"), newRecords()).Session
		left := r.turn(t, "alpha-1-left", `REPLY:[opencode-mesh-result v1]\ntask: alpha-1-left\nstatus: done\nsummary: all tests pass\nartifacts: none\n[/opencode-mesh-result]`)
		left.Session.Key, left.Session.Title = "c2/main", "opencode-mesh laptop"
		session := run(t, a, left, newRecords()).Session
		own := r.turn(t, "alpha-1-mine", "x")
		own.Session.Key, own.Session.Title = "c3/main", "mine"
		mine := run(t, a, own, newRecords()).Session
		got, err := cleaned(t, a, kept)
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(got, func(r agent.Removed) bool { return r.Session == session })
		if i < 0 {
			t.Fatalf("removed %+v", got)
		}
		if one := got[i]; one.Title != "opencode-mesh laptop" || one.Workspace != "main" || one.Summary != "all tests pass" || one.CreatedAt.IsZero() || one.UpdatedAt.Before(one.CreatedAt) {
			t.Errorf("removed %+v", one)
		}
		for _, one := range got {
			if one.Session == kept || one.Session == mine {
				t.Errorf("removed %+v", one)
			}
		}
		if again, err := cleaned(t, a, kept); err != nil || len(again) != 0 {
			t.Errorf("again %+v, %v", again, err)
		}
	})
}

func TestTheRealServersProgressIsShown(t *testing.T) {
	needProc(t)
	r := newReal(t)
	a := start(t, r.cfg)
	host := newRecords()
	done, _ := begin(t, a, r.turn(t, "alpha-1-prog", "TOOL:echo one && sleep 0.5 USAGE:1234,5"), host)
	host.awaitActivity(t, "the command", func(a api.Activity) bool { return strings.HasPrefix(a.Tool, "bash: echo one && sleep 0.5") })
	host.awaitActivity(t, "the tokens of the first step", func(a api.Activity) bool {
		return a.Tokens != nil && *a.Tokens == api.Tokens{Total: 1239, Limit: opencodebin.DefaultContext}
	})
	expect(t, settle(t, done), api.StateDone, "")

	done, _ = begin(t, a, r.turn(t, "alpha-1-slow", "SLOW:1 REASON:thinking"), host)
	host.awaitActivity(t, "a line as it is written", func(a api.Activity) bool { return strings.HasPrefix(a.Line, "tick ") })
	expect(t, settle(t, done), api.StateDone, "")
	host.mu.Lock()
	defer host.mu.Unlock()
	if strings.Contains(host.activity.Line, "thinking") || host.activity.Line != "[/opencode-mesh-result]" {
		t.Errorf("last line %q", host.activity.Line)
	}
}
