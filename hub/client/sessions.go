package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"opencode-mesh/protocol/api"
)

// Caller stands for the client itself where a controller is named.
const Caller = "-"

// Sessions lists the bound sessions of a controller and a target; "" stands for
// every one that the client may see. Each has so many of its newest fills.
func (c *Client) Sessions(ctx context.Context, controller, target string, fills int) ([]api.Session, error) {
	q := pair(controller, target)
	if fills > 0 {
		q.Set("fills", strconv.Itoa(fills))
	}
	var out api.SessionList
	err := c.repeat(ctx, http.MethodGet, "/v1/bindings?"+q.Encode(), nil, &out)
	return out.Sessions, err
}

// Session returns one with its former sessions and its fills; workspace "" is the
// target's first.
func (c *Client) Session(ctx context.Context, controller, target, workspace string) (s api.Session, err error) {
	path := bindingPath(controller, target)
	if workspace != "" {
		path += "?workspace=" + url.QueryEscape(workspace)
	}
	err = c.repeat(ctx, http.MethodGet, path, nil, &s)
	return s, err
}

// Digests lists all generations of a session's digest, oldest first.
func (c *Client) Digests(ctx context.Context, controller, target, workspace string) ([]api.Digest, error) {
	q := pair(controller, target)
	if workspace != "" {
		q.Set("workspace", workspace)
	}
	var out api.DigestList
	err := c.repeat(ctx, http.MethodGet, "/v1/digests?"+q.Encode(), nil, &out)
	return out.Digests, err
}

// Operate compacts, clears or resets a bound session: op is api.OpCompact and so on.
// The answer is the operation, a task that can be waited for. The id in o is the
// client's, so the call is repeated when the connection broke.
func (c *Client) Operate(ctx context.Context, controller, target, op string, o api.Operate) (t api.Task, err error) {
	err = c.repeat(ctx, http.MethodPost, bindingPath(controller, target)+"/"+op, o, &t)
	return t, err
}

func bindingPath(controller, target string) string {
	return "/v1/bindings/" + url.PathEscape(controller) + "/" + url.PathEscape(target)
}

// pair names a controller and a target, those that are given.
func pair(controller, target string) url.Values {
	q := url.Values{}
	for key, v := range map[string]string{"controller": controller, "target": target} {
		if v != "" {
			q.Set(key, v)
		}
	}
	return q
}
