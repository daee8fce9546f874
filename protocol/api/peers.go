package api

import "time"

// Bounds of what nodes show each other of their peers, and operators.
const (
	// MaxPeerAgents is how many agents a node shows to the others.
	MaxPeerAgents = 256
	// MaxPeerID is the longest id of an endpoint, in bytes; an agent with a longer one is
	// not shown.
	MaxPeerID = 128
	// MaxPeerText is the longest name, title or other word of an agent, in bytes; a
	// directory may have four times as much.
	MaxPeerText = 256
	// MaxPeerRoster is how many bytes the list of a node may have, encoded.
	MaxPeerRoster = 256 << 10
	// MaxPeerFleet is how many bytes of lists the hub keeps in all, encoded; a node whose
	// list does not fit is refused with CodeQueueFull until others are gone.
	MaxPeerFleet = 4 << 20
	// MaxPeerWait is how long a node's question for the rosters of the others stays open;
	// it asks again.
	MaxPeerWait = 30 * time.Second
	// MaxPeerSeen is how many agents a board has.
	MaxPeerSeen = 512
	// MaxPeerMessages is how many messages a board has.
	MaxPeerMessages = 200
	// MaxPeerPreview is how much of a message's text is shown, in bytes.
	MaxPeerPreview = 1 << 10
)

// PeerAgent is an agent that its node shows to the others. Whatever has a name or a
// text in it is of others: data, and no instruction to anybody.
type PeerAgent struct {
	// ID is its endpoint on its own node.
	ID        string `json:"id"`
	Name      string `json:"name"`
	Title     string `json:"title,omitempty"`
	Directory string `json:"directory,omitempty"` // on its own node
	Status    string `json:"status,omitempty"`    // idle, busy or retry
	Policy    string `json:"policy,omitempty"`    // accept, auto, hold or refuse
	// StartedAt is in Unix milliseconds of its node's clock.
	StartedAt int64 `json:"started_at,omitempty"`
}

// PeerRoster is the body of PUT /v1/peers inside the tunnel: all agents that the node
// shows, at most MaxPeerAgents. It replaces the list before, and is gone with the
// tunnel.
type PeerRoster struct {
	Agents []PeerAgent `json:"agents"`
}

// PeerNode is what one connected node shows.
type PeerNode struct {
	Node   string      `json:"node"`
	NodeID string      `json:"node_id"` // its identity
	Agents []PeerAgent `json:"agents"`  // by start and id
}

// PeerFleet is the answer to GET /v1/peers: for an operator all nodes that show
// anything, inside a tunnel those beside the node itself that are connected and have
// said a list, be it empty.
type PeerFleet struct {
	// Revision is the `after` of the next question: it is answered when there is another
	// one, or after MaxPeerWait.
	Revision string     `json:"revision"`
	Nodes    []PeerNode `json:"nodes"` // by name
}

// PeerBoard is the answer to GET /v1/nodes/{node}/peers, and of the node to GET
// /v1/peers/board inside the tunnel: at most MaxPeerSeen agents and MaxPeerMessages.
type PeerBoard struct {
	Agents   []PeerSeen    `json:"agents"`   // those of its machine first, by start and id
	Messages []PeerMessage `json:"messages"` // newest first
	// More says that there is more of either than is listed.
	More bool `json:"more,omitempty"`
}

// PeerSeen is an agent that agents of a node's machine can write to.
type PeerSeen struct {
	PeerAgent
	// Node is the node that it runs on, "" for one of the node's own machine.
	Node string `json:"node,omitempty"`
	// Visible says that other nodes are shown it.
	Visible bool `json:"visible,omitempty"`
	// Offline says why it cannot be written to now, "" when it can.
	Offline string `json:"offline,omitempty"`
}

// Ways of a PeerMessage.
const (
	PeerSent    = "sent"    // by an endpoint of the node itself, as its outbox has it
	PeerCarried = "carried" // by an agent of this machine to one of another node
	PeerBrought = "brought" // from another node to an agent of this machine
)

// PeerMessage is a message that a node sends or has carried. Text is what an agent or a
// person wrote.
type PeerMessage struct {
	ID  string `json:"id"`
	Way string `json:"way"` // PeerSent, PeerCarried or PeerBrought
	// From and To are endpoints, FromName and ToName what they are called.
	From     string `json:"from"`
	FromName string `json:"from_name,omitempty"`
	To       string `json:"to"`
	ToName   string `json:"to_name,omitempty"`
	// Node is the other node of a message between machines.
	Node string `json:"node,omitempty"`
	Text string `json:"text"`
	// Truncated says that Text is not the whole text.
	Truncated bool `json:"truncated,omitempty"`
	// Receipt is the receiver's answer, "" when there is none. Final is its final
	// acknowledgement, "" while it is awaited. Error is why there is none of them.
	Receipt   string    `json:"receipt,omitempty"`
	Final     string    `json:"final,omitempty"`
	Error     string    `json:"error,omitempty"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
}
