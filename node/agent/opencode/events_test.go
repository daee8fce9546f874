package opencode_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"opencode-mesh/protocol/api"
)

func TestLostEventsAreRecoveredByPolling(t *testing.T) {
	t.Run("the idle event never comes", func(t *testing.T) {
		f := newFake(t)
		f.onPrompt = func(f *fakeServer, p fakePrompt) {
			f.work(p)
			f.dropStreams()
			time.AfterFunc(20*time.Millisecond, func() {
				f.locked(func() {
					f.step(p, resultBlock(p, "done", "quiet"), map[string]any{"finish": "stop", "time": completed})
					delete(f.busy, p.Session)
				})
			})
		}
		turn := newTurn(t, "alpha-1-aaaa", "x")
		out := run(t, start(t, forFake(f, turn.Workspace.Dir)), turn, newRecords())
		expect(t, out, api.StateDone, "")
	})
	t.Run("there is no event stream at all", func(t *testing.T) {
		f := newFake(t)
		f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path != "/event" {
				return false
			}
			w.Header().Set("Content-Type", "text/html")
			_, _ = fmt.Fprint(w, "<html>")
			return true
		}
		turn := newTurn(t, "alpha-1-aaaa", "x")
		expect(t, run(t, start(t, forFake(f, turn.Workspace.Dir)), turn, newRecords()), api.StateDone, "")
	})
	t.Run("idle for another session and premature idle decide nothing", func(t *testing.T) {
		f := newFake(t)
		f.onPrompt = func(f *fakeServer, p fakePrompt) {
			f.work(p)
			f.event("ses_other", "session.idle", nil)
			f.event(p.Session, "session.idle", nil)
		}
		turn := newTurn(t, "alpha-1-aaaa", "x")
		host := newRecords()
		done, _ := begin(t, start(t, forFake(f, turn.Workspace.Dir)), turn, host)
		host.awaitSeen(t)
		f.locked(func() { f.finish(f.prompts[0], resultBlock(f.prompts[0], "done", "later")) })
		if out := settle(t, done); out.Summary != "later" || len(f.prompts) != 1 {
			t.Errorf("outcome %+v", out)
		}
	})
}

func TestAnEventLineOf300KBIsReadAndSoIsTheNext(t *testing.T) {
	f := newFake(t)
	f.onPrompt = func(f *fakeServer, p fakePrompt) { f.work(p) }
	turn := newTurn(t, "alpha-1-aaaa", "x")
	cfg := forFake(f, turn.Workspace.Dir)
	cfg.PollInterval = time.Hour
	host := newRecords()
	done, _ := begin(t, start(t, cfg), turn, host)
	host.awaitSeen(t)
	f.locked(func() {
		p := f.prompts[0]
		big := strings.Repeat("x", 300<<10)
		f.event(p.Session, "message.part.updated", map[string]any{"part": map[string]any{"text": big}})
		f.raw(p.Session, `{"id":"e","type":"session.idle","properties":{"junk":"`+strings.Repeat("y", 5<<20)+`"}}`) // over the limit: skipped
		f.raw(p.Session, `not json`)
		f.finish(p, resultBlock(p, "done", "after the big one"))
	})
	if out := settle(t, done); out.Summary != "after the big one" {
		t.Errorf("outcome %+v", out)
	}
}

func TestAFaultIsReadFromAnEventOf300KB(t *testing.T) {
	f := newFake(t)
	f.onPrompt = func(f *fakeServer, p fakePrompt) {
		f.event(p.Session, "session.error", map[string]any{"error": map[string]any{"data": map[string]any{
			"message": "the reason", "responseBody": strings.Repeat("x", 300<<10)}}})
	}
	turn := newTurn(t, "alpha-1-aaaa", "x")
	out := run(t, start(t, forFake(f, turn.Workspace.Dir)), turn, newRecords())
	expect(t, out, api.StateFailed, api.TaskNotStarted)
	if !strings.Contains(out.Summary, "the reason") {
		t.Errorf("summary %q", out.Summary)
	}
}

func TestAProvidersRetriesAreProgress(t *testing.T) {
	f := newFake(t)
	f.onPrompt = func(f *fakeServer, p fakePrompt) {
		f.work(p)
		f.busy[p.Session] = map[string]any{"type": "retry", "attempt": 2, "message": "overloaded", "next": 1}
	}
	turn := newTurn(t, "alpha-1-aaaa", "x")
	host := newRecords()
	done, _ := begin(t, start(t, forFake(f, turn.Workspace.Dir)), turn, host)
	host.awaitNote(t, "attempt 2): overloaded")
	f.locked(func() { f.finish(f.prompts[0], resultBlock(f.prompts[0], "done", "in the end")) })
	expect(t, settle(t, done), api.StateDone, "")
}
