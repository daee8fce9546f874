package across

import (
	"time"

	"opencode-mesh/protocol/api"
)

// Bounds of what crosses.
const (
	// MaxLinks is how many links one node has.
	MaxLinks = 64
	// MaxOffers is how many rosters of channels that are not linked here are kept.
	MaxOffers = 64
	// MaxNodeOffers is how many of them one node has, so that it hides no others.
	MaxNodeOffers = 8
	// MaxLinkDepth is how many messages of a link are under way without a final state;
	// then further ones wait in the file. It also bounds what waits to be put into a
	// file here; then the other side's mail waits at the hub.
	MaxLinkDepth = 1_000
	// LinkRate is how many messages a link puts into a channel in a minute; copies of
	// one broadcast are one. What is more waits.
	LinkRate = 60
	// DefaultRetry is the time until a pass that failed, or found something that has to
	// wait, is made again; a change of the file comes before it.
	DefaultRetry = 3 * time.Second
	// MaxEnded is how many messages of a link are shown after they ended.
	MaxEnded = 200
)

const (
	// window is for how long ids and chains are remembered.
	window = api.MailWindow
	// pruneStep is how many old records one new one removes at most: more than come.
	pruneStep = 16

	// maxRemoved is how many roles of the other side a link keeps out because somebody
	// removed them; then nobody new comes in until the channel is linked again.
	maxRemoved = 64
	// linkShare is for how many links as large as may be a channel has places: the
	// members of one take at most that part of them.
	linkShare = 2
	// rosterRetry is the time until a roster that came back is sent again.
	rosterRetry = time.Minute
	// linkWindow is the window of LinkRate.
	linkWindow = time.Minute
)
