package tunnel

import (
	"errors"
	"fmt"
	"io"
	"strings"
)

// Kind names what a stream carries: KindAPI, or Service(name).
type Kind string

// KindAPI is an HTTP connection to the interface of the other side.
const KindAPI Kind = "api"

// kindGoAway carries nothing: it asks the other side to open no more streams.
const kindGoAway Kind = "goaway"

const (
	servicePrefix = "service/"
	takenPrefix   = "taken/"

	preambleVersion = 1
	// maxKind is the longest kind, in bytes: room for the longest service and for
	// kinds that do not exist yet.
	maxKind = 80
	// maxServiceName is the longest service name, in bytes.
	maxServiceName = 64
)

// Service is the kind of a byte pipe to the named local server of the other
// side. A name is 1 to 64 of A-Z a-z 0-9 . _ -
func Service(name string) Kind { return servicePrefix + Kind(name) }

// Service returns the service that k names; ok is false for any other kind and
// for a name that no service can have.
func (k Kind) Service() (name string, ok bool) {
	name, ok = strings.CutPrefix(string(k), servicePrefix)
	return name, ok && validServiceName(name)
}

// taken is the kind of such a pipe whose first byte says that the local server has
// taken the connection; see Session.OpenTaken.
func taken(name string) Kind { return takenPrefix + Kind(name) }

// piped is Service for both kinds of pipes; says is true for the second.
func (k Kind) piped() (name string, says, ok bool) {
	if name, says = strings.CutPrefix(string(k), takenPrefix); says {
		return name, true, validServiceName(name)
	}
	name, ok = k.Service()
	return name, false, ok
}

func validServiceName(s string) bool {
	if s == "" || len(s) > maxServiceName {
		return false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}

// openable reports whether a caller may open a stream of kind k.
func (k Kind) openable() bool {
	if k == KindAPI {
		return true
	}
	_, _, ok := k.piped()
	return ok
}

// appendPreamble appends the preamble of a stream of kind k, which is not
// longer than maxKind.
func appendPreamble(dst []byte, k Kind) []byte {
	dst = append(dst, preambleVersion, byte(len(k)))
	return append(dst, k...)
}

var errPreamble = errors.New("malformed stream preamble")

// readPreamble reads a preamble and nothing after it. The kind that it returns
// is printable ASCII but need not be known.
func readPreamble(r io.Reader) (Kind, error) {
	var buf [maxKind]byte
	if _, err := io.ReadFull(r, buf[:2]); err != nil {
		return "", fmt.Errorf("read stream preamble: %w", err)
	}
	version, n := buf[0], int(buf[1])
	if version != preambleVersion || n == 0 || n > maxKind {
		return "", errPreamble
	}
	if _, err := io.ReadFull(r, buf[:n]); err != nil {
		return "", fmt.Errorf("read stream preamble: %w", err)
	}
	for _, c := range buf[:n] {
		if c <= ' ' || c >= 0x7f {
			return "", errPreamble
		}
	}
	return Kind(buf[:n]), nil
}
