package opencode_test

import (
	"net/http"
	"strings"
	"testing"

	"opencode-mesh/node/agent/opencode"
	"opencode-mesh/protocol/api"
)

// watched is a turn that works and is watched; the fake sends what it does.
func watched(t *testing.T) (f *fakeServer, p fakePrompt, host *records, done <-chan ended) {
	t.Helper()
	f = newFake(t)
	f.onPrompt = func(f *fakeServer, p fakePrompt) { f.work(p) }
	turn := newTurn(t, "alpha-1-aaaa", "x")
	host = newRecords()
	done, _ = begin(t, start(t, forFake(f, turn.Workspace.Dir)), turn, host)
	host.awaitSeen(t)
	f.await("a stream", func() bool { return len(f.streams) == 1 })
	return f, f.prompts[0], host, done
}

// assistant announces a message.
func (f *fakeServer) assistant(session, id string, tokens int) {
	f.event(session, "message.updated", map[string]any{"info": map[string]any{"id": id, "role": "assistant", "providerID": "stub", "modelID": "two",
		"tokens": map[string]any{"total": tokens}}})
}

func (f *fakeServer) part(session, message, kind string, fields map[string]any) {
	part := map[string]any{"id": "prt_" + kind, "messageID": message, "sessionID": session, "type": kind}
	for k, v := range fields {
		part[k] = v
	}
	f.event(session, "message.part.updated", map[string]any{"part": part})
}

func (f *fakeServer) delta(session, message, part, text string) {
	f.event(session, "message.part.delta", map[string]any{"messageID": message, "partID": part, "field": "text", "delta": text})
}

func tool(name, title string, input map[string]any) map[string]any {
	return map[string]any{"tool": name, "state": map[string]any{"status": "running", "title": title, "input": input}}
}

func (r *records) awaitActivity(t *testing.T, what string, cond func(a api.Activity) bool) {
	t.Helper()
	r.await(t, what, func() bool { return cond(r.activity) })
}

func TestWhatATurnDoesIsShown(t *testing.T) {
	f, p, host, done := watched(t)
	for _, c := range []struct {
		name string
		play func()
		tool string
		line string
	}{
		{"a call by the first line of its command", func() {
			f.assistant(p.Session, "msg_1", 0)
			f.part(p.Session, "msg_1", "tool", tool("bash", "", map[string]any{"command": "go test \x1b[1m./...\nrm x", "description": "d", "timeout": 5}))
		}, "bash: go test ./...", ""},
		{"a call by its title", func() {
			f.part(p.Session, "msg_1", "tool", tool("read", "main.go", map[string]any{"filePath": "/w/main.go"}))
		}, "read: main.go", ""},
		{"a call of which nothing else is known", func() { f.part(p.Session, "msg_1", "tool", tool("list", "", nil)) }, "list", ""},
		{"a text as it comes", func() {
			f.part(p.Session, "msg_1", "text", map[string]any{"text": ""})
			f.delta(p.Session, "msg_1", "prt_text", "first\nsec")
			f.delta(p.Session, "msg_1", "prt_text", "ond\u202e line\n")
		}, "list", "second line"},
		{"a long text by its end", func() {
			f.delta(p.Session, "msg_1", "prt_text", strings.Repeat("x", 9000)+"\n"+strings.Repeat("y", 500))
		}, "list", strings.Repeat("y", 200)},
		{"a text as a whole", func() { f.part(p.Session, "msg_1", "text", map[string]any{"text": "all\nof it"}) }, "list", "of it"},
		{"no thoughts", func() {
			f.part(p.Session, "msg_1", "reasoning", map[string]any{"text": ""})
			f.delta(p.Session, "msg_1", "prt_reasoning", "hm")
			f.part(p.Session, "msg_1", "tool", tool("a", "", nil))
		}, "a", "of it"},
		{"no text of the user", func() {
			f.part(p.Session, p.MessageID, "text", map[string]any{"text": "the task"})
			f.part(p.Session, "msg_1", "tool", tool("b", "", nil))
		}, "b", "of it"},
		{"what a sub-agent does", func() {
			f.add(&fakeSession{ID: "ses_child", Dir: f.find(p.Session).Dir, Parent: p.Session})
			f.event("ses_child", "session.created", map[string]any{"info": map[string]any{"id": "ses_child", "parentID": p.Session}})
			f.assistant("ses_child", "msg_c", 999)
			f.part("ses_child", "msg_c", "text", map[string]any{"text": "child's"})
			f.part("ses_child", "msg_c", "tool", tool("grep", "", map[string]any{"pattern": "x"}))
		}, "grep: x", "child's"},
		{"nothing of other sessions", func() {
			f.add(&fakeSession{ID: "ses_other", Dir: f.find(p.Session).Dir})
			f.event("ses_other", "session.created", map[string]any{"info": map[string]any{"id": "ses_other", "parentID": "ses_stranger"}})
			f.assistant("ses_other", "msg_o", 5)
			f.part("ses_other", "msg_o", "tool", tool("other", "", nil))
			f.part("ses_other", "msg_o", "text", map[string]any{"text": "other"})
			f.part(p.Session, "msg_1", "tool", tool("c", "", nil))
		}, "c", "child's"},
		{"no event that is long, and the next one", func() {
			f.part(p.Session, "msg_1", "tool", tool("long", strings.Repeat("x", 40<<10), nil))
			f.part(p.Session, "msg_1", "text", map[string]any{"text": "after it"})
		}, "c", "after it"},
	} {
		f.locked(c.play)
		host.awaitActivity(t, c.name, func(a api.Activity) bool { return a.Tool == c.tool && a.Line == c.line })
		host.mu.Lock()
		if k := host.activity.Tokens; k != nil {
			t.Errorf("%s: tokens %+v", c.name, k)
		}
		host.mu.Unlock()
	}
	f.locked(func() {
		f.part(p.Session, "msg_1", "step-finish", map[string]any{"tokens": map[string]any{"total": 400}})
	})
	host.awaitActivity(t, "the tokens of a step", func(a api.Activity) bool { return a.Tokens != nil && a.Tokens.Total == 400 })
	f.locked(func() { f.assistant(p.Session, "msg_1", 500) })
	host.awaitActivity(t, "the tokens of a message and their limit", func(a api.Activity) bool { return *a.Tokens == api.Tokens{Total: 500, Limit: 2000} })
	f.locked(func() { f.finish(p, resultBlock(p, "done", "well")) })
	expect(t, settle(t, done), api.StateDone, "")
}

func TestWithoutEventsTheNewestMessageIsShown(t *testing.T) {
	f := newFake(t)
	f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/event" {
			w.WriteHeader(http.StatusNoContent)
			return true
		}
		return false
	}
	f.onPrompt = func(f *fakeServer, p fakePrompt) {
		f.work(p)
		m := f.step(p, "so\nfar", map[string]any{"tokens": map[string]any{"total": 77}})
		m.Parts = append(m.Parts, map[string]any{"type": "tool", "tool": "bash", "state": map[string]any{"input": map[string]any{"command": "make"}}})
	}
	turn := newTurn(t, "alpha-1-aaaa", "x")
	host := newRecords()
	done, _ := begin(t, start(t, forFake(f, turn.Workspace.Dir)), turn, host)
	host.awaitActivity(t, "the state of the newest message", func(a api.Activity) bool {
		return a.Tool == "bash: make" && a.Line == "far" && a.Tokens != nil && *a.Tokens == api.Tokens{Total: 77, Limit: 1000}
	})
	f.locked(func() { f.finish(f.prompts[0], resultBlock(f.prompts[0], "done", "well")) })
	expect(t, settle(t, done), api.StateDone, "")
}

func TestAStreamThatBeganInTheMiddleOfAMessageIsMadeUpFor(t *testing.T) {
	f, p, host, done := watched(t)
	f.locked(func() {
		f.assistant(p.Session, "msg_1", 0)
		f.part(p.Session, "msg_1", "text", map[string]any{"text": "before"})
	})
	host.awaitActivity(t, "a line", func(a api.Activity) bool { return a.Line == "before" })
	f.locked(f.dropStreams)
	f.await("another stream", func() bool { return len(f.streams) == 1 })
	f.awaitPolls(5)
	f.locked(func() { f.step(p, "meanwhile", nil) }) // of which the new stream does not tell
	host.awaitActivity(t, "what was missed", func(a api.Activity) bool { return a.Line == "meanwhile" })
	f.locked(func() { f.finish(p, resultBlock(p, "done", "well")) })
	expect(t, settle(t, done), api.StateDone, "")
}

// Other turns of the directory may stream a lot at the same time.
func TestEventsOfOtherSessionsAreNotDecoded(t *testing.T) {
	event := []byte(`{"id":"evt_1","type":"message.part.updated","properties":{"sessionID":"ses_other","part":{"type":"text","text":"` +
		strings.Repeat("x", 20<<10) + `"}}}`)
	read := func(ours bool) float64 {
		return testing.AllocsPerRun(100, func() {
			if opencode.ReadEvent(event, func(id string) bool { return id == "ses_other" && ours }) != ours {
				t.Error("read, or not, as it should not be")
			}
		})
	}
	if theirs, own := read(false), read(true); theirs > 1 || own <= theirs {
		t.Errorf("%v allocations for an event of another session, %v for one of ours", theirs, own)
	}
}

func TestANoteGoesWhenItsReasonDoes(t *testing.T) {
	f, p, host, done := watched(t)
	f.locked(func() {
		f.busy[p.Session] = map[string]any{"type": "retry", "attempt": 2, "message": "overloaded", "next": 1}
	})
	host.awaitNote(t, "overloaded")
	f.locked(func() { f.busy[p.Session] = map[string]any{"type": "busy"} })
	host.awaitActivity(t, "no note", func(a api.Activity) bool { return a.Note == "" })
	f.locked(func() { f.finish(p, resultBlock(p, "done", "well")) })
	expect(t, settle(t, done), api.StateDone, "")
}
