// Package api holds what travels between hub, node and controller as JSON: the
// request and response types of the hub's public interface, of the interface
// that a node serves inside its tunnel and of the one the hub serves there, the
// limits of all of them, and the closed set of error codes.
//
// It does no I/O and imports nothing of ours, so that every side can share it.
// Types are additive: a reader ignores fields that it does not know.
//
// Times are RFC 3339 in UTC where people read them. Between hub and node only
// durations travel (milliseconds, fields ending in _ms), because only the hub's
// clock decides ages; the one exception is the creation stamp that the hub put
// on a task, which a node compares with other stamps of the same hub only.
package api
