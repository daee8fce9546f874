// Package bolt is the embedded implementation of store.Store: one file in the
// hub's data directory, on the engine of package boltdb.
//
// It guarantees what the interface promises on top of the engine's group commit:
// a method that changes something returns nil only after the commit that holds
// the change, and a change that is refused leaves nothing behind. The heads of all
// tasks are kept in memory, 32 bytes each, so that listings and retention read no
// more records than they return. Restore, Check and Compact work on the file of a
// hub that is stopped.
//
// It does not serve two processes at a time, and it does not judge what is
// stored: which state may follow which is the hub's business.
package bolt
