package hub

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"strconv"

	"golang.org/x/crypto/acme/autocert"

	"opencode-mesh/auth"
)

// listen opens the sockets, sets TLS up and works the join link out.
func (h *Hub) listen(ctx context.Context) error {
	var lc net.ListenConfig
	var err error
	if h.listener, err = lc.Listen(ctx, "tcp", h.cfg.Listen); err != nil {
		return fmt.Errorf("listen on %s: %w", h.cfg.Listen, err)
	}
	if h.cfg.MetricsListen != "" {
		if h.metricsL, err = lc.Listen(ctx, "tcp", h.cfg.MetricsListen); err != nil {
			return fmt.Errorf("listen on %s for metrics: %w", h.cfg.MetricsListen, err)
		}
	}
	host, port, err := h.address()
	if err != nil {
		return err
	}
	scheme, linkScheme := "https", auth.SchemeTrusted
	switch h.cfg.TLS {
	case TLSSelf:
		id, err := auth.LoadOrCreateTLS(h.tlsDir(), auth.TLSOptions{Hosts: []string{host}, Log: h.log})
		if err != nil {
			return err
		}
		h.tls, h.pin, linkScheme = id.TLSConfig(), id.Pin(), auth.SchemePinned
	case TLSOff:
		scheme, linkScheme = "http", auth.SchemePlain
	case TLSFiles:
		cert, err := tls.LoadX509KeyPair(h.cfg.CertFile, h.cfg.KeyFile)
		if err != nil {
			return fmt.Errorf("certificate: %w", err)
		}
		h.tls = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
		if h.pin, err = auth.PinOfFile(h.cfg.CertFile); err != nil {
			return err
		}
	case TLSACME:
		m := &autocert.Manager{Prompt: autocert.AcceptTOS, HostPolicy: autocert.HostWhitelist(host), Cache: autocert.DirCache(filepath.Join(h.tlsDir(), "acme"))}
		h.tls = m.TLSConfig()
		h.tls.MinVersion = tls.VersionTLS12
	}
	h.url = scheme + "://" + net.JoinHostPort(h.shownHost(), strconv.Itoa(int(h.port())))
	if h.cfg.TLS == TLSOff && h.cfg.PublicURL != "" {
		if u, err := url.Parse(h.cfg.PublicURL); err == nil && u.Scheme == "https" {
			linkScheme = auth.SchemeTrusted // TLS ends at the proxy in front
		}
	}
	h.link = auth.Link{Scheme: linkScheme, Host: host, Port: port}
	if linkScheme == auth.SchemePinned {
		h.link.Pin = h.pin
	}
	return nil
}

func (h *Hub) port() uint16 { return uint16(h.listener.Addr().(*net.TCPAddr).Port) }

// shownHost is the listener's host for the URL that is printed: a wildcard is
// reached on this machine by loopback.
func (h *Hub) shownHost() string {
	ip := h.listener.Addr().(*net.TCPAddr).IP
	if ip.IsUnspecified() {
		return "127.0.0.1"
	}
	return ip.String()
}

// address is the host and port of the join link: of the public URL, else where
// the hub listens, else, on a wildcard, the address of the default route.
func (h *Hub) address() (host string, port uint16, err error) {
	if h.cfg.PublicURL != "" {
		u, err := url.Parse(h.cfg.PublicURL)
		if err != nil {
			return "", 0, err
		}
		port := h.port()
		switch p := u.Port(); {
		case p != "":
			n, err := strconv.ParseUint(p, 10, 16)
			if err != nil {
				return "", 0, fmt.Errorf("--public-url: %w", err)
			}
			port = uint16(n)
		case u.Scheme == "https":
			port = 443
		case u.Scheme == "http":
			port = 80
		}
		return u.Hostname(), port, nil
	}
	listenHost, _, err := net.SplitHostPort(h.cfg.Listen)
	if err != nil {
		return "", 0, err
	}
	ip := h.listener.Addr().(*net.TCPAddr).IP
	if !ip.IsUnspecified() {
		if listenHost != "" {
			return listenHost, h.port(), nil
		}
		return ip.String(), h.port(), nil
	}
	main := routeAddress()
	h.others = otherAddresses(main)
	return main, h.port(), nil
}

// routeAddress is this machine's address on the default route, found by asking
// the kernel which one it would use; nothing is sent. Without any route it is
// loopback.
func routeAddress() string {
	// TEST-NET-1, an address that is nobody's (RFC 5737).
	c, err := net.Dial("udp4", "192.0.2.1:9")
	if err != nil {
		return "127.0.0.1"
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).IP.String()
}

// otherAddresses are further addresses that nodes on some network might use.
func otherAddresses(main string) []string {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	var out []string
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		if err != nil {
			continue
		}
		ip := p.Addr().Unmap()
		if ip.IsLoopback() || ip.IsLinkLocalUnicast() || ip.String() == main {
			continue
		}
		out = append(out, ip.String())
	}
	return out
}
