// Package gate says who a browser is. Browsers send cookies with whatever a page
// anywhere has them ask for, so a cookie counts only in a request that names the hub
// as its operator does and that comes from the hub's own pages.
package gate

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"opencode-mesh/auth"
	"opencode-mesh/hub/access"
	"opencode-mesh/hub/proxy"
	"opencode-mesh/hub/shown"
	"opencode-mesh/protocol/api"
)

// Config is what a Gate needs to know.
type Config struct {
	Access *access.Access
	// TrustedProxies are the peers whose X-Forwarded-Proto and X-Forwarded-Host count.
	TrustedProxies []netip.Prefix
	// PublicURL is how browsers reach the hub through something else; "": as it listens.
	PublicURL string
	// Names are the names under which it is reached otherwise. Addresses and localhost
	// need none.
	Names []string
}

// Gate recognises browsers. Safe for concurrent use.
type Gate struct {
	cfg    Config
	public *url.URL // nil without
}

// New makes a gate. What is wrong with a public URL counts as none.
func New(cfg Config) *Gate {
	g := &Gate{cfg: cfg}
	if u, err := url.Parse(cfg.PublicURL); err == nil && u.Host != "" {
		g.public = u
		g.cfg.Names = append(slices.Clone(cfg.Names), u.Hostname())
	}
	return g
}

// Peer is the address that a request came from.
func (g *Gate) Peer(r *http.Request) netip.Addr { return auth.ClientIP(r, g.cfg.TrustedProxies) }

// proxied is what a trusted proxy says of the request that it passes on: its own word,
// which is the last.
func (g *Gate) proxied(r *http.Request, header string) string {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !slices.ContainsFunc(g.cfg.TrustedProxies, func(p netip.Prefix) bool { return p.Contains(peer.Addr().Unmap()) }) {
		return ""
	}
	all := r.Header.Values(header)
	if len(all) == 0 {
		return ""
	}
	last := all[len(all)-1]
	return strings.TrimSpace(last[strings.LastIndexByte(last, ',')+1:])
}

// host is what the browser asked for, with its port.
func (g *Gate) host(r *http.Request) string {
	if h := g.proxied(r, "X-Forwarded-Host"); h != "" {
		return h
	}
	return r.Host
}

// Secure reports whether the browser's connection is encrypted.
func (g *Gate) Secure(r *http.Request) bool {
	switch proto := g.proxied(r, "X-Forwarded-Proto"); {
	case r.TLS != nil:
		return true
	case proto != "":
		return strings.EqualFold(proto, "https")
	}
	return g.public != nil && g.public.Scheme == "https" && strings.EqualFold(g.public.Host, g.host(r))
}

// origin is that of the hub's own pages as the browser of a request sees it.
func (g *Gate) origin(r *http.Request) string {
	if g.Secure(r) {
		return "https://" + g.host(r)
	}
	return "http://" + g.host(r)
}

// Host refuses a name that nobody gave the hub: somebody else may have pointed a name
// of theirs here, so that their page counts as the hub's (DNS rebinding).
func (g *Gate) Host(r *http.Request) error {
	host := g.host(r)
	name := host
	if n, _, err := net.SplitHostPort(host); err == nil {
		name = n
	}
	name = strings.ToLower(strings.TrimSuffix(strings.Trim(name, "[]"), "."))
	if _, err := netip.ParseAddr(name); err == nil || name == "localhost" {
		return nil
	}
	if slices.ContainsFunc(g.cfg.Names, func(n string) bool { return strings.EqualFold(strings.TrimSuffix(n, "."), name) }) {
		return nil
	}
	return api.Errorf(api.CodeForbidden, "%q is not a name of this hub: start it with --web-host NAME, or use its address", shown.Line(name, maxShown))
}

// maxShown bounds what is repeated of a request, in bytes.
const maxShown = 100

// Own refuses a request that another page than the hub's own may have caused.
func (g *Gate) Own(r *http.Request) error {
	if err := g.Host(r); err != nil {
		return err
	}
	if g.public != nil && strings.EqualFold(r.Header.Get("Origin"), g.public.Scheme+"://"+g.public.Host) {
		return SameOrigin(r, r.Header.Get("Origin")) // the proxy in front tells another name
	}
	return SameOrigin(r, g.origin(r))
}

// SameOrigin refuses what pages of other origins, such as those of a node, might have
// a browser send with a cookie of this one.
func SameOrigin(r *http.Request, origin string) error {
	safe := slices.Contains([]string{http.MethodGet, http.MethodHead, http.MethodOptions}, r.Method) && r.Header.Get("Upgrade") == ""
	says := r.Header.Get("Origin")
	site := r.Header.Get("Sec-Fetch-Site")
	switch {
	case says != "" && !strings.EqualFold(says, origin), says == "" && !safe && site != "same-origin":
	case site == "" || site == "same-origin" || site == "none":
		return nil
	case safe && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document":
		return nil // a link that somebody followed
	}
	return api.Errorf(api.CodeForbidden, "this request does not come from a page of %s", shown.Line(origin, maxShown))
}

// cookieName is that of a session. With TLS it has the prefix that keeps neighbours
// from setting it.
func cookieName(secure bool) string {
	if secure {
		return "__Host-" + proxy.CookiePrefix + "session"
	}
	return proxy.CookiePrefix + "session"
}

// Has reports whether a request carries a session's cookie, valid or not.
func (g *Gate) Has(r *http.Request) bool {
	_, err := r.Cookie(cookieName(g.Secure(r)))
	return err == nil
}

// Principal is whose session the cookie of a request stands for, if the request is one
// of the hub's own pages.
func (g *Gate) Principal(r *http.Request) (access.Principal, error) {
	all := r.CookiesNamed(cookieName(g.Secure(r)))
	if len(all) == 0 {
		return access.Principal{}, api.Errorf(api.CodeUnauthorized, "you are not logged in")
	}
	if err := g.Own(r); err != nil {
		return access.Principal{}, err
	}
	// Without TLS a neighbour on another port or path may have set one of the same name.
	var p access.Principal
	var err error
	for _, c := range all[:min(len(all), maxCookies)] {
		if p, err = g.cfg.Access.Browser(r.Context(), c.Value); api.ErrorCode(err) != api.CodeUnauthorized {
			break
		}
	}
	return p, err
}

// maxCookies bounds how many cookies of a session's name are tried.
const maxCookies = 8

// Login checks the password and leaves the cookie of a new session in the browser. The
// one that it had before ends.
func (g *Gate) Login(w http.ResponseWriter, r *http.Request, name, password string) error {
	if err := g.Own(r); err != nil {
		return err
	}
	issued, err := g.cfg.Access.Visit(r.Context(), g.Peer(r), name, password)
	if err != nil {
		return err
	}
	if old, err := g.Principal(r); err == nil {
		if err := g.cfg.Access.Logout(context.WithoutCancel(r.Context()), old, g.Peer(r)); err != nil {
			return err // with two sessions nobody would know of the older
		}
	}
	g.cookie(w, r, issued.Credential, int(access.BrowserLimit/time.Second))
	return nil
}

// Logout ends the session of a request.
func (g *Gate) Logout(w http.ResponseWriter, r *http.Request) error {
	p, err := g.Principal(r)
	if err == nil {
		err = g.cfg.Access.Logout(context.WithoutCancel(r.Context()), p, g.Peer(r))
	} else if api.ErrorCode(err) == api.CodeUnauthorized {
		err = nil // it is over already
	}
	if err == nil {
		g.cookie(w, r, "", -1)
	}
	return err
}

func (g *Gate) cookie(w http.ResponseWriter, r *http.Request, value string, maxAge int) {
	secure := g.Secure(r)
	http.SetCookie(w, &http.Cookie{
		Name: cookieName(secure), Value: value, Path: "/", MaxAge: maxAge,
		Secure: secure, HttpOnly: true, SameSite: http.SameSiteStrictMode,
	})
}
