//go:build faults

package opencomms

// The size of a run among the fault tests.
const (
	// sendsOfEach sender are, with those of the other program, fewer than the file keeps.
	sendsOfEach = 200
	// killRounds kill each node and the hub several times.
	killRounds = 12
)
