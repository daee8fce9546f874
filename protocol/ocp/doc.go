// Package ocp holds the Open Context Protocol (ocp/1) and its successor, the Context
// Graph Protocol (contextgraph/1): the messages, how they are read and written, which
// versions go together, what a budget allows, what a frame must have, what a person
// consented to, and how frames become a quote in a prompt.
//
// Reading is as strict as the reference decoders are, reading a superset of both
// protocols; writing is per family and yields only what that family's JSON Schema
// allows. Nothing here does I/O, and nothing is safe for concurrent change.
//
// Not covered: the attestations that the successor added when it froze (they are
// ignored), and context/resolve, which has no message.
package ocp
