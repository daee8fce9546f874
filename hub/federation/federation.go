package federation

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"opencode-mesh/hub/shown"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
	"opencode-mesh/protocol/ocp"
	"opencode-mesh/store"
)

// MaxQueries is how many queries are under way at once: each holds the answers of up to
// api.MaxContextNodes nodes in memory.
const MaxQueries = 32

// Node is a connected node as a query reaches it. Its errors are fit to be shown to the
// asker.
type Node interface {
	Party() api.Party
	// Ask has the node ask its providers.
	Ask(ctx context.Context, ask api.ContextAsk) (api.ContextAnswer, error)
	// Providers lists them.
	Providers(ctx context.Context) (api.ContextProviders, error)
	// Consent gives the node's consent to one of its providers, or takes it back with nil.
	Consent(ctx context.Context, provider string, c *api.ContextConsent) error
}

// Nodes finds connected nodes of which the asker may be told.
type Nodes interface {
	// Online lists them, by name.
	Online(ctx context.Context, a Asker) ([]Node, error)
	// Named finds one, or returns an *api.Error that says why not.
	Named(ctx context.Context, a Asker, name string) (Node, error)
}

// Asker is who asks.
type Asker struct {
	api.Party // ID is "" for the operator on the hub's own machine
	Operator  bool
}

// Config says what a Federation works with; all but Log are required.
type Config struct {
	Store store.Store
	Nodes Nodes
	Now   func() time.Time // the hub's clock
	// Log gets what an operator should see, such as a provider that lies; nil:
	// discarded.
	Log *slog.Logger
}

// Federation answers context queries. Safe for concurrent use.
type Federation struct {
	cfg Config
	log *slog.Logger

	slots   chan struct{} // one for each query that is under way
	journal journal
	knowing chan struct{} // holds a value while the journal is being read

	running running
}

// New makes a Federation.
func New(cfg Config) *Federation {
	f := &Federation{cfg: cfg, log: cfg.Log, slots: make(chan struct{}, MaxQueries), knowing: make(chan struct{}, 1)}
	if f.log == nil {
		f.log = slog.New(slog.DiscardHandler)
	}
	return f
}

// leg is one provider's part of a query, before the merge.
type leg struct {
	api.ContextLeg
	frames    []ocp.Frame // valid ones, the best first
	truncated bool
}

// Query asks the nodes and merges what they found. A leg that fails hurts no other: it
// is told among the legs. An error is that of the query itself, an *api.Error if the
// asker can mend it.
func (f *Federation) Query(ctx context.Context, a Asker, q api.ContextQuery) (api.ContextResult, error) {
	if err := check(&q); err != nil {
		return api.ContextResult{}, err
	}
	select {
	case f.slots <- struct{}{}:
		defer func() { <-f.slots }()
	default:
		e := api.Errorf(api.CodeRateLimited, "%d context queries are under way, more are not taken; try again in a moment", MaxQueries)
		e.RetryAfter = time.Second
		return api.ContextResult{}, e
	}
	// What is revoked from here on reaches this query, what was before is not among the
	// consents any more.
	legsOf, done := f.running.begin(a)
	defer done()
	consents, _, err := f.consents(ctx, a)
	if err != nil {
		return api.ContextResult{}, err
	}
	nodes, refused, err := f.chosen(ctx, a, q.Nodes, consents)
	if err != nil {
		return api.ContextResult{}, err
	}
	legs := append(refused, f.ask(ctx, a, q.Query, nodes, legsOf)...)
	if err := ctx.Err(); err != nil {
		return api.ContextResult{}, err
	}
	slices.SortStableFunc(legs, func(a, b leg) int { return strings.Compare(a.Node, b.Node) })

	out := api.ContextResult{ID: newID()}
	out.Frames, out.Truncated = merge(legs, q.MaxTokens, q.MaxFrames)
	text, usage := ocp.Compose(out.Frames, mesh.NewNonce())
	out.Tokens = usage.Tokens
	if q.Compose && text != "" {
		out.Text, out.Usage = text, &usage
	}
	out.Legs = make([]api.ContextLeg, len(legs))
	for i, l := range legs {
		out.Legs[i] = l.ContextLeg
	}
	return out, f.record(ctx, api.ContextRecord{
		ID: out.ID, At: f.cfg.Now().UTC(), Asker: a.Party, Goal: shown.Text(q.Goal, api.MaxContextGoal), MaxTokens: q.MaxTokens,
		Tokens: out.Tokens, Truncated: out.Truncated,
		Legs: out.Legs[:min(len(out.Legs), api.MaxContextRecorded)], Frames: usage.Frames[:min(len(usage.Frames), api.MaxContextRecorded)],
	})
}

// chosen are the nodes to ask; refused are legs of those that are not.
func (f *Federation) chosen(ctx context.Context, a Asker, names []string, consents *ocp.Consents) (nodes []Node, refused []leg, err error) {
	if len(names) == 0 {
		online, err := f.cfg.Nodes.Online(ctx, a)
		if err != nil {
			return nil, nil, err
		}
		for _, n := range online {
			if permits(consents, a, n.Party()) == nil {
				nodes = append(nodes, n)
			}
		}
		if len(nodes) > api.MaxContextNodes {
			return nil, nil, api.Errorf(api.CodeBadRequest, "%d nodes would be asked, %d may be: name those that are wanted", len(nodes), api.MaxContextNodes)
		}
		return nodes, nil, nil
	}
	for _, name := range slices.Compact(slices.Sorted(slices.Values(names))) {
		n, err := f.cfg.Nodes.Named(ctx, a, name)
		var why *api.Error
		switch {
		case errors.As(err, &why) && why.Code == api.CodeNodeOffline:
			refused = append(refused, failed(name, why.Message))
			continue
		case err != nil:
			return nil, nil, err
		}
		if err := permits(consents, a, n.Party()); err != nil {
			l := failed(name, err.Error())
			l.Outcome = api.ContextAsks
			refused = append(refused, l)
			continue
		}
		nodes = append(nodes, n)
	}
	return nodes, refused, nil
}

// ask asks all nodes at once.
func (f *Federation) ask(ctx context.Context, a Asker, q ocp.Query, nodes []Node, legsOf *legsOf) []leg {
	answers := make([][]leg, len(nodes))
	var work sync.WaitGroup
	for i, n := range nodes {
		work.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, api.ContextLegLimit)
			defer cancel()
			name, start := n.Party().Name, time.Now()
			ctx, revoked := legsOf.to(ctx, name)
			answer, err := n.Ask(ctx, api.ContextAsk{Query: q, Asker: a.Party, Operator: a.Operator})
			if revoked() {
				l := failed(name, "consent was revoked while the query was under way: nothing of it counts")
				l.Outcome = api.ContextAsks
				answers[i] = []leg{l}
				return
			}
			if err != nil {
				l := failed(name, err.Error())
				l.TookMS = time.Since(start).Milliseconds()
				answers[i] = []leg{l}
				return
			}
			for _, l := range answer.Legs[:min(len(answer.Legs), api.MaxContextProviders)] {
				answers[i] = append(answers[i], f.audited(name, l, q))
			}
		})
	}
	work.Wait()
	return slices.Concat(answers...)
}

// audited is a leg of a node's answer after what its host did was done again: the node
// is another machine, whose word is not proof.
func (f *Federation) audited(node string, l api.ContextAnswerLeg, q ocp.Query) leg {
	out := leg{ContextLeg: api.ContextLeg{
		Node: node, Provider: shown.Line(l.Provider, api.MaxName), Outcome: l.Outcome,
		Error: shown.Line(l.Error, maxDetail), TookMS: max(l.TookMS, 0), Claimed: l.Claimed,
	}}
	switch l.Outcome {
	case api.ContextFrames:
	case api.ContextAsks, api.ContextLiar, api.ContextFlood, api.ContextFailed:
		return out
	default:
		out.Outcome, out.Error = api.ContextFailed, "the node gave an answer that this hub does not know"
		return out
	}
	var lie *ocp.BudgetError
	var flood *ocp.FloodError
	err := l.Result.Audit(q)
	switch {
	case errors.As(err, &lie):
		out.Outcome, out.Error, out.Claimed = api.ContextLiar, err.Error(), l.Result.TotalCost()
	case errors.As(err, &flood):
		out.Outcome, out.Error = api.ContextFlood, err.Error()
	case err != nil:
		out.Outcome, out.Error = api.ContextFailed, err.Error()
	}
	out.Found = len(l.Result.Frames)
	if err != nil {
		f.log.Warn("frames of a context provider were dropped", "node", node, "provider", out.Provider, "why", err)
		return out
	}
	out.truncated = l.Result.Truncated
	for _, frame := range l.Result.Frames {
		if err := frame.CheckFor(q); err != nil {
			out.Error = shown.Line(err.Error(), maxDetail)
			f.log.Warn("a frame of a context provider was dropped", "node", node, "provider", out.Provider, "why", err)
			continue
		}
		out.frames = append(out.frames, frame)
	}
	// Scores compare within a provider only.
	slices.SortStableFunc(out.frames, func(a, b ocp.Frame) int { return cmp.Compare(b.Score, a.Score) })
	return out
}

// maxDetail is the longest error of a leg, in bytes.
const maxDetail = 512

func failed(node, why string) leg {
	return leg{ContextLeg: api.ContextLeg{Node: node, Outcome: api.ContextFailed, Error: shown.Line(why, maxDetail)}}
}
