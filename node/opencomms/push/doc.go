// Package push delivers to the push members of OpenComms channels whose sessions this
// node's own opencode hosts, where no plugin of opencode does.
//
// A delivery is journaled, drained, prompted and committed, in this order, and each
// step is on disk before the next: first a note in the node's mail box that says whose
// messages are taken, then the drain in the state file, then the prompt, under an id
// that is derived from session and messages, then the commit. Wherever the process is
// killed, the next one finds the note and asks the session whether it has the message:
// what is stored there is committed, what is not is put back to the head of its queue,
// and ends as failed after opencomms.MaxAttempts. So a message is never lost, and the
// session sees it once as long as nobody else delivers to it, too.
//
// Only messages to sessions that the node hosts are touched, and of those in flight
// only the node's own. Members of other hosts, pull members, sub-agents' sessions and
// sessions of other directories are left alone.
//
// The package does not start sessions and knows nothing of other machines.
package push
