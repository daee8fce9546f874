package tunnel

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"
)

const (
	// DefaultDialTimeout bounds a Dial from the look-up of the name to the end of
	// the upgrade.
	DefaultDialTimeout = 10 * time.Second
	// maxHandshake is how much of a handshake's answers is read, in bytes.
	maxHandshake = 64 << 10
	// maxInformational is how many 1xx answers may come before the real one.
	maxInformational = 5
)

// DialConfig says where the hub is and how to get there.
type DialConfig struct {
	// URL of the hub's tunnel: wss://host[:port]/path, or ws:// for a hub without
	// TLS. It must not hold a password.
	URL string
	// Header goes with the upgrade request, and to the hub only: this is where
	// the credential belongs.
	Header http.Header
	// TLS for wss; ServerName and NextProtos are filled in. nil: the defaults.
	TLS *tls.Config
	// Timeout for the whole of Dial. 0: 10 s.
	Timeout time.Duration
	// Proxy picks a proxy (http, https, socks5 or socks5h) for the request, whose
	// URL has scheme https for wss and http for ws. nil: http.ProxyFromEnvironment.
	Proxy func(*http.Request) (*url.URL, error)
	// NetDial opens TCP connections, to the hub or its proxy. The address is as in
	// the URL, so names are looked up again each time. nil: a net.Dialer.
	NetDial func(ctx context.Context, network, addr string) (net.Conn, error)

	Config
}

// Validate reports the first setting that makes no sense.
func (c DialConfig) Validate() error {
	if _, err := c.target(); err != nil {
		return err
	}
	if c.Timeout < 0 {
		return errors.New("tunnel config: Timeout is negative")
	}
	return c.Config.Validate()
}

// target parses URL and turns its scheme into the one of HTTP.
func (c DialConfig) target() (*url.URL, error) {
	u, err := url.Parse(c.URL)
	switch {
	case err != nil:
		return nil, errors.New("tunnel config: URL cannot be parsed") // it may hold a secret: not shown
	case u.User != nil:
		return nil, errors.New("tunnel config: URL must not hold a user or password")
	case u.Hostname() == "":
		return nil, errors.New("tunnel config: URL names no host")
	}
	switch u.Scheme {
	case "wss":
		u.Scheme = "https"
	case "ws":
		u.Scheme = "http"
	default:
		return nil, fmt.Errorf("tunnel config: URL has scheme %q, not wss or ws", u.Scheme)
	}
	return u, nil
}

// Dial opens a tunnel to the hub. ctx is for the opening only. An answer of the
// hub other than a tunnel is a *RefusedError.
func Dial(ctx context.Context, cfg DialConfig) (*Session, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	target, err := cfg.target()
	if err != nil {
		return nil, err
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = DefaultDialTimeout
	}
	if cfg.NetDial == nil {
		cfg.NetDial = new(net.Dialer).DialContext
	}
	if cfg.Proxy == nil {
		cfg.Proxy = http.ProxyFromEnvironment
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	c := cfg.Config.withDefaults(DefaultNodeStreams)

	ws, err := cfg.connect(ctx, target, c.WriteTimeout)
	if err != nil {
		// What broke off because time was up says so.
		if ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
			err = fmt.Errorf("%w: %w", ctx.Err(), err)
		}
		return nil, fmt.Errorf("dial the hub: %w", err)
	}
	s, err := newSession(ws, c, true)
	if err != nil {
		_ = ws.Close()
		return nil, err
	}
	return s, nil
}

// connect goes from the name to the WebSocket.
func (c DialConfig) connect(ctx context.Context, target *url.URL, stall time.Duration) (_ *wsConn, err error) {
	socket, err := c.reach(ctx, target)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = socket.Close()
		}
	}()
	// From here the context acts on the socket, whatever is being waited for.
	release := context.AfterFunc(ctx, func() { _ = socket.SetDeadline(time.Unix(1, 0)) })
	defer release()

	conn := socket
	if target.Scheme == "https" {
		t := tls.Client(socket, c.tlsConfig(target.Hostname()))
		if err := t.HandshakeContext(ctx); err != nil {
			return nil, fmt.Errorf("tls handshake: %w", err)
		}
		conn = t
	}
	l := newLink(conn, stall)
	l.tune()
	ws, err := handshake(ctx, target.String(), c.Header.Clone(), &upgrader{link: l})
	if err != nil {
		if refused, ok := errors.AsType[*RefusedError](err); ok {
			return nil, refused // without what the HTTP client says around it
		}
		return nil, err
	}
	if !release() {
		_ = ws.Close()
		return nil, ctx.Err()
	}
	return ws, nil
}

// tlsConfig is a copy for HTTP/1.1: a WebSocket cannot start on HTTP/2.
func (c DialConfig) tlsConfig(host string) *tls.Config {
	t := c.TLS.Clone()
	if t == nil {
		t = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if t.ServerName == "" {
		t.ServerName = host
	}
	t.NextProtos = []string{"http/1.1"}
	return t
}

// upgrader is the http.RoundTripper for one upgrade request on a connection that
// exists already.
type upgrader struct {
	link *link
	body *handed // of the 101 answer
}

// RoundTrip implements http.RoundTripper. Any answer but 101 is a *RefusedError.
func (u *upgrader) RoundTrip(req *http.Request) (*http.Response, error) {
	// Straight to the connection: the deadline of the context holds, not the link's.
	if err := req.Write(u.link.conn); err != nil {
		return nil, fmt.Errorf("send the upgrade request: %w", err)
	}
	r := bufio.NewReader(io.LimitReader(u.link, maxHandshake))
	for range maxInformational {
		resp, err := http.ReadResponse(r, req)
		if err != nil {
			return nil, fmt.Errorf("read the answer to the upgrade request: %w", err)
		}
		switch {
		case resp.StatusCode == http.StatusSwitchingProtocols:
			// The hub may have sent frames behind the answer.
			early, _ := r.Peek(r.Buffered())
			u.body = &handed{link: u.link, early: early}
			resp.Body = u.body
			return resp, nil
		case resp.StatusCode >= 200:
			defer resp.Body.Close()
			return nil, refusal(resp, time.Now())
		}
	}
	return nil, errors.New("too many informational answers to the upgrade request")
}
