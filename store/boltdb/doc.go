// Package boltdb is the embedded storage engine of the hub's store and of the
// node's journal: one file, one process, transactions by go.etcd.io/bbolt. It
// knows nothing about tasks.
//
// It guarantees that Update returns nil only after the commit that holds the
// change was synced, that a View never shows what a power cut could still take
// back, that a failing transaction function leaves nothing behind, that a full or
// read-only disk loses nothing and heals without a restart, and that a failed sync
// ends all acknowledging. Many waiting updates share one commit (group commit).
//
// It does not retry a refused write, replicate, encrypt, or shrink a file in use.
package boltdb
