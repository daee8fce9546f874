package node

import "opencode-mesh/node/ocp/memory"

// MemoryOf is what a node remembers, for tests that put something there.
func MemoryOf(n *Node) *memory.Index { return n.memory }
