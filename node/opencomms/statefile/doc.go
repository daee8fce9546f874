// Package statefile reads and writes <project>/.opencomms/state.json, the file
// that a node shares with every other OpenComms program of the project.
//
// Programs agree by a lock file and by whole-file replacement, so a reader needs
// no lock and sees the old file or the new one. The package keeps to that exactly,
// and promises more where it can without the others noticing:
//
//   - A file that is not valid is never written over. It stays as it is, a copy is
//     put beside it once, and every call says so until somebody repairs it.
//   - A lock that was taken from us (because this process or its machine stood
//     still for longer than others wait) is noticed before the file is replaced:
//     nothing is written then, and the other's lock is left alone.
//   - A write that fails, or a process that dies in one, leaves the file as it was.
//   - A state file of schema 1 is taken over before anything else is written.
//
// It does not promise that other programs are as careful: an older one may start
// from nothing where it meets a file that it cannot read.
//
// The directory .opencomms may be a symbolic link, as people make them for several
// worktrees to share one; state.json may not, because replacing it would replace
// the link and leave the file behind it as it was.
package statefile
