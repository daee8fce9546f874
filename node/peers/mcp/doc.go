// Package mcp gives an agent without a plugin the tools of opencode-plugin-peers, as tools
// of an MCP server, and one more to read what it was sent. The node that runs on the
// machine does the work.
//
// Who the agent is, its process says, never a call. What others wrote is handed over as
// data, in frames that it cannot close, and their names cannot leave their line.
package mcp
