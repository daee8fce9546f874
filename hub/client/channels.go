package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"opencode-mesh/protocol/api"
)

// Channels lists the OpenComms channels that a node shows; operators only.
func (c *Client) Channels(ctx context.Context, node string) (list api.ChannelList, err error) {
	err = c.repeat(ctx, http.MethodGet, channelsPath(node), nil, &list)
	return list, err
}

// ChannelMessages are those of a channel, newest first; before is the Next of the page
// before, "" for the first.
func (c *Client) ChannelMessages(ctx context.Context, node, id string, limit int, before string) (page api.ChannelMessages, err error) {
	q := url.Values{"limit": {strconv.Itoa(limit)}}
	if before != "" {
		q.Set("before", before)
	}
	err = c.repeat(ctx, http.MethodGet, channelsPath(node)+"/"+url.PathEscape(id)+"/messages?"+q.Encode(), nil, &page)
	return page, err
}

func channelsPath(node string) string { return "/v1/nodes/" + url.PathEscape(node) + "/channels" }
