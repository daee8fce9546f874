package inspect

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"opencode-mesh/node/ocp/transport"
	"opencode-mesh/protocol/ocp"
)

// run is one run of all checks.
type run struct {
	provider *Provider
	report   Report
	// answers: the provider answers a query with frames.
	answers bool
	// lost: the connection was given up before shutdown.
	lost bool
}

// contextgraph reports whether the successor's rules are demanded.
func (r *run) contextgraph() bool {
	family, _ := ocp.FamilyOf(r.provider.options.version())
	return family == ocp.FamilyContextgraph
}

// session checks an ordinary connection, from handshake to shutdown.
func (r *run) session(ctx context.Context) {
	c, err := r.provider.open()
	var ack ocp.HandshakeAck
	if err == nil {
		defer func() { _ = c.Close() }()
		ack, err = r.provider.handshake(ctx, c)
	}
	r.report.outcome(Handshake, err, "%q %s answered %s", ack.Provider.Name, ack.Provider.Version, ack.ProtocolVersion)
	if err != nil {
		r.skip("the handshake failed", FrameValidity, BudgetHonesty, ShutdownClean,
			ExitsOnShutdown, ServesAfterShutdown, FrameCount, FrameIDs, HonestClaims, KindsFilter, ExactFrames, EgressScopes)
		r.nullLists(err)
		return
	}
	r.scopes(ack)
	result, err := r.provider.ask(ctx, c, probe())
	r.answers = err == nil
	r.noteLoss(err)
	r.frames(result, err)
	r.kinds(ctx, c, ack, err)
	r.shutdown(ctx, c)
}

func (r *run) skip(why string, names ...string) {
	for _, name := range names {
		r.report.add(name, Skipped, "%s", why)
	}
}

// frames checks the answer to the probe, or the error in its place.
func (r *run) frames(result ocp.Result, err error) {
	r.nullLists(err)
	if err != nil {
		r.report.add(FrameValidity, Fail, "%v", err)
		r.report.add(BudgetHonesty, Fail, "%v", err)
		r.skip("the probe was not answered", FrameCount, FrameIDs, HonestClaims, ExactFrames)
		return
	}
	r.report.outcome(FrameValidity, firstInvalid(result), "%d frames are valid", len(result.Frames))
	sum := result.TotalCost()
	if sum > probeTokens {
		r.report.add(BudgetHonesty, Fail, "the frames cost %d tokens of %d", sum, probeTokens)
	} else {
		r.report.add(BudgetHonesty, Pass, "the frames cost %d tokens of %d", sum, probeTokens)
	}
	if n := len(result.Frames); n > probeFrames {
		r.report.add(FrameCount, Fail, "%d frames of at most %d", n, probeFrames)
	} else {
		r.report.add(FrameCount, Pass, "%d frames of at most %d", n, probeFrames)
	}
	r.report.outcome(FrameIDs, wrongIDs(result), "%d ids differ", len(result.Frames))
	r.report.outcome(HonestClaims, underclaim(result), "what the frames claim fits what they hold")
	if !r.contextgraph() {
		r.skip("asked of contextgraph/1 only", ExactFrames)
		return
	}
	var inexact error
	for i := range result.Frames {
		if inexact == nil {
			inexact = result.Frames[i].CheckExact()
		}
	}
	r.report.outcome(ExactFrames, inexact, "%d frames keep to the rules of contextgraph/1", len(result.Frames))
}

// firstInvalid is what the suite takes for an invalid frame; it does not look at ids.
func firstInvalid(result ocp.Result) error {
	for i := range result.Frames {
		var fault *ocp.FrameError
		if err := result.Frames[i].Check(); errors.As(err, &fault) && fault.Field != "id" {
			return err
		}
	}
	return nil
}

func wrongIDs(result ocp.Result) error {
	seen := make(map[string]bool, len(result.Frames))
	for i := range result.Frames {
		f := &result.Frames[i]
		var fault *ocp.FrameError
		switch err := f.Check(); {
		case errors.As(err, &fault) && fault.Field == "id":
			return err
		case seen[f.ID]:
			return fmt.Errorf("two frames have the id %q", f.ID)
		}
		seen[f.ID] = true
	}
	return nil
}

// underclaim is a frame whose claim is less than half of what its content weighs, in an
// answer that goes beyond the tokens by that. Counts that differ by less may be those of
// another tokenizer.
func underclaim(result ocp.Result) error {
	var sum uint64
	var worst *ocp.Frame
	for i := range result.Frames {
		f := &result.Frames[i]
		sum += f.Weight()
		if f.Weight()/2 > uint64(f.TokenCost) && (worst == nil || f.Weight() > worst.Weight()) {
			worst = f
		}
	}
	if worst == nil || sum <= probeTokens {
		return nil
	}
	return fmt.Errorf("frame %q claims %d tokens for content of %d; by their content the frames cost %d of %d", worst.ID, worst.TokenCost, worst.Weight(), sum, probeTokens)
}

// utf8 tells of the bytes of all answers.
func (r *run) utf8() {
	switch {
	case r.provider.mangled.Load():
		r.report.add(ValidUTF8, Fail, "an answer has bytes that are not UTF-8")
	case !r.provider.answered.Load():
		r.skip("there was no answer to look at", ValidUTF8)
	default:
		r.report.add(ValidUTF8, Pass, "all answers are UTF-8")
	}
}

// nullLists looks whether a message could not be read for a null in place of a list.
func (r *run) nullLists(err error) {
	var unreadable *ocp.DecodeError
	switch {
	case errors.As(err, &unreadable) && unreadable.NullList():
		r.report.add(NoNullLists, Fail, "%v", err)
	case err != nil:
		r.skip("there was no answer to look at", NoNullLists)
	default:
		r.report.add(NoNullLists, Pass, "no list was null")
	}
}

// kinds asks for one kind of those that the provider says it has.
func (r *run) kinds(ctx context.Context, c transport.Conn, ack ocp.HandshakeAck, err error) {
	i := slices.IndexFunc(ack.Capabilities.Query.Kinds, func(k string) bool { return ocp.FrameKind(k).Known() })
	switch {
	case err != nil:
		r.skip("the probe was not answered", KindsFilter)
		return
	case i < 0:
		r.skip("the provider names no kinds", KindsFilter)
		return
	}
	q := probe()
	// The last, which a provider that does not look at kinds is least likely to have
	// returned.
	known := slices.DeleteFunc(slices.Clone(ack.Capabilities.Query.Kinds), func(k string) bool { return !ocp.FrameKind(k).Known() })
	q.Kinds = []ocp.FrameKind{ocp.FrameKind(known[len(known)-1])}
	result, err := r.provider.ask(ctx, c, q)
	r.noteLoss(err)
	if err == nil {
		for i := range result.Frames {
			if result.Frames[i].Kind != q.Kinds[0] {
				err = fmt.Errorf("asked for %s, it returned %s", q.Kinds[0], result.Frames[i].Kind)
				break
			}
		}
	}
	r.report.outcome(KindsFilter, err, "asked for %s, nothing else came", q.Kinds[0])
}

// noteLoss remembers an error after which nothing more can be asked.
func (r *run) noteLoss(err error) {
	var refused *transport.ProviderError
	var unexpected *transport.UnexpectedEnvelopeError
	r.lost = r.lost || err != nil && !errors.As(err, &refused) && !errors.As(err, &unexpected)
}

// scopes checks what the provider says of where data goes.
func (r *run) scopes(ack ocp.HandshakeAck) {
	if !r.contextgraph() {
		r.skip("asked of contextgraph/1 only", EgressScopes)
		return
	}
	flow := ack.Provider.DataFlow
	for _, scope := range flow.EgressScopes {
		if scope != "local-only" && !flow.Egress {
			r.report.add(EgressScopes, Fail, "the scope %q is off the machine and egress is not declared", scope)
			return
		}
	}
	r.report.add(EgressScopes, Pass, "%d scopes go with egress %v", len(flow.EgressScopes), flow.Egress)
}

// shutdown ends the connection.
func (r *run) shutdown(ctx context.Context, c transport.Conn) {
	if p, ok := c.(*transport.Process); ok {
		exit := p.Stop()
		// As in the suite: whatever it does, it is gone now.
		r.report.add(ShutdownClean, Pass, "shutdown was sent and %s waited", transport.ShutdownGrace)
		switch {
		case r.lost:
			r.skip("it had to be ended before", ExitsOnShutdown)
		case exit.Killed:
			r.report.add(ExitsOnShutdown, Fail, "it did not end within %s", transport.ShutdownGrace)
		case exit.Code != 0:
			r.report.add(ExitsOnShutdown, Fail, "it ended with exit code %d", exit.Code)
		default:
			r.report.add(ExitsOnShutdown, Pass, "it ended with exit code 0")
		}
		r.skip("a process is to end", ServesAfterShutdown)
		return
	}
	_ = c.Close()
	r.report.add(ShutdownClean, Pass, "shutdown was sent")
	r.skip("an address serves on", ExitsOnShutdown)
	again, err := r.provider.open()
	if err == nil {
		_, err = r.provider.handshake(ctx, again)
		_ = again.Close()
	}
	r.report.outcome(ServesAfterShutdown, err, "it answered a handshake again")
}
