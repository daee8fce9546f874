package boltdb

import (
	"io/fs"
	"os"
)

// MaxReruns is maxReruns.
const MaxReruns = maxReruns

// VerifyPages is verifyPages.
var VerifyPages = verifyPages

// CommitState is commitState.
var CommitState = commitState

// WithOpenFile returns cfg with the function that opens the data file replaced.
func WithOpenFile(cfg Config, open func(string, int, fs.FileMode) (*os.File, error)) Config {
	cfg.openFile = open
	return cfg
}

// Unsync makes the last commit count as not yet synced until the returned function
// is called.
func (db *DB) Unsync() (sync func()) {
	txid := db.durable.txid.Load()
	db.durable.txid.Store(txid - 1)
	return func() { db.durable.publish(txid) }
}

// ViewWaits reports whether a View waits for a sync.
func (db *DB) ViewWaits() bool {
	db.durable.mu.Lock()
	defer db.durable.mu.Unlock()
	return db.durable.moved != nil
}

// LoseMapping closes bbolt's file as if growing it had lost the mapping.
func (db *DB) LoseMapping() error { return db.bolt.Load().Close() }

// KeepWriterLock begins a transaction of bbolt that never ends.
func (db *DB) KeepWriterLock() { _, _ = db.bolt.Load().Begin(true) }
