package ocp

// DataFlow is what a provider does with data, as it says itself.
type DataFlow struct {
	// Reads: it sees content of a workspace, in queries.
	Reads bool `json:"reads"`
	// Writes: it keeps what it is given.
	Writes bool `json:"writes"`
	// Egress: something leaves the machine. Such a provider is asked only with consent.
	Egress bool `json:"egress"`
	// EgressScopes says where it goes: local-only, org-tenant, third-party-index,
	// third-party-model or vendor:name (contextgraph/1 only).
	EgressScopes []string `json:"egress_scopes,omitempty"`
}

// ProviderInfo is who a provider says it is.
type ProviderInfo struct {
	Name     string   `json:"name"`
	Version  string   `json:"version"`
	DataFlow DataFlow `json:"data_flow"`
}

// Capabilities is what can be asked of a provider.
type Capabilities struct {
	Query QueryCapability `json:"query"`
	// Upsert and Subscribe are declarations of ocp/1 that no message exercises.
	Upsert    bool `json:"upsert,omitempty"`
	Subscribe bool `json:"subscribe,omitempty"`
	// Graph: frames carry relations.
	Graph bool `json:"graph,omitempty"`
	// EmbeddingsFingerprint names the space of its embeddings, "" without any.
	EmbeddingsFingerprint string `json:"embeddings_fingerprint,omitempty"`

	// The rest is of contextgraph/1.

	// Correlation: it gives the id of a request back in the answer.
	Correlation bool `json:"correlation,omitempty"`
	// Verify: it answers verify.
	Verify bool `json:"verify,omitempty"`
	// Representations are those that it can return, none means full only.
	Representations []Representation `json:"representations,omitempty"`
	// Resolve: it answers for the content_ref of a frame.
	Resolve bool `json:"resolve,omitempty"`
}

// QueryCapability is which frames a provider has.
type QueryCapability struct {
	// Kinds are free texts; usually names of FrameKind.
	Kinds []string `json:"kinds"`
	// Filters is of ocp/1; no message exercises it.
	Filters []string `json:"filters,omitempty"`
}

// Query asks for frames that help with a goal.
type Query struct {
	// Goal is what the frames are for; not empty in what is sent.
	Goal string `json:"goal"`
	// QueryText is what to search for, where that is not the goal. "" is absent.
	QueryText string `json:"query_text,omitempty"`
	// Embedding is QueryText as a vector; empty is absent.
	Embedding []float32 `json:"embedding,omitempty"`
	// Kinds are those that are wanted; none means any.
	Kinds []FrameKind `json:"kinds,omitempty"`
	// Anchors are open files and symbols near which to look.
	Anchors []string `json:"anchors,omitempty"`
	// MaxFrames and MaxTokens bound the answer: a budget, not a hint.
	MaxFrames uint32 `json:"max_frames"`
	MaxTokens uint32 `json:"max_tokens"`
	// AsOf asks for what was valid at a time; RFC 3339 in UTC, "" is absent.
	AsOf string `json:"as_of,omitempty"`
	// RepresentationPreferences is of contextgraph/1; none means full.
	RepresentationPreferences []Representation `json:"representation_preferences,omitempty"`
}

// Result answers a Query.
type Result struct {
	Frames []Frame `json:"frames"`
	// Truncated: there was more than the budget took.
	Truncated bool `json:"truncated"`
	// DroppedEstimate is how much more, nil where that is not known.
	DroppedEstimate *uint32 `json:"dropped_estimate,omitempty"`
}

// FrameKind is what a frame is. The set is closed in ocp/1; after its freeze
// contextgraph/1 keeps kinds that it does not know.
type FrameKind string

// The kinds of both families.
const (
	KindSnippet FrameKind = "snippet"
	KindSymbol  FrameKind = "symbol"
	KindFact    FrameKind = "fact"
	KindDoc     FrameKind = "doc"
	KindMemory  FrameKind = "memory"
	KindEpisode FrameKind = "episode"
	KindGraph   FrameKind = "graph"
)

// Known reports whether both families have the kind.
func (k FrameKind) Known() bool {
	switch k {
	case KindSnippet, KindSymbol, KindFact, KindDoc, KindMemory, KindEpisode, KindGraph:
		return true
	}
	return false
}

// Frame is one piece of context.
type Frame struct {
	// ID is stable and unique within its provider.
	ID    string    `json:"id"`
	Kind  FrameKind `json:"kind"`
	Title string    `json:"title"` // for people, never a bare id
	// Content is untrusted: data and never instruction. It may be empty, and is
	// absent from a reference.
	Content string `json:"content"`
	// ContentDigest is the provider's digest of Content (contextgraph/1 only).
	ContentDigest string `json:"content_digest,omitempty"`
	URI           string `json:"uri,omitempty"`
	// Score is the relevance from 0 to 1; it compares frames of one provider only.
	Score float32 `json:"score"`
	// TokenCost is what the frame takes from the budget, see TokenCost.
	TokenCost uint32 `json:"token_cost"`
	// Times are RFC 3339 in UTC; free text from ocp/1 peers, "" is absent.
	ValidFrom     string          `json:"valid_from,omitempty"`
	ValidTo       string          `json:"valid_to,omitempty"`
	RecordedAt    string          `json:"recorded_at,omitempty"`
	Provenance    []Provenance    `json:"provenance,omitempty"`
	CitationLabel string          `json:"citation_label,omitempty"`
	Embedding     *FrameEmbedding `json:"embedding,omitempty"`
	Relations     []Relation      `json:"relations,omitempty"`

	// The rest is of contextgraph/1 and says how the content is carried.

	Representation           Representation `json:"representation,omitempty"`
	ContentFidelity          string         `json:"content_fidelity,omitempty"`
	CanonicalContentHash     string         `json:"canonical_content_hash,omitempty"`
	ContentRef               *ContentRef    `json:"content_ref,omitempty"`
	Transform                *Transform     `json:"transform,omitempty"`
	MinimumContentFidelity   string         `json:"minimum_content_fidelity,omitempty"`
	InlineContentRequirement string         `json:"inline_content_requirement,omitempty"`
	CanonicalTokenCost       *uint32        `json:"canonical_token_cost,omitempty"`
	TokenizerRef             string         `json:"tokenizer_ref,omitempty"`
}

// Provenance is where a frame comes from.
type Provenance struct {
	Type string `json:"type"` // file, derivation, episode …
	URI  string `json:"uri,omitempty"`
	// Range is like L1-40: lines from 1, both included.
	Range  string `json:"range,omitempty"`
	Digest string `json:"digest,omitempty"` // sha256: and 64 hex digits
	Method string `json:"method,omitempty"`
	By     string `json:"by,omitempty"`
}

// Relation is an edge to something else.
type Relation struct {
	Rel         string `json:"rel"`
	TargetURI   string `json:"target_uri"`
	DisplayName string `json:"display_name,omitempty"`
}

// FrameEmbedding names the embedding of a frame; the vector may be left out.
type FrameEmbedding struct {
	Fingerprint string    `json:"fingerprint"`
	Vector      []float32 `json:"vector,omitempty"`
}

// Representation is how a frame carries its content; "" means full.
type Representation string

// The representations of contextgraph/1.
const (
	RepresentationFull      Representation = "full"
	RepresentationCompact   Representation = "compact"
	RepresentationReference Representation = "reference"
)

// ContentRef is where the content of a compact frame or a reference can be asked for.
type ContentRef struct {
	ProviderID string `json:"provider_id"`
	URI        string `json:"uri"`
	ExpiresAt  string `json:"expires_at,omitempty"`
}

// Transform is what made a compact frame out of its source.
type Transform struct {
	Method         string `json:"method"`
	Implementation string `json:"implementation"`
	Version        string `json:"version"`
}
