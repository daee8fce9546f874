package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"opencode-mesh/protocol/api"
)

// QueryContext asks the context providers of nodes. It is sent again when the connection
// broke, and may then stand in the hub's log more than once.
func (c *Client) QueryContext(ctx context.Context, q api.ContextQuery) (r api.ContextResult, err error) {
	err = c.repeat(ctx, http.MethodPost, "/v1/context/query", q, &r)
	return r, err
}

// ContextProviders lists the nodes and providers that can be asked.
func (c *Client) ContextProviders(ctx context.Context) ([]api.ContextProvider, error) {
	var out api.ContextProviders
	err := c.repeat(ctx, http.MethodGet, "/v1/context/providers", nil, &out)
	return out.Providers, err
}

// Consent records that goals may go to a node, or that a provider of a node may be asked:
// id is NODE or NODE/PROVIDER.
func (c *Client) Consent(ctx context.Context, id string, consent api.ContextConsent) error {
	return c.repeat(ctx, http.MethodPut, consentPath(id), consent, nil)
}

// RevokeConsent takes a consent back. It is sent once: a repeat would not find it.
func (c *Client) RevokeConsent(ctx context.Context, id string) error {
	return c.once(ctx, http.MethodDelete, consentPath(id), nil, nil)
}

// ContextQueries lists at most limit queries, newest first.
func (c *Client) ContextQueries(ctx context.Context, limit int) (r api.ContextRecords, err error) {
	err = c.repeat(ctx, http.MethodGet, "/v1/context/queries?limit="+strconv.Itoa(limit), nil, &r)
	return r, err
}

func consentPath(id string) string {
	node, provider, further := strings.Cut(id, "/")
	path := "/v1/context/consents/" + url.PathEscape(node)
	if further {
		path += "/" + url.PathEscape(provider)
	}
	return path
}
