package spool

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"time"
	"unicode/utf8"

	"opencode-mesh/node/peers/files"
	"opencode-mesh/protocol/peers"
)

const (
	// version is that of records and acknowledgements.
	version = 2

	// maxRecordRest is what a record is longer than its message at the most, but for its
	// ids.
	maxRecordRest = 4 << 10
	// maxBatch is how many messages are accepted under one lock.
	maxBatch = 64

	sequenceName = "sequence"
	// maxSequenceBytes bounds the file of the sequence.
	maxSequenceBytes = 1 << 10
)

// sequence is the file of the last number that was given to a message.
type sequence struct {
	Value float64 `json:"value"`
}

// arrival is a message that is to be accepted.
type arrival struct {
	message  peers.Message
	decision Decision
	done     chan struct{} // closed once the rest is there

	status string
	fresh  bool
	err    error
}

// Accept takes a message as the gate decided and says what to answer to its sender; once
// it returned without an error, that is on the disk. fresh says that this call stored
// something. It is false for a message that is here already, whose stored outcome is the
// answer, and for peers.Full, of which nothing is kept. The same text from the same
// sender within peers.DuplicateWindow is peers.Duplicate, which is stored as done.
//
// Messages that come while the lock is taken are accepted together by the one of them
// that gets it next, since most of the time is that of the lock and of the disk. If ctx
// ends while that happens, Accept still waits for what became of its message. It waits for
// AcceptTimeout at most until it begins; after that nothing was stored.
func (q *Queue) Accept(ctx context.Context, m peers.Message, d Decision) (status string, fresh bool, err error) {
	if !endpointName.MatchString(q.name) {
		return "", false, q.badName()
	}
	if err := check(m); err != nil {
		return "", false, err
	}
	a := &arrival{message: m, decision: d, done: make(chan struct{})}
	q.mu.Lock()
	q.waiting = append(q.waiting, a)
	q.mu.Unlock()

	began := time.Now()
	wait, stop := within(ctx, AcceptTimeout)
	defer stop()
	select {
	case <-a.done:
	case q.turn <- struct{}{}:
		err = q.serve(wait, a)
		q.give()
	case <-wait.Done():
		err = q.late(wait, began)
	}
	if err != nil && q.withdraw(a) {
		return "", false, fmt.Errorf("accept a message for %s: %w", q.name, err)
	}
	<-a.done
	return a.status, a.fresh, a.err
}

// check refuses messages that cannot be kept as they are.
func check(m peers.Message) error {
	switch {
	case m.ID == "" || m.FromEndpoint == "":
		return errors.New("a message needs an id and a sender")
	case !utf8.ValidString(m.ID) || !utf8.ValidString(m.FromEndpoint):
		return errors.New("an id is no UTF-8")
	case math.IsNaN(m.SentAt) || math.IsInf(m.SentAt, 0):
		return errors.New("the time of sending is no number")
	}
	// With room for the rest of a record, whose ids are there twice.
	data, err := encode(stored(m))
	if err == nil && len(data)+len(m.ID)+len(m.FromEndpoint) > MaxRecord-maxRecordRest {
		err = fmt.Errorf("the message has %d bytes, at most %d are kept", len(data), MaxRecord-maxRecordRest)
	}
	return err
}

// stored is a message as records have it.
func stored(m peers.Message) StoredMessage {
	s := StoredMessage{
		ID: m.ID, From: peers.Sender{InstanceID: m.FromEndpoint, Name: m.From.Name, Directory: m.From.Directory},
		Text: m.Text, Via: slices.Clone(m.Via), SentAt: m.SentAt,
	}
	if s.Via == nil {
		s.Via = []string{}
	}
	return s
}

// withdraw takes a message back, if nobody has begun to accept it.
func (q *Queue) withdraw(a *arrival) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.Index(q.waiting, a)
	if i < 0 {
		return false
	}
	q.waiting = slices.Delete(q.waiting, i, i+1)
	return true
}

// serve accepts messages that wait, until one of them is accepted, which has the turn. An
// error is about that one alone: the others wait on, each for as long as its sender does.
func (q *Queue) serve(ctx context.Context, until *arrival) error {
	for {
		select {
		case <-until.done:
			return nil
		default:
		}
		if err := files.MakeDir(q.sys, q.dir); err != nil {
			return err
		}
		var batch []*arrival
		err := q.locked(ctx, func(v *view) error {
			batch = q.next()
			return v.acceptAll(batch)
		})
		if batch == nil {
			return err
		}
		for _, a := range batch {
			if err != nil {
				a.status, a.fresh, a.err = "", false, fmt.Errorf("accept a message for %s: %w", q.name, err)
			}
			close(a.done)
		}
	}
}

// next takes the messages that are accepted together.
func (q *Queue) next() []*arrival {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(maxBatch, len(q.waiting))
	batch := slices.Clone(q.waiting[:n])
	q.waiting = slices.Delete(q.waiting, 0, n)
	return batch
}

// acceptAll accepts messages, all or none.
func (v *view) acceptAll(batch []*arrival) error {
	var records []Record
	for _, a := range batch {
		var r Record
		if r, a.status, a.fresh = v.judge(a.message, a.decision); a.fresh {
			records = append(records, r)
			v.in[nameOf(r)] = remember(nil, r)
		}
	}
	if len(records) == 0 {
		return nil
	}
	if err := v.number(records); err != nil {
		return err
	}
	if err := v.add(records); err != nil {
		return err
	}
	if v.count(StateDone) > v.q.cfg.MaxDone {
		v.prune()
	}
	return nil
}

// judge says what becomes of a message, and its record if that is new.
func (v *view) judge(m peers.Message, d Decision) (r Record, status string, fresh bool) {
	q := v.q
	if it, ok := v.in[peers.RecordName(m.FromEndpoint, m.ID)]; ok {
		return Record{}, it.rec.receipt(), false
	}
	r = Record{Version: version, Message: stored(m), AcceptedAt: q.now()}
	if first, ok := v.repeated(r); ok {
		r = q.done(r, peers.Duplicate)
		r.DuplicateOf = first
		return r, peers.Duplicate, true
	}
	switch d {
	case Refuse:
		return q.done(r, peers.Refused), peers.Refused, true
	case Hold:
		if v.count(StateHeld) >= q.cfg.MaxHeld {
			return Record{}, peers.Full, false
		}
		r.State = StateHeld
		r.HeldAt, r.ExpiresAt = r.AcceptedAt, r.AcceptedAt+float64(q.cfg.HeldExpiry.Milliseconds())
		r.Message.HeldAt, r.Message.ExpiresAt = r.HeldAt, r.ExpiresAt
		return r, peers.Held, true
	default:
		if v.count(StateQueued, StateInflight) >= q.cfg.MaxQueue {
			return Record{}, peers.Full, false
		}
		r.State = StateQueued
		return r, peers.Queued, true
	}
}

// repeated finds the message whose text another one repeats.
func (v *view) repeated(r Record) (id string, ok bool) {
	sum := sha256.Sum256([]byte(r.Message.Text))
	for _, it := range v.in {
		// A clock that was put back leaves times ahead of it, which are not near either.
		near := math.Abs(r.AcceptedAt-it.rec.AcceptedAt) < float64(peers.DuplicateWindow.Milliseconds())
		if near && it.rec.DuplicateOf == "" && it.rec.Message.From.InstanceID == r.Message.From.InstanceID && it.sum == sum {
			return it.rec.Message.ID, true
		}
	}
	return "", false
}

// number gives records their places. The number of the last is on the disk before they
// are, or another program would give it again.
func (v *view) number(records []Record) error {
	last := sequence{}
	path := filepath.Join(v.q.dir, sequenceName)
	data, err := files.Read(v.q.sys, path, maxSequenceBytes)
	if err == nil {
		err = json.Unmarshal(data, &last)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		v.q.cfg.Log.Warn("peers: the sequence of the spool is not valid, it goes on from the records", "path", path, "err", err)
		last.Value = 0
	}
	for _, it := range v.in {
		last.Value = max(last.Value, it.rec.Sequence)
	}
	for i := range records {
		last.Value++
		records[i].Sequence = last.Value
	}
	if data, err = encode(last); err != nil {
		return err
	}
	if !v.lock.ours() {
		return ErrLockLost
	}
	return files.Replace(v.q.sys, path, data)
}
