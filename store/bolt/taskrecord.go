package bolt

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// A task's record begins with a head of fixed size, so that the writer need not read
// JSON to know what it replaces, nor the table to be filled:
//
//	rev 8 · key of the end, 0 while open 8 · controller 4 · target 4 · state 1
//
// The parties are hashes of their identities. The task's Seq is the key of the
// record; the number in the JSON is not looked at.
const (
	headSettled    = revBytes
	headController = headSettled + 8
	headTarget     = headController + 4
	headState      = headTarget + 4
	headBytes      = headState + 1
)

// stateCodes are the states as the head has them. Never change one.
var stateCodes = map[api.State]byte{
	api.StateQueued:   1,
	api.StateOffered:  2,
	api.StateAccepted: 3,
	api.StateHeld:     4,
	api.StateRunning:  5,
	api.StateQuestion: 6,
	api.StateUnknown:  7,
	api.StateDone:     32,
	api.StatePartial:  33,
	api.StateFailed:   34,
	api.StateRefused:  35,
	api.StateExpired:  36,
	api.StateCanceled: 37,
}

// head is a task record's head.
type head []byte

func (h head) rev() store.Rev     { return store.Rev(binary.BigEndian.Uint64(h)) }
func (h head) settled() uint64    { return binary.BigEndian.Uint64(h[headSettled:]) }
func (h head) controller() uint32 { return binary.BigEndian.Uint32(h[headController:]) }
func (h head) target() uint32     { return binary.BigEndian.Uint32(h[headTarget:]) }
func (h head) state() byte        { return h[headState] }

// headOf returns the head of a stored record.
func headOf(raw []byte) (head, error) {
	if len(raw) < headBytes {
		return nil, fmt.Errorf("bolt: task: %w: %d bytes", errDamaged, len(raw))
	}
	return head(raw[:headBytes]), nil
}

// nextRev is a revision to follow rev: a count in the upper half, a random number in
// the lower. A caller that does not wait for the disk builds on a revision that may
// never come to be; without the random part, that of another caller's change could
// be the same, and be overwritten unseen.
func nextRev(rev store.Rev) store.Rev {
	return rev>>32<<32 + 1<<32 + store.Rev(rand.Uint32())
}

// taskHead makes the head that belongs to t at revision rev.
func taskHead(t *store.Task, rev store.Rev) (h [headBytes]byte) {
	binary.BigEndian.PutUint64(h[:], uint64(rev))
	binary.BigEndian.PutUint64(h[headSettled:], settledKey(t))
	binary.BigEndian.PutUint32(h[headController:], idHash(t.Controller.ID))
	binary.BigEndian.PutUint32(h[headTarget:], idHash(t.Target.ID))
	h[headState] = stateCodes[t.State]
	return h
}

// settledKey is when t ended, as retention sorts it; 0 while t is open.
func settledKey(t *store.Task) uint64 {
	switch {
	case !t.State.Settled():
		return 0
	case t.EndedAt.IsZero():
		return timeKey(t.Since)
	}
	return timeKey(t.EndedAt)
}

// idHash is FNV-1a over an identity.
func idHash(id string) uint32 {
	h := uint32(2166136261)
	for i := range len(id) {
		h = (h ^ uint32(id[i])) * 16777619
	}
	return h
}

// encodeTask checks t and makes its record at revision rev.
func encodeTask(t *store.Task, rev store.Rev) ([]byte, error) {
	if stateCodes[t.State] == 0 {
		return nil, fmt.Errorf("bolt: task %s: state %q is none", t.ID, t.State)
	}
	raw, err := encode(headBytes, t)
	if err != nil {
		return nil, fmt.Errorf("bolt: task %s: %w", t.ID, err)
	}
	h := taskHead(t, rev)
	copy(raw, h[:])
	return raw, nil
}

// decodeTask reads the record of the task with the number seq.
func decodeTask(seq uint64, raw []byte) (t store.Task, err error) {
	h, err := headOf(raw)
	if err != nil {
		return t, err
	}
	if err := decode("task", raw, headBytes, &t); err != nil {
		return store.Task{}, err
	}
	t.Seq, t.Rev = seq, h.rev()
	return t, nil
}

// partKinds are the kinds of text as keys have them. Never change one.
var partKinds = map[store.PartKind]byte{
	store.PartText:  1,
	store.PartReply: 2,
	store.PartLate:  3,
}

const partKeyBytes = seqBytes + 1 + 4 + 4

// partSuffix is a part's key behind the number of its task.
func partSuffix(key store.PartKey) (s [partKeyBytes - seqBytes]byte, err error) {
	code := partKinds[key.Kind]
	switch {
	case code == 0:
		return s, fmt.Errorf("bolt: part: kind %q is none", key.Kind)
	case key.Attempt < 0, key.Attempt > math.MaxInt32, key.Turn < 0, key.Turn > math.MaxInt32:
		return s, fmt.Errorf("bolt: part: attempt %d or turn %d is out of range", key.Attempt, key.Turn)
	}
	s[0] = code
	binary.BigEndian.PutUint32(s[1:], uint32(key.Attempt))
	binary.BigEndian.PutUint32(s[5:], uint32(key.Turn))
	return s, nil
}

// text is a part's data as a value that can be told from a missing one.
func text(data []byte) []byte {
	if data == nil {
		return nothing
	}
	return data
}
