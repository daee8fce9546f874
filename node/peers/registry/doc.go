// Package registry is the directory peers.d, in which the agents of one machine find each
// other: the files of this process's endpoints, which a Publisher writes and removes, and
// the files of all, which a Reader reads.
//
// A file is replaced whole, so that nobody reads half of one, and it is not synced: after a
// crash of the machine nothing in it is true. A Publisher removes its own files when it
// stops; those of a process that was killed stay until somebody's janitor finds them.
//
// Whoever can write into the directory can claim to be anybody. What is read here is not
// checked, and is good for addresses only.
package registry
