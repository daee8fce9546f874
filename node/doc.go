// Package node is a machine's part in the mesh: it joins a journal, a runner, an
// agent and a link to the hub into one process, and answers an operator on this
// machine over a socket in the data directory.
//
// It guarantees that one process uses a data directory at a time, that nothing of
// an earlier process runs before the hub took this one's hello, and that Run
// returns within a bounded time after its context ended, leaving what cannot be
// finished to the next start.
//
// It does not join a hub (auth.Enroll does) and holds no configuration file:
// cmd/meshnode does both.
package node
