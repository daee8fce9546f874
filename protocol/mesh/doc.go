// Package mesh reads and writes the text blocks that agents on the mesh
// exchange: the task envelope, and the result, question and digest blocks that
// come back. It also mints task ids and makes untrusted text harmless before it
// stands beside instructions (Defuse, Frame, CleanLine).
//
// It guarantees that no parser panics or takes more than linear time on any
// input, that every error is a *SyntaxError naming the line, and that whatever a
// Format method returns parses back to the same value; what would not is refused.
//
// It does no I/O, keeps no state but the one that makes task ids unique, and
// imports nothing of ours. Parsed strings share memory with the text they came
// from: clone what is kept much longer than the text.
package mesh
