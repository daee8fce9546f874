package node

import (
	"context"
	"errors"
	"net/http"

	"github.com/go-chi/chi/v5"

	"opencode-mesh/node/ocp/memory"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/ocp"
)

// memoryRoutes are those for the node's memory on the admin socket: who may use it owns
// the machine, and sees all that is remembered.
func memoryRoutes(mux chi.Router, n *Node) {
	mux.Post("/memory/query", func(w http.ResponseWriter, r *http.Request) {
		var q ocp.Query
		err := decodeBody(r, maxContextBody, &q)
		var result ocp.Result
		if err == nil {
			result, err = n.Remembered(r.Context(), q)
		}
		answerAdmin(w, result, err)
	})
}

// Remembered is what the node remembers for a query: all that fits in its budget. An
// *api.Error can be mended by the asker.
func (n *Node) Remembered(ctx context.Context, q ocp.Query) (ocp.Result, error) {
	if n.memory == nil {
		return ocp.Result{}, api.Errorf(api.CodeNotSupported, "this node remembers nothing: start it without --no-memory, and see its log if it was")
	}
	if err := api.CheckContextQuery(&q); err != nil {
		return ocp.Result{}, err
	}
	result, err := n.memory.Query(ctx, q, memory.Scope{All: true})
	if errors.Is(err, memory.ErrClosed) {
		return result, api.Errorf(api.CodeShuttingDown, "the node stops")
	}
	return result, err
}

// Remembered asks the node for what it remembers.
func (o *Operator) Remembered(ctx context.Context, q ocp.Query) (r ocp.Result, err error) {
	err = o.call(ctx, http.MethodPost, "/memory/query", q, &r)
	return r, err
}
