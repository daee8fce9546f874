package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"opencode-mesh/node/ocp/memory"
	"opencode-mesh/node/ocp/transport"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/ocp"
)

// member is one provider. Only who has its turn talks to it, so that nobody's goal goes to
// a provider that another query finds changed meanwhile.
type member struct {
	Provider
	cfg      Config
	consents *consents
	log      *slog.Logger
	life     context.Context // of the Host
	work     *sync.WaitGroup // of the Host

	waiting atomic.Int32 // for the turn

	// turn holds a value while nobody has the turn, which guards the following. Of a Source
	// it holds many, and there is nothing to guard.
	turn    chan struct{}
	conn    transport.Conn
	file    program   // that conn was started from
	used    time.Time // when conn last did something
	fails   int       // in a row
	why     error     // the last of them
	retryAt time.Time

	mu   sync.Mutex // guards the following
	met  *meeting
	stop context.CancelCauseFunc // breaks off what has the turn; nil: nothing has
}

var (
	// errOther: the provider has no frames of the kinds that are asked for.
	errOther   = errors.New("it has none of these kinds")
	errRevoked = errors.New("the consent was revoked")
)

func (h *Host) newMember(p Provider) *member {
	m := &member{
		Provider: p, cfg: h.cfg, consents: h.consents, log: h.cfg.Log.With("provider", p.Name),
		life: h.life, work: &h.work,
	}
	turns := 1
	if p.Source != nil {
		turns = maxWaiting
	}
	m.turn = make(chan struct{}, turns)
	for range turns {
		m.turn <- struct{}{}
	}
	return m
}

// await waits for the turn, as long as ctx and the configuration let it.
func (m *member) await(ctx context.Context) error {
	if m.waiting.Add(1) > maxWaiting {
		m.waiting.Add(-1)
		return fmt.Errorf("provider %s is busy: %d queries wait for it", m.Name, maxWaiting)
	}
	defer m.waiting.Add(-1)
	timer := time.NewTimer(m.cfg.Wait)
	defer timer.Stop()
	select {
	case <-m.turn:
	case <-timer.C:
		return fmt.Errorf("provider %s is busy: for %s others waited before; ask again", m.Name, m.cfg.Wait)
	case <-ctx.Done():
		return fmt.Errorf("provider %s is busy with other queries: %w", m.Name, context.Cause(ctx))
	}
	if ctx.Err() != nil { // nobody would read the answer
		m.turn <- struct{}{}
		return fmt.Errorf("provider %s was not asked: %w", m.Name, context.Cause(ctx))
	}
	return nil
}

// take waits for the turn. What is done with it has a context of its own, which ends with a
// Revoke and with the Host: whoever waits for it may go away, and costs the provider neither
// its time nor its connection.
func (m *member) take(ctx context.Context) (own context.Context, done func(), err error) {
	if err := m.await(ctx); err != nil {
		return nil, nil, err
	}
	own, cancel := context.WithCancelCause(m.life)
	m.mu.Lock()
	m.stop = cancel
	m.mu.Unlock()
	return own, func() {
		m.mu.Lock()
		m.stop = nil
		m.mu.Unlock()
		cancel(nil)
		m.turn <- struct{}{}
	}, nil
}

// inTurn does something with the turn. After an error it may still be under way, until its
// own end: a program's answer is read off, so that the program is of use to the next.
func (m *member) inTurn(ctx context.Context, do func(own context.Context)) error {
	own, done, err := m.take(ctx)
	if err != nil {
		return err
	}
	own, cancel := context.WithCancelCause(own)
	ended := make(chan struct{})
	m.work.Go(func() { // the caller is part of the work, so Close does not wait yet
		defer close(ended)
		defer done()
		defer cancel(nil)
		do(own)
	})
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		if m.remote() { // each exchange has a request of its own
			cancel(context.Cause(ctx))
		}
		return fmt.Errorf("provider %s was not done when the query ended: %w", m.Name, context.Cause(ctx))
	}
}

// interrupt breaks off what has the turn and waits for its end. Whoever comes next finds
// the consents as they are now.
func (m *member) interrupt(ctx context.Context) error {
	m.mu.Lock()
	if m.stop != nil {
		m.stop(errRevoked)
	}
	m.mu.Unlock()
	select {
	case <-m.turn:
		m.turn <- struct{}{}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the consent to %s is revoked, but a query was still being broken off: %w", m.Name, context.Cause(ctx))
	}
}

// query asks the provider: kinds, consent, then the query. errOther and
// *ocp.ConsentRequiredError mean that nothing of it was sent.
func (m *member) query(ctx context.Context, q ocp.Query, scope memory.Scope) (ocp.Result, error) {
	if m.Source != nil {
		return m.fromSource(ctx, q, scope)
	}
	ctx, cancel := context.WithTimeout(ctx, LegTimeout)
	defer cancel()
	var result ocp.Result
	var err error
	if late := m.inTurn(ctx, func(own context.Context) { result, err = m.attempts(own, q) }); late != nil {
		return ocp.Result{}, late
	}
	return result, err
}

// fromSource asks a Source. Nobody waits for it longer than its time, whatever holds it up;
// its turn is taken until it has really ended, so that not more and more of it hangs.
func (m *member) fromSource(ctx context.Context, q ocp.Query, scope memory.Scope) (ocp.Result, error) {
	if !matches(m.kinds(), q) {
		return ocp.Result{}, errOther
	}
	if err := m.await(ctx); err != nil {
		return ocp.Result{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Timeout)
	defer cancel()
	type answer struct {
		result ocp.Result
		err    error
	}
	got := make(chan answer, 1)
	go func() { // see Source for who waits for it
		defer func() { m.turn <- struct{}{} }()
		result, err := m.Source.Query(ctx, q, scope)
		got <- answer{result, err}
	}()
	select {
	case a := <-got:
		return a.result, a.err
	case <-ctx.Done():
		return ocp.Result{}, fmt.Errorf("provider %s did not answer in time: %w", m.Name, context.Cause(ctx))
	}
}

// attempts asks once more if a program ended since it was last asked, or is about to: that
// does not cost this query. Called with the turn.
func (m *member) attempts(ctx context.Context, q ocp.Query) (ocp.Result, error) {
	for again := false; ; again = true {
		kept := m.conn != nil
		result, err := m.ask(ctx, q)
		var crashed *transport.ProviderCrashedError
		var refused *transport.ProviderError
		ends := errors.As(err, &crashed) || errors.As(err, &refused) && refused.Code == ocp.CodeShuttingDown
		if again || m.remote() || !kept || !ends {
			return result, err
		}
	}
}

// ask is one attempt. Called with the turn.
func (m *member) ask(ctx context.Context, q ocp.Query) (ocp.Result, error) {
	if err := m.approachable(q); err != nil {
		return ocp.Result{}, err
	}
	met, err := m.meet(ctx)
	if err != nil {
		return ocp.Result{}, err
	}
	if !matches(met.Capabilities.Query.Kinds, q) {
		return ocp.Result{}, errOther
	}
	if err := m.consents.permits(m.subjectOf(met)); err != nil {
		return ocp.Result{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Timeout)
	defer cancel()
	result, err := transport.Ask(ctx, m.conn, m.Name, q)
	m.after(ctx, err)
	return result, err
}

// approachable keeps even a handshake from an address that nobody consented to.
func (m *member) approachable(q ocp.Query) error {
	if !m.remote() {
		return nil
	}
	c, ok := m.consents.get(m.Name)
	if ok && c.URL == m.bound(program{}) {
		return nil
	}
	if met := m.lastMet(); met != nil {
		if !matches(met.Capabilities.Query.Kinds, q) {
			return errOther
		}
		return m.consents.permits(m.subjectOf(met))
	}
	s := ocp.Subject{Provider: m.Name, Name: c.Name, URL: m.bound(program{}), DataFlow: c.DataFlow}
	s.DataFlow.Egress = true
	return m.consents.permits(s)
}

// after keeps the connection, or ends it where the next answer could be of another query.
// Called with the turn.
func (m *member) after(ctx context.Context, err error) {
	var refused *transport.ProviderError
	switch {
	case err == nil, errors.As(err, &refused) && refused.Code != ocp.CodeShuttingDown:
		m.fails, m.used = 0, m.cfg.Now()
	case m.remote(): // each exchange has a request of its own
	case errors.As(err, &refused):
		m.disconnect()
	default:
		m.failed(ctx, err)
	}
}

// failed ends a program that is out of step, and has the next start wait if it did that
// before. That it was broken off is no fault of it; that its own time ran out is.
func (m *member) failed(ctx context.Context, err error) {
	m.disconnect()
	if ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return
	}
	m.fails, m.why = m.fails+1, err
	if m.fails > 1 {
		wait := m.cfg.BackoffMax
		if shift := m.fails - 2; shift < 30 {
			wait = min(wait, m.cfg.BackoffMin<<shift)
		}
		m.retryAt = m.cfg.Now().Add(wait)
	}
	m.log.Warn("a context provider failed and is started anew", "failures", m.fails, "err", err)
}

// disconnect ends the connection. Called with the turn.
func (m *member) disconnect() {
	if m.conn != nil {
		_ = m.conn.Close() // it never fails
		m.conn = nil
	}
}

// retire ends a program that was not asked for long.
func (m *member) retire() {
	if m.Source != nil {
		return
	}
	select {
	case <-m.turn:
	default:
		return
	}
	if !m.remote() && m.conn != nil && m.cfg.Now().Sub(m.used) >= m.cfg.Idle {
		m.log.Debug("a context provider is ended: nobody asks it")
		m.disconnect()
	}
	m.turn <- struct{}{}
}

// close says goodbye to a program. Nothing else is under way.
func (m *member) close() {
	if m.Source != nil {
		return
	}
	<-m.turn
	m.disconnect()
	m.turn <- struct{}{}
}

// leg asks the provider and audits what it answers; nil if it has none of the kinds.
func (m *member) leg(ctx context.Context, q ocp.Query, scope memory.Scope) *api.ContextAnswerLeg {
	started := time.Now()
	result, err := m.query(ctx, q, scope)
	out := &api.ContextAnswerLeg{
		ContextLeg: api.ContextLeg{Provider: m.Name, Outcome: api.ContextFrames},
		Result:     ocp.Result{Frames: []ocp.Frame{}},
	}
	out.TookMS = time.Since(started).Milliseconds()
	var need *ocp.ConsentRequiredError
	switch {
	case errors.Is(err, errOther):
		return nil
	case errors.As(err, &need):
		out.Outcome, out.Error = api.ContextAsks, need.Error()
	case err != nil:
		if errors.Is(context.Cause(ctx), errClosed) {
			err = errClosed
		}
		out.Outcome, out.Error = api.ContextFailed, ocp.Line(err.Error(), maxText)
		m.log.Warn("a context provider was asked in vain", "err", err)
	default:
		m.audit(out, result, q)
	}
	return out
}
