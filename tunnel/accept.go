package tunnel

import (
	"encoding/json"
	"net/http"
	"strings"

	"opencode-mesh/protocol/api"
)

// Accept answers an upgrade request and runs the hub's side of a session on its
// connection. The HTTP layer has authenticated the request before. w may be
// wrapped by middleware, as long as it offers Hijack or Unwrap. On an error an
// answer was written to w.
//
// The session does not depend on the request: the handler should return at once,
// which frees what the HTTP server holds for it, and leave the session to others.
func Accept(w http.ResponseWriter, r *http.Request, cfg Config) (*Session, error) {
	if err := cfg.Validate(); err != nil {
		writeError(w, api.Errorf(api.CodeInternal, "the hub is not configured for tunnels"))
		return nil, err
	}
	if !offers(r.Header, "Upgrade", "websocket") {
		err := api.Errorf(api.CodeBadRequest, "this address takes WebSocket upgrades only")
		writeError(w, err)
		return nil, err
	}
	if !offers(r.Header, "Sec-WebSocket-Protocol", Subprotocol) {
		err := api.Errorf(api.CodeUnsupportedVersion, "this hub speaks the tunnel protocol %s", Subprotocol)
		writeError(w, err)
		return nil, err
	}
	cfg = cfg.withDefaults(DefaultHubStreams)
	ws, err := upgrade(w, r, cfg.WriteTimeout)
	if err != nil {
		return nil, err
	}
	s, err := newSession(ws, cfg, false)
	if err != nil {
		_ = ws.Close()
		return nil, err
	}
	return s, nil
}

// offers reports whether the comma-separated header name lists token.
func offers(h http.Header, name, token string) bool {
	for _, line := range h.Values(name) {
		for t := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.TrimSpace(t), token) {
				return true
			}
		}
	}
	return false
}

func writeError(w http.ResponseWriter, e *api.Error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(e.Code.Status())
	_ = json.NewEncoder(w).Encode(api.ErrorBody{Error: e}) // fails only if the client has gone
}
