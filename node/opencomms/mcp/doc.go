// Package mcp is OpenComms for one member of a project, as tools of an MCP server
// on a pair of streams: for Claude Code, Codex and whatever else speaks MCP.
//
// The member is who the environment says, never who a call says. What peers wrote
// is handed over between the delimiters of peer content. The server goes on after
// whatever a client sends it; it ends with its input or its context.
//
// The protocol is the official SDK's; the wire under it is ours, as the SDK's ends
// the server at the first line that is not JSON.
package mcp
