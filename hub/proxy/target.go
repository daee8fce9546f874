package proxy

import (
	"net/http"
	"net/url"
	"strings"
)

// Target is what a service is asked for: the request's target after the part that
// names the service, as it was sent. It is never cleaned or decoded on the way, so
// that a service sees "%2F", "//" and ".." where its client wrote them.
type Target struct {
	Path     string // begins with "/"
	Query    string
	HasQuery bool // there is a "?", perhaps with nothing behind it
}

// The parts of a service's address at the hub.
const (
	nodesPrefix     = "/v1/nodes/"
	servicesSegment = "services"
)

// Root is the target of a request to a service that has an origin of its own.
func Root(r *http.Request) Target {
	// The request line, not the URL: that one normalizes what it finds odd.
	target := r.RequestURI
	if !strings.HasPrefix(target, "/") { // absolute-form
		_, target, _ = strings.Cut(target, "://")
		i := strings.IndexAny(target, "/?")
		if i < 0 {
			i = len(target)
		}
		target = target[i:]
	}
	var t Target
	t.Path, t.Query, t.HasQuery = strings.Cut(target, "?")
	if t.Path == "" {
		t.Path = "/"
	}
	return t
}

// Cut takes the address of a service, /v1/nodes/NODE/services/SERVICE, off a request;
// ok is false when it is none. The names are as they were sent.
func Cut(r *http.Request) (node, service string, t Target, ok bool) {
	t = Root(r)
	rest, ok := strings.CutPrefix(t.Path, nodesPrefix)
	if !ok {
		return "", "", t, false
	}
	node, rest, _ = strings.Cut(rest, "/")
	segment, rest, ok := strings.Cut(rest, "/")
	if segment != servicesSegment || !ok {
		return "", "", t, false
	}
	service, t.Path = rest, "/"
	if i := strings.IndexByte(rest, '/'); i >= 0 {
		service, t.Path = rest[:i], rest[i:]
	}
	return node, service, t, node != "" && service != ""
}

// apply makes u ask for the target.
func (t Target) apply(u *url.URL) {
	u.RawQuery, u.ForceQuery = t.Query, t.HasQuery && t.Query == ""
	u.Path, u.RawPath, u.Opaque = "/", "", t.Path
	if strings.HasPrefix(t.Path, "//") { // would read as the name of a host
		u.Opaque, u.RawPath = "", t.Path
		u.Path, _ = url.PathUnescape(t.Path) // the server has parsed it before
	}
}
