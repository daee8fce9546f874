package spool

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"opencode-mesh/node/peers/files"
	"opencode-mesh/protocol/peers"
)

// item is what is remembered of a file: its record without the text, which is remembered
// by its sum, or why it is not valid.
type item struct {
	info fs.FileInfo
	rec  Record
	sum  [sha256.Size]byte
	err  error
}

// cache is what the files of a state were when they were looked at last.
type cache map[State]map[string]item

// view is what is in an endpoint's directory while nobody else may change it.
type view struct {
	q    *Queue
	lock *lock           // nil: there is no directory, and nothing to be written
	in   map[string]item // by file name: the message, in the one state that counts
	// stuck has the names of messages that are in two states all the same. They may not
	// be forgotten: the earlier state would count again.
	stuck map[string]bool
}

// look reads what has changed since the last look. The caller has the turn.
func (q *Queue) look() (v *view, twins []Record, err error) {
	v = &view{q: q, in: map[string]item{}}
	now := cache{}
	for _, s := range precedence {
		entries, err := q.sys.ReadDir(filepath.Join(q.dir, string(s)))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, nil, fmt.Errorf("read the spool of %s: %w", q.name, err)
		}
		now[s] = make(map[string]item, len(entries))
		for _, e := range entries {
			name := e.Name()
			if !recordName.MatchString(name) {
				continue
			}
			it, ok := q.known(s, e)
			if !ok {
				continue // gone since
			}
			now[s][name] = it
			if it.err != nil {
				continue
			}
			if _, later := v.in[name]; later {
				twins = append(twins, it.rec)
				continue
			}
			v.in[name] = it
		}
	}
	q.cache = now
	return v, twins, nil
}

// known is what is in a file, read again if it may be another one by now.
func (q *Queue) known(s State, e fs.DirEntry) (it item, ok bool) {
	name := e.Name()
	old, cached := q.cache[s][name]
	if cached && old.rec.AckSentAt != 0 {
		return old, true // nothing comes after that
	}
	info, err := e.Info()
	if err == nil && cached && os.SameFile(info, old.info) && info.ModTime().Equal(old.info.ModTime()) && info.Size() == old.info.Size() {
		return old, true
	}
	var r Record
	if err == nil {
		r, err = q.read(s, name)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return item{}, false
	}
	if err != nil {
		q.complain(s, name, err)
		return item{info: info, err: err}, info != nil
	}
	return remember(info, r), true
}

func remember(info fs.FileInfo, r Record) item {
	sum := sha256.Sum256([]byte(r.Message.Text))
	r.Message.Text = ""
	return item{info: info, rec: r, sum: sum}
}

// tidy removes what a crash left behind: the earlier states of messages that are in two,
// and files that were being written.
func (v *view) tidy(twins []Record) {
	for _, r := range twins {
		if err := v.erase(r.State, nameOf(r)); err != nil {
			if v.stuck == nil {
				v.stuck = map[string]bool{}
			}
			v.stuck[nameOf(r)] = true
			v.q.cfg.Log.Warn("peers: a message is in two states of the spool, the later one counts", "endpoint", v.q.name, "earlier", r.State, "err", err)
		}
	}
}

// sweep removes temporary files. Only who has the lock writes any.
func (v *view) sweep() {
	for _, dir := range append([]State{""}, precedence...) {
		entries, err := v.q.sys.ReadDir(filepath.Join(v.q.dir, string(dir)))
		if err != nil {
			continue
		}
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), files.TempSuffix) && e.Type().IsRegular() {
				_ = v.q.sys.Remove(v.q.path(dir, e.Name()))
			}
		}
	}
}

func nameOf(r Record) string { return peers.RecordName(r.Message.From.InstanceID, r.Message.ID) }

// find is the message of a key.
func (v *view) find(k Key) (Record, error) {
	it, ok := v.in[peers.RecordName(k.From, k.ID)]
	if !ok {
		return Record{}, fmt.Errorf("message %s from %s: %w", k.ID, k.From, ErrUnknown)
	}
	return it.rec, nil
}

// all is what is in one of some states, in order.
func (v *view) all(states ...State) []Record {
	var records []Record
	for _, it := range v.in {
		if slices.Contains(states, it.rec.State) {
			records = append(records, it.rec)
		}
	}
	slices.SortFunc(records, compare)
	return records
}

// count is how many are in one of some states.
func (v *view) count(states ...State) (n int) {
	for _, it := range v.in {
		if slices.Contains(states, it.rec.State) {
			n++
		}
	}
	return n
}

// whole is a record with its text.
func (v *view) whole(r Record) (Record, error) {
	full, err := v.q.read(r.State, nameOf(r))
	if err != nil {
		return Record{}, fmt.Errorf("message %s from %s, %s: %w", r.Message.ID, r.Message.From.InstanceID, r.State, err)
	}
	return full, nil
}

// place writes a file. It is durable once the directory was synced.
func (v *view) place(s State, name string, content any) error {
	data, err := encode(content)
	if err != nil {
		return err
	}
	if len(data) > MaxRecord {
		return fmt.Errorf("its record would have %d bytes, at most %d are kept", len(data), MaxRecord)
	}
	if !v.lock.ours() {
		return ErrLockLost
	}
	if err := files.MakeDir(v.q.sys, filepath.Join(v.q.dir, string(s))); err != nil {
		return err
	}
	return files.Place(v.q.sys, v.q.path(s, name), data)
}

// erase removes a file for good.
func (v *view) erase(s State, name string) error {
	if !v.lock.ours() {
		return ErrLockLost
	}
	if err := v.q.sys.Remove(v.q.path(s, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return v.sync(s)
}

func (v *view) sync(s State) error { return v.q.sys.SyncDir(filepath.Join(v.q.dir, string(s))) }

// add writes new records, all or none.
func (v *view) add(records []Record) (err error) {
	written := records[:0:0]
	defer func() {
		if err != nil {
			err = errors.Join(err, v.undo(written))
		}
	}()
	for _, r := range records {
		if err := v.place(r.State, nameOf(r), r); err != nil {
			return err
		}
		written = append(written, r)
	}
	for _, s := range precedence {
		if slices.ContainsFunc(records, func(r Record) bool { return r.State == s }) {
			if err := v.sync(s); err != nil {
				return err
			}
		}
	}
	return nil
}

// undo removes records that were written. Once the lock is lost they stay: whoever has it
// may have moved them on, and ours may be the only file by now.
func (v *view) undo(records []Record) error {
	var errs []error
	if !v.lock.ours() {
		return nil
	}
	for _, r := range records {
		if err := v.q.sys.Remove(v.q.path(r.State, nameOf(r))); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("take it back: %w", err))
		}
	}
	return errors.Join(errs...)
}

// move writes records in their new state and then removes them from the old. A crash in
// between leaves both files, of which precedence knows the one that counts. After an error
// none was moved, or, if an old file could not be removed, those before it were.
func (v *view) move(from State, records ...Record) error {
	if len(records) == 0 {
		return nil
	}
	if err := v.add(records); err != nil {
		return err
	}
	for i, r := range records {
		if !v.lock.ours() {
			return ErrLockLost
		}
		err := v.q.sys.Remove(v.q.path(from, nameOf(r)))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return errors.Join(err, v.undo(records[i:]))
		}
	}
	// If this fails, a crash of the machine brings the old files back, beside the new.
	if err := v.sync(from); err != nil {
		v.q.cfg.Log.Warn("peers: a directory of the spool was not synced", "endpoint", v.q.name, "state", from, "err", err)
	}
	return nil
}
