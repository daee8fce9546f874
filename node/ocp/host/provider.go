package host

import (
	"context"
	"fmt"
	"net/url"
	"slices"

	"opencode-mesh/node/ocp/memory"
	"opencode-mesh/node/ocp/transport"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/ocp"
)

// Source is a provider within this process, such as a memory.Index. Nothing of a query
// leaves the process, so it needs no consent. It keeps to the budget and to the scope. A
// query that goes on after its context ended, such as one that hangs at the disk, is waited
// for by whoever closes the Source, not by the Host.
type Source interface {
	Query(ctx context.Context, q ocp.Query, scope memory.Scope) (ocp.Result, error)
}

// Provider is one of a configuration: exactly one of Source, Command and URL is set.
type Provider struct {
	// Name is what it is called here; api.ValidName.
	Name string
	// Source answers itself; Kinds and Version are what is told of it.
	Source  Source
	Kinds   []ocp.FrameKind
	Version string
	// Command is program and arguments of a provider on stdio.
	Command []string
	// URL is where an HTTP provider takes its messages: https://, or http:// to this
	// machine. Token is sent as a bearer token, unless it is empty.
	URL   string
	Token string
}

// Check tells what is wrong with a provider, without repeating secrets.
func (p Provider) Check() error {
	if !api.ValidName(p.Name) {
		return fmt.Errorf("context provider %q: its name is %s", p.Name, api.NameRule)
	}
	kinds := 0
	for _, is := range []bool{p.Source != nil, len(p.Command) > 0, p.URL != ""} {
		if is {
			kinds++
		}
	}
	switch {
	case kinds == 0:
		return fmt.Errorf("context provider %s has neither a command nor a URL", p.Name)
	case kinds > 1:
		return fmt.Errorf("context provider %s is several things at once", p.Name)
	case len(p.Command) > 0 && p.Command[0] == "":
		return fmt.Errorf("context provider %s: its command names no program", p.Name)
	case p.Token != "" && p.URL == "":
		return fmt.Errorf("context provider %s: a token is for an HTTP provider", p.Name)
	case p.URL != "":
		if _, err := transport.Dial(p.address(0)); err != nil { // which sends nothing
			return fmt.Errorf("context %w", err)
		}
	}
	return nil
}

// where is its address or program, for people: without the query of a URL and without
// arguments, in which secrets may be.
func (p Provider) where() (shown string, whole bool) {
	switch {
	case p.URL != "":
		u, err := url.Parse(p.URL)
		if err != nil {
			return "", false // Check refused it
		}
		u.Fragment, u.RawFragment = "", ""
		if u.RawQuery == "" && !u.ForceQuery {
			return u.String(), true
		}
		u.RawQuery, u.ForceQuery = "", false
		return u.String() + "?…", false
	case len(p.Command) > 1:
		return p.Command[0] + " …", false
	case len(p.Command) == 1:
		return p.Command[0], true
	}
	return "", true
}

// bound is what a consent is bound to: its whole address, or its whole command and what is
// in the file that it starts, with a digest for what is not shown.
func (p Provider) bound(file program) string {
	shown, whole := p.where()
	if whole && p.URL != "" {
		return shown
	}
	all := append([]string{p.URL, file.path, file.digest}, p.Command...)
	return shown + " " + ocp.Digest(fmt.Sprintf("%q", all))
}

// remote: its messages leave this machine whatever it says.
func (p Provider) remote() bool { return p.URL != "" }

// localScope is the one scope of a data flow that stays on the machine.
const localScope = "local-only"

// flow is a declared data flow as it counts: who names a place off this machine sends
// there, whatever else it says.
func flow(d ocp.DataFlow) ocp.DataFlow {
	if slices.ContainsFunc(d.EgressScopes, func(s string) bool { return s != localScope }) {
		d.Egress = true
	}
	return d
}

// matches is the capability filter: a query without kinds is for everybody, one with
// kinds for those that have one of them.
func matches(has []string, q ocp.Query) bool {
	return len(q.Kinds) == 0 || slices.ContainsFunc(q.Kinds, func(k ocp.FrameKind) bool { return slices.Contains(has, string(k)) })
}
