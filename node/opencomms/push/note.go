package push

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"opencode-mesh/node/mail"
	"opencode-mesh/protocol/opencomms"
)

// bucket is where the notes are in the node's mail box.
const bucket = "push.notes"

// note is the record of a delivery that is under way. There is at most one for each
// recipient in a project.
type note struct {
	Project   string `json:"project"` // directory
	Recipient string `json:"recipient"`
	// Key is what the prompt's id is derived from.
	Key string `json:"key"`
	// Rows are the messages that the delivery may have drained.
	Rows []row `json:"rows"`
	// Accepted says that the session has the message and the file says so: what is left
	// is to see the turn through.
	Accepted bool `json:"accepted,omitempty"`
}

// row is a message of a note.
type row struct {
	ID string `json:"id"`
	// Attempts are those before the drain: it tells a drain of ours from another's later
	// one.
	Attempts int `json:"attempts"`
}

// newNote is about messages as a drain leaves them.
func newNote(project, recipient string, drained []*opencomms.Envelope) note {
	n := note{Project: project, Recipient: recipient}
	sum := sha256.New()
	for _, e := range drained {
		n.Rows = append(n.Rows, row{e.ID, e.Attempts - 1})
		sum.Write([]byte(e.ID + "\x00"))
	}
	n.Key = hex.EncodeToString(sum.Sum(nil))
	return n
}

// ids are those of the messages.
func (n note) ids() []string {
	ids := make([]string, len(n.Rows))
	for i, r := range n.Rows {
		ids[i] = r.ID
	}
	return ids
}

// ours are the messages that this note's drain took and that nobody drained since.
func (n note) ours(s *opencomms.State) []*opencomms.Envelope {
	var out []*opencomms.Envelope
	for _, r := range n.Rows {
		if e, ok := s.Messages.Get(r.ID); ok && e.Attempts == r.Attempts+1 {
			out = append(out, e)
		}
	}
	return out
}

// journal keeps the notes.
type journal struct{ box *mail.Box }

func noteKey(project, recipient string) []byte { return []byte(project + "\x00" + recipient) }

func (j journal) put(ctx context.Context, n note) error {
	data, err := json.Marshal(n)
	if err != nil {
		return fmt.Errorf("encode the note of a delivery: %w", err)
	}
	err = j.box.Update(ctx, func(tx *mail.Tx) error {
		b, err := tx.CreateBucketIfNotExists([]byte(bucket))
		if err != nil {
			return err
		}
		return b.Put(noteKey(n.Project, n.Recipient), data)
	})
	if err != nil {
		return fmt.Errorf("note a delivery: %w", err)
	}
	return nil
}

func (j journal) drop(ctx context.Context, n note) error {
	err := j.box.Update(ctx, func(tx *mail.Tx) error {
		if b := tx.Bucket([]byte(bucket)); b != nil {
			return b.Delete(noteKey(n.Project, n.Recipient))
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("drop the note of a delivery: %w", err)
	}
	return nil
}

// all are the notes of a project, "" for those of all, by recipient.
func (j journal) all(project string) ([]note, error) {
	var out []note
	err := j.box.View(func(tx *mail.Tx) error {
		b := tx.Bucket([]byte(bucket))
		if b == nil {
			return nil
		}
		return b.ForEach(func(k, v []byte) error {
			if project != "" && !strings.HasPrefix(string(k), project+"\x00") {
				return nil
			}
			var n note
			if err := json.Unmarshal(v, &n); err != nil {
				return fmt.Errorf("note of a delivery %q: %w", k, err)
			}
			out = append(out, n)
			return nil
		})
	})
	return out, err
}
