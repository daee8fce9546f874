// Package outbox keeps what was sent to peers from this machine, in the files of
// opencode-plugin-peers: what was sent, what its receiver answered, and what became of it.
//
// What Begin wrote is on the disk before anything is sent, so a final acknowledgement
// always finds its record, however early it comes. News of one record may come from many
// sides at once; none of it is lost within this process. Another process that changes the
// same record at the same moment may lose ours: the original has no lock either, and
// nobody else sends in the name of our endpoints.
//
// The original keeps everything for ever. Here the oldest records of a sender go once
// there are more than MaxFinished whose fate is known or more than MaxOpen others. A final
// acknowledgement that comes after that is not known any more.
package outbox

import (
	"cmp"
	"errors"
	"fmt"
	"hash/maphash"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"opencode-mesh/node/peers/files"
	"opencode-mesh/protocol/peers"
)

const (
	// MaxFinished is how many messages of one sender are kept that have a final
	// acknowledgement or were not taken at all.
	MaxFinished = 1000
	// MaxOpen is how many other messages of one sender are kept.
	MaxOpen = 10_000

	outboxDir = "outbox"
	suffix    = ".json"
)

// ErrNone says that there is no such record.
var ErrNone = errors.New("there is no record of such a message")

// Outbox is the outbox of a storage directory. It is safe for concurrent use.
type Outbox struct {
	dir string
	now func() time.Time
	sys files.FS
	// turns orders those who change records: each record has one of them.
	turns [64]chan struct{}
	seed  maphash.Seed
	prune pruner
}

// New returns the Outbox of a storage directory, which is read and made when it is
// needed. now may be nil.
func New(storageDir string, now func() time.Time) *Outbox {
	if now == nil {
		now = time.Now
	}
	o := &Outbox{dir: filepath.Join(storageDir, outboxDir), now: now, sys: files.OS{}, seed: maphash.MakeSeed()}
	for i := range o.turns {
		o.turns[i] = make(chan struct{}, 1)
	}
	return o
}

func (o *Outbox) path(from, id string) string {
	return filepath.Join(o.dir, peers.Safe(from), peers.Safe(id)+suffix)
}

// read returns the record of a message and ErrNone if there is none. Two ids may have one
// path; the second of them cannot be begun.
func (o *Outbox) read(from, id string) (Record, error) {
	r, err := load(o.sys, o.path(from, id))
	if files.Absent(err) || err == nil && (r.FromEndpoint != from || r.MessageID != id) {
		return Record{}, ErrNone
	}
	return r, err
}

// turn waits for the turn to change a record; what it returns gives it back.
func (o *Outbox) turn(path string) (give func()) {
	c := o.turns[maphash.String(o.seed, path)%uint64(len(o.turns))]
	c <- struct{}{}
	return func() { <-c }
}

// Begin writes the record of a message that is about to be sent: its ids, the name of
// whom it is for, and its text. The rest is filled in. Once it returned without an error,
// the record is on the disk.
func (o *Outbox) Begin(r Record) error {
	r = Record{
		Version: 1, MessageID: r.MessageID, FromEndpoint: r.FromEndpoint, ToEndpoint: r.ToEndpoint, ToName: r.ToName, Text: r.Text,
		CreatedAt: o.ms(), UpdatedAt: o.ms(),
	}
	if r.MessageID == "" || r.FromEndpoint == "" || r.ToEndpoint == "" {
		return errors.New("a message that is sent needs an id, a sender and a receiver")
	}
	path := o.path(r.FromEndpoint, r.MessageID)
	if err := o.begin(path, r); err != nil {
		return fmt.Errorf("keep message %s before it is sent: %w", r.MessageID, err)
	}
	o.tidy(filepath.Dir(path))
	return nil
}

func (o *Outbox) begin(path string, r Record) error {
	defer o.turn(path)()
	if _, err := o.sys.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return cmp.Or(err, fs.ErrExist) // what is known of it must not be lost
	}
	if err := files.MakeDir(o.sys, filepath.Dir(path)); err != nil {
		return err
	}
	if err := o.write(path, r); err != nil {
		// It may be there without being durable, and is not sent.
		if gone := o.sys.Remove(path); gone != nil && !errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, gone)
		}
		return err
	}
	return nil
}

func (o *Outbox) ms() float64 { return float64(o.now().UnixMilli()) }

func (o *Outbox) write(path string, r Record) error {
	data, err := r.encode()
	if err != nil {
		return err
	}
	if len(data) > MaxRecord {
		return fmt.Errorf("the record would have %d bytes, at most %d are kept", len(data), MaxRecord)
	}
	return files.Replace(o.sys, path, data)
}

// change lets fn change a record and writes it, unless fn says that nothing is new.
func (o *Outbox) change(from, id string, fn func(*Record) bool) error {
	path := o.path(from, id)
	defer o.turn(path)()
	r, err := o.read(from, id)
	if err == nil && fn(&r) {
		r.UpdatedAt = max(o.ms(), r.CreatedAt+1) // which tells it from one that was just begun
		err = o.write(path, r)
	}
	if err != nil {
		return fmt.Errorf("note what became of message %s: %w", id, err)
	}
	return nil
}

// Receipt notes what the receiver answered. An error from before is forgotten. ErrNone:
// there is no such record.
func (o *Outbox) Receipt(from, id, status string) error {
	return o.change(from, id, func(r *Record) bool {
		if r.ReceiptStatus == status && r.Error == "" {
			return false
		}
		r.receiptFirst = r.receiptFirst || r.FinalStatus == ""
		r.ReceiptStatus, r.Error = status, ""
		return true
	})
}

// Failed notes why there was no answer to a message that may have arrived all the same.
// err is of a kind that may be shown to people: it has no secret in it. ErrNone: there is
// no such record.
func (o *Outbox) Failed(from, id string, err error) error {
	return o.change(from, id, func(r *Record) bool {
		r.Error = err.Error()
		return true
	})
}

// Unsent notes that a message did not get to its receiver, and why. A nil error says that
// the receiver does not know its address any more, which leaves neither a receipt nor an
// error. ErrNone: there is no such record.
func (o *Outbox) Unsent(from, id string, why error) error {
	return o.change(from, id, func(r *Record) bool {
		if r.known() {
			return false // an acknowledgement says that it is there
		}
		if why != nil {
			r.Error = unsentMark + why.Error()
		}
		return true
	})
}

// Ack notes a final acknowledgement, if there is a record of its message to the endpoint
// that it names, and says whether there is. The last one counts, and an error from before
// is forgotten.
func (o *Outbox) Ack(a peers.Ack) (applied bool, err error) {
	if a.MessageID == "" || a.FromEndpoint == "" {
		return false, nil
	}
	err = o.change(a.FromEndpoint, a.MessageID, func(r *Record) bool {
		if applied = r.ToEndpoint == a.ToEndpoint; !applied {
			return false
		}
		if r.FinalStatus == a.Status && r.AcknowledgedAt == a.AcknowledgedAt && r.Error == "" {
			return false
		}
		r.FinalStatus, r.AcknowledgedAt, r.Error = a.Status, a.AcknowledgedAt, ""
		return true
	})
	if errors.Is(err, ErrNone) {
		return false, nil
	}
	return applied && err == nil, err
}

// Get returns a record. ErrNone: there is none.
func (o *Outbox) Get(from, id string) (Record, error) {
	r, err := o.read(from, id)
	if err != nil {
		return Record{}, fmt.Errorf("message %s: %w", id, err)
	}
	return r, nil
}

// List returns the records of some senders, or of all, newest first. Files that are not
// valid are passed over.
func (o *Outbox) List(from ...string) ([]Record, error) {
	var dirs []string
	for _, f := range from {
		dirs = append(dirs, peers.Safe(f))
	}
	if len(from) == 0 {
		entries, err := o.sys.ReadDir(o.dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("list the outbox: %w", err)
		}
		for _, e := range entries {
			if e.IsDir() {
				dirs = append(dirs, e.Name())
			}
		}
	}
	slices.Sort(dirs)
	var records []Record
	for _, d := range slices.Compact(dirs) {
		all, err := o.readAll(filepath.Join(o.dir, d))
		if err != nil {
			return nil, fmt.Errorf("list the outbox: %w", err)
		}
		for _, r := range all {
			if len(from) == 0 || slices.Contains(from, r.FromEndpoint) {
				records = append(records, r)
			}
		}
	}
	slices.SortFunc(records, newest)
	return records, nil
}

// newest orders records by when they were begun, the last first.
func newest(a, b Record) int {
	return cmp.Or(cmp.Compare(b.CreatedAt, a.CreatedAt), strings.Compare(a.FromEndpoint, b.FromEndpoint), strings.Compare(a.MessageID, b.MessageID))
}

// readAll reads the valid records of a sender's directory.
func (o *Outbox) readAll(dir string) ([]Record, error) {
	entries, err := o.sys.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var records []Record
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), suffix) {
			continue
		}
		r, err := load(o.sys, filepath.Join(dir, e.Name()))
		if err == nil && filepath.Base(o.path(r.FromEndpoint, r.MessageID)) == e.Name() {
			records = append(records, r)
		}
	}
	return records, nil
}
