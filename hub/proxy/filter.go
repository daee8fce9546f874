package proxy

import (
	"net/url"
	"strings"

	"opencode-mesh/protocol/api"
)

// rule says what becomes of a request that a row of the table is about.
type rule struct {
	methods string // separated by blanks; "" is all, "!GET" all but GET
	// path is segments between slashes: "*" is any one, "**" at the end any number,
	// also none; a "*" at the end of a segment is any rest of it.
	path   string
	strip  bool   // keys are kept back from the answer
	refuse string // why it is refused; "" if it is not
}

const (
	credentials = "credentials are managed on the node's own machine"
	settings    = "opencode's configuration is changed on the node's own machine"
	lifetime    = "the node looks after its opencode server itself"
	reading     = "opencode's /api is passed on for reading only"
)

// hygiene is what becomes of requests to opencode unless the node's owner switched
// the table off. It keeps accidents away, not people: who may prompt an agent can
// have it read any file.
var hygiene = []rule{
	{"GET HEAD", "/config", true, ""},
	{"GET HEAD", "/global/config", true, ""},
	{"GET HEAD", "/config/providers", true, ""},
	{"GET HEAD", "/provider", true, ""},
	{"GET", "/api/provider*/**", true, ""},
	{"GET", "/api/model*/**", true, ""},
	{"", "/auth/**", false, credentials},
	{"", "/provider/*/oauth/**", false, credentials},
	{"", "/mcp/*/auth/**", false, credentials},
	{"PATCH", "/config", false, settings},
	{"PATCH", "/global/config", false, settings},
	{"", "/global/upgrade", false, lifetime},
	{"", "/global/dispose", false, lifetime},
	{"", "/instance/dispose", false, lifetime},
	{"!GET", "/api/**", false, reading},
}

// consent is what becomes of requests to opencode on a node that takes tasks only
// after its owner's word, or none: its services must be no way around that
// (semantics 11).
var consent = []rule{
	{"DELETE", "/session/**", false, "delete sessions"},
	{"!GET", "/session/*/message/**", false, "prompt"},
	{"!GET", "/session/*/prompt*/**", false, "prompt"},
	{"!GET", "/session/*/command/**", false, "prompt"},
	{"!GET", "/session/*/shell/**", false, "run commands"},
	{"!GET", "/session/*/init/**", false, "prompt"},
	{"!GET", "/session/*/summarize/**", false, "prompt"},
	{"!GET", "/tui/**", false, "prompt"},
	{"!GET", "/pty/**", false, "open a terminal"},
	{"", "/pty/*/connect/**", false, "open a terminal"},
	{"", "/api/pty/*/connect/**", false, "open a terminal"},
	{"!GET", "/**", false, "change anything"}, // of the many ways to have a command run, say /mcp
}

// filter finds the rule for a request to opencode, and refuses what the tables
// refuse.
func (c *call) filter() (rule, error) {
	if !c.opencode() {
		return rule{}, nil
	}
	path, method := segments(c.target.Path), c.in.Method
	if c.node.readOnly(c.service) {
		if r, ok := find(consent, method, path); ok {
			return r, api.Errorf(api.CodeRefused, "node %s has the policy %s: its services may not be used to %s; dispatch a task instead", c.node.name, c.node.policy, r.refuse)
		}
	}
	if !c.service.Filter {
		return rule{}, nil
	}
	r, _ := find(hygiene, method, path)
	if r.refuse != "" {
		return r, api.Errorf(api.CodeRefused, "the hub does not pass this on to %s of node %s: %s", c.service.Name, c.node.name, r.refuse)
	}
	c.target.Query = dropToken(c.target.Query)
	return r, nil
}

// opencode reports whether the service is the one that the tables are about.
func (c *call) opencode() bool { return isOpencode(c.service) }

func isOpencode(s api.Service) bool { return s.Filter || s.Name == api.ServiceOpencode }

// find is the first row that refuses a request, else the first that is about it.
func find(table []rule, method string, path []string) (found rule, ok bool) {
	for _, r := range table {
		if r.matches(method, path) {
			if r.refuse != "" {
				return r, true
			}
			if !ok {
				found, ok = r, true
			}
		}
	}
	return found, ok
}

func (r rule) matches(method string, path []string) bool {
	switch {
	case r.methods == "":
	case r.methods[0] == '!':
		if method == r.methods[1:] {
			return false
		}
	default:
		if !strings.Contains(" "+r.methods+" ", " "+strings.ToUpper(method)+" ") {
			return false
		}
	}
	for want := range strings.SplitSeq(r.path[1:], "/") {
		if want == "**" {
			return true
		}
		if len(path) == 0 || !like(path[0], want) {
			return false
		}
		path = path[1:]
	}
	return len(path) == 0
}

func like(segment, want string) bool {
	if prefix, ok := strings.CutSuffix(want, "*"); ok {
		return strings.HasPrefix(segment, prefix)
	}
	return segment == want
}

// segments reads a path as opencode's server does, which parses it like a browser:
// a backslash is a slash, dots may be encoded, and each segment is decoded at the
// end; and whose router takes a semicolon for the end of the path and does not tell
// upper from lower case. Empty segments are left out, which only refuses more.
func segments(path string) []string {
	if end := strings.IndexAny(path, "#;"); end >= 0 {
		path = path[:end]
	}
	var out []string
	for s := range strings.SplitSeq(strings.ReplaceAll(path, `\`, "/"), "/") {
		switch strings.ReplaceAll(strings.ToLower(s), "%2e", ".") {
		case "", ".":
			continue
		case "..":
			out = out[:max(0, len(out)-1)]
			continue
		}
		if plain, err := url.PathUnescape(s); err == nil {
			s = plain
		}
		out = append(out, strings.ToLower(s))
	}
	return out
}

// dropToken takes opencode's own way to say its password out of a query, and leaves
// the rest as it is.
func dropToken(query string) string {
	if query == "" {
		return ""
	}
	var kept []string
	pairs := strings.Split(query, "&")
	for _, pair := range pairs {
		name, _, _ := strings.Cut(pair, "=")
		if plain, err := url.QueryUnescape(name); err == nil && plain == "auth_token" {
			continue
		}
		kept = append(kept, pair)
	}
	if len(kept) == len(pairs) {
		return query
	}
	return strings.Join(kept, "&")
}
