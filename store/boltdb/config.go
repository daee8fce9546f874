package boltdb

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"
)

// Defaults and fixed values.
const (
	// DefaultLockTimeout leaves a second start time to name the holder within 3 s.
	DefaultLockTimeout = 2 * time.Second
	// DefaultQueueSize is how many requests may wait for the writer.
	DefaultQueueSize = 4096
	// DefaultMaxBatch is how many requests share one commit at most.
	DefaultMaxBatch = 1024
	// DefaultBallastBytes is the size of the file given up when the disk is full.
	DefaultBallastBytes = 8 << 20
	// DefaultProbeInterval is the time between two attempts to write again.
	DefaultProbeInterval = 5 * time.Second
	// LogFillPercent is how full pages of log-like buckets get before they split.
	LogFillPercent = 0.95

	// pageSize of new files: eight 2 KB records share a page instead of one.
	pageSize = 16 << 10
	// fileMode of everything that is created here: records hold credentials.
	fileMode fs.FileMode = 0o600
	// dirMode of a data directory that is created here.
	dirMode fs.FileMode = 0o700
)

// Config says what to open and how. Path, Schema and Kind are required.
type Config struct {
	// Path of the database file. Beside it live <Path>.lock and <Path>.ballast, and
	// for a while files with other suffixes, which Open removes after a crash.
	// Its directory is created (0700) when missing.
	Path string
	// Schema is the schema version of this program, at least 1. A file of a newer
	// one is refused.
	Schema int
	// Kind says what the file is for, such as "hub store". It is stored, and a file
	// of another kind is refused.
	Kind string
	// Buckets are top-level buckets to create when missing. A name may not begin
	// with "_boltdb".
	Buckets []string
	// LogBuckets are those of Buckets whose keys only grow (sequence numbers): their
	// pages are filled to LogFillPercent instead of one half. For a nested bucket set
	// FillPercent in the transaction itself; bbolt does not store it.
	LogBuckets []string
	// Migrate brings a file of schema from up to Schema, in one transaction with the
	// new version number; existing files only. Nil: an older file is refused.
	Migrate func(tx *bolt.Tx, from int) error
	// LockTimeout is how long Open waits for another process; 0 = DefaultLockTimeout.
	LockTimeout time.Duration
	// QueueSize bounds the requests that wait for the writer; 0 = DefaultQueueSize.
	// When it is reached Enqueue returns ErrBusy and Update waits for its context.
	QueueSize int
	// MaxBatch bounds the requests in one commit; 0 = DefaultMaxBatch.
	MaxBatch int
	// BallastBytes is the size of the ballast; 0 = DefaultBallastBytes, -1 = none.
	BallastBytes int64
	// ProbeInterval is the time between attempts to leave a disk trouble and to
	// restore the ballast; 0 = DefaultProbeInterval.
	ProbeInterval time.Duration
	// ReadOnly opens an existing file for reading beside other readers: no writer, no
	// ballast, no migration, a file of an older schema is taken as it is.
	ReadOnly bool
	// Log gets changes of state and lost Enqueue work; nil = discarded.
	Log *slog.Logger
	// Faults makes commits fail in tests; nil = none.
	Faults FaultInjector

	// openFile opens the data file for bbolt; tests reach the descriptor by it.
	openFile func(name string, flag int, perm fs.FileMode) (*os.File, error)
	// owned says that this process holds the lock file, so that a lock on the data
	// file itself is that of a foreign program.
	owned bool
}

// withDefaults returns a checked copy with all zero values filled in.
func (c Config) withDefaults() (Config, error) {
	switch {
	case c.Path == "":
		return c, errors.New("boltdb config: path is empty")
	case c.Schema < 1:
		return c, fmt.Errorf("boltdb config: schema %d is below 1", c.Schema)
	case c.Kind == "":
		return c, errors.New("boltdb config: kind is empty")
	case c.LockTimeout < 0, c.QueueSize < 0, c.MaxBatch < 0, c.ProbeInterval < 0:
		return c, errors.New("boltdb config: a limit is negative")
	case c.BallastBytes < -1:
		return c, fmt.Errorf("boltdb config: ballast of %d bytes", c.BallastBytes)
	}
	for _, name := range c.Buckets {
		if name == "" || len(name) >= len(metaBucket) && name[:len(metaBucket)] == metaBucket {
			return c, fmt.Errorf("boltdb config: bucket name %q is not allowed", name)
		}
	}
	for _, name := range c.LogBuckets {
		if !slices.Contains(c.Buckets, name) {
			return c, fmt.Errorf("boltdb config: log bucket %q is not among the buckets", name)
		}
	}
	setDefault(&c.LockTimeout, DefaultLockTimeout)
	setDefault(&c.QueueSize, DefaultQueueSize)
	setDefault(&c.MaxBatch, DefaultMaxBatch)
	setDefault(&c.BallastBytes, DefaultBallastBytes)
	setDefault(&c.ProbeInterval, DefaultProbeInterval)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.openFile == nil {
		c.openFile = os.OpenFile
	}
	return c, nil
}

// setDefault replaces a zero value.
func setDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}
