package link

import (
	"errors"
	"fmt"
	"net/http"

	"opencode-mesh/auth"
	"opencode-mesh/protocol/api"
	"opencode-mesh/tunnel"
)

var (
	// ErrRevoked ends a link whose credential was revoked.
	ErrRevoked = errors.New("this node's credential was revoked; join the hub again to come back")
	// ErrRefused ends a link whose credential the hub does not take.
	ErrRefused = errors.New("the hub does not take this node's credential; join the hub again")
	// ErrVersion ends a link to a hub that speaks another version.
	ErrVersion = errors.New("hub and node are of versions that do not understand each other; update the older one")
)

// WrongHubError ends a link that met another hub than the one that the node
// joined. Nothing of the journal crosses to it (semantics 10).
type WrongHubError struct {
	Want, Got string // hub ids
}

// Error implements error.
func (e *WrongHubError) Error() string {
	return fmt.Sprintf("this is hub %s, the node joined hub %s: the hub was set up anew or the address leads elsewhere; join it to use it", e.Got, e.Want)
}

// lasting reports whether only a person can mend err, and what it means for the
// node: the typed error for it.
func lasting(err error) (error, bool) { //nolint:revive // the error is the result, the bool says whether it is one
	var wrong *WrongHubError
	var refused *tunnel.RefusedError
	switch {
	case err == nil:
		return nil, false
	case errors.As(err, &wrong), errors.Is(err, auth.ErrPinMismatch):
		return err, true
	case tunnel.IsReason(err, tunnel.ReasonRevoked):
		return ErrRevoked, true
	case !errors.As(err, &refused):
		return err, false
	case refused.Code == string(api.CodeRevoked):
		return ErrRevoked, true
	case refused.Code == string(api.CodeUnsupportedVersion):
		return fmt.Errorf("%w: %w", ErrVersion, refused), true
	case refused.Status == http.StatusUnauthorized, refused.Status == http.StatusForbidden, refused.Status == http.StatusGone:
		return fmt.Errorf("%w: %w", ErrRefused, refused), true
	}
	return err, false
}

// final reports whether a lasting error ends the link even of a node that had been
// connected. A refused credential may be the hub's trouble: a backup that was
// restored, a wrong machine behind the name for an hour.
func final(err error) bool {
	return !errors.Is(err, ErrRefused) && !errors.Is(err, ErrVersion)
}
