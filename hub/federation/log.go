package federation

import (
	"context"
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"strconv"

	"opencode-mesh/hub/shown"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
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

func newID() string { return "ctx_" + mesh.NewNonce() }

var idPattern = regexp.MustCompile(`^ctx_[0-9a-f]{32}$`)

// ValidID reports whether a text can be the id of a query.
func ValidID(id string) bool { return idPattern.MatchString(id) }

// stored is what is in the place of a number, an entry without a number where nothing is.
func (f *Federation) stored(ctx context.Context, number uint64) (e entry, rev store.Rev, err error) {
	data, rev, err := f.cfg.Store.Setting(ctx, place(number))
	if errors.Is(err, store.ErrNotFound) {
		return entry{}, 0, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &e)
	}
	return e, rev, err
}

// put stores an entry in its place; store.ErrConflict if something else is there than at
// rev.
func (f *Federation) put(ctx context.Context, e entry, rev store.Rev) error {
	data, err := json.Marshal(e)
	if err != nil {
		return err
	}
	_, err = f.cfg.Store.PutSetting(ctx, place(e.Number), data, rev)
	return err
}

// know reads the records into the journal, once. Who comes meanwhile waits for that.
func (f *Federation) know(ctx context.Context) error {
	if f.journal.read() {
		return nil
	}
	select {
	case f.knowing <- struct{}{}:
		defer func() { <-f.knowing }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if f.journal.read() {
		return nil
	}
	var list []entry
	for i := range uint64(api.MaxContextQueries) {
		e, _, err := f.stored(ctx, i)
		if err != nil {
			return err
		}
		if e.Number > 0 {
			list = append(list, e)
		}
	}
	f.journal.fill(list)
	return nil
}

// record notes a query. It is waited for, so that what is cited in a task is known.
func (f *Federation) record(ctx context.Context, r api.ContextRecord) error {
	if err := f.know(ctx); err != nil {
		return err
	}
	number := f.journal.take(r.ID)
	for range changeTries {
		old, rev, err := f.stored(ctx, number)
		if err != nil {
			return err
		}
		if old.Number > number { // so many were recorded meanwhile that this is forgotten already
			return nil
		}
		err = f.put(ctx, entry{number, r}, rev)
		if !errors.Is(err, store.ErrConflict) { // the one before got its tasks noted
			return err
		}
	}
	return errBeingRecorded
}

var errBeingRecorded = api.Errorf(api.CodeConflict, "queries are being recorded by somebody else; try again")

// Records lists what was asked, newest first: an operator sees all, anybody else their
// own.
func (f *Federation) Records(ctx context.Context, a Asker, limit int) (api.ContextRecords, error) {
	out := api.ContextRecords{Queries: []api.ContextRecord{}}
	if err := f.know(ctx); err != nil {
		return out, err
	}
	last := f.journal.last()
	for back := range min(last, api.MaxContextQueries) {
		number := last - back
		e, _, err := f.stored(ctx, number)
		switch {
		case err != nil:
			return out, err
		case e.Number != number: // not stored yet, or it could not be
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
	if err := f.know(ctx); err != nil {
		return err
	}
	for range changeTries {
		number, known := f.journal.number(id)
		if !known {
			return noQuery(id)
		}
		e, rev, err := f.stored(ctx, number)
		switch {
		case err != nil:
			return err
		case e.Record.ID != id || e.Record.Asker.ID != a.ID:
			return noQuery(id)
		}
		for _, task := range tasks {
			if !slices.Contains(e.Record.Tasks, task) && len(e.Record.Tasks) < api.MaxContextNodes {
				e.Record.Tasks = append(e.Record.Tasks, task)
			}
		}
		if err = f.put(ctx, e, rev); !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
	return errBeingRecorded
}

func noQuery(id string) error {
	return api.Errorf(api.CodeNotFound, "there is no query %s of yours", shown.Line(id, api.MaxName))
}
