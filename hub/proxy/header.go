package proxy

import (
	"net/http"
	"net/netip"
	"net/textproto"
	"slices"
	"strings"

	"opencode-mesh/protocol/api"
)

const meshPrefix = "Mesh-"

// CookiePrefix begins the names of the mesh's own cookies, perhaps after one of the
// prefixes that browsers know. None of them reaches a service, and no service sets
// one.
const CookiePrefix = "mesh_"

func ours(cookie string) bool {
	cookie = strings.TrimPrefix(strings.TrimPrefix(cookie, "__Host-"), "__Secure-")
	return len(cookie) >= len(CookiePrefix) && strings.EqualFold(cookie[:len(CookiePrefix)], CookiePrefix)
}

// setsOurs reports whether a line of Set-Cookie is for one of the mesh's own cookies. A
// cookie without a name is sent back as its value alone, which may look like one with.
func setsOurs(line string) bool { return ours(strings.TrimLeft(line, " \t=")) }

// dropMesh takes the mesh's own headers out.
func dropMesh(h http.Header) {
	for name := range h {
		if strings.HasPrefix(name, meshPrefix) {
			delete(h, name)
		}
	}
}

// dropCookies takes the mesh's own cookies out and leaves the others as they are.
func dropCookies(h http.Header) {
	var kept []string
	for _, line := range h["Cookie"] {
		pairs := strings.Split(line, ";")
		n := len(pairs)
		pairs = slices.DeleteFunc(pairs, func(pair string) bool {
			name, _, _ := strings.Cut(pair, "=")
			return ours(textproto.TrimString(name))
		})
		if len(pairs) < n {
			line = textproto.TrimString(strings.Join(pairs, ";"))
		}
		if line != "" {
			kept = append(kept, line)
		}
	}
	if h["Cookie"] != nil {
		h["Cookie"] = kept
	}
	if len(kept) == 0 {
		delete(h, "Cookie")
	}
}

// dropLookalikes takes out headers that some servers do not tell from the mesh's and
// those that proxies set: servers of the CGI kind read "X_Forwarded.For" as
// "X-Forwarded-For". Others with such names stay.
func dropLookalikes(h http.Header) {
	for name := range h {
		if strings.IndexFunc(name, odd) < 0 {
			continue
		}
		plain := textproto.CanonicalMIMEHeaderKey(strings.Map(func(r rune) rune {
			if odd(r) {
				return '-'
			}
			return r
		}, name))
		if strings.HasPrefix(plain, meshPrefix) || tellsTheWay(plain) || slices.Contains(hops, plain) || plain == "Content-Length" {
			delete(h, name)
		}
	}
}

// odd reports whether a character of a header's name is neither letter, digit nor dash.
func odd(r rune) bool {
	return r != '-' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
}

// tellsTheWay reports whether a header is one by which proxies tell where a request
// came from.
func tellsTheWay(name string) bool {
	return strings.HasPrefix(name, "X-Forwarded-") || name == "X-Real-Ip" || name == "Forwarded"
}

// forward sets what the service is told of the request's way. What the client said
// of it counts only if it is a trusted proxy; where it arrived, also if it is a
// program of the mesh that stands before the hub.
func (p *Proxy) forward(in, to *http.Request, apart bool) {
	out := to.Header
	peer, err := netip.ParseAddrPort(in.RemoteAddr)
	addr := peer.Addr().Unmap().WithZone("")
	trusted := err == nil && slices.ContainsFunc(p.cfg.TrustedProxies, func(x netip.Prefix) bool { return x.Contains(addr) })
	for name := range out {
		if tellsTheWay(name) {
			delete(out, name)
		}
	}
	for name, v := range in.Header {
		if trusted && tellsTheWay(name) {
			out[name] = slices.Clone(v)
		}
	}
	if err == nil {
		chain := append(out["X-Forwarded-For"], addr.String())
		out["X-Forwarded-For"] = []string{strings.Join(chain, ", ")}
	}
	if out["X-Forwarded-Host"] == nil {
		out["X-Forwarded-Host"] = []string{to.Host}
	}
	if out["X-Forwarded-Proto"] == nil {
		proto := in.Header.Get("X-Forwarded-Proto")
		switch {
		case apart && (proto == "http" || proto == "https"):
		case in.TLS != nil:
			proto = "https"
		default:
			proto = "http"
		}
		out["X-Forwarded-Proto"] = []string{proto}
	}
}

// risky are the headers of an answer that tell a browser something about the whole
// origin, which is the hub's.
var risky = []string{
	"Set-Cookie", "Content-Security-Policy", "X-Content-Type-Options",
	"Clear-Site-Data", "Strict-Transport-Security", "Alt-Svc", "Service-Worker-Allowed",
	"Nel", "Report-To", "Accept-Ch", "Set-Login", "Public-Key-Pins", "Origin-Agent-Cluster",
	"Expect-Ct", "Use-As-Dictionary", "Secure-Session-Registration", "Sec-Session-Registration",
}

// confine makes an answer harmless for the hub's own origin (semantics 23). With
// keep, the client gets what was taken away under other names, but for cookies that
// pass for the mesh's: a browser takes those of a forwarded port for the hub's, since
// cookies know no ports.
func confine(h http.Header, keep bool) {
	if lines := slices.DeleteFunc(h["Set-Cookie"], setsOurs); len(lines) > 0 {
		h["Set-Cookie"] = lines
	} else {
		delete(h, "Set-Cookie")
	}
	for _, name := range risky {
		v := h[name]
		delete(h, name)
		if keep && v != nil {
			h[api.HeaderOriginal+name] = v
		}
	}
	h["Content-Security-Policy"] = []string{"sandbox"}
	h["X-Content-Type-Options"] = []string{"nosniff"}
}

// keepToItself takes out what would reach beyond a service's own host name, or pass
// for the mesh's: cookies, and the wish to clear them, which browsers grant for all
// names of a site.
func keepToItself(h http.Header) {
	delete(h, "Clear-Site-Data")
	lines := slices.DeleteFunc(h["Set-Cookie"], func(line string) bool {
		if setsOurs(line) {
			return true
		}
		_, attributes, _ := strings.Cut(line, ";")
		for a := range strings.SplitSeq(attributes, ";") {
			name, _, _ := strings.Cut(a, "=")
			if strings.EqualFold(textproto.TrimString(name), "Domain") {
				return true
			}
		}
		return false
	})
	if len(lines) == 0 {
		delete(h, "Set-Cookie")
		return
	}
	h["Set-Cookie"] = lines
}

// hops are the headers that belong to one connection.
var hops = []string{"Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

// dropHops takes the hop-by-hop headers out of the answer to an upgrade, but for the
// upgrade itself: of the others the standard library takes care.
func dropHops(h http.Header) {
	for _, line := range h["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			if name = textproto.CanonicalMIMEHeaderKey(textproto.TrimString(name)); name != "Upgrade" {
				delete(h, name)
			}
		}
	}
	for _, name := range hops {
		if name != "Upgrade" {
			delete(h, name)
		}
	}
	h["Connection"] = []string{"Upgrade"}
}
