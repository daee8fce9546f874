package api

import "time"

// Limits of what a node is told for its memory.
const (
	// MaxMemoryPage is how many items a page of the feed has at most, and how many may be
	// asked for; whoever names no number gets half as many.
	MaxMemoryPage = 200
	// MaxMemoryText is how much of a text of a task an item has, in bytes.
	MaxMemoryText = 16 << 10
	// MaxMemoryRead is after how many bytes of texts that were read a page ends.
	MaxMemoryRead = 8 << 20
	// MaxMemoryDigests is how many digests of one binding are told, the newest.
	MaxMemoryDigests = 64
	// MemoryOverlap is how far a feed goes back at its end: what ended at about the same
	// time may be stored in another order. Its items are told again.
	MemoryOverlap = 2 * time.Minute
)

// MemoryPage answers GET /v1/memory?after=CURSOR&limit=N on the hub's side: tasks that
// settled, in the order in which they did, and digests, in all of which the node is
// controller or target. Without a cursor the feed begins anew, with all digests and then
// all tasks that the hub still has.
type MemoryPage struct {
	Items []MemoryItem `json:"items"`
	// Next is the cursor of what follows; it lasts.
	Next string `json:"next"`
	// More says that there is more already.
	More bool `json:"more,omitempty"`
}

// MemoryItem is something to remember: a result or a digest. It may come more than once;
// the last one counts.
type MemoryItem struct {
	Result *MemoryResult `json:"result,omitempty"`
	Digest *MemoryDigest `json:"digest,omitempty"`
}

// MemoryResult is a task that settled.
type MemoryResult struct {
	Task       string    `json:"task"`
	Controller Party     `json:"controller"`
	Target     Party     `json:"target"`
	Workspace  string    `json:"workspace,omitempty"`
	State      State     `json:"state"`
	Attempt    int       `json:"attempt"`
	CreatedAt  time.Time `json:"created_at"`
	EndedAt    time.Time `json:"ended_at"`
	// Text is what was asked, Summary and Reply what was answered; texts are cut at
	// MaxMemoryText.
	Text    string `json:"text,omitempty"`
	Summary string `json:"summary,omitempty"`
	Reply   string `json:"reply,omitempty"`
	// Artifacts are the files that the result names.
	Artifacts []Artifact `json:"artifacts,omitempty"`
}

// MemoryDigest is a digest of a binding.
type MemoryDigest struct {
	Controller Party  `json:"controller"`
	Target     Party  `json:"target"`
	Workspace  string `json:"workspace,omitempty"`
	Digest     Digest `json:"digest"`
	// ValidTo is when another digest took its place, or when its context ended; zero
	// while it holds.
	ValidTo time.Time `json:"valid_to,omitzero"`
	// Gone: its context was cleared, and it is to be forgotten.
	Gone bool `json:"gone,omitempty"`
}
