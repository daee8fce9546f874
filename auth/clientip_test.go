package auth_test

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"opencode-mesh/auth"
)

func prefixes(list ...string) (p []netip.Prefix) {
	for _, s := range list {
		p = append(p, netip.MustParsePrefix(s))
	}
	return p
}

func TestClientIPBelievesConfiguredProxiesOnly(t *testing.T) {
	proxies := prefixes("192.0.2.1/32", "10.9.0.0/16", "2001:db8:aaaa::/48")
	for _, c := range []struct {
		name      string
		peer      string
		forwarded []string
		trusted   []netip.Prefix
		want      string
	}{
		{"no proxy, no header", "203.0.113.7:4000", nil, nil, "203.0.113.7"},
		{"no proxy configured, spoofed header", "203.0.113.7:4000", []string{"1.1.1.1"}, nil, "203.0.113.7"},
		{"peer is no proxy, spoofed header", "203.0.113.7:4000", []string{"1.1.1.1"}, proxies, "203.0.113.7"},
		{"peer spoofs a proxy behind itself", "203.0.113.7:4000", []string{"1.1.1.1, 192.0.2.1"}, proxies, "203.0.113.7"},
		{"through a proxy", "192.0.2.1:4000", []string{"203.0.113.7"}, proxies, "203.0.113.7"},
		{"spoofed entries stand left", "192.0.2.1:4000", []string{"1.1.1.1, 2.2.2.2, 203.0.113.7"}, proxies, "203.0.113.7"},
		{"spoofed garbage stands left", "192.0.2.1:4000", []string{"<script>, , 203.0.113.7"}, proxies, "203.0.113.7"},
		{"spoofed proxy stands left", "192.0.2.1:4000", []string{"10.9.0.1, 203.0.113.7"}, proxies, "203.0.113.7"},
		{"through two proxies", "192.0.2.1:4000", []string{"1.1.1.1, 203.0.113.7, 10.9.3.4"}, proxies, "203.0.113.7"},
		{"several header lines", "192.0.2.1:4000", []string{"1.1.1.1", "203.0.113.7", "10.9.3.4"}, proxies, "203.0.113.7"},
		{"all hops are proxies", "192.0.2.1:4000", []string{"10.9.0.1, 10.9.0.2"}, proxies, "10.9.0.1"},
		{"no header from a proxy", "192.0.2.1:4000", nil, proxies, "192.0.2.1"},
		{"empty header", "192.0.2.1:4000", []string{""}, proxies, "192.0.2.1"},
		{"garbage", "192.0.2.1:4000", []string{"unknown"}, proxies, "192.0.2.1"},
		{"garbage right of an address", "192.0.2.1:4000", []string{"203.0.113.7, unknown"}, proxies, "192.0.2.1"},
		{"an empty entry right of an address", "192.0.2.1:4000", []string{"203.0.113.7,"}, proxies, "192.0.2.1"},
		{"a host name", "192.0.2.1:4000", []string{"example.org"}, proxies, "192.0.2.1"},
		{"with a port", "192.0.2.1:4000", []string{"203.0.113.7:1234"}, proxies, "203.0.113.7"},
		{"IPv6", "[2001:db8:aaaa::1]:4000", []string{"2001:db8::7"}, proxies, "2001:db8::7"},
		{"IPv6 with a port", "[2001:db8:aaaa::1]:4000", []string{"[2001:db8::7]:99"}, proxies, "2001:db8::7"},
		{"mapped peer is the proxy", "[::ffff:192.0.2.1]:4000", []string{"203.0.113.7"}, proxies, "203.0.113.7"},
		{"mapped entry", "192.0.2.1:4000", []string{"::ffff:203.0.113.7"}, proxies, "203.0.113.7"},
		{"mapped entry of a proxy", "192.0.2.1:4000", []string{"203.0.113.7, ::ffff:10.9.0.1"}, proxies, "203.0.113.7"},
		{"zone of the peer", "[fe80::1%eth0]:4000", []string{"203.0.113.7"}, prefixes("fe80::/64"), "203.0.113.7"},
		{"tabs and blanks", "192.0.2.1:4000", []string{"1.1.1.1 ,\t203.0.113.7 "}, proxies, "203.0.113.7"},
		{"a Unix socket", "@", []string{"203.0.113.7"}, proxies, "invalid IP"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &http.Request{RemoteAddr: c.peer, Header: http.Header{}}
			for _, line := range c.forwarded {
				r.Header.Add("X-Forwarded-For", line)
			}
			r.Header.Set("X-Real-Ip", "9.9.9.9")
			r.Header.Set("Forwarded", "for=9.9.9.9")
			if got := auth.ClientIP(r, c.trusted).String(); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

func TestSpoofedAddressPerRequestIsLimitedAllTheSame(t *testing.T) {
	l := newLimits(t, auth.LimiterConfig{PerName: 1000})
	allowed := 0
	for i := range 100 {
		r := &http.Request{RemoteAddr: "127.0.0.1:4000", Header: http.Header{}}
		r.Header.Set("X-Forwarded-For", numbered("198.51.100.%d", i).String())
		if l.Allow(auth.ClientIP(r, nil), "laptop") == 0 {
			allowed++
		}
	}
	if allowed != auth.DefaultPerAddress {
		t.Errorf("%d tries passed, want %d", allowed, auth.DefaultPerAddress)
	}
}

func FuzzClientIP(f *testing.F) {
	f.Add("192.0.2.1:4000", "1.1.1.1, 203.0.113.7", "10.9.0.1")
	f.Add("[::ffff:192.0.2.1]:1", ",,", "[::1]:80")
	f.Fuzz(func(t *testing.T, peer, first, second string) {
		r := &http.Request{RemoteAddr: peer, Header: http.Header{"X-Forwarded-For": {first, second}}}
		direct := auth.ClientIP(r, nil)
		if direct.Is4In6() || direct.Zone() != "" {
			t.Errorf("%v is not in its one form", direct)
		}
		if got := auth.ClientIP(r, prefixes("192.0.2.0/24")); got != direct &&
			!strings.Contains(first+second, got.String()) && !strings.ContainsAny(first+second, ":") {
			t.Errorf("got %v, which stands in no header", got)
		}
	})
}
