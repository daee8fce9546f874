// Package engine holds the rules of OpenComms: who may do what in a channel, and
// what becomes of a message from its sending to its end.
//
// Everything is a change of a state in memory: the engine reads no file, starts
// nothing and knows no time but the one that it is given. A method that refuses
// leaves the state as it was. The state file is shared with another program whose
// rules these are; where we differ on purpose, docs/opencomms.md says so.
//
// An Engine has no state of its own and may be used by many at once; a State may
// not.
package engine
