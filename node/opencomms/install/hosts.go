package install

import (
	"path/filepath"
	"slices"
	"strings"
)

const (
	// serverName is what the entry is called in a host's configuration.
	serverName = "opencomms"
	// memberEnv is how a host tells the server which member it serves.
	memberEnv = "OPENCOMMS_MEMBER_ID"
)

// server is what a host has to start.
type server struct {
	command string
	args    []string
	member  string
}

// host is an agent's program that starts MCP servers.
type host struct {
	name string
	// files are where its configuration of a project may stand, relative to it. The
	// first that is there counts; if none is, the first is made.
	files []string
	parse func([]byte) (document, error)
	// empty is the text of one that says nothing.
	empty string
	// path leads to the table of servers, command, args and member to what an entry
	// says, within it.
	path   []string
	entry  func(server) object
	member []string // of the entry, the variable with the member's id
	// start is a command line that starts the host as another member than the one in
	// its configuration.
	start func(server) string
	// expands are what it replaces inside the words of its configuration.
	expands []string
	// hint is what a person must know of it.
	hint string
}

// document is a configuration that was read.
type document interface {
	decode() (map[string]any, error)
	set(path []string, v any) ([]byte, error)
	remove(path []string) []byte
}

func jsonc(text []byte) (document, error)      { return parseJSON(text, true) }
func strictJSON(text []byte) (document, error) { return parseJSON(text, false) }

// hosts are those whose configuration is known. What is here was tried with
// opencode 1.18.33, Claude Code 2.1.197 and Codex 0.171.0.
var hosts = []host{
	{
		name: "opencode", files: []string{"opencode.json", "opencode.jsonc", filepath.Join(".opencode", "opencode.json"), filepath.Join(".opencode", "opencode.jsonc")},
		parse: jsonc, empty: "{\n  \"$schema\": \"https://opencode.ai/config.json\"\n}\n", path: []string{"mcp"},
		entry: opencodeServer, member: []string{"environment", memberEnv},
		start: func(s server) string {
			return "OPENCODE_CONFIG_CONTENT=" + quoteJSON(object{{"mcp", object{{serverName, opencodeServer(s)}}}}) + " opencode"
		},
		expands: []string{"{env:", "{file:"},
		hint:    "opencode reads it when it starts the next time",
	},
	{
		name: "claude-code", files: []string{".mcp.json"},
		parse: strictJSON, empty: "{}\n", path: []string{"mcpServers"}, entry: mcpServer, member: []string{"env", memberEnv},
		start: func(s server) string {
			return "claude --mcp-config " + quoteJSON(object{{"mcpServers", object{{serverName, mcpServer(s)}}}})
		},
		expands: []string{"${"},
		hint:    "Claude Code asks you to approve the server when it starts the next time",
	},
	{
		name: "codex", files: []string{filepath.Join(".codex", "config.toml")},
		parse: readTOML, path: []string{"mcp_servers"},
		entry: codexServer, member: []string{"env", memberEnv},
		start: func(s server) string {
			return "codex -c " + quote("mcp_servers."+serverName+".env."+memberEnv+"="+tomlValue(s.member))
		},
		hint: "Codex reads the file only in a project that you told it to trust",
	},
}

// other is a host that is not known: nothing is written for it but the pin.
func other(name string) host {
	return host{name: name, parse: strictJSON, empty: "{}\n", path: []string{"mcpServers"}, entry: mcpServer, member: []string{"env", memberEnv}}
}

func hostNamed(name string) host {
	if i := slices.IndexFunc(hosts, func(h host) bool { return h.name == name }); i >= 0 {
		return hosts[i]
	}
	return other(name)
}

// Hosts are the names of the hosts whose configuration is written.
func Hosts() []string {
	names := make([]string, len(hosts))
	for i, h := range hosts {
		names[i] = h.name
	}
	return names
}

// mcpServer is the entry that most hosts have.
func mcpServer(s server) object {
	return object{{"type", "stdio"}, {"command", s.command}, {"args", s.args}, {"env", object{{memberEnv, s.member}}}}
}

func opencodeServer(s server) object {
	return object{
		{"type", "local"}, {"command", append([]string{s.command}, s.args...)},
		{"environment", object{{memberEnv, s.member}}}, {"enabled", true},
	}
}

func codexServer(s server) object {
	return object{{"command", s.command}, {"args", s.args}, {"env", object{{memberEnv, s.member}}}}
}

// at is the path of our entry, or of something in it.
func (h host) at(more ...string) []string { return slices.Concat(h.path, []string{serverName}, more) }

// words is the command line of an entry, and whose id it has.
func (h host) words(entry any) (words []string, member string) {
	table, _ := entry.(map[string]any)
	for _, key := range []string{"command", "args"} {
		switch v := table[key].(type) {
		case string:
			words = append(words, v)
		case []any:
			for _, w := range v {
				word, _ := w.(string)
				words = append(words, word)
			}
		}
	}
	v, _ := lookup(table, h.member)
	member, _ = v.(string)
	return words, member
}

// ours tells whether a command line starts this program's server.
func ours(words []string, s server) bool {
	if len(words) < 2 || words[1] != s.args[0] {
		return false
	}
	name := strings.ToLower(filepath.Base(strings.ReplaceAll(words[0], `\`, "/")))
	return words[0] == s.command || strings.TrimSuffix(name, ".exe") == "meshnode"
}

// snippet is the entry as a file of its own would have it.
func (h host) snippet(s server) string {
	doc, err := h.parse([]byte(h.empty))
	if err != nil {
		return err.Error()
	}
	text, err := doc.set(h.at(), h.entry(s))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// quote makes a word for a POSIX shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

func quoteJSON(o object) string {
	text, err := marshal(o)
	if err != nil {
		return err.Error()
	}
	return quote(string(text))
}
