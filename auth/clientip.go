package auth

import (
	"net/http"
	"net/netip"
	"strings"
)

// ClientIP returns the address that a request came from, for limits and the audit
// log: the peer of its connection, or, when that peer is one of the trusted
// proxies, the right-most address in X-Forwarded-For that is not. Everything left
// of it was written by the client and is not believed; other headers never are.
//
// A header that cannot be read up to there counts as absent. When all of its
// addresses are trusted, the left-most is returned. The result is not valid when
// the connection has no address (a Unix socket). Trust single proxies, not the
// network that clients are in: whoever is in a trusted range can name any address.
func ClientIP(r *http.Request, trusted []netip.Prefix) netip.Addr {
	peer, ok := parseHop(r.RemoteAddr)
	if !ok {
		return netip.Addr{}
	}
	if !inPrefixes(peer, trusted) {
		return peer
	}
	client := peer
	lines := r.Header["X-Forwarded-For"]
	for i := len(lines) - 1; i >= 0; i-- {
		rest := lines[i]
		for more := true; more; {
			var hop string
			if comma := strings.LastIndexByte(rest, ','); comma >= 0 {
				rest, hop = rest[:comma], rest[comma+1:]
			} else {
				hop, more = rest, false
			}
			addr, ok := parseHop(strings.Trim(hop, " \t"))
			if !ok {
				return peer
			}
			client = addr
			if !inPrefixes(client, trusted) {
				return client
			}
		}
	}
	return client
}

// parseHop reads an address with or without a port; some proxies add one.
func parseHop(s string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(s)
	if err != nil {
		ap, err := netip.ParseAddrPort(s)
		if err != nil {
			return netip.Addr{}, false
		}
		a = ap.Addr()
	}
	return a.Unmap().WithZone(""), true
}

func inPrefixes(a netip.Addr, prefixes []netip.Prefix) bool {
	for _, p := range prefixes {
		if p.Contains(a) {
			return true
		}
	}
	return false
}
