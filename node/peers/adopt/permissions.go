package adopt

import (
	"time"

	"opencode-mesh/node/agent"
	"opencode-mesh/node/peers"
)

const (
	// unanswered is what a session is told when no person decided in time.
	unanswered = "Nobody was here to decide this: a message of another agent began this turn. Do without, and say so."
	// denied is what it is told when this machine's setting denies.
	denied = "This machine denies what a message of another agent would need leave for. Do without, and say so."
)

// decider decides what the turn of a message asks a human. A person who has the session
// open may be faster with whatever is left, until the time for it is over; what belongs to
// a turn of that person is theirs alone.
func (a *Adopter) decider(remote bool, dir string) func(agent.Request) (agent.Verdict, string) {
	mode := a.cfg.Permissions
	if remote {
		mode = a.cfg.PermissionsRemote
	}
	return func(q agent.Request) (agent.Verdict, string) {
		ours := q.Origin == agent.OriginPrompt && !q.Question
		switch {
		case q.Origin == agent.OriginOther:
			return agent.Leave, ""
		case ours && mode == peers.PermissionsDeny:
			return agent.Reject, denied
		case ours && mode == peers.PermissionsAllow && !protected(q, dir):
			return agent.Allow, ""
		case time.Since(q.Since) >= a.cfg.AskLimit:
			return agent.Reject, unanswered
		}
		return agent.Leave, ""
	}
}
