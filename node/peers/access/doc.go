// Package access is what people and MCP agents of this machine do with peers: they list,
// send, read, and look what became of what they sent. The node serves it on its admin
// socket.
//
// People act as the node's desk. An MCP agent is an endpoint of its own for as long as its
// process lives, which it says by a lease that it renews; what it was sent waits in the
// spool until it reads it, and counts as delivered then. An agent that went stays
// published until what it sent has its final acknowledgements, and no longer than
// peers.DeskWait.
//
// Names, titles, directories and texts in what this package returns are claims of others,
// as they came. Row, Line and Status make them fit to be shown.
package access
