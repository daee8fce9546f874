// Package provider serves what a Source finds as a provider of the Open Context Protocol
// and its successor, to hosts over a pair of streams (Serve) or HTTP (Handler).
//
// Whatever a host sends, it gets one answer to each request, in its own family of the
// protocol; nothing that breaks the protocol or the budget leaves here, whatever the
// source gives. Content is passed on as it is: hosts treat it as untrusted.
//
// The family is that of the handshake. Over HTTP there is no connection that could
// remember one: there a request with an id is one of contextgraph/1, since only hosts of
// that family are told that ids come back, and so are messages that only that family has;
// anything else is answered in ocp/1, which hosts of both read.
package provider

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"opencode-mesh/protocol/ocp"
)

const (
	// QueryTimeout is how long a source may take for a query.
	QueryTimeout = 25 * time.Second
	// MaxFrames is how many frames one query gets, whatever more it allows: with
	// MaxTokens, so that an answer is always smaller than the largest message.
	MaxFrames = 256
	// MaxTokens is what they may cost.
	MaxTokens = 131072
)

// Source finds frames for queries.
type Source interface {
	// Query answers within the budget of q; it has no embedding, and wants full content.
	// An *ocp.Error is told to the host as it is, any other error is only logged. It is
	// called from many goroutines at once.
	Query(ctx context.Context, q ocp.Query) (ocp.Result, error)
}

// Config says what a Provider is. All but Log is required.
type Config struct {
	// Name and Version are how it introduces itself.
	Name, Version string
	// Kinds are those of the source's frames.
	Kinds  []ocp.FrameKind
	Source Source
	// Log gets what an operator should see; nil: discarded. It must not write to the
	// stream that Serve answers on.
	Log *slog.Logger
}

// Provider answers hosts. Safe for concurrent use.
type Provider struct {
	cfg Config
}

// New makes a Provider.
func New(cfg Config) *Provider {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Provider{cfg: cfg}
}

// answer is the message in answer to e, which came from a host that speaks a family. A
// shutdown has none.
func (p *Provider) answer(ctx context.Context, e ocp.Envelope) ocp.Envelope {
	out := ocp.Envelope{ID: e.ID}
	switch {
	case e.Handshake != nil:
		out.HandshakeAck = p.ack(e.Handshake.ProtocolVersion)
	case e.Query != nil:
		result, err := p.query(ctx, *e.Query)
		if err != nil {
			out.Error = err
		} else {
			out.Frames = &result
		}
	default:
		out.Error = refusal("a provider is sent handshake, query and shutdown, not " + e.Type())
	}
	return out
}

// ack introduces the provider to a host of a version.
func (p *Provider) ack(version string) *ocp.HandshakeAck {
	a := &ocp.HandshakeAck{
		ProtocolVersion: ocp.Answer(version),
		Provider:        ocp.ProviderInfo{Name: p.cfg.Name, Version: p.cfg.Version, DataFlow: ocp.DataFlow{Reads: true}},
		Capabilities:    ocp.Capabilities{Graph: true},
	}
	for _, k := range p.cfg.Kinds {
		a.Capabilities.Query.Kinds = append(a.Capabilities.Query.Kinds, string(k))
	}
	family, _ := ocp.FamilyOf(a.ProtocolVersion)
	a.Capabilities.Correlation = family == ocp.FamilyContextgraph
	return a
}

// query asks the source, within bounds, and holds its answer against them.
func (p *Provider) query(ctx context.Context, q ocp.Query) (ocp.Result, *ocp.Error) {
	if len(q.RepresentationPreferences) > 0 && !wantsFull(q.RepresentationPreferences) {
		return ocp.Result{}, &ocp.Error{Code: ocp.CodeUnsupportedRepresentation, Message: "only full content is served here"}
	}
	q.Embedding, q.RepresentationPreferences = nil, nil
	q.MaxFrames, q.MaxTokens = min(q.MaxFrames, MaxFrames), min(q.MaxTokens, MaxTokens)
	ctx, cancel := context.WithTimeout(ctx, QueryTimeout)
	defer cancel()
	result, err := p.cfg.Source.Query(ctx, q)
	if err == nil {
		result.Frames = p.sound(result.Frames)
		err = result.Audit(q)
	}
	var told *ocp.Error
	switch {
	case err == nil:
		return result, nil
	case errors.As(err, &told):
		p.cfg.Log.Warn("a query was not answered", "err", err)
		return ocp.Result{}, told
	case ctx.Err() != nil:
		p.cfg.Log.Warn("a query took too long", "err", err)
		return ocp.Result{}, &ocp.Error{Code: ocp.CodeUnavailable, Message: "the query took too long; try again later"}
	}
	p.cfg.Log.Error("a query failed", "err", err)
	return ocp.Result{}, &ocp.Error{Code: ocp.CodeInternal, Message: "the query failed; the provider's log says why"}
}

func wantsFull(list []ocp.Representation) bool {
	return slices.ContainsFunc(list, func(r ocp.Representation) bool { return r == ocp.RepresentationFull || r == "" })
}

// sound are the frames that keep to the rules of both families. One that does not is the
// source's fault, and hurts no other.
func (p *Provider) sound(frames []ocp.Frame) []ocp.Frame {
	kept, ids := make([]ocp.Frame, 0, len(frames)), map[string]bool{}
	for i := range frames {
		f := &frames[i]
		err := errors.Join(f.Check(), f.CheckExact())
		if err == nil && ids[f.ID] {
			err = fmt.Errorf("frame %q: is there twice", f.ID)
		}
		if err != nil {
			p.cfg.Log.Error("a frame was left out", "err", err)
			continue
		}
		ids[f.ID] = true
		kept = append(kept, *f)
	}
	return kept
}

// encode writes an answer in a family. What the family's rules forbid becomes an error
// message, which they do not.
func (p *Provider) encode(e ocp.Envelope, f ocp.Family) []byte {
	line, err := ocp.Encode(e, f)
	if err == nil {
		return line
	}
	p.cfg.Log.Error("an answer could not be written", "err", err)
	line, err = ocp.Encode(ocp.Envelope{ID: e.ID, Error: &ocp.Error{Code: ocp.CodeInternal, Message: "the answer cannot be written by the protocol's rules"}}, f)
	if err != nil { // the id of a request cannot be given back
		line, _ = ocp.Encode(ocp.Envelope{Error: &ocp.Error{Code: ocp.CodeBadRequest, Message: "the request's id cannot be given back"}}, f)
	}
	return line
}

func refusal(message string) *ocp.Error {
	return &ocp.Error{Code: ocp.CodeBadRequest, Message: message}
}
