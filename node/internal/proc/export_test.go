//go:build unix

package proc

import "time"

// WithoutEvents makes a handle poll.
func WithoutEvents(h *Handle) {
	h.Close()
	h.fd = nil
}

// HandleOf makes a handle that polls, without looking at the process.
func HandleOf(id ID, interval time.Duration) *Handle { return &Handle{id: id, interval: interval} }
