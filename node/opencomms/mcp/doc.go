// Package mcp is OpenComms for one member of a project, as tools of an MCP server.
//
// The member is who the environment says, never who a call says. What peers wrote
// is handed over between the delimiters of peer content.
package mcp
