// Package opencomms holds the types of OpenComms: the state file through which
// the agents of one project talk, and the text that a message becomes for the
// model that reads it.
//
// The file <project>/.opencomms/state.json is shared with other programs, which
// reject it whole when any part is wrong and may then write an empty one over it.
// So nothing is encoded that would not be accepted, what this package does not
// know is kept where it stood, and records that nobody touched are written back
// byte for byte.
package opencomms
