// Package tasks is a node's memory and its hands: the journal of the tasks that
// its hub gave it, the runner that has an agent execute them, and the outbox that
// delivers results until the hub acknowledged them.
//
// It guarantees that an offer is acknowledged only after it is on disk, that one
// (task, attempt, turn) is handed to the agent as new at most once (after a crash
// as resumed, with the agent's last checkpoint), that turns of one lane run one
// after the other in the hub's order, and that a result is kept until it was
// acknowledged.
//
// It does not keep the tunnel up (node/link does), knows nothing about any
// particular agent, and never decides that a task is too old to start: only the
// hub's clock does.
//
// Durability, step by step: a receipt waits for one commit and a result for one;
// the mark that a turn runs and the mark that a result was acknowledged ride along
// with a later commit and are not waited for. A lost running mark is harmless because an
// agent starts nothing irreversible before Host.Checkpoint returned, and a
// checkpoint carries the mark; a lost acknowledgement costs a repeated delivery.
package tasks
