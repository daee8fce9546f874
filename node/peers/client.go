package peers

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"opencode-mesh/protocol/peers"
)

// MaxAnswer is how much of a peer's answer is read, in bytes.
const MaxAnswer = 64 << 10

// maxSaid is how much of a peer's words goes into an error, in bytes.
const maxSaid = 200

// Unknown means that a message may have arrived or not: it was under way when Err
// happened. A final acknowledgement or the same message again will tell.
type Unknown struct{ Err error }

func (u *Unknown) Error() string {
	return "no answer, it may have arrived all the same: " + u.Err.Error()
}
func (u *Unknown) Unwrap() error { return u.Err }

// StatusError is an answer of a peer that is no receipt.
type StatusError struct {
	Code int    // of HTTP
	Says string // the peer's own word, bounded
}

func (e *StatusError) Error() string {
	if e.Says == "" {
		return "the peer answered " + strconv.Itoa(e.Code)
	}
	return fmt.Sprintf("the peer answered %d %s", e.Code, strconv.Quote(e.Says))
}

// Gone reports that the peer does not know the endpoint or the token any more.
func (e *StatusError) Gone() bool {
	return e.Code == http.StatusUnauthorized || e.Code == http.StatusNotFound
}

// place is where requests to a peer go.
type place struct {
	network, addr string // for dialling
	base          string // URL
	token         string
}

// placeOf reads where an entry says that its process listens.
//
// The original goes wherever an entry says. Here the network is this machine and no
// other: whoever can write a file into the registry must not make the node talk to hosts
// of their choice, with what may be private in a message.
func placeOf(e peers.Entry) (place, error) {
	p := place{network: "unix", addr: e.Transport.Path, base: "http://localhost", token: e.InboxToken}
	switch {
	case e.V1:
		return placeV1(e)
	case e.Transport.Type == "unix":
		if p.addr == "" {
			return p, errors.New("its entry names no socket")
		}
		return p, nil
	}
	return loopback(p, e.Transport.Host, e.Transport.Port)
}

// loopback completes a place on this machine.
func loopback(p place, host string, port int) (place, error) {
	ip, err := netip.ParseAddr(host)
	switch {
	case host == "localhost":
		ip = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	case err != nil || !ip.IsLoopback():
		return p, fmt.Errorf("its entry names the host %q, which is not this machine", host)
	}
	if port < 1 || port > 65535 {
		return p, fmt.Errorf("its entry names the port %d", port)
	}
	p.network, p.addr = "tcp", netip.AddrPortFrom(ip, uint16(port)).String()
	p.base = "http://" + net.JoinHostPort(host, strconv.Itoa(port))
	return p, nil
}

// hostPort reads the URL of a peer of version 1, which is http://host:port.
func hostPort(raw string) (host string, port int, err error) {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "http" {
		return "", 0, errors.New("its entry names no http URL")
	}
	port, err = strconv.Atoi(cmp.Or(u.Port(), "80"))
	if err != nil {
		return "", 0, errors.New("its entry names no port")
	}
	return u.Hostname(), port, nil
}

// call makes one request. An error before anything was sent is as it is, later ones are
// *Unknown.
func call(ctx context.Context, p place, method, path string, body []byte) (code int, answer []byte, err error) {
	if strings.ContainsFunc(p.token, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
		return 0, nil, errors.New("its entry has a token that cannot be sent")
	}
	ctx, cancel := context.WithTimeout(ctx, peers.SendTimeout)
	defer cancel()
	// The connection is made first, so that what failed before the request and what
	// failed after it cannot be mistaken for each other.
	conn, err := new(net.Dialer).DialContext(ctx, p.network, p.addr)
	if err != nil {
		return 0, nil, offline(err)
	}
	used := make(chan net.Conn, 1)
	used <- conn
	client := &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: MaxHeader,
			DialContext: func(context.Context, string, string) (net.Conn, error) {
				select {
				case c := <-used:
					return c, nil
				default:
					return nil, errors.New("one request, one connection")
				}
			},
		},
	}
	defer conn.Close()
	req, err := http.NewRequestWithContext(ctx, method, p.base+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Authorization", "Bearer "+p.token)
	req.Header.Set("User-Agent", "") // left out
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, &Unknown{Err: plain(err)}
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(io.LimitReader(resp.Body, MaxAnswer))
	if err != nil {
		return resp.StatusCode, nil, &Unknown{Err: plain(err)}
	}
	return resp.StatusCode, answer, nil
}

// plain takes the URL off an error, which says nothing to anybody.
func plain(err error) error {
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return fmt.Errorf("no answer within %v: %w", peers.SendTimeout, context.DeadlineExceeded)
	}
	return err
}

// ErrOffline means that nobody listens where a peer's entry says.
var ErrOffline = errors.New("the peer is offline")

func offline(err error) error {
	if refused(err) {
		return fmt.Errorf("%w: %w", ErrOffline, err)
	}
	return fmt.Errorf("reach the peer: %w", err)
}

// receiptOf reads the answer to a message.
func receiptOf(code int, answer []byte) (string, error) {
	if r := peers.ReadReceipt(answer); r != "" && (code == http.StatusAccepted || code == http.StatusForbidden || code == http.StatusTooManyRequests) {
		return r, nil
	}
	var said struct {
		Error string `json:"error"`
	}
	_ = json.Unmarshal(answer, &said) // words for people, if there are any
	return "", &StatusError{Code: code, Says: peers.Cut(said.Error, maxSaid)}
}
