package tasks

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store/boltdb"
)

const (
	journalKind   = "node journal"
	journalSchema = 1
	// forkedSuffix ends the name of a journal that the hub refused as a copy.
	forkedSuffix = ".forked"
)

// The journal's buckets. The keys of all but meta and sessions are arrival
// numbers, which only grow.
const (
	bucketMeta        = "meta"
	bucketTasks       = "tasks"       // row, JSON
	bucketTexts       = "texts"       // the offer's text, until the result was acknowledged
	bucketOutcomes    = "outcomes"    // api.Outcome, JSON
	bucketCheckpoints = "checkpoints" // the agent's, until the turn ended
	bucketSessions    = "sessions"    // sessionKey → boundSession, JSON
)

// The keys of the meta bucket.
var (
	keyJournalID = []byte("journal_id")
	keyHubID     = []byte("hub_id")
	keyEpoch     = []byte("epoch")
	keyLowWater  = []byte("low_water")
)

// known is what the index holds of a triple.
type known struct {
	attempt, turn int
	arrival       uint64
	state         api.State
	rec           *record // nil when it is on disk only
}

// closedTriple is a triple that may be forgotten once it is old.
type closedTriple struct {
	api.Triple
	arrival   uint64
	createdMS int64
	endedMS   int64
}

// journal is a node's durable memory of what one hub gave it. Safe for
// concurrent use. A transition of one record that waits for the disk holds the
// record's busy channel, so that transitions of one record never overlap.
type journal struct {
	cfg Config
	log *slog.Logger
	id  string

	// engine is held shared while db is in use and alone by archive, which closes
	// the file to rename it.
	engine sync.RWMutex
	db     *boltdb.DB
	path   string

	mu        sync.Mutex // guards the following fields and the marked ones of records
	epoch     uint64
	lowWater  int64
	next      uint64                // arrival number of the next record
	index     map[string][]known    // every triple that is remembered, by task, in order
	open      map[uint64]*record    // by arrival
	closed    []closedTriple        // what may be forgotten, oldest first
	sessions  map[string]boundEntry // by sessionKey
	textBytes int                   // of the texts kept in memory
	dirty     map[uint64]*record    // marks that wait, by arrival; see marks.go
	flying    map[uint64]*record    // marks in a commit that is under way
	leftovers []api.Triple          // what agents may forget; see leftovers.go

	marked chan struct{} // room for one; tells that a mark waits
}

// openJournal opens the journal or makes a new one when no file is there. A file
// that cannot be read or belongs to another hub is an error: it is never made
// anew silently (semantics 5).
func openJournal(cfg Config) (*journal, error) {
	db, err := openEngine(cfg, cfg.Path)
	if err != nil {
		return nil, err
	}
	j := &journal{
		cfg: cfg, log: cfg.Log, db: db, path: cfg.Path,
		next:     1,
		index:    make(map[string][]known),
		open:     make(map[uint64]*record),
		sessions: make(map[string]boundEntry),
		dirty:    make(map[uint64]*record),
		flying:   make(map[uint64]*record),
		marked:   make(chan struct{}, 1),
	}
	if err := j.load(); err != nil {
		return nil, errors.Join(fmt.Errorf("journal %s: %w", cfg.Path, err), db.Close())
	}
	return j, nil
}

func openEngine(cfg Config, path string) (*boltdb.DB, error) {
	db, err := boltdb.Open(boltdb.Config{
		Path:       path,
		Kind:       journalKind,
		Schema:     journalSchema,
		Buckets:    []string{bucketMeta, bucketTasks, bucketTexts, bucketOutcomes, bucketCheckpoints, bucketSessions},
		LogBuckets: []string{bucketTasks, bucketTexts, bucketOutcomes},
		Log:        cfg.Log,
		Faults:     cfg.Faults,

		BallastBytes: cfg.BallastBytes,
	})
	if err != nil {
		return nil, fmt.Errorf("open the journal: %w", err)
	}
	return db, nil
}

// load reads the journal's identity, index and open records.
func (j *journal) load() error {
	fresh := false
	err := j.db.View(func(tx *bolt.Tx) error {
		meta := tx.Bucket([]byte(bucketMeta))
		if meta.Get(keyJournalID) == nil {
			if k, _ := tx.Bucket([]byte(bucketTasks)).Cursor().First(); k != nil {
				return errors.New("it holds tasks and no journal id")
			}
			fresh = true
			return nil
		}
		if hub := string(meta.Get(keyHubID)); hub != j.cfg.HubID {
			return fmt.Errorf("it belongs to hub %s, not to %s", hub, j.cfg.HubID)
		}
		j.id = string(meta.Get(keyJournalID))
		var err error
		if j.epoch, err = number(meta, keyEpoch); err != nil {
			return err
		}
		low, err := number(meta, keyLowWater)
		if err != nil {
			return err
		}
		j.lowWater = int64(low)
		if err := j.loadTasks(tx); err != nil {
			return err
		}
		return j.loadSessions(tx)
	})
	if err != nil || !fresh {
		return err
	}
	return j.initialize()
}

// initialize gives a new journal its identity.
func (j *journal) initialize() error {
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil {
		return fmt.Errorf("make a journal id: %w", err)
	}
	j.id = hex.EncodeToString(b[:])
	return j.update(func(tx *bolt.Tx) error {
		meta := tx.Bucket([]byte(bucketMeta))
		return errors.Join(
			meta.Put(keyJournalID, []byte(j.id)),
			meta.Put(keyHubID, []byte(j.cfg.HubID)),
		)
	})
}

// number reads a counter of the meta bucket; 0 when it is not there.
func number(b *bolt.Bucket, key []byte) (uint64, error) {
	v := b.Get(key)
	switch len(v) {
	case 0:
		return 0, nil
	case 8:
		return binary.BigEndian.Uint64(v), nil
	}
	return 0, fmt.Errorf("value %s has %d bytes", key, len(v))
}

// loadTasks builds the index; called before the journal is shared.
func (j *journal) loadTasks(tx *bolt.Tx) error {
	c := tx.Bucket([]byte(bucketTasks)).Cursor()
	for k, v := c.First(); k != nil; k, v = c.Next() {
		r, err := decodeRow(v)
		if err != nil {
			return err
		}
		if len(k) != 8 {
			return fmt.Errorf("task record with a key of %d bytes", len(k))
		}
		arrival := binary.BigEndian.Uint64(k)
		j.next = max(j.next, arrival+1)
		kn := known{attempt: r.Attempt, turn: r.Turn, arrival: arrival, state: r.State}
		if ended(r.State) && r.Acked {
			j.closed = append(j.closed, closedTriple{Triple: r.Triple, arrival: arrival, createdMS: r.CreatedMS, endedMS: r.EndedMS})
		} else {
			kn.rec = &record{spec: r.spec, fate: r.fate, shown: r.State, arrival: arrival}
			kn.rec.resumed = r.State == api.StateRunning
			j.open[arrival] = kn.rec
		}
		j.addKnown(r.Task, kn)
	}
	slices.SortStableFunc(j.closed, func(a, b closedTriple) int { return cmp.Compare(a.endedMS, b.endedMS) })
	return nil
}

// addKnown puts a triple into the index. Callers hold mu.
func (j *journal) addKnown(task string, kn known) {
	hist := j.index[task]
	i := len(hist)
	for i > 0 && (kn.attempt < hist[i-1].attempt || kn.attempt == hist[i-1].attempt && kn.turn < hist[i-1].turn) {
		i--
	}
	j.index[task] = slices.Insert(hist, i, kn)
}

// find returns the index entry of a triple; nil when it was never seen. It is
// valid until mu is released, which callers hold.
func (j *journal) find(t api.Triple) *known {
	hist := j.index[t.Task]
	for i := range hist {
		if hist[i].attempt == t.Attempt && hist[i].turn == t.Turn {
			return &hist[i]
		}
	}
	return nil
}

// findIdle returns the entry of a triple once no transition of it is under way,
// nil when it was never seen. It returns with mu held, and what it returned is
// valid until mu is released.
func (j *journal) findIdle(t api.Triple) *known {
	for {
		j.mu.Lock()
		kn := j.find(t)
		if kn == nil || kn.rec == nil || kn.rec.busy == nil {
			return kn
		}
		busy := kn.rec.busy
		j.mu.Unlock()
		<-busy
	}
}

// view runs fn on what is on disk.
func (j *journal) view(fn func(tx *bolt.Tx) error) error {
	j.engine.RLock()
	defer j.engine.RUnlock()
	return j.db.View(fn)
}

// put writes a record as it is now, so that whatever order two writes of one
// record arrive in, the later state stays. An outcome that is not on disk goes
// along, which it reports. Called inside a transaction.
func (j *journal) put(tx *bolt.Tx, rec *record) (outcome bool, err error) {
	j.mu.Lock()
	r := row{spec: rec.spec, fate: rec.fate}
	var blob []byte
	if rec.unsaved {
		blob = rec.outcome
	}
	j.mu.Unlock()
	data, err := json.Marshal(r)
	if err != nil {
		return false, err
	}
	key := arrivalKey(rec.arrival)
	if blob != nil {
		if err := tx.Bucket([]byte(bucketOutcomes)).Put(key, blob); err != nil {
			return false, err
		}
	}
	return blob != nil, tx.Bucket([]byte(bucketTasks)).Put(key, data)
}

// propose moves the fencing epoch on and returns once that is on disk
// (semantics 5).
func (j *journal) propose() (id string, epoch uint64, err error) {
	j.mu.Lock()
	j.epoch++
	epoch = j.epoch
	j.mu.Unlock()
	err = j.update(func(tx *bolt.Tx) error {
		return tx.Bucket([]byte(bucketMeta)).Put(keyEpoch, binary.BigEndian.AppendUint64(nil, epoch))
	})
	if err != nil {
		return "", 0, fmt.Errorf("store the epoch: %w", err)
	}
	return j.id, epoch, nil
}

// identity returns what offers and results must carry.
func (j *journal) identity() (id string, epoch uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.id, j.epoch
}

// archive renames the file of a journal that the hub refused as a copy and goes
// on in it, so that what runs can still end and be delivered.
func (j *journal) archive() (string, error) {
	j.engine.Lock()
	defer j.engine.Unlock()
	to := j.path + forkedSuffix
	for n := 2; exists(to); n++ {
		to = fmt.Sprintf("%s.%d%s", j.path, n, forkedSuffix)
	}
	if err := j.db.Close(); err != nil {
		return "", fmt.Errorf("close the journal: %w", err)
	}
	if err := os.Rename(j.path, to); err != nil {
		return "", fmt.Errorf("archive the journal: %w", err)
	}
	db, err := openEngine(j.cfg, to)
	if err != nil {
		return "", err
	}
	j.db, j.path = db, to
	return to, nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// failed is closed when a sync failed: the process must end.
func (j *journal) failed() <-chan struct{} {
	j.engine.RLock()
	defer j.engine.RUnlock()
	return j.db.Failed()
}

// close writes the marks that wait and closes the file.
func (j *journal) close() error {
	j.flush()
	j.engine.RLock()
	defer j.engine.RUnlock()
	return j.db.Close()
}

// nowMS is the node's clock in Unix milliseconds.
func (j *journal) nowMS() int64 { return j.cfg.Now().UnixMilli() }

// outcomeOf reads a stored outcome, encoded; nil when there is none.
func (j *journal) outcomeOf(arrival uint64) ([]byte, error) {
	var data []byte
	err := j.view(func(tx *bolt.Tx) error {
		data = bytes.Clone(tx.Bucket([]byte(bucketOutcomes)).Get(arrivalKey(arrival)))
		return nil
	})
	return data, err
}

// since is the time that passed on the node's clock since a stamp, never negative.
func (j *journal) since(ms int64) time.Duration {
	return max(0, time.Duration(j.nowMS()-ms)*time.Millisecond)
}
