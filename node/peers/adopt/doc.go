// Package adopt makes endpoints of peers out of the sessions of the node's own agent,
// which has no plugin for that.
//
// Sessions are adopted as they live: those that work when the node begins to watch, those
// that anything becomes of later, and those that peers had written to before a restart.
// What else the server keeps is not looked at. A session goes with its end on the server,
// its sub-agents' with it, and an idle one makes room when there are MaxAdopted. Where the
// server loads a plugin for peers the sessions are left to that.
//
// A message is a prompt of its own. The original prompts at once, even a session that
// works; but opencode would take that prompt into the turn that runs, whose own answer may
// then never come, and a task of the mesh would lose its result. So messages wait their
// turn, as tasks in the session do: their receipt is "queued", and the final
// acknowledgement "delivered" follows when the message is in the session's history.
//
// It guarantees:
//
//   - A message is in the history once, however often the node dies: its id there is
//     derived from the message, and is looked for before anything is prompted.
//   - While a message's turn runs no task and no other delivery enters the session, nor
//     the sessions that a sub-agent's works for.
//   - What such a turn asks a human is decided by the rules of permissions.go, and does
//     not keep the session for longer than AskLimit after nobody answered.
//
// It does not make a turn that was cut off with its node run again once its message is
// delivered, as the original does not.
package adopt

import "time"

// Limits.
const (
	// MaxAdopted is how many sessions are endpoints at once. Each is a few small files
	// that are rewritten at every heartbeat.
	MaxAdopted = 64
	// MaxSigns is how many sessions wait to be looked at; what more sessions do then is
	// noticed with their next sign.
	MaxSigns = 4096
	// Recent is how long an idle session counts as active after its last change: servers
	// tell of old sessions, too, when they start.
	Recent = 10 * time.Minute
	// AskLimit is how long what a turn asks may wait for a person until it is rejected.
	AskLimit = 10 * time.Minute
	// RetryAfter is the time from a failure to the next attempt.
	RetryAfter = 5 * time.Second
)

// pluginNames are what plugins of opencode for peers are called.
var pluginNames = []string{"plugin-peers", "opencode-peers"}
