package registry

import (
	"errors"
	"fmt"
	"strings"

	"opencode-mesh/protocol/peers"
)

// Errors of Resolve.
var (
	ErrUnknown   = errors.New("there is no such agent")
	ErrOffline   = errors.New("the agent is offline")
	ErrAmbiguous = errors.New("several agents have that name")
)

// maxChoices is how many ids an error offers.
const maxChoices = 20

// Resolve finds the agent that a message is for, among all that Read returned (before
// Collapse) without the one that sends it: the one with exactly this id, else the only one
// alive with exactly this name. What looks like an id is never a name. The error wraps
// ErrUnknown, ErrOffline or ErrAmbiguous; an ambiguous one names the ids to choose from.
func Resolve(list []Peer, target string) (Peer, error) {
	if target == "" {
		return Peer{}, fmt.Errorf("%w: give the name or id of one", ErrUnknown)
	}
	var offline *Peer
	for i, p := range list {
		switch {
		case p.EndpointID != target:
		case p.Alive:
			return p, nil
		default:
			offline = &list[i]
		}
	}
	if offline == nil && !peers.IDLike(target) {
		var named []Peer
		for i, p := range list {
			switch {
			case p.Name != target:
			case p.Alive:
				named = append(named, p)
			default:
				offline = &list[i]
			}
		}
		switch {
		case len(named) == 1:
			return named[0], nil
		case len(named) > 1:
			return Peer{}, fmt.Errorf("%w: give the id instead of %q, one of %s", ErrAmbiguous, target, choices(named))
		}
	}
	if offline != nil {
		return Peer{}, fmt.Errorf("%w: %q (%s)", ErrOffline, target, offline.Reason)
	}
	return Peer{}, fmt.Errorf("%w: %q is neither an id nor the name of an agent in the list", ErrUnknown, target)
}

func choices(list []Peer) string {
	var ids []string
	for _, p := range list[:min(len(list), maxChoices)] {
		ids = append(ids, p.EndpointID)
	}
	if n := len(list) - len(ids); n > 0 {
		ids = append(ids, fmt.Sprintf("or %d more", n))
	}
	return strings.Join(ids, ", ")
}
