// Package memory is what a node remembers: results and digests of tasks in which it was
// controller or target, threads of its channels, and files that results named, in a text
// index on its disk that answers queries of the Open Context Protocol.
//
// The index is a cache of what others hold: the hub, the state files of channels, the
// workspaces. One that is damaged is made anew and filled again. Nothing that an asker may
// not see shows in an answer, not even in its counts. There are no embeddings.
package memory

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"opencode-mesh/protocol/ocp"
)

// Bounds of an item, in bytes unless it says otherwise. What is longer is cut.
const (
	// MaxContent is the longest content.
	MaxContent = 16 << 10
	// MaxTitle is the longest title, and citation label.
	MaxTitle = 300
	// MaxPaths is how many paths an item has.
	MaxPaths = 64
	// maxLinks is how many provenances, and relations, an item has.
	maxLinks = 32
)

// Item is something remembered. ID, Kind, Title and Label are required.
type Item struct {
	// ID is unique and lasts: putting an item of the same id replaces it.
	ID   string        `json:"id"`
	Kind ocp.FrameKind `json:"kind"`
	// Title and Label (of citations) are for people.
	Title   string `json:"title"`
	Content string `json:"content"`
	URI     string `json:"uri,omitempty"`
	Label   string `json:"label"`
	// Workspace is where it belongs, "" for none.
	Workspace string `json:"workspace,omitempty"`
	// Controller and Target are identity ids; "" of what no task led to, which only
	// Scope.All sees.
	Controller     string `json:"controller,omitempty"`
	Target         string `json:"target,omitempty"`
	ControllerName string `json:"controller_name,omitempty"`
	TargetName     string `json:"target_name,omitempty"`
	// At is when it was recorded; ValidFrom (zero: At) and ValidTo (zero: still) are when
	// it holds.
	At        time.Time `json:"at"`
	ValidFrom time.Time `json:"valid_from,omitzero"`
	ValidTo   time.Time `json:"valid_to,omitzero"`
	// Paths are files and symbols that it is about, for anchors.
	Paths      []string         `json:"paths,omitempty"`
	Provenance []ocp.Provenance `json:"provenance,omitempty"`
	Relations  []ocp.Relation   `json:"relations,omitempty"`
}

// Scope is what an asker may see. The zero value is nothing.
type Scope struct {
	// All is everything: for operators, and for who asks on the machine itself.
	All bool
	// Controller is the identity id of whose tasks' memory may be seen.
	Controller string
}

// sees reports whether an item is within the scope.
func (s Scope) sees(it *Item) bool {
	return s.All || s.Controller != "" && s.Controller == it.Controller
}

// tidy makes an item fit to be kept, and refuses one that could not be cited.
func tidy(it Item) (Item, error) {
	it.Title, it.Label = line(it.Title), line(it.Label)
	switch {
	case it.ID == "" || len(it.ID) > MaxTitle:
		return it, fmt.Errorf("memory: an item needs an id of at most %d bytes", MaxTitle)
	case !it.Kind.Known():
		return it, fmt.Errorf("memory: %s: %q is no kind of frame", it.ID, it.Kind)
	case it.Title == "" || it.Label == "":
		return it, fmt.Errorf("memory: %s has no title or no label", it.ID)
	}
	it.Content = ocp.Cut(ocp.Clean(it.Content), MaxContent)
	it.Paths = it.Paths[:min(len(it.Paths), MaxPaths)]
	it.Provenance = it.Provenance[:min(len(it.Provenance), maxLinks)]
	it.Relations = it.Relations[:min(len(it.Relations), maxLinks)]
	it.At = it.At.UTC().Truncate(time.Millisecond)
	if it.ValidFrom.IsZero() {
		it.ValidFrom = it.At
	}
	it.ValidFrom = it.ValidFrom.UTC().Truncate(time.Millisecond)
	if !it.ValidTo.IsZero() {
		it.ValidTo = it.ValidTo.UTC().Truncate(time.Millisecond)
	}
	return it, nil
}

// line is text as one line of at most MaxTitle bytes.
func line(s string) string {
	return ocp.Cut(strings.Join(strings.Fields(ocp.Clean(s)), " "), MaxTitle)
}

func (it *Item) encode() ([]byte, error) { return json.Marshal(it) }

func decodeItem(b []byte) (Item, error) {
	var it Item
	err := json.Unmarshal(b, &it)
	return it, err
}
