package auth

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"opencode-mesh/protocol/api"
)

// ErrPinMismatch means that whatever answered at a link's address has another key
// than the link's pin says. Nothing was sent to it.
var ErrPinMismatch = errors.New("the hub's key is not the one that the link pins")

// ErrForeignRedirect means that a hub redirected to another address; a credential
// or password is not carried there.
var ErrForeignRedirect = errors.New("the hub redirects to another address")

// Limits of a client made for a link.
const (
	dialTimeout      = 10 * time.Second
	handshakeTimeout = 10 * time.Second
	// headerTimeout bounds the wait for an answer to begin; a long poll may take
	// api.MaxWait.
	headerTimeout = api.MaxWait + 30*time.Second
	idleTimeout   = 90 * time.Second
	maxIdle       = 16
	maxHeader     = 64 << 10 // bytes of an answer's header
	maxRedirects  = 3
	// resumable is how many TLS sessions a client remembers; it knows one hub.
	resumable = 4
)

// PinMismatchError says which key was met; it is ErrPinMismatch to errors.Is.
type PinMismatchError struct {
	// Want and Got are pins: 64 hex digits.
	Want, Got string
}

// Error implements error.
func (e *PinMismatchError) Error() string {
	return fmt.Sprintf("%v: want %s, got %s; not connected. If the hub got a new key on purpose, join or log in again with its new link",
		ErrPinMismatch, e.Want, e.Got)
}

// Is makes e match ErrPinMismatch.
func (e *PinMismatchError) Is(target error) bool { return target == ErrPinMismatch }

// TLSConfig returns how a client verifies the hub of l, with ALPN http/1.1: by the
// pin alone for mesh:// links, checked on every handshake, a resumed one too; by
// the certificates in caFile (PEM), or the system's when caFile is "", for
// https:// links. For mesh+plain:// links it is nil. A caFile with another link
// than https:// is an error, because it would not be used.
//
// Each call returns a new Config, which the caller may change.
func (l Link) TLSConfig(caFile string) (*tls.Config, error) {
	if caFile != "" && l.Scheme != SchemeTrusted {
		return nil, fmt.Errorf("a certificate file goes with an https:// link only, not with %s://", l.Scheme)
	}
	cfg := &tls.Config{
		MinVersion:         tls.VersionTLS12,
		NextProtos:         []string{"http/1.1"},
		ClientSessionCache: tls.NewLRUClientSessionCache(resumable),
	}
	switch l.Scheme {
	case SchemePlain:
		return nil, nil
	case SchemePinned:
		if len(l.Pin) != 2*sha256.Size {
			return nil, fmt.Errorf("%w: it has no pin", ErrBadLink)
		}
		// The pin names the key itself: names and dates of the certificate add
		// nothing, and a client whose clock is wrong can still connect.
		cfg.InsecureSkipVerify = true
		cfg.VerifyConnection = func(cs tls.ConnectionState) error { return checkPin(l.Pin, cs) }
	case SchemeTrusted:
		if caFile == "" {
			break
		}
		pem, err := readFile(caFile, maxPEM)
		if err != nil {
			return nil, fmt.Errorf("certificate file: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("certificate file: %s holds no PEM certificate", caFile)
		}
	default:
		return nil, fmt.Errorf("%w: unknown scheme", ErrBadLink)
	}
	return cfg, nil
}

func checkPin(want string, cs tls.ConnectionState) error {
	if len(cs.PeerCertificates) == 0 {
		return &PinMismatchError{Want: want, Got: "none"}
	}
	if got := pinOf(cs.PeerCertificates[0]); got != want {
		return &PinMismatchError{Want: want, Got: got}
	}
	return nil
}

// pinOf is the SHA-256 of a certificate's public key (SPKI) in hex.
func pinOf(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(sum[:])
}

// HTTPClient returns a client for the hub of l that verifies it as TLSConfig says.
// It honours HTTPS_PROXY, HTTP_PROXY and NO_PROXY, resolves names at each dial,
// bounds dial, handshake and the wait for an answer (not its body, which may be a
// stream: use the request's context), and follows redirects only within the hub's
// own address. It is safe for concurrent use; CloseIdleConnections frees what it
// holds.
func (l Link) HTTPClient(caFile string) (*http.Client, error) {
	cfg, err := l.TLSConfig(caFile)
	if err != nil {
		return nil, err
	}
	dialer := &net.Dialer{Timeout: dialTimeout}
	return &http.Client{
		Transport: &http.Transport{
			Proxy:                  l.proxyFrom(http.ProxyFromEnvironment),
			DialContext:            dialer.DialContext,
			TLSClientConfig:        cfg,
			TLSHandshakeTimeout:    handshakeTimeout,
			ResponseHeaderTimeout:  headerTimeout,
			ExpectContinueTimeout:  time.Second,
			IdleConnTimeout:        idleTimeout,
			MaxIdleConns:           maxIdle,
			MaxIdleConnsPerHost:    maxIdle,
			MaxResponseHeaderBytes: maxHeader,
		},
		CheckRedirect: checkRedirect,
	}, nil
}

// proxyFrom is the proxy of the environment. The transport would apply the pin to a
// proxy that speaks TLS itself, so such a one is refused in words for pinned links.
func (l Link) proxyFrom(environment func(*http.Request) (*url.URL, error)) func(*http.Request) (*url.URL, error) {
	if l.Scheme != SchemePinned {
		return environment
	}
	return func(r *http.Request) (*url.URL, error) {
		u, err := environment(r)
		if err == nil && u != nil && u.Scheme == "https" {
			return nil, errors.New("a mesh:// link cannot go through a proxy whose own address is https://; set HTTPS_PROXY to an http:// one")
		}
		return u, err
	}
}

// checkRedirect keeps a request, its credential and its body at one address. The
// standard client would carry them to subdomains, or repeat a body anywhere (307).
func checkRedirect(r *http.Request, via []*http.Request) error {
	from := via[0].URL
	if r.URL.Scheme != from.Scheme || r.URL.Host != from.Host {
		return fmt.Errorf("%w (%s://%s): not followed", ErrForeignRedirect, r.URL.Scheme, r.URL.Host)
	}
	if len(via) > maxRedirects {
		return fmt.Errorf("more than %d redirects", maxRedirects)
	}
	return nil
}
