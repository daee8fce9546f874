package spool

import (
	"context"
	"errors"

	"opencode-mesh/protocol/peers"
)

// Queue is the part of a spool that is one endpoint's. It is safe for concurrent use.
// Its directories are made by the first message that is accepted.
type Queue struct{ name string }

// Load recovers what a process left behind that died: what was inflight is queued again
// unless it is done, what is in two states stays in one, and what has been done for
// longer than Retention goes. It is called once when an endpoint is adopted and before
// anything of it is delivered.
func (q *Queue) Load(ctx context.Context) error { return errors.ErrUnsupported }

// Accept takes a message as the gate decided and says what to answer to its sender; once
// it returned without an error, that is on the disk. fresh says that this call stored
// something. It is false for a message that is here already, whose stored outcome is the
// answer, and for peers.Full, of which nothing is kept. The same text from the same
// sender within DuplicateWindow is peers.Duplicate, which is stored as done.
func (q *Queue) Accept(ctx context.Context, m peers.Message, d Decision) (status string, fresh bool, err error) {
	return "", false, errors.ErrUnsupported
}

// Drain makes all that is queued inflight and returns all that is inflight, in order.
func (q *Queue) Drain(ctx context.Context) ([]Record, error) { return nil, errors.ErrUnsupported }

// Finish makes a message done with a final status. What is queued can be finished, too:
// the news of a delivery may come after a restart. A message that is done stays as it is,
// without an error.
func (q *Queue) Finish(ctx context.Context, k Key, status string) error { return errors.ErrUnsupported }

// Requeue makes messages that are inflight queued again, in their old places. Messages
// that are queued or done stay as they are.
func (q *Queue) Requeue(ctx context.Context, keys ...Key) error { return errors.ErrUnsupported }

// Release makes a held message queued. ErrFull: there is no room; it stays held.
func (q *Queue) Release(ctx context.Context, k Key) error { return errors.ErrUnsupported }

// Drop makes a held message done, as dropped.
func (q *Queue) Drop(ctx context.Context, k Key) error { return errors.ErrUnsupported }

// Expire makes held messages whose time is over done, as expired, and says how many.
func (q *Queue) Expire(ctx context.Context) (int, error) { return 0, errors.ErrUnsupported }

// Records reads the messages that are in one of some states, or all, in order. It takes
// no lock.
func (q *Queue) Records(states ...State) ([]Record, error) { return nil, errors.ErrUnsupported }

// Acks returns the records whose final acknowledgement was not taken by the sender yet,
// in order and without their texts.
func (q *Queue) Acks(ctx context.Context) ([]Record, error) { return nil, errors.ErrUnsupported }

// AckSent notes that senders took final acknowledgements.
func (q *Queue) AckSent(ctx context.Context, keys ...Key) error { return errors.ErrUnsupported }
