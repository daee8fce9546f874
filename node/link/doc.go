// Package link keeps a node connected to its hub: it holds the tunnel up, says
// hello on each new one, serves the node's interface in it, hands the hub to the
// node, and reports when the health of the agent changes.
//
// It guarantees that the fencing epoch is on disk before a hello proposes it, that
// a journal which the hub calls forked is replaced before anything runs, that a
// superseded process never fights for its name but delivers what it still has, and
// that an error which only a person can mend (a revoked credential, another key,
// another hub) ends it with words that say so.
//
// It executes nothing and keeps nothing; Host does.
package link
