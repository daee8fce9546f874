package link

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"opencode-mesh/auth"
	"opencode-mesh/protocol/api"
	"opencode-mesh/tunnel"
)

// Defaults.
const (
	// DefaultReportInterval is how often the agent's health is looked at, besides when
	// the agent says that it changed; only changes are reported.
	DefaultReportInterval = 5 * time.Second
	// DefaultSlowRetry is the wait after a refusal that only a person can mend, for a
	// node that had been connected: its turns go on meanwhile.
	DefaultSlowRetry = 5 * time.Minute

	// helloTimeout bounds the exchange of hello and welcome.
	helloTimeout = 30 * time.Second
	// reportTimeout bounds one report.
	reportTimeout = 10 * time.Second
	// goodbyeTimeout bounds what is still answered when a session ends.
	goodbyeTimeout = 2 * time.Second
	// maxForks is how many journals one tunnel may replace: more would mean that the
	// hub calls even an empty one forked.
	maxForks = 2
)

// drainHeader asks for a tunnel that delivers results and does not take the name.
const (
	drainHeader = "Mesh-Tunnel"
	drainValue  = "drain"
)

// Host is the node behind a link. The link calls it from one goroutine at a time,
// except for the handler's requests, Report and Changed.
type Host interface {
	// Hello moves the journal's epoch on durably and describes the node.
	Hello(ctx context.Context) (api.Hello, error)
	// Fork replaces a journal that the hub called forked by an empty one.
	Fork(ctx context.Context) error
	// Welcomed is told what the hub answered; from then on turns may start.
	Welcomed(w api.Welcome)
	// Handler is the node's interface for the hub. It is asked for once per tunnel.
	Handler() http.Handler
	// Attach gives the node its hub, Detach takes it away.
	Attach(hub *Client)
	Detach()
	// Report says how the node is.
	Report(ctx context.Context) api.NodeReport
	// Changed is closed when a report of agent or services is next going to be another
	// one, for changes that cannot wait for ReportInterval. nil: there are none.
	Changed() <-chan struct{}
	// Supersede makes the node start nothing more; Revoke aborts what runs as well.
	Supersede()
	Revoke()
	// Drained is closed when a superseded node has delivered everything.
	Drained() <-chan struct{}
}

// Config says whose link it is and where it leads. Profile and Host are required.
type Config struct {
	// Profile is the node's credential with the way to its hub.
	Profile auth.Profile
	Host    Host
	// Tunnel tunes the tunnel. A zero Heartbeat takes what the hub says from the
	// second connection on.
	Tunnel tunnel.Config
	// Backoff between attempts to connect.
	Backoff tunnel.Backoff
	// SlowRetry is the wait after a refusal that only a person can mend, once the
	// node had been connected; before that it is an error. 0: DefaultSlowRetry.
	SlowRetry time.Duration
	// ReportInterval is how often the agent's health is looked at; 0:
	// DefaultReportInterval.
	ReportInterval time.Duration
	// Dial replaces the way to the hub in tests; nil: by Profile.
	Dial func(ctx context.Context, header http.Header, cfg tunnel.Config) (*tunnel.Session, error)
	// Log gets what an operator should see; nil: discarded.
	Log *slog.Logger
}

// withDefaults returns a checked copy with all zero values filled in.
func (c Config) withDefaults() (Config, error) {
	switch {
	case c.Host == nil:
		return c, errors.New("link config: no host")
	case c.Profile.HubID == "":
		return c, errors.New("link config: the profile names no hub")
	case c.SlowRetry < 0 || c.ReportInterval < 0:
		return c, errors.New("link config: a duration is negative")
	}
	if err := c.Tunnel.Validate(); err != nil {
		return c, err
	}
	if c.SlowRetry == 0 {
		c.SlowRetry = DefaultSlowRetry
	}
	if c.ReportInterval == 0 {
		c.ReportInterval = DefaultReportInterval
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Dial == nil {
		dial, err := profileDial(c.Profile)
		if err != nil {
			return c, err
		}
		c.Dial = dial
	}
	return c, nil
}

// profileDial dials the hub of a profile.
func profileDial(p auth.Profile) (func(context.Context, http.Header, tunnel.Config) (*tunnel.Session, error), error) {
	tlsConfig, err := p.Link.TLSConfig(p.CAFile)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, header http.Header, cfg tunnel.Config) (*tunnel.Session, error) {
		header.Set("Authorization", "Bearer "+p.Credential.Reveal())
		return tunnel.Dial(ctx, tunnel.DialConfig{
			URL: p.Link.TunnelURL(), Header: header, TLS: tlsConfig, Config: cfg,
		})
	}, nil
}
