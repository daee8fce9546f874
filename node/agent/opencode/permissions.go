package opencode

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// What a node does when a session asks for a permission.
const (
	// PermissionAsk puts it to the controller.
	PermissionAsk = "ask"
	// PermissionAllow allows it, this once.
	PermissionAllow = "allow"
	// PermissionDeny rejects it and lets the model go on.
	PermissionDeny = "deny"
)

var permissionActions = []string{PermissionAsk, PermissionAllow, PermissionDeny}

// PermissionRule decides permissions of one kind. The globs are opencode's: * is any
// text, ? any character, and " *" at the end may be missing.
type PermissionRule struct {
	Type   string // glob on the permission, such as "bash" or "external_directory"
	Glob   string // on what it is asked for, such as "git push *" or "/etc/*"
	Action string // PermissionAsk, PermissionAllow or PermissionDeny
}

// ParsePermissionRule reads PATTERN=ACTION, where PATTERN is TYPE or TYPE:GLOB.
func ParsePermissionRule(s string) (PermissionRule, error) {
	at := strings.LastIndexByte(s, '=') // a glob may hold one
	if at < 0 {
		return PermissionRule{}, fmt.Errorf("permission %q is not of the form TYPE[:GLOB]=ask, allow or deny", s)
	}
	r := PermissionRule{Action: strings.TrimSpace(s[at+1:])}
	named := false
	r.Type, r.Glob, named = strings.Cut(s[:at], ":")
	r.Type, r.Glob = strings.TrimSpace(r.Type), strings.TrimSpace(r.Glob)
	switch {
	case !slices.Contains(permissionActions, r.Action):
		return PermissionRule{}, fmt.Errorf("permission %q: ask, allow or deny is wanted after the last =", s)
	case r.Type == "" || strings.ContainsAny(r.Type, " \t"):
		return PermissionRule{}, fmt.Errorf("permission %q: it begins with opencode's name of a permission, such as bash", s)
	case named && r.Glob == "":
		return PermissionRule{}, fmt.Errorf("permission %q: no pattern after the colon", s)
	case !named:
		r.Glob = "*"
	}
	return r, nil
}

// checkPermissions refuses a configuration of permissions that is none.
func (c Config) checkPermissions() error {
	if c.Permissions != "" && !slices.Contains(permissionActions, c.Permissions) {
		return fmt.Errorf("permissions are ask, allow or deny, not %q", c.Permissions)
	}
	for _, r := range c.PermissionRules {
		if r.Type == "" || r.Glob == "" || !slices.Contains(permissionActions, r.Action) {
			return fmt.Errorf("permission rule %+v is not complete", r)
		}
	}
	return nil
}

// decide says what to do about a permission: for each of its patterns the first
// rule that matches counts, and of several the most restrictive.
func (c Config) decide(a ask) string {
	patterns := a.patterns
	if len(patterns) == 0 {
		patterns = []string{"*"}
	}
	decided := PermissionAllow
	for _, p := range patterns {
		action := c.Permissions
		for _, r := range c.PermissionRules {
			if matches(r.Type, a.permission) && matches(r.Glob, p) {
				action = r.Action
				break
			}
		}
		if strictness(action) > strictness(decided) {
			decided = action
		}
	}
	return decided
}

func strictness(action string) int {
	switch action {
	case PermissionAllow:
		return 0
	case PermissionAsk:
		return 1
	}
	return 2
}

// matches is opencode's own matching of globs.
func matches(glob, s string) bool {
	glob, s = strings.ReplaceAll(glob, `\`, "/"), strings.ReplaceAll(s, `\`, "/")
	if rest, ok := strings.CutSuffix(glob, " *"); ok && matchRunes([]rune(rest), []rune(s)) {
		return true
	}
	return matchRunes([]rune(glob), []rune(s))
}

// matchRunes goes back to the last * only, so that its time is bounded by the
// product of both lengths.
func matchRunes(glob, s []rune) bool {
	g, i, star, from := 0, 0, -1, 0
	for i < len(s) {
		switch {
		case g < len(glob) && glob[g] == '*':
			star, from = g, i
			g++
		case g < len(glob) && (glob[g] == '?' || glob[g] == s[i]):
			g++
			i++
		case star >= 0:
			from++
			g, i = star+1, from
		default:
			return false
		}
	}
	for g < len(glob) && glob[g] == '*' {
		g++
	}
	return g == len(glob)
}

// rulesFor writes the OPENCODE_PERMISSION of a supervised server: it adds to the
// user's, if there is one, that what a rule names is asked for, so that the node
// gets to decide. opencode lays it over its configuration, key by key, and lets the
// last key win that matches; "bash *" matches bash as well as "bash" does, and
// takes no setting of the user's away.
func rulesFor(user string, rules []PermissionRule) string {
	// opencode ignores what is no JSON, too.
	var given map[string]json.RawMessage
	if json.Unmarshal([]byte(user), &given) != nil {
		user, given = "{}", nil
	}
	var b strings.Builder
	b.WriteString(strings.TrimSuffix(strings.TrimSpace(user), "}"))
	more := len(given) > 0
	add := func(key string, value any) {
		if more {
			b.WriteByte(',')
		}
		more = true
		// Marshal of strings cannot fail.
		k, _ := json.Marshal(key)
		v, _ := json.Marshal(value)
		fmt.Fprintf(&b, "%s:%s", k, v)
	}
	globs := map[string]map[string]string{}
	var types []string
	for _, r := range rules {
		if r.Action == PermissionAllow {
			continue // of what is not asked for nothing needs to be allowed
		}
		if globs[r.Type] == nil {
			globs[r.Type] = map[string]string{}
			types = append(types, r.Type)
		}
		globs[r.Type][r.Glob] = PermissionAsk
	}
	for _, t := range types {
		add(t+" *", globs[t])
	}
	// The question tool would block a turn; questions are asked in blocks.
	add("question *", PermissionDeny)
	b.WriteByte('}')
	return b.String()
}

// unasked warns of rules that a server which the node did not start does not know.
const unasked = "the node did not start this opencode server: a --permission that asks or denies decides only what the server asks for by itself"

// asksFor reports whether a rule needs the server to ask for something.
func (c Config) asksFor() bool {
	return slices.ContainsFunc(c.PermissionRules, func(r PermissionRule) bool { return r.Action != PermissionAllow })
}
