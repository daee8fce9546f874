package relay

import (
	"opencode-mesh/hub/shown"
	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// maxActivity bounds each text of what an agent is said to do, in bytes.
const maxActivity = 300

// active reports whether a task of that state may have an activity.
func active(s api.State) bool {
	return s == api.StateAccepted || s == api.StateHeld || s == api.StateRunning
}

// tidyActivity bounds and cleans what a node says of its agent, for people; nil when
// that is nothing.
func tidyActivity(a api.Activity) *api.Activity {
	a = api.Activity{
		Note: shown.Line(a.Note, maxActivity), Tool: shown.Line(a.Tool, maxActivity), Line: shown.Line(a.Line, maxActivity),
		Tokens: tidyTokens(a.Tokens),
	}
	if a == (api.Activity{}) {
		return nil
	}
	return &a
}

// sameActivity reports whether two say the same.
func sameActivity(a, b *api.Activity) bool {
	if a == nil || b == nil {
		return a == b
	}
	x, y := *a, *b
	x.Tokens, y.Tokens = nil, nil
	k, l := a.Tokens, b.Tokens
	return x == y && (k == l || k != nil && l != nil && *k == *l)
}

// does keeps what the agent of a turn does, in memory only, and reports whether that
// is news.
func (r *Relay) does(of api.Triple, a *api.Activity) (news bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.tasks[of.Task]
	if e == nil || e.task.Triple() != of || e.task.State == api.StateQuestion || sameActivity(e.doing, a) {
		return false
	}
	e.doing = a
	return true
}

// tellDoing publishes what the agent of a task does, as a passing event.
func (r *Relay) tellDoing(task string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.tasks[task]; e != nil {
		r.bus.Passing(e.task.Controller.ID, r.view(e.task))
	}
}

// Live is View with what the agent does now.
func (r *Relay) Live(t store.Task) api.Task {
	if !active(t.State) {
		return View(t)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.view(t)
}

// view is Live. Called with mu held.
func (r *Relay) view(t store.Task) api.Task {
	v := View(t)
	if e := r.tasks[t.ID]; e != nil && active(t.State) && e.task.Triple() == t.Triple() {
		v.Activity = e.doing
	}
	return v
}
