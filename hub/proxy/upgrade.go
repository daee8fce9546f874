package proxy

import (
	"bufio"
	"net"
	"net/http"
	"net/textproto"
	"strings"

	"opencode-mesh/hub/early"
)

// passesUpgrade reports whether a service is told that a client would change the
// protocol. After the change nothing is read or taken out any more, so that one by
// which further requests travel, HTTP/2, would be a way around all of this package;
// and opencode knows WebSockets only.
func (c *call) passesUpgrade(protocol string) bool {
	if !c.in.ProtoAtLeast(1, 1) {
		return false // RFC 9110, 7.8
	}
	if c.opencode() {
		return strings.EqualFold(protocol, "websocket")
	}
	for p := range strings.SplitSeq(protocol, ",") {
		name, _, _ := strings.Cut(textproto.TrimString(p), "/")
		switch strings.ToLower(name) {
		case "h2c", "h2", "http", "tls":
			return false
		}
	}
	return true
}

// answering is where the reverse proxy writes an answer.
type answering struct {
	http.ResponseWriter
	call *call
}

// Unwrap serves http.ResponseController.
func (a *answering) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// WriteHeader implements http.ResponseWriter. Informational answers come here without
// having been looked at; a client of HTTP/1.0 would take one for the answer (RFC 9110,
// 15.2).
func (a *answering) WriteHeader(status int) {
	if status < http.StatusOK && status != http.StatusSwitchingProtocols {
		if !a.call.in.ProtoAtLeast(1, 1) {
			return
		}
		h := a.Header()
		a.call.clean(h)
		for _, name := range hops {
			delete(h, name)
		}
	}
	a.ResponseWriter.WriteHeader(status)
}

// Hijack implements http.Hijacker.
func (a *answering) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return early.Hijack(a.ResponseWriter)
}
