package opencode_test

import (
	"encoding/json"
	"net/http"
	"slices"
)

// answerAsk does as the real server does: a rejection takes what else waits in the
// session with it, and only its own model hears of it in words.
func (f *fakeServer) answerAsk(w http.ResponseWriter, r *http.Request, kind, id string) {
	list := f.asks[kind]
	at := slices.IndexFunc(list, func(a map[string]any) bool { return a["id"] == id })
	if at < 0 {
		f.notFound(w)
		return
	}
	body := map[string]any{}
	_ = json.NewDecoder(r.Body).Decode(&body)
	b, _ := json.Marshal(body)
	f.replies = append(f.replies, kind+" "+id+": "+string(b))
	session, _ := list[at]["sessionID"].(string)
	f.asks[kind] = slices.Delete(list, at, at+1)
	stopped := body["reply"] == "reject" && body["message"] == nil
	if body["reply"] == "reject" {
		before := len(f.asks[kind])
		f.asks[kind] = slices.DeleteFunc(f.asks[kind], func(a map[string]any) bool { return a["sessionID"] == session })
		stopped = stopped || len(f.asks[kind]) < before
	}
	f.reply(w, 200, true)
	f.goOn(session, stopped)
}

// root is the session whose turn another one belongs to.
func (f *fakeServer) root(id string) string {
	s := f.find(id)
	for s != nil && s.Parent != "" {
		s = f.find(s.Parent)
	}
	if s == nil {
		return ""
	}
	return s.ID
}

// goOn ends the turn that a session belongs to if nothing in it waits any more.
func (f *fakeServer) goOn(session string, stopped bool) {
	root := f.root(session)
	for _, list := range f.asks {
		if slices.ContainsFunc(list, func(a map[string]any) bool { id, _ := a["sessionID"].(string); return f.root(id) == root }) {
			return
		}
	}
	for _, p := range f.prompts {
		switch {
		case p.Session != root || f.busy[session] == nil:
		case stopped:
			f.step(p, "calling", map[string]any{"finish": "tool-calls", "time": completed})
			f.idle(root)
			return
		default:
			f.finish(p, resultBlock(p, "done", "went on"))
			return
		}
	}
}
