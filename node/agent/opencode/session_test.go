package opencode_test

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"opencode-mesh/protocol/api"
)

func TestSessions(t *testing.T) {
	t.Run("are used again when they are alive", func(t *testing.T) {
		f := newFake(t)
		turn := newTurn(t, "alpha-1-aaaa", "x")
		a := start(t, forFake(f, turn.Workspace.Dir))
		first := run(t, a, turn, newRecords())
		turn.Task, turn.Text, turn.Session.ID = "alpha-1-bbbb", envelope("alpha-1-bbbb", "x"), first.Session
		host := newRecords()
		second := run(t, a, turn, host)
		expect(t, second, api.StateDone, "")
		if second.Session != first.Session || second.NewSession || len(f.sessions) != 1 || len(host.made) != 0 {
			t.Errorf("second turn in %s, new %v, %d sessions", second.Session, second.NewSession, len(f.sessions))
		}
	})
	t.Run("are replaced with a flag when they are gone", func(t *testing.T) {
		f := newFake(t)
		turn := newTurn(t, "alpha-1-aaaa", "x")
		turn.Session.ID = "ses_gone"
		a := start(t, forFake(f, turn.Workspace.Dir))
		host := newRecords()
		out := run(t, a, turn, host)
		expect(t, out, api.StateDone, "", api.FlagSessionReplaced)
		if !out.NewSession || !slices.Equal(host.made, []string{out.Session}) {
			t.Errorf("outcome %+v, made %q", out, host.made)
		}
	})
	t.Run("are replaced when they vanish between look and prompt", func(t *testing.T) {
		f := newFake(t)
		turn := newTurn(t, "alpha-1-aaaa", "x")
		a := start(t, forFake(f, turn.Workspace.Dir))
		turn.Session.ID = run(t, a, turn, newRecords()).Session
		f.intercept = func(_ http.ResponseWriter, r *http.Request) bool {
			if strings.HasSuffix(r.URL.Path, "/"+turn.Session.ID+"/prompt_async") {
				f.locked(func() { f.remove(turn.Session.ID) })
			}
			return false
		}
		turn.Task, turn.Text = "alpha-1-bbbb", envelope("alpha-1-bbbb", "x")
		host := newRecords()
		out := run(t, a, turn, host)
		expect(t, out, api.StateDone, "", api.FlagSessionReplaced)
		if id := f.prompts[len(f.prompts)-1].MessageID; out.Session == turn.Session.ID || strings.Contains(host.saved[0], id) {
			t.Errorf("outcome %+v; message %s moved from %s", out, id, host.saved[0])
		}
	})
	t.Run("are replaced when they belong to another directory", func(t *testing.T) {
		f := newFake(t)
		turn := newTurn(t, "alpha-1-aaaa", "x")
		f.locked(func() { f.add(&fakeSession{ID: "ses_other", Dir: t.TempDir()}) })
		turn.Session.ID = "ses_other"
		out := run(t, start(t, forFake(f, turn.Workspace.Dir)), turn, newRecords())
		expect(t, out, api.StateDone, "", api.FlagSessionReplaced)
	})
	t.Run("are recognised through a link in the path", func(t *testing.T) {
		f := newFake(t)
		turn := newTurn(t, "alpha-1-aaaa", "x")
		link := filepath.Join(t.TempDir(), "link")
		if err := os.Symlink(turn.Workspace.Dir, link); err != nil {
			t.Fatal(err)
		}
		f.locked(func() { f.add(&fakeSession{ID: "ses_real", Dir: turn.Workspace.Dir}) })
		turn.Workspace.Dir, turn.Session.ID = link, "ses_real"
		out := run(t, start(t, forFake(f, link)), turn, newRecords())
		expect(t, out, api.StateDone, "")
		if out.Session != "ses_real" {
			t.Errorf("outcome %+v", out)
		}
	})
	t.Run("are found by their mark when a crash kept them from the journal", func(t *testing.T) {
		f := newFake(t)
		turn := newTurn(t, "alpha-1-aaaa", "x")
		a := start(t, forFake(f, turn.Workspace.Dir))
		first := run(t, a, turn, newRecords())
		turn.Task, turn.Text = "alpha-1-bbbb", envelope("alpha-1-bbbb", "x")
		host := newRecords()
		second := run(t, a, turn, host)
		if second.Session != first.Session || !slices.Equal(host.made, []string{first.Session}) {
			t.Errorf("found %s, made %q", second.Session, host.made)
		}
		turn.Session.Generation = 2
		if third := run(t, a, turn, newRecords()); third.Session == first.Session {
			t.Error("a session of another generation was taken")
		}
	})
	t.Run("are not replaced because a proxy answers 404", func(t *testing.T) {
		f := newFake(t)
		turn := newTurn(t, "alpha-1-aaaa", "x")
		f.locked(func() { f.add(&fakeSession{ID: "ses_real", Dir: turn.Workspace.Dir}) })
		turn.Session.ID = "ses_real"
		failures := 3
		f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path == "/session/ses_real" && failures > 0 {
				failures--
				http.Error(w, "<html>no such app", http.StatusNotFound)
				return true
			}
			return false
		}
		out := run(t, start(t, forFake(f, turn.Workspace.Dir)), turn, newRecords())
		expect(t, out, api.StateDone, "")
	})
	t.Run("wait for a human who types in them", func(t *testing.T) {
		f := newFake(t)
		turn := newTurn(t, "alpha-1-aaaa", "x")
		f.locked(func() {
			f.add(&fakeSession{ID: "ses_shared", Dir: turn.Workspace.Dir})
			f.busy["ses_shared"] = map[string]any{"type": "busy"}
			// The human's own business, not ours to reject.
			f.asks["permission"] = []map[string]any{{"id": "per_h", "sessionID": "ses_shared", "permission": "bash"}}
		})
		turn.Session.ID = "ses_shared"
		host := newRecords()
		done, _ := begin(t, start(t, forFake(f, turn.Workspace.Dir)), turn, host)
		host.awaitNote(t, "in use")
		f.locked(func() {
			if len(f.prompts) != 0 {
				t.Error("a busy session was prompted")
			}
			f.idle("ses_shared")
		})
		expect(t, settle(t, done), api.StateDone, "")
		if len(f.replies) != 0 {
			t.Errorf("the human's permission was answered: %q", f.replies)
		}
	})
	t.Run("take one turn at a time even if the runner does not", func(t *testing.T) {
		f := newFake(t)
		turn := newTurn(t, "alpha-1-aaaa", "x")
		f.onPrompt = func(f *fakeServer, p fakePrompt) { f.work(p) }
		a := start(t, forFake(f, turn.Workspace.Dir))
		f.locked(func() { f.add(&fakeSession{ID: "ses_one", Dir: turn.Workspace.Dir}) })
		turn.Session.ID = "ses_one"
		first, _ := begin(t, a, turn, newRecords())
		f.await("the first prompt", func() bool { return len(f.prompts) == 1 })
		other := turn
		other.Task, other.Text, other.Session.Key = "alpha-1-bbbb", envelope("alpha-1-bbbb", "x"), "another lane"
		second, _ := begin(t, a, other, newRecords())
		f.locked(func() { f.finish(f.prompts[0], resultBlock(f.prompts[0], "done", "one")) })
		if out := settle(t, first); out.Summary != "one" {
			t.Errorf("first %+v", out)
		}
		f.await("the second prompt", func() bool { return len(f.prompts) == 2 })
		f.locked(func() { f.finish(f.prompts[1], resultBlock(f.prompts[1], "done", "two")) })
		if out := settle(t, second); out.Summary != "two" {
			t.Errorf("second %+v", out)
		}
	})
}
