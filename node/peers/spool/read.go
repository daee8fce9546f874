package spool

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"

	"opencode-mesh/node/peers/files"
	"opencode-mesh/protocol/peers"
)

const (
	// MaxRecord bounds the file of a message. Messages of the default size have a fiftieth
	// of it.
	MaxRecord = 1 << 20

	// maxLooks is how often a reader begins again because a message went on to its next
	// state under its eyes.
	maxLooks = 5
	// maxComplaints is how many files that are not valid are remembered, so that each is
	// told of once.
	maxComplaints = 1000
)

// precedence orders states for a message that is in more than one: a crash came between
// writing the new file and removing the old.
var precedence = []State{StateDone, StateInflight, StateQueued, StateHeld}

var recordName = regexp.MustCompile(`^[0-9a-f]{64}\.json$`)

func (q *Queue) path(s State, name string) string { return filepath.Join(q.dir, string(s), name) }

// encode is a record as it stands in its file.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// read reads and checks a record. An error that is not fs.ErrNotExist means that the file
// counts for nothing.
func (q *Queue) read(s State, name string) (Record, error) {
	data, err := files.Read(q.sys, q.path(s, name), MaxRecord)
	if err != nil {
		return Record{}, err
	}
	var r Record
	if err := json.Unmarshal(data, &r); err != nil {
		return Record{}, err
	}
	var sent struct {
		Message struct {
			SentAt *float64 `json:"sentAt"`
		} `json:"message"`
	}
	if err := json.Unmarshal(data, &sent); err != nil {
		return Record{}, err
	}
	k := r.Key()
	switch {
	case r.Version != version:
		err = fmt.Errorf("its version is %d", r.Version)
	case r.State != s:
		err = fmt.Errorf("its state is %q", r.State)
	case k.From == "" || k.ID == "":
		err = errors.New("an id is missing")
	case peers.RecordName(k.From, k.ID) != name:
		err = errors.New("its ids belong to another name")
	case sent.Message.SentAt == nil:
		err = errors.New("it has no time of sending")
	case s == StateHeld && r.ExpiresAt == 0 && r.Message.ExpiresAt == 0:
		err = errors.New("it is held without an end")
	case s == StateDone && (r.Ack == nil || r.Ack.Status == ""):
		err = errors.New("it is done without an acknowledgement")
	}
	if s == StateHeld && r.ExpiresAt == 0 {
		r.HeldAt, r.ExpiresAt = r.Message.HeldAt, r.Message.ExpiresAt
	}
	if r.Message.Via == nil {
		r.Message.Via = []string{}
	}
	return r, err
}

// complain tells of a file that is not valid, once for each.
func (q *Queue) complain(s State, name string, err error) {
	path := q.path(s, name)
	q.mu.Lock()
	told := q.complaints[path] == err.Error()
	if len(q.complaints) >= maxComplaints || q.complaints == nil {
		q.complaints = map[string]string{}
	}
	q.complaints[path] = err.Error()
	q.mu.Unlock()
	if !told {
		q.cfg.Log.Warn("peers: a file of the spool is not valid and is passed over", "path", path, "err", err)
	}
}

// list says in which states files of which names are. Messages only go on while it looks,
// except those that are queued again, which is why it looks there twice: it may see a
// message in two states, but not in none.
func (q *Queue) list() (map[string][]State, error) {
	if !endpointName.MatchString(q.name) {
		return nil, q.badName()
	}
	found := map[string][]State{}
	for _, s := range []State{StateHeld, StateQueued, StateInflight, StateQueued, StateDone} {
		entries, err := q.sys.ReadDir(filepath.Join(q.dir, string(s)))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("read the spool of %s: %w", q.name, err)
		}
		for _, e := range entries {
			if name := e.Name(); recordName.MatchString(name) && !slices.Contains(found[name], s) {
				found[name] = append(found[name], s)
			}
		}
	}
	return found, nil
}

// Records reads the messages that are in one of some states, or all, in order. It takes
// no lock.
func (q *Queue) Records(states ...State) ([]Record, error) {
	if len(states) == 0 {
		states = precedence
	}
	for look := 1; ; look++ {
		found, err := q.list()
		if err != nil {
			return nil, err
		}
		records, moved := q.pick(found, states)
		if moved && look < maxLooks {
			continue
		}
		slices.SortFunc(records, compare)
		return records, nil
	}
}

// pick reads those that are in one of some states, and says whether one was gone when it
// was to be read.
func (q *Queue) pick(found map[string][]State, states []State) (records []Record, moved bool) {
	for name, in := range found {
		if len(in) == 1 && !slices.Contains(states, in[0]) {
			continue
		}
		for _, s := range precedence {
			if !slices.Contains(in, s) {
				continue
			}
			r, err := q.read(s, name)
			if errors.Is(err, fs.ErrNotExist) {
				moved = true
				continue
			}
			if err != nil {
				q.complain(s, name, err)
				continue
			}
			if slices.Contains(states, s) {
				records = append(records, r)
			}
			break
		}
	}
	return records, moved
}
