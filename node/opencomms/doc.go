// Package opencomms is OpenComms in one project directory: the state file, the
// rules and the archives together, as the MCP server, the commands, the links to
// other machines and the push delivery use them.
//
// Every operation is one locked change of the state file, or one read without
// the lock. A refusal is an *engine.Refusal; it changes nothing.
package opencomms
