// Package mcp serves tools to one agent as an MCP server on a pair of streams: for
// Claude Code, Codex and whatever else speaks MCP. Which tools, and on whose behalf they
// act, is said by whoever runs it.
//
// Calls of tools are made one after another, in the order in which the client sent them.
// The server goes on after whatever a client sends it; it ends with its input or its
// context.
//
// The protocol is the official SDK's; the wire under it is ours, as the SDK's ends the
// server at the first line that is not JSON.
package mcp
