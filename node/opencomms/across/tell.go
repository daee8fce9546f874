package across

import (
	"context"
	"strconv"

	bolt "go.etcd.io/bbolt"

	"opencode-mesh/node/opencomms/engine"
	ocm "opencode-mesh/protocol/opencomms"
)

// tell puts the notices that are due into the file.
func (w *worker) tell(ctx context.Context, l *link, _ *ocm.State) error {
	type due struct {
		key []byte
		telling
	}
	var all []due
	err := w.a.box.View(func(tx *bolt.Tx) error {
		return walk(tx, bucketTell, key(l.ID, ""), func(k []byte, t *telling) error {
			all = append(all, due{k, *t})
			return nil
		})
	})
	if err != nil || len(all) == 0 {
		return err
	}
	err = w.update(ctx, l, func(s *ocm.State) error {
		ch := l.channel(s)
		if ch == nil {
			return nil // nobody is left to be told
		}
		for _, d := range all {
			w.notify(s, ch, d.telling)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return w.a.box.Update(ctx, func(tx *bolt.Tx) error {
		for _, d := range all {
			if err := remove(tx, bucketTell, d.key); err != nil {
				return err
			}
		}
		return nil
	})
}

// notify queues a notice for the sender of a message, unless it was queued already:
// a crash may come between the file and the journal. Who is no member, such as the
// operator, is told in the file's list of trouble.
func (w *worker) notify(s *ocm.State, ch *ocm.Channel, t telling) {
	eng := w.project.Engine()
	if engine.Member(ch, t.Sender) == nil {
		text := "channel " + ch.Name + ": " + t.Text
		for _, e := range s.Errors {
			if e.Message == text {
				return
			}
		}
		eng.RecordError(s, text)
		return
	}
	for _, row := range s.Messages.All() {
		if row.Type == ocm.TypeSystem && row.Recipient == t.Sender && row.Content == t.Text {
			return
		}
	}
	// It is refused only if the channel or the member is not there.
	_, _ = eng.Notice(s, ch.Name, t.Sender, ocm.OperatorSession, t.Text)
}

// cut is s with at most n bytes; s is ASCII.
func cut(s string, n int) string { return s[:min(len(s), n)] }

func itoa(n int) string { return strconv.Itoa(n) }
