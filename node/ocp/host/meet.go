package host

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"opencode-mesh/node/ocp/transport"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
	"opencode-mesh/protocol/ocp"
)

// Bounds of what a provider says of itself.
const (
	// maxWord is the longest name, version, kind and scope, in bytes.
	maxWord = 256
	// maxWords is how many kinds, and scopes, it has.
	maxWords = 64
)

// meet makes sure that there is a connection and that it is known who is at its other end:
// a program is asked when it is started, an address before every query, since something
// else may answer there by then. Called with the turn.
func (m *member) meet(ctx context.Context) (*meeting, error) {
	if m.conn != nil && !m.remote() {
		return m.lastMet(), nil
	}
	if err := m.connect(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Timeout)
	defer cancel()
	ack, err := transport.Handshake(ctx, m.conn, m.Name, ocp.VersionOCP)
	if err == nil {
		err = checkAck(m.Name, ack)
	}
	if err != nil {
		if !m.remote() {
			m.failed(ctx, err)
		}
		return nil, err
	}
	ack.Provider.DataFlow = flow(ack.Provider.DataFlow)
	m.used = m.cfg.Now()
	met := &meeting{ack, m.file}
	m.mu.Lock()
	m.met = met
	m.mu.Unlock()
	return met, nil
}

// meeting is what was found of a provider when it was met. It does not change.
type meeting struct {
	ocp.HandshakeAck
	file program // that was started
}

// connect starts the program, or prepares exchanges with the address. Called with the
// turn.
func (m *member) connect() error {
	switch {
	case m.conn != nil:
		return nil
	case m.remote():
		c, err := transport.Dial(m.address(m.exchangeTimeout()))
		if err != nil {
			return err
		}
		m.conn = c
		return nil
	}
	if wait := m.retryAt.Sub(m.cfg.Now()); m.fails > 1 && wait > 0 {
		return fmt.Errorf("provider %s failed %d times in a row and is not started again for %s: %w", m.Name, m.fails, wait.Round(time.Millisecond), m.why)
	}
	file, err := m.cfg.identify(m.Command)
	if err != nil {
		err = &transport.SpawnError{ID: m.Name, Err: err}
		m.failed(context.Background(), err)
		return err
	}
	args := append([]string{file.path}, m.Command[1:]...)
	c, err := m.cfg.spawn(transport.Command{ID: m.Name, Args: args, Stderr: &stderr{log: m.log}, Timeout: m.exchangeTimeout()})
	if err != nil {
		m.failed(context.Background(), err)
		return err
	}
	m.conn, m.file = c, file
	return nil
}

// exchangeTimeout bounds what a connection does; the time of a query ends earlier.
func (m *member) exchangeTimeout() time.Duration {
	return max(m.cfg.Timeout, transport.ExchangeTimeout)
}

// address is where an HTTP provider is. It is told of no end: there may be no consent any
// more, or never was, and each query begins with a handshake anyway.
func (p Provider) address(timeout time.Duration) transport.Address {
	return transport.Address{ID: p.Name, URL: p.URL, Token: p.Token, Timeout: timeout, Quiet: true}
}

// checkAck refuses a provider that could not be shown, and so not be consented to.
func checkAck(id string, ack ocp.HandshakeAck) error {
	words := append([]string{ack.Provider.Name, ack.Provider.Version}, ack.Provider.DataFlow.EgressScopes...)
	words = append(words, ack.Capabilities.Query.Kinds...)
	if len(ack.Provider.DataFlow.EgressScopes) > maxWords || len(ack.Capabilities.Query.Kinds) > maxWords {
		return fmt.Errorf("provider %s names more than %d kinds or scopes", id, maxWords)
	}
	for _, w := range words {
		if len(w) > maxWord {
			return fmt.Errorf("provider %s has a name, version, kind or scope of more than %d bytes", id, maxWord)
		}
	}
	if strings.TrimSpace(ack.Provider.Name) == "" {
		return fmt.Errorf("provider %s gives itself no name", id)
	}
	return nil
}

func (m *member) lastMet() *meeting {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.met
}

// subjectOf is the provider as consent sees it.
func (m *member) subjectOf(met *meeting) ocp.Subject {
	return ocp.Subject{Provider: m.Name, Name: met.Provider.Name, URL: m.bound(met.file), DataFlow: met.Provider.DataFlow}
}

// greet meets the provider for somebody who wants to know who it is. What was known
// before is returned with an error, if anything was.
func (m *member) greet(ctx context.Context) (*meeting, error) {
	ctx, cancel := context.WithTimeout(ctx, LegTimeout)
	defer cancel()
	var met *meeting
	var err error
	if late := m.inTurn(ctx, func(own context.Context) { met, err = m.meet(own) }); late != nil {
		return m.lastMet(), late
	}
	if err != nil {
		return m.lastMet(), err
	}
	return met, nil
}

// subject is what a consent is bound to: who it is now, which must be what the asker was
// shown, if that is said.
func (m *member) subject(ctx context.Context, shown string) (ocp.Subject, error) {
	if m.Source != nil {
		return ocp.Subject{}, notNeeded(m.Name)
	}
	met, err := m.greet(ctx)
	if met == nil || err != nil && (shown == "" || shown != m.subjectOf(met).Digest()) {
		return ocp.Subject{}, api.Errorf(api.CodeUnavailable, "nothing was consented to, because who it is cannot be known now: %s", ocp.Line(err.Error(), maxText))
	}
	s := m.subjectOf(met)
	switch {
	case !s.DataFlow.Egress:
		return ocp.Subject{}, notNeeded(m.Name)
	case shown != "" && shown != s.Digest():
		return ocp.Subject{}, api.Errorf(api.CodeConflict, "nothing was consented to: %s is not what you were shown any more, look again", m.Name)
	}
	return s, nil
}

func notNeeded(name string) error {
	return api.Errorf(api.CodeBadRequest, "%s needs no consent: by what it says, nothing leaves this machine", name)
}

func (m *member) kinds() []string {
	list := make([]string, len(m.Kinds))
	for i, k := range m.Kinds {
		list[i] = string(k)
	}
	return list
}

// show tells of the provider.
func (m *member) show(ctx context.Context) api.ContextProvider {
	e := api.ContextProvider{ID: m.Name, Name: m.Name, Kinds: []string{}}
	e.Where, _ = m.where()
	if m.Source != nil {
		e.Version, e.Kinds, e.DataFlow = m.Version, m.kinds(), ocp.DataFlow{Reads: true}
		return e
	}
	met, err := m.greet(ctx)
	if err != nil {
		e.Error = ocp.Line(err.Error(), maxText)
	}
	if c, ok := m.consents.get(m.Name); ok {
		e.Consent = given(c)
	}
	if met == nil {
		e.Name, e.DataFlow.Egress, e.NeedsConsent = "", m.remote(), m.remote()
		return e
	}
	s := m.subjectOf(met)
	e.Shown = s.Digest()
	e.Name, e.Version, e.DataFlow = mesh.CleanLine(met.Provider.Name), mesh.CleanLine(met.Provider.Version), met.Provider.DataFlow
	for _, k := range met.Capabilities.Query.Kinds {
		e.Kinds = append(e.Kinds, mesh.CleanLine(k))
	}
	var need *ocp.ConsentRequiredError
	if errors.As(m.consents.permits(s), &need) {
		e.NeedsConsent, e.Changed = true, need.Changed
	}
	return e
}
