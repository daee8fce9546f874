package opencode

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	// callTimeout bounds one call. A session's first call boots its directory,
	// which takes seconds.
	callTimeout = 20 * time.Second
	// dialTimeout bounds the making of a connection.
	dialTimeout = 5 * time.Second
	// maxAnswer is the largest answer that is read, in bytes; listings of messages
	// have a limit of their own.
	maxAnswer = 16 << 20
	// maxMessages is the largest page of messages that is read, in bytes.
	maxMessages = 64 << 20
	// maxErrorText is how much of a server's error message is kept, in bytes.
	maxErrorText = 1000
)

// endpoint is where a server listens and what it wants to be told. The password
// is in no error and in no URL.
type endpoint struct {
	base     *url.URL // without a trailing slash
	username string
	password string
}

// parseEndpoint checks a server's URL.
func parseEndpoint(raw, username, password string) (endpoint, error) {
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		// The parser's error quotes its input, which may hold a password.
		return endpoint{}, errors.New("the opencode URL cannot be read")
	case u.User != nil:
		return endpoint{}, errors.New("the opencode URL must not hold a name or password: give them apart")
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "", u.RawQuery != "", u.Fragment != "":
		return endpoint{}, errors.New("the opencode URL is not of the form http://host:port")
	}
	u.Path = strings.TrimRight(u.Path, "/")
	if username == "" {
		username = defaultUsername
	}
	return endpoint{base: u, username: username, password: password}, nil
}

// transport talks to one endpoint.
type transport struct {
	at   endpoint
	pool *http.Client
	// fresh opens a connection for each call: a connection that was accepted while
	// the server started up is never answered.
	fresh *http.Client
}

func newTransport(at endpoint) *transport {
	dialer := &net.Dialer{Timeout: dialTimeout}
	open := func(fresh bool) *http.Client {
		return &http.Client{
			Transport: &http.Transport{
				Proxy:               http.ProxyFromEnvironment, // passes loopback by
				DialContext:         dialer.DialContext,
				TLSHandshakeTimeout: dialTimeout,
				DisableKeepAlives:   fresh,
				MaxIdleConnsPerHost: 8,
				IdleConnTimeout:     30 * time.Second,
			},
			// The credentials are for this server only.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	}
	return &transport{at: at, pool: open(false), fresh: open(true)}
}

// close drops idle connections.
func (t *transport) close() {
	t.pool.CloseIdleConnections()
}

// request builds a request. dir selects a directory of the server; "" its own.
func (t *transport) request(ctx context.Context, method, path, dir string, query url.Values, in any) (*http.Request, error) {
	u := t.at.base.JoinPath(path)
	if query == nil {
		query = url.Values{}
	}
	if dir != "" {
		query.Set("directory", dir)
	}
	u.RawQuery = query.Encode()
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return nil, fmt.Errorf("encode request: %w", err)
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
		return nil, fmt.Errorf("build request: %w", err)
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if t.at.password != "" {
		req.SetBasicAuth(t.at.username, t.at.password)
	}
	return req, nil
}

// call is one bounded exchange.
type call struct {
	method string
	path   string
	dir    string
	query  url.Values
	in     any // sent as JSON; nil sends no body
	out    any // read from JSON; nil ignores the answer
	limit  int64
}

// do makes a call on a pooled connection.
func (t *transport) do(ctx context.Context, c call) (http.Header, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return t.exchange(ctx, t.pool, c)
}

func (t *transport) exchange(ctx context.Context, with *http.Client, c call) (http.Header, error) {
	req, err := t.request(ctx, c.method, c.path, c.dir, c.query, c.in)
	if err != nil {
		return nil, err
	}
	res, err := with.Do(req)
	if err != nil {
		return nil, netError(err)
	}
	defer func() { _ = res.Body.Close() }()
	if c.limit == 0 {
		c.limit = maxAnswer
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, c.limit+1))
	if err != nil {
		return nil, fmt.Errorf("read answer: %w", err)
	}
	if int64(len(body)) > c.limit {
		return nil, errTooLarge
	}
	if err := answered(res, body, c.out != nil); err != nil {
		return nil, err
	}
	if c.out != nil {
		if err := json.Unmarshal(body, c.out); err != nil {
			return nil, fmt.Errorf("%w: %w", errNotOpencode, err)
		}
	}
	return res.Header, nil
}

// answered turns the status and the type of an answer into an error.
func answered(res *http.Response, body []byte, wanted bool) error {
	isJSON := hasType(res, "application/json")
	switch {
	case res.StatusCode == http.StatusUnauthorized:
		return errUnauthorized
	case res.StatusCode == http.StatusNotFound && isJSON:
		return errNotFound
	case res.StatusCode == http.StatusNotFound:
		// A proxy's page says nothing about a session.
		return fmt.Errorf("%w: %w", errNotOpencode, &statusError{status: res.StatusCode})
	case res.StatusCode < 200 || res.StatusCode > 299:
		return &statusError{status: res.StatusCode, message: errorText(body)}
	case wanted && !isJSON:
		return errNotOpencode
	}
	return nil
}

func hasType(res *http.Response, want string) bool {
	got, _, err := mime.ParseMediaType(res.Header.Get("Content-Type"))
	return err == nil && got == want
}

// errorText finds the message in an error's body, "" if there is none.
func errorText(body []byte) string {
	var e struct {
		Message string `json:"message"`
		Data    struct {
			Message string `json:"message"`
		} `json:"data"`
	}
	if json.Unmarshal(body, &e) != nil {
		return ""
	}
	if e.Data.Message != "" {
		return firstLine(e.Data.Message)
	}
	return firstLine(e.Message)
}

// firstLine is the first line of a message, cut: stack traces may follow it.
func firstLine(s string) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	return cut(strings.TrimSpace(s), maxErrorText)
}

// netError drops the URL from a client's error; it says nothing that the reader
// does not know and may name a directory.
func netError(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return fmt.Errorf("reach the opencode server: %w", u.Err)
	}
	return fmt.Errorf("reach the opencode server: %w", err)
}

// cut returns at most n bytes of s, ending on a character boundary.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:n]
}
