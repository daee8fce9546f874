package push

import "time"

// Limits.
const (
	// MaxDeliveries is how many sessions are delivered to at once; further ones wait.
	MaxDeliveries = 64
	// MaxBatch bounds what one prompt hands over, in bytes of content with its frames.
	// One message is always handed over; the rest comes with the next prompt.
	MaxBatch = 1 << 20
	// MaxRoles bounds the role prompts that go along with a prompt, in bytes.
	MaxRoles = 64 << 10
	// RetryAfter is the time from a delivery that failed to the next attempt.
	RetryAfter = 2 * time.Second
	// LookAgain is how soon a session is looked at again that this node does not host,
	// or that a plugin delivers to.
	LookAgain = 30 * time.Second
	// maxError is how much of an error is shown, in UTF-16 units.
	maxError = 300
	// frameRoom is about what a frame adds to a message, in bytes.
	frameRoom = 1 << 10
	// idle is how long nothing is looked at when nothing waits; a change of the file
	// hastens it.
	idle = time.Hour
)

// pluginNames are what the plugins of opencode are called that deliver to its sessions.
var pluginNames = []string{"opencomms", "opencode-comms"}
