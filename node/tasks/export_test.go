package tasks

import (
	"encoding/json"

	"opencode-mesh/protocol/api"
)

// EncodeResult encodes a result the way the outbox does.
func EncodeResult(r api.Result) ([]byte, error) {
	return json.Marshal(resultBody{
		Triple: r.Triple, JournalID: r.JournalID, Epoch: r.Epoch,
		Outcome: encodeOutcome(&r.Outcome), AgoMS: r.AgoMS, Recover: r.Recover,
	})
}
