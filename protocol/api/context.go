package api

import (
	"time"

	"opencode-mesh/protocol/ocp"
)

// Bounds of context queries.
const (
	// MaxContextGoal is the longest goal, and query text, of a context query, in bytes.
	MaxContextGoal = 8 << 10
	// MaxContextAnchors is how many anchors a query names, each of at most MaxContextAnchor
	// bytes.
	MaxContextAnchors = 64
	MaxContextAnchor  = 1 << 10
	// DefaultContextTokens and MaxContextTokens are the budget of a query.
	DefaultContextTokens = 4096
	MaxContextTokens     = 131072
	// DefaultContextFrames and MaxContextFrames are how many frames are given back.
	DefaultContextFrames = 24
	MaxContextFrames     = 256
	// ContextLegLimit is how long a node may take to answer its part of a query.
	ContextLegLimit = 20 * time.Second
	// MaxContextNodes is how many nodes one query asks.
	MaxContextNodes = 64
	// MaxContextProviders is how many providers a node has.
	MaxContextProviders = 64
	// MaxContextScope is the longest text of a consent, in bytes.
	MaxContextScope = 512
	// MaxContextConsents is how many consents an identity has given.
	MaxContextConsents = 1024
	// MaxContextQueries is how many queries the hub remembers; the oldest is forgotten.
	MaxContextQueries = 500
	// MaxContextRecorded is how many legs, and how many cited frames, of a query it
	// remembers.
	MaxContextRecorded = 64
)

// ContextQuery is the body of POST /v1/context/query.
type ContextQuery struct {
	ocp.Query
	// Nodes are those whose providers are asked; none means every node that is online
	// and that the asker has consented to. Those that are named and need consent are
	// told as such and not asked.
	Nodes []string `json:"nodes,omitempty"`
	// Compose asks for the frames as a quote for the body of a task, too.
	Compose bool `json:"compose,omitempty"`
}

// ContextResult is the answer to a context query.
type ContextResult struct {
	// ID names the query in the hub's log, and in the task that it is composed into.
	ID string `json:"id"`
	// Frames are those of all legs within one budget, without doubles. Whatever is in
	// them is of others: data, and no instruction to anybody.
	Frames []ocp.Cited `json:"frames"`
	// Tokens is the sum of what the frames cost.
	Tokens uint64 `json:"tokens"`
	// Truncated says that the budget did not take all that was found.
	Truncated bool         `json:"truncated"`
	Legs      []ContextLeg `json:"legs"` // by node, then as the node has its providers
	// Text is the quote, with ContextQuery.Compose and if there are frames.
	Text string `json:"text,omitempty"`
	// Usage says what the quote has in it.
	Usage *ocp.Usage `json:"usage,omitempty"`
}

// How a leg of a query ended.
const (
	ContextFrames = "frames"           // its frames count, be there none
	ContextAsks   = "consent_required" // nothing was sent
	ContextFailed = "failed"
	ContextLiar   = "budget_lie" // it gave more than the budget; nothing of it counts
	ContextFlood  = "flood"      // it gave more frames than asked for; nothing of it counts
)

// ContextLeg is what became of one provider in a query.
type ContextLeg struct {
	Node string `json:"node,omitempty"`
	// Provider is the node's own name for it; "" is the node as a whole, which was not
	// reached.
	Provider string `json:"provider,omitempty"`
	Outcome  string `json:"outcome"`
	// Found is how many frames it gave, Used how many of them are in the result.
	Found int `json:"found"`
	Used  int `json:"used"`
	// Tokens is what those in the result cost, Claimed what a liar claimed.
	Tokens  uint64 `json:"tokens"`
	Claimed uint64 `json:"claimed,omitempty"`
	Error   string `json:"error,omitempty"`
	// TookMS is how long it took, in milliseconds.
	TookMS int64 `json:"took_ms"`
}

// ContextAsk is the body of POST /v1/ocp/query inside the tunnel: the hub asks a node.
type ContextAsk struct {
	Query ocp.Query `json:"query"`
	// Asker is who asks: what its node remembers of others is kept from a controller.
	Asker Party `json:"asker"`
	// Operator: the asker may see all that the node remembers.
	Operator bool `json:"operator,omitempty"`
}

// ContextAnswer is a node's answer to a ContextAsk.
type ContextAnswer struct {
	Legs []ContextAnswerLeg `json:"legs"`
}

// ContextAnswerLeg is one provider's part of a ContextAnswer.
type ContextAnswerLeg struct {
	ContextLeg
	Result ocp.Result `json:"result"`
}

// ContextProvider is a provider of a node, or a node as such, as consent sees it.
type ContextProvider struct {
	// ID is NODE for the node as such – to which goals go in any query through the hub –
	// and NODE/PROVIDER for one of its providers.
	ID      string `json:"id"`
	Node    string `json:"node"`
	Name    string `json:"name"` // as it calls itself
	Version string `json:"version,omitempty"`
	// Where is its URL or command, without secrets.
	Where    string       `json:"where,omitempty"`
	Kinds    []string     `json:"kinds,omitempty"`
	DataFlow ocp.DataFlow `json:"data_flow"`
	// NeedsConsent: it is not asked before somebody consents.
	NeedsConsent bool `json:"needs_consent,omitempty"`
	// Consent is what was consented to, nil if nothing was; Changed names what is another
	// since, so that it must be consented to again.
	Consent *ContextConsent `json:"consent,omitempty"`
	Changed []string        `json:"changed,omitempty"`
	// Shown names what is told here of who it is, where it is and what it does with data;
	// a consent gives it back.
	Shown string `json:"shown,omitempty"`
	// Error is why it cannot be asked now.
	Error string `json:"error,omitempty"`
}

// ContextConsent is the body of PUT /v1/context/consents/{id}, and what is listed of
// one.
type ContextConsent struct {
	// Scope says in words what may leave, and where to.
	Scope     string    `json:"scope"`
	GrantedAt time.Time `json:"granted_at,omitzero"`
	GrantedBy string    `json:"granted_by,omitempty"` // a name
	// Shown is ContextProvider.Shown of the listing that was read before: if that is not
	// what is there now, nothing is consented to. "" takes what is there now, unseen.
	Shown string `json:"shown,omitempty"`
}

// ContextProviders is the answer to GET /v1/context/providers, and of a node to GET
// /v1/ocp/providers inside the tunnel.
type ContextProviders struct {
	Providers []ContextProvider `json:"providers"`
}

// ContextRecord is a query in the hub's log: what it cost and what was cited, without
// the contents.
type ContextRecord struct {
	ID        string       `json:"id"`
	At        time.Time    `json:"at"`
	Asker     Party        `json:"asker"`
	Goal      string       `json:"goal"`
	MaxTokens uint32       `json:"max_tokens"`
	Tokens    uint64       `json:"tokens"`
	Truncated bool         `json:"truncated"`
	Legs      []ContextLeg `json:"legs"`
	Frames    []ocp.Used   `json:"frames"`
	Tasks     []string     `json:"tasks,omitempty"` // into which it was composed
}

// ContextRecords is the answer to GET /v1/context/queries, newest first: an operator
// sees all, a controller its own.
type ContextRecords struct {
	Queries []ContextRecord `json:"queries"`
	More    bool            `json:"more,omitempty"`
}
