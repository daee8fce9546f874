package opencode

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"

	"opencode-mesh/node/agent"
)

// idDigits is how much of a digest stands in an id; opencode does not find
// messages whose id is long.
const idDigits = 26

// promptIDs are the ids of a message that is no turn's, and of its part.
func promptIDs(session string, p agent.Prompt) (message, part string) {
	if p.Message != "" {
		return p.Message, "prt_mesh_" + digest("part", p.Message)
	}
	id := digest("prompt", session, p.Key)
	return "msg_mesh_" + id, "prt_mesh_" + id
}

// messageIDs are the ids of a turn's message and of its part. They are the same
// whenever the same turn enters the same session, and never the same in another:
// opencode's ids are global.
func messageIDs(turn agent.Turn, session string) (message, part string) {
	id := digest(turn.HubID, turn.Task, strconv.Itoa(turn.Attempt), strconv.Itoa(turn.Turn), session)
	return "msg_mesh_" + id, "prt_mesh_" + id
}

// digest is the part of an id that tells several texts from all others.
func digest(of ...string) string {
	sum := sha256.New()
	for _, s := range of {
		sum.Write([]byte(s))
		sum.Write([]byte{0})
	}
	return hex.EncodeToString(sum.Sum(nil))[:idDigits]
}

// markOf is what marks the session of a turn's lane.
func markOf(turn agent.Turn) mark {
	return mark{Hub: turn.HubID, Key: turn.Session.Key, Generation: turn.Session.Generation, Compaction: turn.Session.Compaction}
}
