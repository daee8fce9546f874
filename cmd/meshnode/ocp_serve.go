package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"

	"opencode-mesh/auth/local"
	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/node"
	index "opencode-mesh/node/ocp/memory"
	"opencode-mesh/node/ocp/provider"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/ocp"
)

const (
	// providerName is how the memory introduces itself to hosts.
	providerName = "opencode-mesh memory"
	// serveTimeout bounds reading a request and writing its answer, beside the query.
	serveTimeout = 30 * time.Second
	// serveStop is how long requests may go on when serving ends.
	serveStop = 5 * time.Second
)

func (m *Main) ocpServe() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve --stdio | --http ADDR",
		Short: "Serve what the node remembers to other hosts",
		Long: `Serves what the node that runs on --data remembers, as a provider of the Open Context Protocol, to hosts that know nothing of the mesh: to the one that starts this command, over its stdin and stdout, or to whoever asks over HTTP. Both ocp/1 and contextgraph/1 are spoken, as the host greets. Without a running node queries are answered with an error; it is asked again for each.

Over HTTP an address of this machine only is served, unless --token-file names a file whose first line hosts must send as a bearer token. There is no TLS: put a proxy before it where the network is not trusted. Once it serves, a line "listening URL" is printed. Exit code 0 when the host or a signal ends it.`,
		Example: "  meshnode ocp serve --http 127.0.0.1:7700",
		Args:    cobra.NoArgs,
		RunE:    m.serveMemory,
	}
	f := cmd.Flags()
	dataFlag(cmd)
	f.Bool("stdio", false, "serve the host that starts this command")
	f.String("http", "", "serve HTTP on this address, as HOST:PORT; port 0 picks one")
	f.String("token-file", "", "with --http: file whose first line hosts send as a bearer token")
	return cmd
}

func (m *Main) serveMemory(cmd *cobra.Command, _ []string) error {
	log, err := m.app.Log(cmd)
	if err != nil {
		return err
	}
	dir, err := m.dataDir(cmd)
	if err != nil {
		return err
	}
	f := cmd.Flags()
	stdio, _ := f.GetBool("stdio")
	address, _ := f.GetString("http")
	tokenFile, _ := f.GetString("token-file")
	switch {
	case stdio == (address != ""):
		return cli.Usage("say --stdio, or --http with an address such as 127.0.0.1:7700")
	case stdio && tokenFile != "":
		return cli.Usage("--token-file goes with --http")
	case f.Changed("token-file") && tokenFile == "":
		return cli.Usage("--token-file is empty")
	}
	asks := &remembered{node.NewOperator(dir)}
	p := provider.New(provider.Config{Name: providerName, Version: cli.Version, Kinds: index.Kinds(), Source: asks, Log: log})
	if _, err := asks.operator.Status(cmd.Context()); errors.Is(err, local.ErrNotRunning) {
		log.Warn("no node runs: queries get an error until one does", "data", dir)
	}
	if stdio {
		return m.serveStdio(cmd.Context(), p)
	}
	return m.serveHTTP(cmd.Context(), p, address, tokenFile, log)
}

// serveStdio serves until the host ends it or a signal does, and returns once the answer that
// was being given is there.
func (m *Main) serveStdio(ctx context.Context, p *provider.Provider) error {
	in, passed := io.Pipe()
	go func() { // a read from stdin cannot be broken off: it ends with the process, and nothing hangs on it
		_, err := io.Copy(passed, m.app.Stdin)
		_ = passed.CloseWithError(err) // nil is the end of the stream
	}()
	stop := context.AfterFunc(ctx, func() { _ = passed.Close() })
	defer stop()
	defer func() { _ = in.Close() }() // what comes after shutdown is not read
	return p.Serve(ctx, in, m.app.Stdout)
}

func (m *Main) serveHTTP(ctx context.Context, p *provider.Provider, address, tokenFile string, log *slog.Logger) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return cli.Usage("--http is HOST:PORT, not %q", address)
	}
	var access provider.HTTPConfig
	switch ip := net.ParseIP(host); {
	case tokenFile != "":
		if access.Token, err = tokenFrom("--token-file", tokenFile); err != nil {
			return cli.Exit(cli.ExitUsage, err)
		}
		if access.Hosts, err = names(host); err != nil {
			return err
		}
	case host != "localhost" && (ip == nil || !ip.IsLoopback()):
		return cli.Usage("--http %s is for other machines too: give --token-file, or serve this machine only, as 127.0.0.1:7700", address)
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return cli.Exit(cli.ExitNoAccess, fmt.Errorf("serve: %w", err))
	}
	if ip, ok := l.Addr().(*net.TCPAddr); ok && !ip.IP.IsLoopback() {
		log.Warn("what is remembered goes over the network without TLS", "address", l.Addr().String())
	}
	server := &http.Server{
		Handler: p.Handler(access), ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		ReadHeaderTimeout: serveTimeout, ReadTimeout: serveTimeout, WriteTimeout: serveTimeout + provider.QueryTimeout, IdleTimeout: serveTimeout,
	}
	fmt.Fprintf(m.app.Stdout, "listening http://%s\n", l.Addr())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), serveStop)
	defer cancel()
	if server.Shutdown(stop) != nil {
		_ = server.Close()
	}
	<-ended //nolint:errcheck // it was told to
	return nil
}

// names are those that this machine has for hosts on the network.
func names(host string) ([]string, error) {
	own, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("find the name of this machine: %w", err)
	}
	return []string{host, own, own + ".local"}, nil
}

// remembered is the memory of the node that runs on a directory. It owns the index, so it
// is asked for each query.
type remembered struct{ operator *node.Operator }

// Query implements provider.Source.
func (r *remembered) Query(ctx context.Context, q ocp.Query) (ocp.Result, error) {
	if q.MaxFrames == 0 || q.MaxTokens == 0 {
		return ocp.Result{Truncated: true}, nil // the node would take it for no limit of the host's
	}
	result, err := r.operator.Remembered(ctx, q)
	var refused *api.Error
	switch {
	case err == nil:
		return result, nil
	case errors.Is(err, local.ErrNotRunning):
		return result, &ocp.Error{Code: ocp.CodeUnavailable, Message: "no node runs on this machine; start it with: meshnode run"}
	case errors.As(err, &refused):
		code := ocp.CodeUnavailable
		switch refused.Code {
		case api.CodeBadRequest, api.CodeTooLarge:
			code = ocp.CodeBadRequest
		case api.CodeInternal:
			return result, err
		}
		return result, &ocp.Error{Code: code, Message: refused.Message}
	}
	return result, err
}
