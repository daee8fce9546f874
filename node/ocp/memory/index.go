package memory

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	index "github.com/blevesearch/bleve_index_api"

	"opencode-mesh/protocol/ocp"
)

const (
	// DefaultMaxItems is how many items are remembered; the oldest leave for new ones.
	DefaultMaxItems = 100_000
	// evictShare is the part of the items that leaves at once when there are too many, so
	// that it is seldom looked which are the oldest.
	evictShare = 50
	// maxBatch is how many items one commit takes.
	maxBatch = 1000
)

// ErrClosed is returned after Close.
var ErrClosed = errors.New("memory: closed")

// Path is the directory of the index of what a hub told, in a node's data directory.
func Path(dataDir, hubID string) string { return filepath.Join(dataDir, "memory-"+hubID) }

// Config says where an index is and how much it holds.
type Config struct {
	// Path is a directory of its own, which is made (0700) when missing. Required.
	Path string
	// MaxItems is how many items are kept; 0: DefaultMaxItems.
	MaxItems int
	// Log gets what an operator should see; nil: discarded.
	Log *slog.Logger

	commitLimit, closeLimit time.Duration // 0: the constants
}

// Index is the text index. Its methods are safe for concurrent use; a query sees what was
// there when it began. One that the disk does not let end is known to the index, and waited
// for by Close.
type Index struct {
	cfg   Config
	queue *index.AnalysisQueue

	engines

	writing chan struct{} // holds a value while something is changed, which guards failed
	failed  bool          // the last commit failed, and the engine takes none

	quit    chan struct{} // closed by Close
	quitted sync.Once
}

// Open opens the index, or makes it. One that is damaged is removed and made anew, with a
// line in the log; Count and Cursor are of an empty one then.
func Open(cfg Config) (*Index, error) {
	switch {
	case cfg.Path == "":
		return nil, errors.New("memory: no directory")
	case cfg.MaxItems < 0:
		return nil, errors.New("memory: the number of items is negative")
	case cfg.MaxItems == 0:
		cfg.MaxItems = DefaultMaxItems
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	cfg.commitLimit = cmp.Or(cfg.commitLimit, commitLimit)
	cfg.closeLimit = cmp.Or(cfg.closeLimit, closeLimit)
	x := &Index{cfg: cfg, writing: make(chan struct{}, 1), quit: make(chan struct{}), queue: index.NewAnalysisQueue(1)}
	engine, err := openOrRemake(cfg, x.queue)
	if err != nil {
		x.queue.Close()
		return nil, fmt.Errorf("memory: %w", err)
	}
	if _, err := x.engines.put(engine); err != nil {
		return nil, err
	}
	return x, nil
}

// Close waits for what is under way and closes the index. A disk that does not answer is
// waited for only so long, which is an error. Further calls do nothing.
func (x *Index) Close() error {
	x.quitted.Do(func() { close(x.quit) })
	last := x.end()
	if last == nil {
		return nil
	}
	timer := time.NewTimer(x.cfg.closeLimit)
	defer timer.Stop()
	select {
	case x.writing <- struct{}{}: // and nothing is changed any more
	case <-timer.C:
	}
	err := last.shut(x.cfg.closeLimit)
	x.queue.Close()
	return err
}

// change waits for its turn to change something, and makes the index fit for it. The caller
// calls done.
func (x *Index) change(ctx context.Context) (done func(), err error) {
	select {
	case x.writing <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-x.quit:
		return nil, ErrClosed
	}
	if err := x.resume(); err != nil {
		<-x.writing
		return nil, err
	}
	return func() { <-x.writing }, nil
}

// look runs fn with the index as it is now.
func (x *Index) look(ctx context.Context, fn func(index.IndexReader) error) error {
	return x.use(ctx, func(e index.Index) error {
		r, err := e.Reader()
		if err != nil {
			return err
		}
		return errors.Join(fn(r), r.Close())
	})
}

// Put adds items, or replaces those of the same id: those of a thousand at once, or none of
// them. It returns once they are on disk. One that is there already, the same in
// everything, costs no write. An item that cannot be kept is an error, and none is put.
func (x *Index) Put(ctx context.Context, items []Item) error {
	return x.put(ctx, items, nil)
}

// note is something small that is kept with the items, such as how far a source was read.
type note struct {
	key   string
	value []byte
}

// put puts items, the last of them in one commit with the note.
func (x *Index) put(ctx context.Context, items []Item, n *note) error {
	tidied := make([]Item, 0, len(items))
	for _, it := range items {
		it, err := tidy(it)
		if err != nil {
			return err
		}
		tidied = append(tidied, it)
	}
	done, err := x.change(ctx)
	if err != nil {
		return err
	}
	defer done()
	for len(tidied) > maxBatch {
		if err := x.putBatch(ctx, tidied[:maxBatch], nil); err != nil {
			return err
		}
		tidied = tidied[maxBatch:]
	}
	if err := x.putBatch(ctx, tidied, n); err != nil {
		return err
	}
	return x.evict(ctx)
}

// putBatch is one commit. Called with the turn of change.
func (x *Index) putBatch(ctx context.Context, items []Item, n *note) error {
	b := index.NewBatch()
	err := x.look(ctx, func(r index.IndexReader) error {
		for i := range items {
			raw, err := items[i].encode()
			if err != nil {
				return err
			}
			known, err := stored(r, items[i].ID)
			if err != nil {
				return err
			}
			if !bytes.Equal(known, raw) {
				b.Update(makeDocument(&items[i], raw))
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if n != nil {
		b.SetInternal([]byte(n.key), n.value)
	}
	return x.commit(ctx, b)
}

// commit writes a batch and waits for the disk. Called with the turn of change.
func (x *Index) commit(ctx context.Context, b *index.Batch) error {
	if len(b.IndexOps) == 0 && len(b.InternalOps) == 0 {
		return nil
	}
	var failure error
	err := x.use(ctx, func(e index.Index) error {
		failure = x.write(e, b)
		return failure
	})
	if failure != nil {
		x.suspend(failure)
	}
	return err
}

// Delete removes items; ids that are not there are no error.
func (x *Index) Delete(ctx context.Context, ids ...string) error {
	done, err := x.change(ctx)
	if err != nil {
		return err
	}
	defer done()
	return x.remove(ctx, ids)
}

// remove removes items. Called with the turn of change.
func (x *Index) remove(ctx context.Context, ids []string) error {
	for chunk := range slices.Chunk(ids, maxBatch) {
		b := index.NewBatch()
		for _, id := range chunk {
			b.Delete(id)
		}
		if err := x.commit(ctx, b); err != nil {
			return err
		}
	}
	return nil
}

// Count is how many items are remembered; 0 once closed.
func (x *Index) Count() int {
	var n uint64
	_ = x.look(context.Background(), func(r index.IndexReader) (err error) {
		n, err = r.DocCount()
		return err
	})
	return int(n)
}

// noted returns the value of a note, nil when there is none.
func (x *Index) noted(ctx context.Context, key string) (value []byte, err error) {
	err = x.look(ctx, func(r index.IndexReader) error {
		value, err = r.GetInternal([]byte(key))
		return err
	})
	return value, err
}

// ids are the ids of items that begin so.
func (x *Index) ids(ctx context.Context, prefix string) (ids []string, err error) {
	err = x.look(ctx, func(r index.IndexReader) error {
		dict, err := r.FieldDictPrefix("_id", []byte(prefix))
		if err != nil {
			return err
		}
		defer dict.Close()
		for {
			entry, err := dict.Next()
			if err != nil || entry == nil {
				return err
			}
			ids = append(ids, entry.Term)
		}
	})
	return ids, err
}

// evict removes the oldest items while there are too many. Called with the turn of change.
func (x *Index) evict(ctx context.Context) error {
	over := x.Count() - x.cfg.MaxItems
	if over <= 0 {
		return nil
	}
	over = max(over, x.cfg.MaxItems/evictShare)
	type aged struct {
		id string
		at int64
	}
	var items []aged
	err := x.look(ctx, func(r index.IndexReader) error {
		docs, err := r.DocIDReaderAll()
		if err != nil {
			return err
		}
		defer docs.Close()
		read, err := newTimesReader(r)
		if err != nil {
			return err
		}
		for {
			doc, err := docs.Next()
			if err != nil || doc == nil {
				return err
			}
			t, err := read(doc)
			if err != nil {
				return err
			}
			id, err := r.ExternalID(doc)
			if err != nil {
				return err
			}
			items = append(items, aged{id, t.at})
		}
	})
	if err != nil {
		return err
	}
	slices.SortFunc(items, func(a, b aged) int { return int(min(1, max(-1, a.at-b.at))) })
	var ids []string
	for _, it := range items[:min(over, len(items))] {
		ids = append(ids, it.id)
	}
	return x.remove(ctx, ids)
}

// Kinds are those that the memory has.
func Kinds() []ocp.FrameKind {
	return []ocp.FrameKind{ocp.KindFact, ocp.KindEpisode, ocp.KindMemory, ocp.KindDoc, ocp.KindSnippet}
}
