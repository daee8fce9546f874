// Package inspect checks whether a provider keeps to the Open Context Protocol or its
// successor: the five checks of the reference's conformance suite under their names and
// with what they take for a failure, then stricter ones under names of our own. So a
// provider that passes here passes there; not the other way round.
//
// It asks the provider for real and takes what leaves with that as consented to. It
// guarantees an end: every exchange has a time-out, and nothing of a child is left.
package inspect

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"opencode-mesh/node/ocp/transport"
	"opencode-mesh/protocol/ocp"
)

// The probe that the suite asks with.
const (
	probeGoal   = "conformance probe: return your most relevant frames"
	probeText   = "conformance probe"
	probeFrames = 8
	probeTokens = 4096
)

// Options say how to inspect. The zero value is usable.
type Options struct {
	// Version is what the host says that it speaks, hence the family that is demanded;
	// "" is ocp.VersionOCP.
	Version string
	// Goal is asked for once before the checks; "" asks nothing then.
	Goal string
	// Token is the bearer token for an HTTP provider.
	Token string
	// Stderr gets what a child writes there; nil discards it.
	Stderr io.Writer
	// Timeout bounds the wait for each answer but that to the handshake, which has
	// transport.HandshakeTimeout; 0 is transport.ExchangeTimeout.
	Timeout time.Duration
}

func (o Options) timeout() time.Duration {
	if o.Timeout <= 0 {
		return transport.ExchangeTimeout
	}
	return o.Timeout
}

func (o Options) version() string {
	if o.Version == "" {
		return ocp.VersionOCP
	}
	return o.Version
}

// Meeting is what a first look at a provider showed.
type Meeting struct {
	Ack    ocp.HandshakeAck
	Result *ocp.Result // for Options.Goal; nil if nothing was asked
}

// Provider is what can be inspected. Made by Stdio or HTTP.
type Provider struct {
	target  string
	options Options
	// open makes a connection of its own for each use.
	open func() (transport.Conn, error)
	// spawn does so for a child, and is nil for an address.
	spawn func() (*transport.Process, error)

	answered, mangled atomic.Bool // of answers that were looked at
}

// look looks at an answer before it is read.
func (p *Provider) look(answer []byte) {
	p.answered.Store(true)
	if !utf8.Valid(answer) {
		p.mangled.Store(true)
	}
}

// providerID is what errors call the provider.
const providerID = "under test"

// Stdio is a provider that is a program. It is started once to meet it, and twice to
// check it.
func Stdio(args []string, o Options) *Provider {
	p := &Provider{target: "stdio: " + strings.Join(args, " "), options: o}
	p.spawn = func() (*transport.Process, error) {
		return transport.Spawn(transport.Command{ID: providerID, Args: args, Stderr: o.Stderr, Look: p.look})
	}
	p.open = func() (transport.Conn, error) {
		c, err := p.spawn()
		if err != nil {
			return nil, err
		}
		return c, nil
	}
	return p
}

// HTTP is a provider at an address, which may be without TLS anywhere.
func HTTP(url string, o Options) *Provider {
	p := &Provider{target: "http: " + url, options: o}
	p.open = func() (transport.Conn, error) {
		c, err := transport.Dial(transport.Address{ID: providerID, URL: url, Token: o.Token, AllowPlain: true, Look: p.look})
		if err != nil {
			return nil, err
		}
		return c, nil
	}
	return p
}

// Meet greets the provider, and asks for the goal of the options, on a connection of
// its own.
func (p *Provider) Meet(ctx context.Context) (Meeting, error) {
	c, err := p.open()
	if err != nil {
		return Meeting{}, err
	}
	defer func() { _ = c.Close() }()
	ack, err := p.handshake(ctx, c)
	if err != nil || p.options.Goal == "" {
		return Meeting{Ack: ack}, err
	}
	q := probe()
	q.Goal, q.QueryText = p.options.Goal, ""
	result, err := p.ask(ctx, c, q)
	return Meeting{Ack: ack, Result: &result}, err
}

// Check runs all checks. It always returns a whole report: what cannot be checked is
// skipped.
func (p *Provider) Check(ctx context.Context) Report {
	r := &run{provider: p, report: Report{Target: p.target}}
	r.session(ctx)
	r.garbage(ctx)
	r.utf8()
	r.report.sort()
	return r.report
}

// handshake greets the provider and demands the family that it was greeted in, and a
// name and version.
func (p *Provider) handshake(ctx context.Context, c transport.Conn) (ocp.HandshakeAck, error) {
	version := p.options.version()
	ack, err := transport.Handshake(ctx, c, providerID, version)
	switch {
	case err != nil:
		return ack, err
	case !ocp.Compatible(version, ack.ProtocolVersion):
		return ack, &transport.VersionMismatchError{Host: version, Provider: ack.Provider.Name, ProviderVersion: ack.ProtocolVersion}
	case strings.TrimSpace(ack.Provider.Name) == "":
		return ack, fmt.Errorf("provider.name is blank")
	case strings.TrimSpace(ack.Provider.Version) == "":
		return ack, fmt.Errorf("provider.version is blank")
	}
	return ack, nil
}

func (p *Provider) ask(ctx context.Context, c transport.Conn, q ocp.Query) (ocp.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, p.options.timeout())
	defer cancel()
	return transport.Ask(ctx, c, providerID, q)
}

func probe() ocp.Query {
	return ocp.Query{Goal: probeGoal, QueryText: probeText, MaxFrames: probeFrames, MaxTokens: probeTokens}
}
