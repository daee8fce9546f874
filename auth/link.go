package auth

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// ErrBadLink means that a text is not a join link. Errors that wrap it say what is
// wrong and what a link looks like.
var ErrBadLink = errors.New("bad link")

// LinkForms says what a join link looks like.
const LinkForms = "mesh://HOST:PORT?pin=sha256:<64 hex digits>, mesh+plain://HOST:PORT or https://HOST[:PORT]"

// maxLink is the longest link, in bytes; a host name has at most 253.
const maxLink = 1024

// LinkScheme says how a hub is reached.
type LinkScheme string

// The schemes.
const (
	// SchemePinned is TLS with the hub's own certificate, known by its pin.
	SchemePinned LinkScheme = "mesh"
	// SchemePlain is no TLS at all; writing it is the explicit consent to that.
	SchemePlain LinkScheme = "mesh+plain"
	// SchemeTrusted is TLS with a certificate of a known authority.
	SchemeTrusted LinkScheme = "https"
)

// Link is a join link: where a hub is and how a client knows it. Links are
// comparable; the zero Link is none.
type Link struct {
	Scheme LinkScheme
	// Host is a lower-case name or an IP address without brackets.
	Host string
	// Port is 0 only with SchemeTrusted and means 443.
	Port uint16
	// Pin is the SHA-256 of the hub's public key (SPKI), 64 lower-case hex digits;
	// with SchemePinned only.
	Pin string
}

// ParseLink reads a join link (see LinkForms). Plain http:// is taken for a
// loopback host only and means mesh+plain there. The errors wrap ErrBadLink and
// never repeat the text, because what people paste may hold a password.
func ParseLink(s string) (Link, error) {
	l, err := parseLink(strings.TrimSpace(s))
	if err != nil {
		return Link{}, fmt.Errorf("%w: %w; a link looks like %s", ErrBadLink, err, LinkForms)
	}
	return l, nil
}

func parseLink(s string) (l Link, err error) {
	if s == "" {
		return l, errors.New("it is empty")
	}
	if len(s) > maxLink {
		return l, errors.New("it is too long")
	}
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok {
		return l, errors.New("it does not begin with mesh://, mesh+plain:// or https://")
	}
	plainWeb := false
	switch l.Scheme = LinkScheme(strings.ToLower(scheme)); l.Scheme {
	case SchemePinned, SchemePlain, SchemeTrusted:
	case "http":
		l.Scheme, plainWeb = SchemePlain, true
	default:
		return l, errors.New("it begins with another word than mesh://, mesh+plain:// or https://")
	}
	if strings.Contains(rest, "#") {
		return l, errors.New("it has a # part")
	}
	rest, query, hasQuery := strings.Cut(rest, "?")
	if strings.Contains(rest, "@") {
		return l, errors.New("it has a user or password before the host; those are asked for or come from MESH_PASSWORD")
	}
	hostPort, path, _ := strings.Cut(rest, "/")
	if path != "" {
		return l, errors.New("it has a path after the host")
	}
	if l.Host, l.Port, err = parseHostPort(hostPort); err != nil {
		return l, err
	}
	switch {
	case plainWeb && !isLoopbackHost(l.Host):
		return l, errors.New("http:// would send the password unencrypted; if that is intended, say mesh+plain:// instead")
	case plainWeb && l.Port == 0:
		l.Port = 80
	case l.Port == 0 && l.Scheme != SchemeTrusted:
		return l, errors.New("the port is missing (a hub's default is 8443)")
	}
	if l.Scheme == SchemePinned {
		l.Pin, err = parsePinQuery(query)
	} else if hasQuery {
		err = errors.New("only a mesh:// link has a part after ?")
	}
	return l, err
}

func parseHostPort(s string) (host string, port uint16, err error) {
	digits, hasPort := "", false
	if strings.HasPrefix(s, "[") {
		end := strings.IndexByte(s, ']')
		if end < 0 {
			return "", 0, errors.New("the ] after the IPv6 address is missing")
		}
		var after string
		host, after = s[1:end], s[end+1:]
		if digits, hasPort = strings.CutPrefix(after, ":"); !hasPort && after != "" {
			return "", 0, errors.New("there is something other than a port after the ]")
		}
		host = strings.Replace(host, "%25", "%", 1) // a zone, as URLs write it
		if a, err := netip.ParseAddr(host); err != nil || !a.Is6() {
			return "", 0, errors.New("there is no IPv6 address between [ and ]")
		}
	} else if strings.Count(s, ":") > 1 {
		return "", 0, errors.New("an IPv6 address needs [ and ] around it")
	} else {
		host, digits, hasPort = strings.Cut(s, ":")
	}
	if hasPort {
		n, err := strconv.ParseUint(digits, 10, 16)
		if err != nil || n == 0 {
			return "", 0, errors.New("the port is not a number from 1 to 65535")
		}
		port = uint16(n)
	}
	host, err = canonicalHost(host)
	return host, port, err
}

// canonicalHost checks a host name or address and returns its one spelling.
func canonicalHost(host string) (string, error) {
	if host == "" {
		return "", errors.New("the host is missing")
	}
	if a, err := netip.ParseAddr(host); err == nil {
		if a.Unmap().IsUnspecified() {
			return "", errors.New("the host is the address of no machine; name one that this machine can reach")
		}
		if strings.ContainsFunc(a.Zone(), func(r rune) bool { return !isNameRune(r) && r != '.' }) {
			return "", errors.New("the zone of the IPv6 address is not readable")
		}
		return a.String(), nil
	}
	if !isHostName(host) {
		return "", errors.New("the host is neither a name (ASCII letters, digits, - and .) nor an IP address")
	}
	return strings.ToLower(host), nil
}

// isHostName reports whether s is a DNS name, underscores tolerated, that cannot
// be taken for an address.
func isHostName(s string) bool {
	if len(s) > 253 {
		return false
	}
	labels := strings.Split(s, ".")
	for _, label := range labels {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' ||
			strings.ContainsFunc(label, func(r rune) bool { return !isNameRune(r) }) {
			return false
		}
	}
	// A last label of digits only would be read as a (bad) IPv4 address.
	return strings.Trim(labels[len(labels)-1], "0123456789") != ""
}

func isNameRune(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_'
}

func isLoopbackHost(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.Unmap().IsLoopback()
}

func parsePinQuery(query string) (string, error) {
	values, err := url.ParseQuery(query)
	if err != nil {
		return "", errors.New("the part after ? cannot be read")
	}
	pins := values["pin"]
	if len(pins) == 0 || pins[0] == "" {
		return "", errors.New("the pin is missing (quote the link in a shell: the ? is part of it)")
	}
	if len(values) != 1 || len(pins) != 1 {
		return "", errors.New("the part after ? holds something beside one pin")
	}
	digits, ok := strings.CutPrefix(strings.ToLower(pins[0]), "sha256:")
	if !ok {
		return "", errors.New("the pin does not begin with sha256:")
	}
	if len(digits) != 64 {
		return "", fmt.Errorf("the pin has %d hex digits instead of 64", len(digits))
	}
	if _, err := hex.DecodeString(digits); err != nil {
		return "", errors.New("the pin has something other than hex digits")
	}
	return digits, nil
}

// String formats l as ParseLink reads it.
func (l Link) String() string {
	if l == (Link{}) {
		return ""
	}
	s := string(l.Scheme) + "://" + l.authority()
	if l.Scheme == SchemePinned {
		s += "?pin=sha256:" + l.Pin
	}
	return s
}

// authority is host and port as they stand in a URL.
func (l Link) authority() string {
	host := strings.Replace(l.Host, "%", "%25", 1)
	if l.Port != 0 {
		return net.JoinHostPort(host, strconv.Itoa(int(l.Port)))
	}
	if strings.Contains(host, ":") {
		return "[" + host + "]"
	}
	return host
}

// BaseURL is the address of the hub's interface, without a slash at its end.
func (l Link) BaseURL() string {
	if l.Scheme == SchemePlain {
		return "http://" + l.authority()
	}
	return "https://" + l.authority()
}

// TunnelURL is the address at which a node opens its tunnel.
func (l Link) TunnelURL() string {
	if l.Scheme == SchemePlain {
		return "ws://" + l.authority() + "/v1/tunnel"
	}
	return "wss://" + l.authority() + "/v1/tunnel"
}

// MarshalText implements encoding.TextMarshaler.
func (l Link) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler by ParseLink; an empty text is
// the zero Link.
func (l *Link) UnmarshalText(text []byte) (err error) {
	if len(text) == 0 {
		*l = Link{}
		return nil
	}
	*l, err = ParseLink(string(text))
	return err
}
