package boltdb

import (
	"os"
	"sync"
	"time"
)

// Status is a snapshot for operators and metrics.
type Status struct {
	Path string
	// FileBytes is the size of the file. It never shrinks, and what lies beyond
	// DataBytes may take no room on the disk.
	FileBytes int64
	// DataBytes is the part that is in use or was once.
	DataBytes int64
	// FreeBytes is the part of DataBytes that is free for reuse. Compaction pays when
	// it is more than half.
	FreeBytes int64

	Queue    int // requests that wait for the writer
	QueueCap int // its bound

	Commits   uint64  // commits since Open
	Batched   uint64  // requests in them
	LastBatch int     // requests in the last commit
	MaxBatch  int     // most requests in a commit so far
	MeanBatch float64 // requests per commit
	Dropped   uint64  // Enqueue work that was accepted and then failed

	// CommitLast and CommitMean are times of whole commits, running the functions
	// included; SyncLast and SyncMean of writing and syncing their pages.
	CommitLast, CommitMean time.Duration
	SyncLast, SyncMean     time.Duration

	Disk  DiskState
	Since time.Time // when Disk was entered
	Err   error     // the reason, nil when ok
	// Ballast tells whether the ballast file is there to be given up.
	Ballast bool
}

// counters collects what the writer does. The mutex is held for arithmetic only.
type counters struct {
	mu                      sync.Mutex // guards the following fields
	commits, batched        uint64
	dropped                 uint64
	lastBatch, maxBatch     int
	commitLast, commitTotal time.Duration
	syncLast, syncTotal     time.Duration
}

func (c *counters) commit(total, sync time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.commits++
	c.commitLast, c.commitTotal = total, c.commitTotal+total
	c.syncLast, c.syncTotal = sync, c.syncTotal+sync
}

func (c *counters) batch(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.batched += uint64(n)
	c.lastBatch, c.maxBatch = n, max(c.maxBatch, n)
}

func (c *counters) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropped++
}

// fill copies the counters to a Status.
func (c *counters) fill(s *Status) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.Commits, s.Batched, s.Dropped = c.commits, c.batched, c.dropped
	s.LastBatch, s.MaxBatch = c.lastBatch, c.maxBatch
	s.CommitLast, s.SyncLast = c.commitLast, c.syncLast
	if c.commits > 0 {
		s.MeanBatch = float64(c.batched) / float64(c.commits)
		s.CommitMean = c.commitTotal / time.Duration(c.commits)
		s.SyncMean = c.syncTotal / time.Duration(c.commits)
	}
}

// Status returns a snapshot. After Close the sizes are those of the file alone.
func (db *DB) Status() Status {
	disk := db.disk.Load()
	s := Status{
		Path:     db.cfg.Path,
		Queue:    db.queue.len(),
		QueueCap: db.cfg.QueueSize,
		Disk:     disk.state,
		Since:    disk.since,
		Err:      disk.err,
	}
	db.stats.fill(&s)
	if fi, err := os.Stat(db.cfg.Path); err == nil {
		s.FileBytes = fi.Size()
	}
	if fi, err := os.Stat(db.cfg.Path + ballastSuffix); err == nil {
		s.Ballast = fi.Size() == db.cfg.BallastBytes
	}
	b := db.bolt.Load()
	if tx, err := b.Begin(false); err == nil {
		s.DataBytes = tx.Size()
		s.FreeBytes = int64(b.Stats().FreePageN) * int64(b.Info().PageSize)
		_ = tx.Rollback()
	}
	return s
}
