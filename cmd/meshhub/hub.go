package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/spf13/cobra"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/hub"
)

// Main is the program; tests start it as a person would.
type Main struct {
	app *cli.App
}

// NewMain makes the program for some surroundings.
func NewMain(app *cli.App) *Main { return &Main{app: app} }

// Run executes a command line and returns the exit code.
func (m *Main) Run(ctx context.Context, args []string) int { return m.app.Run(ctx, m.root(), args) }

func (m *Main) root() *cobra.Command {
	root := &cobra.Command{
		Use:     "meshhub",
		Short:   "The hub of an opencode mesh",
		Long:    "meshhub relays tasks between the nodes and controllers of a mesh and keeps what must not be lost.",
		Example: "  MESH_PASSWORD=secret meshhub serve",
	}
	root.AddCommand(m.serve(), m.passwd(), m.link(), m.nodes(), m.credentials(), m.revoke(), m.backup(), m.restore(), m.check(), m.compact())
	return root
}

// dataFlag adds --data, whose default depends on the environment.
func dataFlag(cmd *cobra.Command) {
	cmd.Flags().String("data", "", "data directory (default ~/.local/share/opencode-mesh/hub)")
}

func (m *Main) dataDir(cmd *cobra.Command) (string, error) {
	if dir, _ := cmd.Flags().GetString("data"); dir != "" {
		return dir, nil
	}
	return m.app.DataDir("hub")
}

func (m *Main) serve() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "serve",
		Short:   "Run the hub",
		Long:    "Runs the hub until SIGTERM or Ctrl-C. Once it serves it prints two lines: `listening URL` and `join LINK`.",
		Example: "  MESH_PASSWORD=secret meshhub serve --listen 127.0.0.1:8443",
		Args:    cobra.NoArgs,
		RunE:    m.runServe,
	}
	f := cmd.Flags()
	dataFlag(cmd)
	cli.PasswordFlag(cmd)
	f.String("listen", hub.DefaultListen, "address to listen on; port 0 picks a free one")
	f.String("tls", hub.TLSSelf, "self (own key, pinned by the join link), off, files or acme")
	f.String("cert", "", "certificate file for --tls files")
	f.String("key", "", "key file for --tls files")
	f.String("public-url", "", "how nodes reach the hub, when that is not its own address")
	f.StringArray("trusted-proxy", nil, "network whose X-Forwarded-For counts, such as 10.0.0.0/8 (repeatable)")
	f.String("service-domain", "", "domain of services' own origins, SERVICE.NODE.DOMAIN, for browsers; its wildcard name must lead here")
	f.StringArray("web-host", nil, "further name under which browsers reach the dashboard (repeatable)")
	f.Bool("allow-plain-http", false, "permit --tls off beyond loopback: the password travels in clear")
	f.String("metrics-listen", "", "serve /metrics alone on this address, for scrapers")
	f.Duration("heartbeat", 0, "silence after which a node is pinged (default 15s)")
	f.Duration("heartbeat-timeout", 0, "further silence after which it is offline (default 15s)")
	f.Duration("keep", 0, "how long settled tasks are kept (default 720h)")
	f.Int("keep-count", 0, "how many settled tasks are kept (default 100000)")
	return cmd
}

func (m *Main) runServe(cmd *cobra.Command, _ []string) error {
	cfg, err := m.config(cmd)
	if err != nil {
		return err
	}
	var unread error // of a password that only the first start needs
	cfg.Password, _, unread = m.app.GivenPassword(cmd)
	if unread != nil && mustExist(cfg.DataDir) != nil {
		return unread // before a directory is made
	}
	h, err := hub.Open(cmd.Context(), cfg)
	switch {
	case errors.Is(err, hub.ErrNoPassword) && unread != nil:
		return unread
	case errors.Is(err, hub.ErrNoPassword):
		return cli.Exit(cli.ExitUsage, err)
	case err != nil:
		return err
	}
	if unread != nil {
		cfg.Log.Warn("the given password cannot be read, and is ignored because one is set; meshhub passwd changes it", "err", unread)
	}
	fmt.Fprintf(m.app.Stdout, "listening %s\njoin %s\n", h.URL(), h.JoinLink())
	if pin := h.Pin(); pin != "" {
		cfg.Log.Info("this is what a browser that warns should show for the hub's key", "url", h.URL(), "fingerprint", "sha256:"+pin)
	}
	for _, a := range h.OtherAddresses() {
		cfg.Log.Info("this machine has another address; put it into the join link if nodes reach it there", "address", a)
	}
	return h.Serve(cmd.Context())
}

func (m *Main) config(cmd *cobra.Command) (hub.Config, error) {
	f := cmd.Flags()
	cfg := hub.Config{Version: cli.Version}
	var err error
	if cfg.DataDir, err = m.dataDir(cmd); err != nil {
		return cfg, err
	}
	if cfg.Log, err = m.app.Log(cmd); err != nil {
		return cfg, err
	}
	cfg.Listen, _ = f.GetString("listen")
	cfg.TLS, _ = f.GetString("tls")
	cfg.CertFile, _ = f.GetString("cert")
	cfg.KeyFile, _ = f.GetString("key")
	cfg.PublicURL, _ = f.GetString("public-url")
	cfg.ServiceDomain, _ = f.GetString("service-domain")
	cfg.WebHosts, _ = f.GetStringArray("web-host")
	cfg.AllowPlainHTTP, _ = f.GetBool("allow-plain-http")
	cfg.MetricsListen, _ = f.GetString("metrics-listen")
	cfg.Heartbeat, _ = f.GetDuration("heartbeat")
	cfg.HeartbeatTimeout, _ = f.GetDuration("heartbeat-timeout")
	cfg.KeepSettled, _ = f.GetDuration("keep")
	cfg.KeepCount, _ = f.GetInt("keep-count")
	proxies, _ := f.GetStringArray("trusted-proxy")
	for _, p := range proxies {
		prefix, err := netip.ParsePrefix(p)
		if addr, aerr := netip.ParseAddr(p); err != nil && aerr == nil {
			prefix, err = addr.Prefix(addr.BitLen())
		}
		if err != nil {
			return cfg, cli.Usage("--trusted-proxy is a network such as 10.0.0.0/8, not %q", p)
		}
		cfg.TrustedProxies = append(cfg.TrustedProxies, prefix)
	}
	if err := cfg.Validate(); err != nil {
		return cfg, cli.Exit(cli.ExitUsage, err)
	}
	return cfg, nil
}
