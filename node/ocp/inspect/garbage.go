package inspect

import (
	"context"
	"errors"
	"fmt"

	"opencode-mesh/node/ocp/transport"
	"opencode-mesh/protocol/ocp"
)

// garbageLine is what the suite sends that is no message.
const garbageLine = "this is not valid json {{{"

// garbage checks on a fresh child what it makes of a line that is no message.
func (r *run) garbage(ctx context.Context) {
	if r.provider.spawn == nil {
		r.skip("a body that is no message is HTTP's affair", Malformed, StaysInStep, ErrorCode)
		return
	}
	first, p, err := r.afterGarbage(ctx)
	if p != nil {
		defer func() { _ = p.Close() }()
	}
	if err != nil {
		r.report.add(Malformed, Fail, "%v", err)
		r.skip("it did not get over the line", StaysInStep, ErrorCode)
		return
	}
	r.report.add(Malformed, Pass, "after a line that is no message it answered %s", first.Type())
	r.code(first)
	if !r.answers {
		r.skip("it answers no query", StaysInStep)
		return
	}
	err = r.step(ctx, p, first)
	r.report.outcome(StaysInStep, err, "each query had its one answer")
}

// afterGarbage sends the line, a probe after it, and returns the first answer, which
// may be to either. The process is to be closed unless it is nil.
func (r *run) afterGarbage(ctx context.Context) (ocp.Envelope, *transport.Process, error) {
	p, err := r.provider.spawn()
	if err != nil {
		return ocp.Envelope{}, nil, err
	}
	if _, err := r.provider.handshake(ctx, p); err != nil {
		return ocp.Envelope{}, p, err
	}
	if err := r.send(ctx, p, []byte(garbageLine)); err != nil {
		return ocp.Envelope{}, p, err
	}
	if err := r.send(ctx, p, r.probeLine()); err != nil {
		return ocp.Envelope{}, p, err
	}
	first, err := r.receive(ctx, p)
	if err == nil && first.Frames == nil && first.Error == nil {
		err = &transport.UnexpectedEnvelopeError{ID: providerID, Expected: "frames or error", Got: first.Type()}
	}
	return first, p, err
}

// step makes sure that answers and queries still belong together: at most one error
// before the frames, then for another probe frames alone, and nothing after that.
func (r *run) step(ctx context.Context, p *transport.Process, first ocp.Envelope) error {
	if first.Error != nil {
		next, err := r.receive(ctx, p)
		if err != nil {
			return err
		}
		if next.Frames == nil {
			return fmt.Errorf("a line that is no message and a query had the answers error and %s; expected at most one error, then frames", next.Type())
		}
	}
	if err := r.send(ctx, p, r.probeLine()); err != nil {
		return err
	}
	next, err := r.receive(ctx, p)
	if err != nil {
		return err
	}
	if next.Frames == nil {
		return fmt.Errorf("the query after it was answered with %s", next.Type())
	}
	if err := r.send(ctx, p, []byte(`{"type":"shutdown"}`)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, transport.ShutdownGrace)
	defer cancel()
	var crashed *transport.ProviderCrashedError
	var late *transport.TimeoutError
	switch line, err := p.Receive(ctx); {
	case err == nil:
		return fmt.Errorf("it wrote %d bytes more than the answers", len(line))
	case errors.As(err, &crashed), errors.As(err, &late): // whether it ends is another check
		return nil
	default:
		return err
	}
}

// code checks the code of an error; it is asked of contextgraph/1 only, and of who
// answers at all.
func (r *run) code(first ocp.Envelope) {
	switch {
	case !r.contextgraph():
		r.skip("asked of contextgraph/1 only", ErrorCode)
	case first.Error == nil:
		r.skip("it did not answer the line", ErrorCode)
	case first.Error.Code != ocp.CodeBadRequest:
		r.report.add(ErrorCode, Fail, "the error has the code %q and not %s", first.Error.Code, ocp.CodeBadRequest)
	default:
		r.report.add(ErrorCode, Pass, "the error has the code %s", ocp.CodeBadRequest)
	}
}

func (r *run) probeLine() []byte {
	family, _ := ocp.FamilyOf(r.provider.options.version())
	q := probe()
	line, err := ocp.Encode(ocp.Envelope{Query: &q}, family)
	if err != nil {
		panic(err) // the probe is a constant
	}
	return line
}

func (r *run) send(ctx context.Context, p *transport.Process, line []byte) error {
	ctx, cancel := context.WithTimeout(ctx, r.provider.options.timeout())
	defer cancel()
	return p.Send(ctx, line)
}

func (r *run) receive(ctx context.Context, p *transport.Process) (ocp.Envelope, error) {
	ctx, cancel := context.WithTimeout(ctx, r.provider.options.timeout())
	defer cancel()
	line, err := p.Receive(ctx)
	if err != nil {
		return ocp.Envelope{}, err
	}
	e, err := ocp.DecodeFor(r.provider.options.version(), line)
	if err != nil {
		return e, &transport.WireError{ID: providerID, Err: err}
	}
	return e, nil
}
