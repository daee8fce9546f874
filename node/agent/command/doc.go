// Package command is the agent that runs any program: once per turn, the task on
// its standard input, the reply on its standard output.
//
// Every turn runs under a shim, the same binary re-executed in a session of its
// own (ShimMain). The shim claims the attempt on disk before it starts the
// program, and writes what the program said and how it ended to files, so it
// survives its node and a later node takes the turn up where it is. One (task,
// attempt, turn) starts its program at most once, whoever is killed when; a turn
// that may have run and has no end on record says so (may_have_run).
//
// Killing a shim kills its program on Linux and Windows. On macOS the program goes
// on until it writes output that nobody reads, or until a node finds the dead shim
// and ends the program's process group. Descendants that left the process group
// belong to nobody: neither a cancel nor this clean-up reaches them.
//
// A node that runs as a service must leave its shims alone when it stops (systemd:
// KillMode=process).
package command
