// Package client calls a hub's public interface for a controller: dispatch, wait,
// answer, watch.
//
// What creates something is sent with ids that the client minted before, and sent
// again when the connection broke, so a dispatch is made once whatever the network
// does (semantics 4). Errors are *api.Error when the hub answered, and wrap
// ErrUnreachable when it did not. No error holds the credential.
package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"opencode-mesh/auth"
	"opencode-mesh/protocol/api"
)

const (
	// tries is how often a call is made that may be repeated.
	tries = 6
	// maxRetryAfter is the longest wait that a hub may ask for between two of them;
	// somebody sits before the command.
	maxRetryAfter = 10 * time.Second
	// maxAnswer bounds an answer, in bytes: a page of tasks, or one with its texts.
	maxAnswer = 64 << 20
)

// pace is how long a client waits for what.
type pace struct {
	poll                   time.Duration // one long poll
	backoffMin, backoffMax time.Duration // between tries
	silence                time.Duration // of an event stream that is taken for dead
}

// usualPace polls below the limits of usual proxies, and takes an event stream for
// dead after two heartbeats and some.
var usualPace = pace{
	poll:       25 * time.Second,
	backoffMin: 200 * time.Millisecond, backoffMax: 5 * time.Second,
	silence: 2*api.EventHeartbeat + 5*time.Second,
}

// ErrUnreachable means that the hub did not answer.
var ErrUnreachable = errors.New("the hub does not answer")

// Client is a controller's connection to its hub. Safe for concurrent use.
type Client struct {
	hc   *http.Client
	base string
	name string
	pace pace
	// sign adds credential and token, signService the credential where Authorization is
	// the service's own; functions, because fmt prints fields.
	sign, signService func(http.Header)
	// trusted says that the hub's name is that of its certificate (auth.SchemeTrusted).
	trusted bool
}

// New makes a client of the hub that the profile was issued by; token is the
// lineage token of the task it works for, "" for none. Close frees its
// connections.
func New(p auth.Profile, token string) (*Client, error) {
	hc, err := p.Link.HTTPClient(p.CAFile)
	if err != nil {
		return nil, err
	}
	return &Client{
		hc: hc, base: p.Link.BaseURL(), name: p.Name, pace: usualPace, trusted: p.Link.Scheme == auth.SchemeTrusted,
		sign: func(h http.Header) {
			h.Set("Authorization", "Bearer "+p.Credential.Reveal())
			if token != "" {
				h.Set(api.TaskTokenHeader, token)
			}
		},
		signService: func(h http.Header) { h.Set(api.HeaderAuthorization, "Bearer "+p.Credential.Reveal()) },
	}, nil
}

// Name is who the client is at the hub.
func (c *Client) Name() string { return c.name }

// Close drops idle connections.
func (c *Client) Close() { c.hc.CloseIdleConnections() }

// Dispatch creates the tasks of d, all or none; the ids in d are the client's.
func (c *Client) Dispatch(ctx context.Context, d api.Dispatch) ([]api.Task, error) {
	var out api.Dispatched
	err := c.repeat(ctx, http.MethodPost, "/v1/tasks", d, &out)
	return out.Tasks, err
}

// Task returns one task with its texts and its life.
func (c *Client) Task(ctx context.Context, id string) (t api.Task, err error) {
	err = c.repeat(ctx, http.MethodGet, taskPath(id), nil, &t)
	return t, err
}

// Wait returns the task once it is settled or asks something; ctx ends the wait,
// not the task. It goes on through restarts of the hub: only an answer of the hub
// ends it, and lost is told each time that there is none.
func (c *Client) Wait(ctx context.Context, id string, lost func(error)) (t api.Task, err error) {
	path := taskPath(id) + "?wait=" + c.pace.poll.String()
	for try := 0; ; try++ {
		err = c.once(ctx, http.MethodGet, path, nil, &t)
		switch {
		case ctx.Err() != nil:
			return t, context.Cause(ctx)
		case err == nil && (t.State.Settled() || t.State == api.StateQuestion):
			return t, nil
		case err == nil:
			try = -1
			continue
		case !Passing(err):
			return t, err
		}
		if lost != nil {
			lost(err)
		}
		if !c.pause(ctx, try, err) {
			return t, context.Cause(ctx)
		}
	}
}

// Tasks lists tasks newest first; query as in GET /v1/tasks.
func (c *Client) Tasks(ctx context.Context, query url.Values) (page api.TaskPage, err error) {
	err = c.repeat(ctx, http.MethodGet, "/v1/tasks?"+query.Encode(), nil, &page)
	return page, err
}

// Cancel asks for the end of a task.
func (c *Client) Cancel(ctx context.Context, id string) (t api.Task, err error) {
	err = c.repeat(ctx, http.MethodPost, taskPath(id)+"/cancel", nil, &t)
	return t, err
}

// Retry starts a new attempt of a settled task. It is sent once: a repeat could be
// another attempt.
func (c *Client) Retry(ctx context.Context, id string) (t api.Task, err error) {
	err = c.once(ctx, http.MethodPost, taskPath(id)+"/retry", nil, &t)
	return t, err
}

// Abandon settles a task that is given up; operators only.
func (c *Client) Abandon(ctx context.Context, id string) (t api.Task, err error) {
	err = c.once(ctx, http.MethodPost, taskPath(id)+"/abandon", nil, &t)
	return t, err
}

// Answer answers the question that a task waits for.
func (c *Client) Answer(ctx context.Context, id string, a api.Answer) (t api.Task, err error) {
	err = c.once(ctx, http.MethodPost, taskPath(id)+"/answer", a, &t)
	return t, err
}

// Nodes lists the nodes.
func (c *Client) Nodes(ctx context.Context) ([]api.Node, error) {
	var out api.NodeList
	err := c.repeat(ctx, http.MethodGet, "/v1/nodes", nil, &out)
	return out.Nodes, err
}

// Envelope hands a ready-made envelope over: d.Text, to the one target of d. The
// envelope says the id and the mode.
func (c *Client) Envelope(ctx context.Context, d api.Dispatch) (t api.Task, err error) {
	if len(d.Targets) != 1 {
		return t, fmt.Errorf("an envelope has one target, not %d", len(d.Targets))
	}
	q := url.Values{"target": {d.Targets[0].Name}}
	for key, v := range map[string]int64{
		"ttl_ms": d.TTLMS, "deadline_ms": d.DeadlineMS, "question_timeout_ms": d.QuestionTimeoutMS, "auto_compact": int64(d.AutoCompact),
	} {
		if v != 0 {
			q.Set(key, strconv.FormatInt(v, 10))
		}
	}
	for key, v := range map[string]string{"workspace": d.Workspace, "auto_answer": d.AutoAnswer} {
		if v != "" {
			q.Set(key, v)
		}
	}
	if d.New {
		q.Set("new", "true")
	}
	err = c.repeat(ctx, http.MethodPost, "/v1/envelopes?"+q.Encode(), raw(d.Text), &t)
	return t, err
}

// Credentials lists issued credentials; operators only.
func (c *Client) Credentials(ctx context.Context) ([]api.Credential, error) {
	var out api.CredentialList
	err := c.repeat(ctx, http.MethodGet, "/v1/credentials", nil, &out)
	return out.Credentials, err
}

// Revoke ends a name with its credentials; operators only.
func (c *Client) Revoke(ctx context.Context, name string) error {
	return c.once(ctx, http.MethodPost, "/v1/revoke/"+url.PathEscape(name), nil, nil)
}

// Audit lists the audit log; query as in GET /v1/audit, operators only.
func (c *Client) Audit(ctx context.Context, query url.Values) (page api.AuditPage, err error) {
	err = c.repeat(ctx, http.MethodGet, "/v1/audit?"+query.Encode(), nil, &page)
	return page, err
}

func taskPath(id string) string { return "/v1/tasks/" + url.PathEscape(id) }

// raw is a body that is not JSON.
type raw string

// repeat makes a call that may be made again without doing anything twice.
func (c *Client) repeat(ctx context.Context, method, path string, in, out any) error {
	for try := 0; ; try++ {
		err := c.once(ctx, method, path, in, out)
		if err == nil || !Passing(err) || ctx.Err() != nil || try == tries-1 || !c.pause(ctx, try, err) {
			return err
		}
	}
}

// Passing reports whether a call that failed with err may work soon: the hub did
// not answer, or said that it cannot take it now.
func Passing(err error) bool {
	var cert *tls.CertificateVerificationError
	if errors.Is(err, auth.ErrPinMismatch) || errors.Is(err, auth.ErrForeignRedirect) || errors.As(err, &cert) {
		return false
	}
	var e *api.Error
	if !errors.As(err, &e) {
		return errors.Is(err, ErrUnreachable)
	}
	switch e.Code {
	case api.CodeUnavailable, api.CodeShuttingDown, api.CodeReadOnly, api.CodeDiskFull:
		return true
	}
	return false
}

// pause waits before the next try, as long as the hub asked for if that is
// bearable. It returns false when ctx ended.
func (c *Client) pause(ctx context.Context, try int, err error) bool {
	d := min(c.pace.backoffMin<<min(try, 10), c.pace.backoffMax)
	d = d/2 + rand.N(d/2)
	var e *api.Error
	if errors.As(err, &e) {
		d = max(d, min(e.RetryAfter, maxRetryAfter))
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// once makes one call.
func (c *Client) once(ctx context.Context, method, path string, in, out any) error {
	resp, err := c.send(ctx, method, path, in, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	case len(data) > maxAnswer:
		return fmt.Errorf("the hub's answer is larger than %d bytes", maxAnswer)
	case out == nil:
		return nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("what answers at %s is not a hub of the mesh: %w", c.base, err)
	}
	return nil
}

// send makes a request and returns an answer that is 2xx.
func (c *Client) send(ctx context.Context, method, path string, in any, header http.Header) (*http.Response, error) {
	var body io.Reader
	kind := ""
	switch v := in.(type) {
	case nil:
	case raw:
		body, kind = bytes.NewReader([]byte(v)), "text/plain; charset=utf-8"
	default:
		b, err := json.Marshal(v)
		if err != nil {
			return nil, err
		}
		body, kind = bytes.NewReader(b), "application/json"
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return nil, err
	}
	for k, v := range header {
		req.Header[k] = v
	}
	if kind != "" {
		req.Header.Set("Content-Type", kind)
	}
	c.sign(req.Header)
	resp, err := c.hc.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	if resp.StatusCode < 300 {
		return resp, nil
	}
	return nil, refusal(resp)
}
