package proxy

import (
	"io"
	"net/http"
	"slices"
)

// notInTrailers are headers that mean something only before a body: RFC 9110, 6.5.1,
// lets nobody send them after it, and servers that merge the two would take them.
var notInTrailers = append([]string{
	"Authorization", "Cookie", "Host", "Content-Length", "Content-Encoding", "Content-Type", "Content-Range", "Cache-Control",
	"Expect", "Location", "Max-Forwards", "Range", "Www-Authenticate",
}, append(hops, risky...)...)

// cleanTrailers takes out of the trailers of a body what is not to be there: those that
// were announced at once, and all others when the body ends, which is when they come.
func cleanTrailers(body io.ReadCloser, of func() http.Header) io.ReadCloser {
	b := &trailed{ReadCloser: body, trailers: of}
	b.clean()
	return b
}

// trailed is a body with trailers.
type trailed struct {
	io.ReadCloser
	trailers func() http.Header
}

// Read implements io.Reader.
func (t *trailed) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	if err == io.EOF {
		t.clean()
	}
	return n, err
}

func (t *trailed) clean() {
	h := t.trailers()
	dropMesh(h)
	dropLookalikes(h)
	for name := range h {
		if tellsTheWay(name) || slices.Contains(notInTrailers, name) {
			delete(h, name)
		}
	}
}
