package e2e

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/test/fleet"
	"opencode-mesh/test/opencodebin"
	"opencode-mesh/test/stubllm"
)

// patience bounds every wait; only a hang reaches it.
const patience = 4 * time.Minute

// using makes a node that works with an opencode which is there already: it lives on
// when the node is killed, and the test can look into it.
func using(s *opencodebin.Server, args ...string) fleet.NodeOption {
	return func(n *fleet.Node) {
		fleet.Env(s.Environ()...)(n)
		fleet.Args(append([]string{"--agent", "opencode", "--opencode", s.URL}, args...)...)(n)
	}
}

// served starts an opencode for the nodes of a test. It does not condense sessions by
// itself, as none that a node starts does.
func served(t *testing.T, llm *stubllm.Server) *opencodebin.Server {
	t.Helper()
	return opencodebin.Serve(t, opencodebin.Options{ModelURL: llm.URL(), Config: map[string]any{"compaction": map[string]any{"auto": false}}}, t.TempDir())
}

// eventually waits for something that cannot be awaited.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
	}
}

// asked waits until a turn of a task is with the model.
func asked(t *testing.T, llm *stubllm.Server, match func(user string) bool) stubllm.Request {
	t.Helper()
	r, err := llm.WaitFor(bounded(t), func(r stubllm.Request) bool { return r.Kind == stubllm.KindChat && match(r.User) })
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// has makes a match of texts.
func has(parts ...string) func(string) bool {
	return func(s string) bool {
		return !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(s, p) })
	}
}

// do dispatches and demands one task in a state.
func do(t *testing.T, ctl *fleet.Ctl, state api.State, args ...string) api.Task {
	t.Helper()
	tasks, out := ctl.Dispatch(args...)
	task := one(t, tasks, out)
	if task.State != state {
		t.Fatalf("%v: %s, want %s: %+v\n%+v", args, task.State, state, task, out)
	}
	return task
}

// detached dispatches without waiting and returns the task's id.
func detached(t *testing.T, ctl *fleet.Ctl, args ...string) string {
	t.Helper()
	tasks, out := ctl.Dispatch(append([]string{"--detach"}, args...)...)
	return one(t, tasks, out).Task
}

// waited waits for the end of a task, or for its question.
func waited(t *testing.T, ctl *fleet.Ctl, id string) api.Task {
	t.Helper()
	tasks, out := ctl.Tasks("task", "wait", id)
	return one(t, tasks, out)
}

// shownTask is a task with all that there is of it.
func shownTask(t *testing.T, ctl *fleet.Ctl, id string) (task api.Task) {
	t.Helper()
	ctl.Get("/v1/tasks/"+id, &task)
	return task
}

// bound is the binding of a controller and a target with its past.
func bound(t *testing.T, ctl *fleet.Ctl, target string) (s api.Session) {
	t.Helper()
	ctl.Get("/v1/bindings/-/"+target+"?workspace=main", &s)
	return s
}

// sessionOf demands a bound session.
func sessionOf(t *testing.T, ctl *fleet.Ctl, target string) string {
	t.Helper()
	s := bound(t, ctl, target)
	if s.Session == nil {
		t.Fatalf("no session is bound: %+v", s)
	}
	return *s.Session
}

// digests are all generations of a binding's digest.
func digests(ctl *fleet.Ctl, target string) []api.Digest {
	var list api.DigestList
	ctl.Get("/v1/digests?target="+url.QueryEscape(target)+"&workspace=main", &list)
	return list.Digests
}

// operate runs an operation on a session to its end.
func operate(t *testing.T, ctl *fleet.Ctl, args ...string) (api.Task, fleet.Output) {
	t.Helper()
	tasks, out := ctl.Tasks(append([]string{"session"}, args...)...)
	return one(t, tasks, out), out
}

// there reports whether a session is in opencode.
func there(t *testing.T, s *opencodebin.Server, session string) bool {
	t.Helper()
	return s.Call(t, http.MethodGet, "/session/"+session, nil, nil) == http.StatusOK
}

// delete removes a session behind the mesh's back.
func deleteSession(t *testing.T, s *opencodebin.Server, session string) {
	t.Helper()
	if status := s.Call(t, http.MethodDelete, "/session/"+session, nil, nil); status != http.StatusOK {
		t.Fatalf("delete %s: %d", session, status)
	}
}

// said are the texts of a session's messages, oldest first, "role: text".
func said(t *testing.T, s *opencodebin.Server, session string) (texts []string) {
	t.Helper()
	var messages []struct {
		Info struct {
			Role string `json:"role"`
		} `json:"info"`
		Parts []struct {
			Type string `json:"type"`
			Text string `json:"text"`
		} `json:"parts"`
	}
	if status := s.Call(t, http.MethodGet, "/session/"+session+"/message", nil, &messages); status != http.StatusOK {
		t.Fatalf("messages of %s: %d", session, status)
	}
	for _, m := range messages {
		text := m.Info.Role + ": "
		for _, p := range m.Parts {
			if p.Type == "text" {
				text += p.Text
			}
		}
		texts = append(texts, text)
	}
	return texts
}

// sessionsIn are the sessions of a directory whose title is the mesh's.
func sessionsIn(t *testing.T, s *opencodebin.Server, dir string) (ids []string) {
	t.Helper()
	var list []struct {
		ID    string `json:"id"`
		Title string `json:"title"`
	}
	if status := s.Call(t, http.MethodGet, "/session?limit=1000&directory="+url.QueryEscape(dir), nil, &list); status != http.StatusOK {
		t.Fatalf("sessions: %d", status)
	}
	for _, l := range list {
		if strings.HasPrefix(l.Title, "opencode-mesh ") {
			ids = append(ids, l.ID)
		}
	}
	return ids
}
