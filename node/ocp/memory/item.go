// Package memory is what a node remembers: results and digests of tasks in which it was
// controller or target, threads of its channels, and files that results named, in a text
// index on its disk that answers queries of the Open Context Protocol.
//
// The index is a cache of what others hold: the hub, the state files of channels, the
// workspaces. One that is damaged is made anew and filled again. Nothing that an asker may
// not see shows in an answer, not even in its counts. There are no embeddings.
package memory

import (
	"time"

	"opencode-mesh/protocol/ocp"
)

// Item is something remembered. ID, Kind, Title and Label are required.
type Item struct {
	// ID is unique and lasts: putting an item of the same id replaces it.
	ID   string
	Kind ocp.FrameKind
	// Title and Label (of citations) are for people.
	Title, Content, URI, Label string
	// Workspace is where it belongs, "" for none.
	Workspace string
	// Controller and Target are identity ids; "" of what no task led to, which only
	// Scope.All sees.
	Controller, Target         string
	ControllerName, TargetName string
	// At is when it was recorded; ValidFrom (zero: At) and ValidTo (zero: still) are when
	// it holds.
	At, ValidFrom, ValidTo time.Time
	// Paths are files and symbols that it is about, for anchors.
	Paths      []string
	Provenance []ocp.Provenance
	Relations  []ocp.Relation
}

// Scope is what an asker may see. The zero value is nothing.
type Scope struct {
	// All is everything: for operators, and for who asks on the machine itself.
	All bool
	// Controller is the identity id of whose tasks' memory may be seen.
	Controller string
}

// sees reports whether an item of a controller is within the scope.
func (s Scope) sees(controller string) bool {
	return s.All || s.Controller != "" && s.Controller == controller
}
