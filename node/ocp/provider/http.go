package provider

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"

	"opencode-mesh/protocol/ocp"
)

const (
	// MaxParallel is how many requests are worked on at once over HTTP; others wait.
	MaxParallel = 16
	// MaxWaiting is how many of them wait; those beyond are refused with 503.
	MaxWaiting = 64
)

// HTTPConfig says who may ask over HTTP.
type HTTPConfig struct {
	// Token is what a host must send as a bearer token; "" asks for none, which is for
	// addresses of this machine only.
	Token string
	// Hosts are names by which the server is reached beside its addresses and localhost.
	// A request with another name in its Host is of a page that pretends to be here.
	Hosts []string
}

// Handler answers hosts over HTTP, one message a request, and remembers nothing between
// them. Errors of the protocol have status 200, as hosts want it. Requests that browsers
// make for pages of other origins are refused.
func (p *Provider) Handler(cfg HTTPConfig) http.Handler {
	turns := make(chan struct{}, MaxParallel)
	var here atomic.Int32 // requests that wait or are worked on
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !cfg.knows(r.Host) || !sameOrigin(r):
			http.Error(w, "this address is not for that name or origin", http.StatusForbidden)
			return
		case !cfg.permits(r):
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "a bearer token is needed", http.StatusUnauthorized)
			return
		case r.Method != http.MethodPost:
			w.Header().Set("Allow", http.MethodPost)
			http.Error(w, "messages are sent by POST", http.StatusMethodNotAllowed)
			return
		}
		defer here.Add(-1)
		if here.Add(1) > MaxParallel+MaxWaiting {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "too many requests wait; try again in a moment", http.StatusServiceUnavailable)
			return
		}
		select {
		case turns <- struct{}{}:
			defer func() { <-turns }()
		case <-r.Context().Done():
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, ocp.MaxMessage))
		var long *http.MaxBytesError
		switch {
		case errors.As(err, &long):
			http.Error(w, errLong.Error(), http.StatusRequestEntityTooLarge)
			return
		case err != nil:
			return // nobody is there to be told
		}
		p.post(w, r, body)
	})
}

// post answers one message.
func (p *Provider) post(w http.ResponseWriter, r *http.Request, body []byte) {
	e, err := ocp.Decode(body)
	var answer ocp.Envelope
	family := familyOf(e)
	switch {
	case err != nil:
		answer.Error = refusal(err.Error())
	case e.Shutdown: // of this host, not of the server
		w.WriteHeader(http.StatusNoContent)
		return
	default:
		answer = p.answer(r.Context(), e)
		if answer.HandshakeAck != nil {
			family, _ = ocp.FamilyOf(answer.HandshakeAck.ProtocolVersion)
		}
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	_, _ = w.Write(p.encode(answer, family)) // a host that went is told nothing
}

// familyOf is what a message alone tells of the family of its host.
func familyOf(e ocp.Envelope) ocp.Family {
	switch {
	case e.ID != "", e.Verify != nil, e.Verified != nil, e.Query != nil && len(e.Query.RepresentationPreferences) > 0:
		return ocp.FamilyContextgraph
	default:
		return ocp.FamilyOCP
	}
}

// permits compares the token without telling by its time how much of it was right.
func (c HTTPConfig) permits(r *http.Request) bool {
	if c.Token == "" {
		return true
	}
	scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	a, b := sha256.Sum256([]byte(given)), sha256.Sum256([]byte(c.Token))
	return strings.EqualFold(scheme, "Bearer") && subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// knows reports whether a Host is a name of this server: a page of another name that
// resolves to here must not be taken for one of ours. An address is no name.
func (c HTTPConfig) knows(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if ip := net.ParseIP(host); ip != nil {
		return c.Token != "" || ip.IsLoopback()
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	for _, name := range c.Hosts {
		if strings.EqualFold(host, name) {
			return true
		}
	}
	return false
}

// sameOrigin reports whether a request is of no page, or of one of this address.
func sameOrigin(r *http.Request) bool {
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" && site != "none" {
		return false
	}
	origins := r.Header.Values("Origin")
	if len(origins) == 0 {
		return true
	}
	u, err := url.Parse(origins[0])
	return len(origins) == 1 && err == nil && (u.Scheme == "http" || u.Scheme == "https") && strings.EqualFold(u.Host, r.Host)
}
