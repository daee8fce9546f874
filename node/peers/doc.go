// Package peers is a node's part in opencode-plugin-peers, protocol 2: what this process
// publishes into the registry of the machine, what it takes in for that, and what it
// sends to the peers that are there.
//
// A process has many endpoints here: sessions of the node's own opencode, agents of other
// nodes, the desk for people. All of them are served by one Unix socket and one loopback
// port, but each has a process id and a token of its own, because listings show one row
// per process. The token of a request says which endpoint it is for.
//
// A message that was acknowledged is on disk and is handed to the Receiver of its
// endpoint until that took it; a crash in between may hand it over again, never lose it.
// Its sender gets the final acknowledgement, again and again until it answered. Who a
// sender is, is a claim: whoever can read the registry can say to be anybody in it.
//
// Nothing is created on disk, and nothing listens, before the first Publish.
package peers
