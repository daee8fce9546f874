// Package spool keeps the messages that peers sent to the endpoints of this machine, in
// the directories and files of opencode-plugin-peers, which may use the same ones at the
// same time.
//
// It guarantees:
//
//   - What Accept said is stored is on the disk, and stays until it is done: delivered,
//     refused, dropped, expired or recognised as a duplicate.
//   - Done is the end. A message that is done is never queued again, whatever is sent and
//     whoever crashes where.
//   - A message is in one state. Where a crash left its file in two, the later one counts
//     (done, inflight, queued, held in this order) and the next change removes the other.
//   - A change that fails leaves what was there.
//
// It does not deliver anything, and does not know whether a message that was inflight
// when its process died reached its host: Load queues it again, and whoever delivers has
// to do it under an id that the host recognises.
//
// All programs take the lock of an endpoint's directory around every change, which is a
// bakery of ticket files (see lock.go); readers need none. Files that are not valid are
// passed over with a line in the log and count for nothing.
package spool
