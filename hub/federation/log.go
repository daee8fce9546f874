package federation

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// logSetting is where the store keeps the records of queries: as many as
// api.MaxContextQueries, each in the place of one that was made that many before.
const logSetting = "context.query/"

// entry is a record with its number, by which the newest is known.
type entry struct {
	Number uint64            `json:"number"` // from 1
	Record api.ContextRecord `json:"record"`
}

func place(number uint64) string {
	return logSetting + strconv.FormatUint(number%api.MaxContextQueries, 10)
}

// entries are all records, the newest first.
func (f *Federation) entries(ctx context.Context) (list []entry, err error) {
	for i := range uint64(api.MaxContextQueries) {
		data, _, err := f.cfg.Store.Setting(ctx, place(i))
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		var e entry
		if err == nil {
			err = json.Unmarshal(data, &e)
		}
		if err != nil {
			return nil, err
		}
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b entry) int { return int(int64(b.Number - a.Number)) })
	return list, nil
}

// record notes a query. It is waited for, so that what is cited in a task is known.
func (f *Federation) record(ctx context.Context, r api.ContextRecord) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for range changeTries {
		if f.next == 0 {
			all, err := f.entries(ctx)
			if err != nil {
				return err
			}
			f.next = 1
			if len(all) > 0 {
				f.next = all[0].Number + 1
			}
		}
		number := f.next
		data, err := json.Marshal(entry{number, r})
		if err != nil {
			return err
		}
		_, rev, err := f.cfg.Store.Setting(ctx, place(number))
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		if _, err = f.cfg.Store.PutSetting(ctx, place(number), data, rev); errors.Is(err, store.ErrConflict) {
			f.next = 0 // another hub process counts, too
			continue
		}
		if err == nil {
			f.next++
		}
		return err
	}
	return api.Errorf(api.CodeConflict, "queries are being recorded by somebody else; try again")
}

// Records lists what was asked, newest first: an operator sees all, anybody else their
// own.
func (f *Federation) Records(ctx context.Context, a Asker, limit int) (api.ContextRecords, error) {
	out := api.ContextRecords{Queries: []api.ContextRecord{}}
	all, err := f.entries(ctx)
	if err != nil {
		return out, err
	}
	for _, e := range all {
		switch {
		case !a.Operator && e.Record.Asker.ID != a.ID:
		case len(out.Queries) == limit:
			out.More = true
			return out, nil
		default:
			out.Queries = append(out.Queries, e.Record)
		}
	}
	return out, nil
}

// Used notes the tasks into which a query's frames were put. A query that is forgotten,
// or of somebody else, is none.
func (f *Federation) Used(ctx context.Context, a Asker, id string, tasks []string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	all, err := f.entries(ctx)
	if err != nil {
		return err
	}
	for _, e := range all {
		if e.Record.ID != id || e.Record.Asker.ID != a.ID {
			continue
		}
		for _, task := range tasks {
			if !slices.Contains(e.Record.Tasks, task) && len(e.Record.Tasks) < api.MaxContextNodes {
				e.Record.Tasks = append(e.Record.Tasks, task)
			}
		}
		_, rev, err := f.cfg.Store.Setting(ctx, place(e.Number))
		if err != nil {
			return err
		}
		data, err := json.Marshal(e)
		if err != nil {
			return err
		}
		_, err = f.cfg.Store.PutSetting(ctx, place(e.Number), data, rev)
		return err
	}
	return api.Errorf(api.CodeNotFound, "there is no query %s of yours", id)
}
