//go:build !faults

package opencomms

// The size of a run in the ordinary suite; the fault tests have it larger.
const (
	// sendsOfEach sender are, with those of the other program, fewer than the file keeps.
	sendsOfEach = 40
	// killRounds kill each node once, and the hub.
	killRounds = 4
)
