package relay

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"opencode-mesh/node/mail"
	"opencode-mesh/node/peers/spool"
)

// waiting is a row that nobody shows any more, kept out of sight for the messages in its
// queue that have not had their turn. Their senders are told what becomes of them, after a
// restart, too.
type waiting struct {
	Node   string `json:"node"`
	NodeID string `json:"node_id,omitempty"`
	To     string `json:"to"`
	Name   string `json:"name"`
}

// takeBack ends a row, as soon as nothing waits at it.
func (r *Relay) takeBack(ctx context.Context, id string) error {
	r.mu.Lock()
	w := r.rows[id]
	r.mu.Unlock()
	kept, err := r.keep(ctx, w)
	if kept || err != nil {
		return err
	}
	if err := r.cfg.Service.Withdraw(ctx, id); err != nil {
		return err
	}
	r.mu.Lock()
	delete(r.rows, id)
	r.mu.Unlock()
	if kept, err = r.keep(ctx, w); kept || err != nil { // of what came until then
		return err
	}
	return r.noteWaiting(ctx, w.p, false)
}

// keep publishes a row out of sight, if messages wait at it.
func (r *Relay) keep(ctx context.Context, w row) (bool, error) {
	list, err := r.cfg.Service.Records(w.e.ID, spool.StateQueued, spool.StateInflight)
	if err != nil || len(list) == 0 {
		return false, err
	}
	w.e.Hidden = true
	return true, errors.Join(r.noteWaiting(ctx, w.p, true), r.publish(ctx, w))
}

// noteWaiting notes that messages wait at a row, or that none does any more.
func (r *Relay) noteWaiting(ctx context.Context, p *proxy, waits bool) error {
	known := false
	err := r.view(func(tx *mail.Tx) (err error) {
		known, err = get(tx, bucketWaiting, []byte(p.id), new(waiting))
		return err
	})
	if err != nil || known == waits {
		return err
	}
	return r.cfg.Box.Update(ctx, func(tx *mail.Tx) error {
		if waits {
			return put(tx, bucketWaiting, []byte(p.id), waiting{Node: p.node, NodeID: p.nodeID, To: p.to, Name: strings.TrimPrefix(p.name, p.node+"/")})
		}
		return tx.Bucket([]byte(bucketWaiting)).Delete([]byte(p.id))
	})
}

// recall publishes what waited before the start and is not among the rows that there are to
// be, once. What nothing waits at is taken back as any other row.
func (r *Relay) recall(ctx context.Context, rows map[string]row) error {
	if r.recalled {
		return nil
	}
	var list []row
	err := r.view(func(tx *mail.Tx) error {
		b := tx.Bucket([]byte(bucketWaiting))
		if b == nil {
			return nil
		}
		return b.ForEach(func(_, data []byte) error {
			var w waiting
			if err := json.Unmarshal(data, &w); err != nil {
				return err
			}
			list = append(list, r.rowOf(w.Node, w.NodeID, w.To, w.Name, "", "", "", time.UnixMilli(r.nowMS())))
			return nil
		})
	})
	for _, w := range list {
		if _, shown := rows[w.e.ID]; !shown {
			w.e.Hidden = true
			err = errors.Join(err, r.publish(ctx, w))
		}
	}
	r.recalled = err == nil
	return err
}
