package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"opencode-mesh/hub/room"
	"opencode-mesh/protocol/api"
	"opencode-mesh/tunnel"
)

// Transport limits of one node's connection pool (performance.md, decision 6).
const (
	maxIdleStreams  = 256
	idleStreamLimit = 90 * time.Second
)

// maxAnswers is how many bytes of a node's answers are read at a time, as far as its
// tunnel goes; further ones wait.
const maxAnswers = 4 * api.MaxTunnelBody

// maxRefusal is how much of a refusal is read, in bytes, where a file was expected.
const maxRefusal = 64 << 10

// Client calls a node's interface through its tunnel. Safe for concurrent use.
type Client struct {
	hc   *http.Client
	room *room.Room // of the answers that are read
}

// NewClient makes a client of the node at the other end of s.
func NewClient(s *tunnel.Session) *Client {
	return &Client{room: room.New(maxAnswers, maxAnswers), hc: &http.Client{Transport: &http.Transport{
		DialContext:         s.DialContext,
		DisableCompression:  true,
		MaxIdleConnsPerHost: maxIdleStreams,
		IdleConnTimeout:     idleStreamLimit,
	}}}
}

// Close drops the idle streams.
func (c *Client) Close() { c.hc.CloseIdleConnections() }

// Offer implements relay.Node.
func (c *Client) Offer(ctx context.Context, o api.Offer) (rc api.Receipt, err error) {
	err = c.call(ctx, http.MethodPut, "/v1/tasks/"+url.PathEscape(o.Task), o, &rc)
	return rc, err
}

// Withdraw implements relay.Node.
func (c *Client) Withdraw(ctx context.Context, w api.Withdraw) (rc api.Receipt, err error) {
	err = c.call(ctx, http.MethodDelete, "/v1/tasks/"+url.PathEscape(w.Task), w, &rc)
	return rc, err
}

// Reconcile implements relay.Node.
func (c *Client) Reconcile(ctx context.Context, q api.Reconcile) (a api.Reconciled, err error) {
	err = c.call(ctx, http.MethodPost, "/v1/reconcile", q, &a)
	return a, err
}

// Answer implements relay.Node.
func (c *Client) Answer(ctx context.Context, a api.Reply) (rc api.Receipt, err error) {
	err = c.call(ctx, http.MethodPost, "/v1/tasks/"+url.PathEscape(a.Task)+"/answer", a, &rc)
	return rc, err
}

// Mail implements mail.Node.
func (c *Client) Mail(ctx context.Context, m api.Mail) error {
	var rc api.MailReceipt
	return c.call(ctx, http.MethodPut, "/v1/mail/"+url.PathEscape(m.ID), m, &rc)
}

// MailReceipts implements mail.Node.
func (c *Client) MailReceipts(ctx context.Context, rs api.MailReceipts) (done api.MailSettled, err error) {
	err = c.call(ctx, http.MethodPost, "/v1/mail/receipts", rs, &done)
	return done, err
}

// Channels lists the OpenComms channels that the node shows.
func (c *Client) Channels(ctx context.Context) (list api.ChannelList, err error) {
	err = c.call(ctx, http.MethodGet, "/v1/opencomms/channels", nil, &list)
	return list, err
}

// ChannelMessages are those of one of them; query is limit and before.
func (c *Client) ChannelMessages(ctx context.Context, project, name string, query url.Values) (page api.ChannelMessages, err error) {
	path := "/v1/opencomms/channels/" + url.PathEscape(project) + "/" + url.PathEscape(name) + "/messages?" + query.Encode()
	err = c.call(ctx, http.MethodGet, path, nil, &page)
	return page, err
}

// Peers is the node's board of peers.
func (c *Client) Peers(ctx context.Context) (board api.PeerBoard, err error) {
	err = c.call(ctx, http.MethodGet, "/v1/peers/board", nil, &board)
	return board, err
}

// AskContext has the node ask its context providers.
func (c *Client) AskContext(ctx context.Context, ask api.ContextAsk) (answer api.ContextAnswer, err error) {
	err = c.call(ctx, http.MethodPost, "/v1/ocp/query", ask, &answer)
	return answer, err
}

// ContextProviders lists the node's context providers.
func (c *Client) ContextProviders(ctx context.Context) (list api.ContextProviders, err error) {
	err = c.call(ctx, http.MethodGet, "/v1/ocp/providers", nil, &list)
	return list, err
}

// ContextConsent gives the node's consent to a provider; nil takes it back.
func (c *Client) ContextConsent(ctx context.Context, provider string, consent *api.ContextConsent) error {
	path := "/v1/ocp/consents/" + url.PathEscape(provider)
	method := http.MethodPut
	if consent == nil {
		method = http.MethodDelete
	}
	return c.call(ctx, method, path, consent, &struct{}{})
}

// passed are the headers of a request for a file that its node gets.
var passed = []string{"Range", "If-Range"}

// Artifact opens a file of a workspace, or the part of it that header asks for; the
// caller closes the answer's body, which comes as it is read. The status is 200, 206
// or 416; what else the node answers is an *api.Error.
func (c *Client) Artifact(ctx context.Context, workspace, path string, header http.Header) (*http.Response, error) {
	q := url.Values{"workspace": {workspace}, "path": {path}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://node/v1/artifacts?"+q.Encode(), http.NoBody)
	if err != nil {
		return nil, err
	}
	for _, key := range passed {
		if v := header.Get(key); v != "" {
			req.Header.Set(key, v)
		}
	}
	resp, err := c.hc.Do(req)
	if err != nil {
		return nil, err
	}
	switch resp.StatusCode {
	case http.StatusOK, http.StatusPartialContent, http.StatusRequestedRangeNotSatisfiable:
		return resp, nil
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxRefusal))
	if err != nil {
		return nil, fmt.Errorf("read the node's answer: %w", err)
	}
	return nil, api.DecodeError(resp.StatusCode, answer)
}

// Alive reports whether anybody answers there at all.
func (c *Client) Alive(ctx context.Context) bool {
	var answer json.RawMessage
	err := c.call(ctx, http.MethodGet, "/v1/status", nil, &answer)
	var refusal *api.Error
	return err == nil || errors.As(err, &refusal)
}

func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("encode the call: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://node"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.hc.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	size := resp.ContentLength
	if size < 0 || size > api.MaxTunnelBody {
		size = api.MaxTunnelBody
	}
	release, err := c.room.Take(ctx, "", size)
	if err != nil {
		return fmt.Errorf("wait for the node's other answers: %w", err)
	}
	defer release()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, api.MaxTunnelBody+1))
	switch {
	case err != nil:
		return fmt.Errorf("read the node's answer: %w", err)
	case len(answer) > api.MaxTunnelBody:
		return fmt.Errorf("the node's answer is larger than %d bytes", api.MaxTunnelBody)
	case resp.StatusCode >= 300:
		return api.DecodeError(resp.StatusCode, answer)
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return fmt.Errorf("the node's answer is not what was expected: %w", err)
	}
	return nil
}
