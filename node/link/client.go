package link

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"opencode-mesh/auth"
	"opencode-mesh/protocol/api"
	"opencode-mesh/tunnel"
)

// Limits of the streams that a node opens. The hub takes 64 per tunnel.
const (
	maxStreams  = 48
	idleStreams = 32
	idleTimeout = 90 * time.Second
)

// Client calls the interface that the hub serves inside one tunnel. Safe for
// concurrent use.
type Client struct {
	http *http.Client
}

func newClient(s *tunnel.Session) *Client {
	return &Client{http: &http.Client{Transport: &http.Transport{
		DialContext:         s.DialContext,
		DisableCompression:  true,
		MaxConnsPerHost:     maxStreams,
		MaxIdleConnsPerHost: idleStreams,
		IdleConnTimeout:     idleTimeout,
	}}}
}

// Call makes one call; in and out travel as JSON, out may be nil. A refusal of the
// hub is an *api.Error with RetryAfter if the hub said when to come back; with any
// other error the hub may or may not have had the call.
func (c *Client) Call(ctx context.Context, method, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("encode %s %s: %w", method, path, err)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://hub"+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, api.MaxTunnelBody))
	if err != nil {
		return fmt.Errorf("%s %s: the answer broke off: %w", method, path, err)
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		e := api.DecodeError(resp.StatusCode, answer)
		e.RetryAfter = auth.ParseRetryAfter(resp.Header.Get("Retry-After"), time.Now())
		return e
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return fmt.Errorf("%s %s: the answer is not what was expected: %w", method, path, err)
	}
	return nil
}

// close drops the idle streams.
func (c *Client) close() { c.http.CloseIdleConnections() }
