package relay

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"opencode-mesh/protocol/api"
	words "opencode-mesh/protocol/peers"
)

// view is a message as people see it.
func (c *carried) view() api.PeerMessage {
	return api.PeerMessage{
		ID: c.ID, Way: api.PeerCarried, From: c.From, FromName: word(c.FromName), To: c.Proxy, ToName: c.ToName, Node: c.Node,
		Text: c.Text, Truncated: c.Cut, Receipt: words.Queued, Final: c.Status, Error: c.Why,
		CreatedAt: time.UnixMilli(c.AtMS).UTC(), UpdatedAt: time.UnixMilli(max(c.AtMS, c.EndMS)).UTC(),
	}
}

func (b *brought) view() api.PeerMessage {
	return api.PeerMessage{
		ID: b.Text.ID, Way: api.PeerBrought, From: b.Proxy, FromName: proxyName(b.Node, b.Text.FromName, b.Text.From), To: b.Text.To, Node: b.Node,
		Text: words.Cut(b.Text.Text, preview), Truncated: b.Cut || len(b.Text.Text) > preview, Receipt: b.Receipt, Final: b.Status, Error: b.Why,
		CreatedAt: time.UnixMilli(b.CameMS).UTC(), UpdatedAt: time.UnixMilli(max(b.CameMS, b.ReceiptMS, b.EndMS)).UTC(),
	}
}

func newestFirst(list []api.PeerMessage) {
	slices.SortFunc(list, func(a, b api.PeerMessage) int {
		return cmp.Or(b.CreatedAt.Compare(a.CreatedAt), strings.Compare(a.ID, b.ID))
	})
}
