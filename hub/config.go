package hub

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"time"

	"opencode-mesh/auth"
	hubapi "opencode-mesh/hub/api"
	"opencode-mesh/hub/clock"
	"opencode-mesh/protocol/api"
	"opencode-mesh/store/boltdb"
	"opencode-mesh/tunnel"
)

// The TLS modes.
const (
	TLSSelf  = "self"  // own key, pinned by the join link
	TLSOff   = "off"   // plain HTTP
	TLSFiles = "files" // certificate and key from files
	TLSACME  = "acme"  // certificate from an ACME directory, for the public URL's host
)

// DefaultListen is where a hub listens unless told otherwise.
const DefaultListen = "0.0.0.0:8443"

// Config is a hub's configuration. Zero fields mean their defaults.
type Config struct {
	// DataDir holds the store, the TLS key and the admin socket. Needed.
	DataDir string
	// Listen is host:port; port 0 picks a free one. Default DefaultListen.
	Listen string
	// TLS is one of the modes. Default TLSSelf.
	TLS string
	// CertFile and KeyFile are for TLSFiles.
	CertFile, KeyFile string
	// PublicURL is how clients reach the hub, when that is not its own address.
	PublicURL string
	// TrustedProxies may set X-Forwarded-For.
	TrustedProxies []netip.Prefix
	// ServiceDomain is the domain below which services of nodes have origins of their
	// own, as SERVICE.NODE.DOMAIN, which must lead here. Default: they have none.
	ServiceDomain string
	// WebHosts are further names under which browsers reach the hub. Its addresses, its
	// machine's name and that of PublicURL need not be told.
	WebHosts []string
	// AllowPlainHTTP permits TLSOff on an address that is not loopback.
	AllowPlainHTTP bool
	// Password sets the first password; ignored once one is stored.
	Password auth.Secret
	// MetricsListen serves /metrics alone, for scrapers. Default: not at all.
	MetricsListen string
	// Heartbeat and HeartbeatTimeout of the tunnels. Defaults: api.DefaultHeartbeat…
	Heartbeat, HeartbeatTimeout time.Duration
	// UnknownAfter, SweepEvery, KeepSettled, KeepCount: see relay.Config.
	UnknownAfter, SweepEvery, KeepSettled time.Duration
	KeepCount                             int
	Version                               string
	Log                                   *slog.Logger

	clockSource clock.Source
	// faults and probe are for tests of disk trouble.
	faults boltdb.FaultInjector
	probe  time.Duration
}

// Validate refuses what makes no sense, saying which flag to change.
func (c Config) Validate() error { return c.complete() }

// complete fills defaults in and refuses what makes no sense.
func (c *Config) complete() error {
	if c.DataDir == "" || c.Log == nil {
		return errors.New("hub: a data directory and a log are needed")
	}
	if c.Listen == "" {
		c.Listen = DefaultListen
	}
	if c.TLS == "" {
		c.TLS = TLSSelf
	}
	if c.Heartbeat == 0 {
		c.Heartbeat = api.DefaultHeartbeat
	}
	if c.HeartbeatTimeout == 0 {
		c.HeartbeatTimeout = api.DefaultHeartbeatTimeout
	}
	if c.clockSource.Wall == nil {
		c.clockSource = clock.System()
	}
	if c.KeepSettled < 0 || c.KeepCount < 0 {
		return errors.New("--keep and --keep-count are not negative")
	}
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return fmt.Errorf("--listen is host:port, such as %s: %w", DefaultListen, err)
	}
	switch c.TLS {
	case TLSSelf:
	case TLSOff:
		ip, err := netip.ParseAddr(host)
		loopback := host == "localhost" || err == nil && ip.IsLoopback()
		if !loopback && !c.AllowPlainHTTP {
			return fmt.Errorf("--tls off on %s would send the password in clear; keep TLS, listen on loopback behind a proxy, or add --allow-plain-http", c.Listen)
		}
	case TLSFiles:
		if c.CertFile == "" || c.KeyFile == "" {
			return errors.New("--tls files needs --cert and --key")
		}
	case TLSACME:
		if c.PublicURL == "" {
			return errors.New("--tls acme needs --public-url with the name to get a certificate for")
		}
	default:
		return fmt.Errorf("--tls is self, off, files or acme, not %q", c.TLS)
	}
	if c.PublicURL != "" {
		u, err := url.Parse(c.PublicURL)
		if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
			return fmt.Errorf("--public-url is a URL such as https://mesh.example:8443, not %q", c.PublicURL)
		}
	}
	if c.ServiceDomain != "" {
		if err := hubapi.ValidServiceDomain(c.ServiceDomain); err != nil {
			return fmt.Errorf("--service-domain %w", err)
		}
	}
	return c.tunnel().Validate()
}

func (c *Config) tunnel() tunnel.Config {
	return tunnel.Config{Heartbeat: c.Heartbeat, HeartbeatTimeout: c.HeartbeatTimeout, Log: c.Log}
}
