package engine

import (
	"errors"

	"opencode-mesh/protocol/opencomms"
)

var errNotYet = errors.New("opencomms: this rule is not implemented yet")

// Create makes a channel.
func (e Engine) Create(s *opencomms.State, r CreateRequest) (Created, error) {
	return Created{}, errNotYet
}

// Join makes a session a member.
func (e Engine) Join(s *opencomms.State, r JoinRequest) (Joined, error) { return Joined{}, errNotYet }

// Send queues a message.
func (e Engine) Send(s *opencomms.State, c Caller, r SendRequest) (Sent, error) {
	return Sent{}, errNotYet
}

// Relay queues a message from another machine.
func (e Engine) Relay(s *opencomms.State, r RelayRequest) (*opencomms.Envelope, error) {
	return nil, errNotYet
}

// Notice queues a system row of ours and returns its message id.
func (e Engine) Notice(s *opencomms.State, channel, recipient, from, text string) (string, error) {
	return "", errNotYet
}

// Pause stops a channel; false says that it was paused already.
func (e Engine) Pause(s *opencomms.State, c Caller, channel string) (bool, error) {
	return false, errNotYet
}

// Resume lets a channel go on; false says that it was not paused.
func (e Engine) Resume(s *opencomms.State, c Caller, channel string) (bool, error) {
	return false, errNotYet
}

// Disconnect takes the caller out of a channel.
func (e Engine) Disconnect(s *opencomms.State, c Caller, channel string) (Left, error) {
	return Left{}, errNotYet
}

// Kick takes another member out of a channel.
func (e Engine) Kick(s *opencomms.State, c Caller, r KickRequest) (Kicked, error) {
	return Kicked{}, errNotYet
}

// UpdateRole replaces a role prompt and returns the member's role.
func (e Engine) UpdateRole(s *opencomms.State, c Caller, r UpdateRoleRequest) (string, error) {
	return "", errNotYet
}

// SetStale marks a session as gone in every channel and returns in how many.
func (e Engine) SetStale(s *opencomms.State, session string) int { return 0 }

// ClearStale takes the mark back.
func (e Engine) ClearStale(s *opencomms.State, session string) int { return 0 }

// Timer does one action of the chess clock.
func (e Engine) Timer(s *opencomms.State, c Caller, r TimerRequest) (TimerView, error) {
	return TimerView{}, errNotYet
}

// Inbox shows what waits for a member. limit 0 is 20, at most 100.
func (e Engine) Inbox(s *opencomms.State, c Caller, channel string, limit int) (Inbox, error) {
	return Inbox{}, errNotYet
}

// History shows a channel's messages. limit 0 is 20, at most 100.
func (e Engine) History(s *opencomms.State, c Caller, channel string, limit int) (History, error) {
	return History{}, errNotYet
}

// Status is an overview of the caller's channels, or of the named one.
func (e Engine) Status(s *opencomms.State, c Caller, channel string) (Status, error) {
	return Status{}, errNotYet
}

// Drain takes what may be delivered to recipient now; each is in_flight then.
func (e Engine) Drain(s *opencomms.State, recipient string, opt DrainOptions) []*opencomms.Envelope {
	panic(errNotYet)
}

// Commit marks in_flight messages of recipient as delivered and returns how many.
func (e Engine) Commit(s *opencomms.State, recipient string, ids []string, method string) int {
	panic(errNotYet)
}

// Requeue puts in_flight messages of recipient back to the head of its queue, or
// ends them after the last attempt. It returns the ids that wait again.
func (e Engine) Requeue(s *opencomms.State, recipient string, ids []string) []string {
	panic(errNotYet)
}

// Sweep puts in_flight messages that filter takes back to the head of their
// queues, oldest first, and returns their ids.
func (e Engine) Sweep(s *opencomms.State, filter func(*opencomms.Envelope) bool) []string {
	panic(errNotYet)
}

// Pending are the session ids for which something is pending.
func (e Engine) Pending(s *opencomms.State) []string { panic(errNotYet) }

// RecordError appends a line to the file's trouble list.
func (e Engine) RecordError(s *opencomms.State, message string) { panic(errNotYet) }

// Retain forgets the oldest messages beyond what the file may hold.
func (e Engine) Retain(s *opencomms.State) { panic(errNotYet) }
