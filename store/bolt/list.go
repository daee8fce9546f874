package bolt

import (
	"context"
	"fmt"
	"math"

	"go.etcd.io/bbolt"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// openChunk is how many tasks OpenTasks reads at once.
const openChunk = 256

// Tasks implements store.Store. A Limit below 1 means api.DefaultPage, one above
// api.MaxPage that.
func (s *Store) Tasks(ctx context.Context, q store.TaskQuery) (page store.TaskPage, err error) {
	limit := pageSize(q.Limit)
	err = s.read(ctx, func(tx *bbolt.Tx) error {
		page, err = s.page(ctx, tx, newFilter(&q), limit)
		return err
	})
	if err != nil {
		return store.TaskPage{}, err
	}
	return page, nil
}

// page reads the first tasks below q.Before that pass, and looks whether there is
// one more.
func (s *Store) page(ctx context.Context, tx *bbolt.Tx, f *filter, limit int) (page store.TaskPage, err error) {
	before := f.query.Before
	if before == 0 {
		before = math.MaxUint64
	}
	tasks := bucket(tx, bucketTasks)
	for {
		if err := ctx.Err(); err != nil {
			return page, err
		}
		wanted := limit - len(page.Tasks) + 1
		if f.search != nil {
			wanted = searchChunk // few of them may have the text
		}
		seqs := s.table.below(before, wanted, f.passes)
		for _, seq := range seqs {
			raw := tasks.Get(uint64Key(seq))
			if raw == nil {
				continue // newer than this view, or removed before it
			}
			t, err := decodeTask(seq, raw)
			if err != nil {
				return page, err
			}
			if !f.same(&t) {
				continue
			}
			if f.search != nil {
				if f.search.over() {
					page.Next, page.Stopped = seq+1, true
					return page, nil
				}
				found, err := f.search.in(tx, &t)
				if err != nil {
					return page, err
				}
				if !found {
					continue
				}
			}
			if len(page.Tasks) == limit {
				page.Next = page.Tasks[limit-1].Seq
				return page, nil
			}
			page.Tasks = append(page.Tasks, t)
		}
		if len(seqs) < wanted {
			return page, nil
		}
		before = seqs[len(seqs)-1]
	}
}

// pageSize is the number of entries that a page of a listing gets.
func pageSize(limit int) int {
	switch {
	case limit < 1:
		return api.DefaultPage
	case limit > api.MaxPage:
		return api.MaxPage
	}
	return limit
}

// filter is a query as it can be asked of the table. That may be another commit's,
// and two identities may have the same hash, so the tasks that pass are asked again.
type filter struct {
	query              *store.TaskQuery
	controller, target uint32
	states             [256]bool
	search             *search // nil: every text will do
}

func newFilter(q *store.TaskQuery) *filter {
	f := &filter{query: q, controller: idHash(q.Controller), target: idHash(q.Target)}
	for _, state := range q.States {
		f.states[stateCodes[state]] = true
	}
	if q.Text != "" {
		f.search = newSearch(q.Text)
	}
	return f
}

// passes asks a row of the table.
func (f *filter) passes(r *row) bool {
	switch {
	case f.query.Open && r.settled != 0,
		f.query.Controller != "" && r.controller != f.controller,
		f.query.Target != "" && r.target != f.target,
		len(f.query.States) > 0 && !f.states[r.state]:
		return false
	}
	return true
}

// same asks a task.
func (f *filter) same(t *store.Task) bool {
	return (!f.query.Open || !t.State.Settled()) &&
		(f.query.Controller == "" || f.query.Controller == t.Controller.ID) &&
		(f.query.Target == "" || f.query.Target == t.Target.ID) &&
		(len(f.query.States) == 0 || f.states[stateCodes[t.State]])
}

// Settled implements store.Store. It goes over the heads of all tasks in memory and reads
// those that it returns.
func (s *Store) Settled(ctx context.Context, q store.SettledQuery) (tasks []store.Task, err error) {
	limit := pageSize(q.Limit)
	err = s.read(ctx, func(tx *bbolt.Tx) error {
		after := q.After
		for len(tasks) < limit {
			if err := ctx.Err(); err != nil {
				return err
			}
			rows := s.table.ended(idHash(q.Party), after, limit)
			for _, r := range rows {
				after = r.mark()
				raw := bucket(tx, bucketTasks).Get(uint64Key(r.seq))
				if raw == nil || len(tasks) == limit {
					continue
				}
				t, err := decodeTask(r.seq, raw)
				if err != nil {
					return fmt.Errorf("settled tasks: %w", err)
				}
				if t.State.Settled() && (t.Controller.ID == q.Party || t.Target.ID == q.Party) {
					tasks = append(tasks, t)
				}
			}
			if len(rows) < limit {
				return nil
			}
		}
		return nil
	})
	return tasks, err
}

// OpenTasks implements store.Store. It reads some tasks at a time and calls fn
// between the readings, so fn may call the store and may take its time; a task
// that settles or is made meanwhile may be among them or not.
func (s *Store) OpenTasks(ctx context.Context, fn func(store.Task) error) error {
	for after := uint64(0); ; {
		seqs := s.table.open(after, openChunk)
		tasks, err := s.openTasks(ctx, seqs)
		if err != nil {
			return err
		}
		for _, t := range tasks {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := fn(t); err != nil {
				return err
			}
		}
		if len(seqs) < openChunk {
			return nil
		}
		after = seqs[len(seqs)-1]
	}
}

// openTasks reads those of the tasks with these numbers that are open.
func (s *Store) openTasks(ctx context.Context, seqs []uint64) (tasks []store.Task, err error) {
	err = s.read(ctx, func(tx *bbolt.Tx) error {
		for _, seq := range seqs {
			raw := bucket(tx, bucketTasks).Get(uint64Key(seq))
			if raw == nil {
				continue
			}
			t, err := decodeTask(seq, raw)
			if err != nil {
				return fmt.Errorf("open tasks: %w", err)
			}
			if !t.State.Settled() {
				tasks = append(tasks, t)
			}
		}
		return nil
	})
	return tasks, err
}
