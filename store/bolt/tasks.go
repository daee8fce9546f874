package bolt

import (
	"context"
	"encoding/binary"
	"fmt"

	"go.etcd.io/bbolt"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// newTask is a task to create, prepared outside of the writer.
type newTask struct {
	id     []byte
	record []byte
	part   [partKeyBytes - seqBytes]byte
	text   []byte
}

// CreateTasks implements store.Store.
func (s *Store) CreateTasks(ctx context.Context, tasks []store.NewTask, acts ...api.AuditEntry) ([]store.Task, error) {
	created := make([]store.Task, len(tasks))
	prepared := make([]newTask, len(tasks))
	ids := make(map[string]struct{}, len(tasks))
	for i := range tasks {
		t := &tasks[i].Task
		p, err := prepareTask(&tasks[i])
		if err != nil {
			return nil, err
		}
		if _, twice := ids[t.ID]; twice {
			return nil, fmt.Errorf("bolt: task %s is named twice", t.ID)
		}
		ids[t.ID] = struct{}{}
		prepared[i], created[i] = p, *t
		created[i].Rev = head(p.record).rev()
	}
	if len(tasks) == 0 {
		return created, ctx.Err()
	}
	entries, err := auditRecords(acts...)
	if err != nil {
		return nil, err
	}
	err = s.write(ctx, func(tx *bbolt.Tx) error {
		for i := range prepared {
			if err := checkUnused(tx, &prepared[i]); err != nil {
				return err
			}
		}
		rows := make([]row, len(prepared))
		for i := range prepared {
			seq, err := createTask(tx, &prepared[i])
			if err != nil {
				return err
			}
			created[i].Seq, rows[i] = seq, rowOf(seq, prepared[i].record)
		}
		if err := appendLog(tx, bucketActs, entries); err != nil {
			return err
		}
		tx.OnCommit(func() { s.table.add(rows) })
		return nil
	})
	if err != nil {
		return nil, err
	}
	return created, nil
}

// prepareTask checks a task to create and encodes it.
func prepareTask(n *store.NewTask) (p newTask, err error) {
	t := &n.Task
	for _, id := range []struct{ what, id string }{
		{"task id", t.ID}, {"controller of task " + t.ID, t.Controller.ID}, {"target of task " + t.ID, t.Target.ID},
	} {
		if err := checkID(id.what, id.id); err != nil {
			return p, err
		}
	}
	p = newTask{id: []byte(t.ID), text: text(n.Text)}
	if p.part, err = partSuffix(store.PartKey{Kind: store.PartText, Attempt: t.Attempt, Turn: t.Turn}); err != nil {
		return p, err
	}
	p.record, err = encodeTask(t, nextRev(0))
	return p, err
}

// checkUnused refuses an id that is or was a task's.
func checkUnused(tx *bbolt.Tx, p *newTask) error {
	switch raw := bucket(tx, bucketIDs).Get(p.id); {
	case raw == nil:
		return nil
	case len(raw) != seqBytes:
		return refuse(fmt.Errorf("task %s: %w", p.id, store.ErrForgotten))
	default:
		old, err := taskAt(tx, raw)
		if err != nil {
			return err
		}
		return refuse(&store.ExistsError{Task: old})
	}
}

// createTask puts a task under the next number.
func createTask(tx *bbolt.Tx, p *newTask) (seq uint64, err error) {
	tasks := bucket(tx, bucketTasks)
	if seq, err = tasks.NextSequence(); err != nil {
		return 0, err
	}
	key := uint64Key(seq)
	if err := tasks.Put(key, p.record); err != nil {
		return 0, err
	}
	if err := bucket(tx, bucketIDs).Put(p.id, key); err != nil {
		return 0, err
	}
	return seq, bucket(tx, bucketParts).Put(append(key[:seqBytes:seqBytes], p.part[:]...), p.text)
}

// Task implements store.Store.
func (s *Store) Task(ctx context.Context, id string) (t store.Task, err error) {
	err = s.read(ctx, func(tx *bbolt.Tx) error {
		seq, err := findTask(tx, id)
		if err != nil {
			return err
		}
		t, err = taskAt(tx, seq)
		return err
	})
	return t, err
}

// findTask returns the number of a task as its key.
func findTask(tx *bbolt.Tx, id string) ([]byte, error) {
	if id == "" {
		return nil, fmt.Errorf("task: %w", store.ErrNotFound)
	}
	switch raw := bucket(tx, bucketIDs).Get([]byte(id)); len(raw) {
	case 0:
		return nil, fmt.Errorf("task %s: %w", id, store.ErrNotFound)
	case seqBytes:
		return raw, nil
	}
	return nil, fmt.Errorf("task %s: %w", id, errForgotten)
}

// taskAt reads the task whose number is the key seq.
func taskAt(tx *bbolt.Tx, seq []byte) (store.Task, error) {
	if len(seq) != seqBytes {
		return store.Task{}, fmt.Errorf("bolt: task number: %w: %d bytes", errDamaged, len(seq))
	}
	return decodeTask(binary.BigEndian.Uint64(seq), bucket(tx, bucketTasks).Get(seq))
}

// Part implements store.Store.
func (s *Store) Part(ctx context.Context, task string, key store.PartKey) (data []byte, err error) {
	suffix, err := partSuffix(key)
	if err != nil {
		return nil, err
	}
	err = s.read(ctx, func(tx *bbolt.Tx) error {
		seq, err := findTask(tx, task)
		if err != nil {
			return err
		}
		raw := bucket(tx, bucketParts).Get(append(seq[:len(seq):len(seq)], suffix[:]...))
		if raw == nil {
			return fmt.Errorf("%s %d.%d of task %s: %w", key.Kind, key.Attempt, key.Turn, task, store.ErrNotFound)
		}
		data = append([]byte{}, raw...)
		return nil
	})
	return data, err
}

// taskUpdate is a change of a task, prepared outside of the writer.
type taskUpdate struct {
	id       []byte
	seq      uint64
	rev      store.Rev // that it replaces; the record has the next
	record   []byte
	partKeys [][]byte
	texts    [][]byte
}

// prepareUpdate checks and encodes the change of t to its next revision.
func prepareUpdate(t *store.Task, parts []store.Part) (u taskUpdate, err error) {
	if err := checkID("task id", t.ID); err != nil {
		return u, err
	}
	u = taskUpdate{id: []byte(t.ID), seq: t.Seq, rev: t.Rev}
	if u.record, err = encodeTask(t, nextRev(t.Rev)); err != nil {
		return u, err
	}
	for _, p := range parts {
		suffix, err := partSuffix(p.Key)
		if err != nil {
			return u, err
		}
		u.partKeys = append(u.partKeys, append(uint64Key(t.Seq), suffix[:]...))
		u.texts = append(u.texts, text(p.Data))
	}
	return u, nil
}

// UpdateTask implements store.Store.
func (s *Store) UpdateTask(ctx context.Context, t store.Task, parts ...store.Part) (store.Task, error) {
	u, err := prepareUpdate(&t, parts)
	if err != nil {
		return store.Task{}, err
	}
	if err := s.write(ctx, func(tx *bbolt.Tx) error { return s.apply(tx, &u) }); err != nil {
		return store.Task{}, err
	}
	t.Rev = head(u.record).rev()
	return t, nil
}

// apply makes the change if the task is still at the revision that it replaces.
func (s *Store) apply(tx *bbolt.Tx, u *taskUpdate) error {
	key, err := findTask(tx, string(u.id))
	if err != nil {
		return refuse(err)
	}
	tasks := bucket(tx, bucketTasks)
	old, err := headOf(tasks.Get(key))
	if err != nil {
		return err
	}
	next := head(u.record)
	switch {
	case old.rev() != u.rev:
		return refuse(fmt.Errorf("task %s: %w", u.id, store.ErrConflict))
	case binary.BigEndian.Uint64(key) != u.seq, old.controller() != next.controller(), old.target() != next.target():
		return refuse(fmt.Errorf("bolt: task %s: number and parties never change", u.id))
	}
	if err := tasks.Put(key, u.record); err != nil {
		return err
	}
	for i, k := range u.partKeys {
		if err := bucket(tx, bucketParts).Put(k, u.texts[i]); err != nil {
			return err
		}
	}
	tx.OnCommit(func() { s.table.set(rowOf(u.seq, next)) })
	return nil
}
