package tunnel

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"golang.org/x/net/proxy"
)

// reach opens the connection to target's host, by way of a proxy if one is
// configured for it.
func (c DialConfig) reach(ctx context.Context, target *url.URL) (net.Conn, error) {
	addr := hostPort(target)
	via, err := c.Proxy(&http.Request{Method: http.MethodGet, URL: target, Host: target.Host, Header: http.Header{}})
	if err != nil {
		return nil, fmt.Errorf("choose a proxy: %w", err)
	}
	if via == nil {
		return c.NetDial(ctx, "tcp", addr)
	}
	var conn net.Conn
	switch via.Scheme {
	case "http", "https":
		conn, err = c.throughHTTP(ctx, via, addr)
	case "socks5", "socks5h":
		conn, err = c.throughSOCKS(ctx, via, addr)
	default:
		err = fmt.Errorf("scheme %q is not http, https or socks5", via.Scheme)
	}
	if err != nil {
		return nil, fmt.Errorf("proxy %s: %w", via.Host, err) // never via itself: it may hold a password
	}
	return conn, nil
}

// hostPort is the address of u with its port filled in.
func hostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443", "socks5": "1080", "socks5h": "1080"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// throughHTTP asks an HTTP proxy for a connection, for ws as well: many would
// not pass an Upgrade on.
func (c DialConfig) throughHTTP(ctx context.Context, via *url.URL, addr string) (_ net.Conn, err error) {
	conn, err := c.NetDial(ctx, "tcp", hostPort(via))
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = conn.Close()
		}
	}()
	socket := conn
	release := context.AfterFunc(ctx, func() { _ = socket.SetDeadline(time.Unix(1, 0)) })
	defer release()
	if via.Scheme == "https" {
		t := tls.Client(conn, &tls.Config{MinVersion: tls.VersionTLS12, ServerName: via.Hostname(), NextProtos: []string{"http/1.1"}})
		if err := t.HandshakeContext(ctx); err != nil {
			return nil, fmt.Errorf("tls handshake: %w", err)
		}
		conn = t
	}
	req := &http.Request{
		Method: http.MethodConnect,
		URL:    &url.URL{Opaque: addr},
		Host:   addr,
		Header: http.Header{},
	}
	if u := via.User; u != nil {
		password, _ := u.Password()
		req.Header.Set("Proxy-Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(u.Username()+":"+password)))
	}
	if err := req.Write(conn); err != nil {
		return nil, err
	}
	r := bufio.NewReader(io.LimitReader(conn, maxHandshake))
	resp, err := http.ReadResponse(r, req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("it answered %d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
	}
	if r.Buffered() > 0 {
		return nil, errors.New("it sent data before it was asked to") // a hub waits for its client
	}
	if !release() {
		return nil, ctx.Err()
	}
	return conn, nil
}

func (c DialConfig) throughSOCKS(ctx context.Context, via *url.URL, addr string) (net.Conn, error) {
	var auth *proxy.Auth
	if u := via.User; u != nil {
		password, _ := u.Password()
		auth = &proxy.Auth{User: u.Username(), Password: password}
	}
	// The proxy's dialer wraps what it returns; the connection below is as good
	// once the proxy has agreed, and has the socket options.
	var socket net.Conn
	forward := netDialer(func(ctx context.Context, network, addr string) (_ net.Conn, err error) {
		socket, err = c.NetDial(ctx, network, addr)
		return socket, err
	})
	d, err := proxy.SOCKS5("tcp", hostPort(via), auth, forward)
	if err != nil {
		return nil, err
	}
	cd, ok := d.(proxy.ContextDialer)
	if !ok {
		return nil, errors.New("its dialer takes no context")
	}
	if _, err := cd.DialContext(ctx, "tcp", addr); err != nil {
		return nil, err
	}
	return socket, nil
}

// netDialer is the forward dialer of a proxy.
type netDialer func(ctx context.Context, network, addr string) (net.Conn, error)

// Dial implements proxy.Dialer.
func (f netDialer) Dial(network, addr string) (net.Conn, error) {
	return f(context.Background(), network, addr)
}

// DialContext implements proxy.ContextDialer.
func (f netDialer) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	return f(ctx, network, addr)
}
