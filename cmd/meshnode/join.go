package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"opencode-mesh/auth"
	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/protocol/api"
)

// The waits between tries to join a hub that does not answer: a machine that boots
// may be up before its network or its hub.
const (
	joinRetryMin = time.Second
	joinRetryMax = 30 * time.Second
)

func (m *Main) join() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "join LINK --name NAME",
		Short:   "Join a hub and keep the credential that it issues",
		Long:    "Takes the mesh's password (MESH_PASSWORD, --password-file or a prompt) and keeps the credential that the hub issues in the data directory, readable by you only. --replace takes over the name of an earlier node: its credential ends and what waits for it is canceled.",
		Example: "  meshnode join 'mesh://192.0.2.7:8443?pin=sha256:5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef' --name beta",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := m.dataDir(cmd)
			if err != nil {
				return err
			}
			name, _ := cmd.Flags().GetString("name")
			e, err := m.enrollment(cmd, dir, args[0], name)
			if err != nil {
				return err
			}
			e.req.Replace, _ = cmd.Flags().GetBool("replace")
			p, err := e.once(cmd.Context())
			if err != nil {
				return cli.Exit(cli.ExitNoAccess, err)
			}
			fmt.Fprintf(m.app.Stderr, "joined as %s; start the node with: meshnode run\n", p.Name)
			return nil
		},
	}
	dataFlag(cmd)
	joinFlags(cmd)
	cmd.Flags().Bool("replace", false, "take the name over from an earlier node")
	return cmd
}

// joinFlags are those that join and run share.
func joinFlags(cmd *cobra.Command) {
	cli.PasswordFlag(cmd)
	cmd.Flags().String("name", "", "name of this node in the mesh")
	cmd.Flags().String("ca", "", "certificate file to trust for an https link")
}

// enrollment is what it takes to join.
type enrollment struct {
	path string // of the profile
	link auth.Link
	ca   string
	req  api.Login
	warn func(format string, args ...any)
}

// enrollment checks what the person gave and gets the password.
func (m *Main) enrollment(cmd *cobra.Command, dir, linkText, name string) (*enrollment, error) {
	link, err := auth.ParseLink(linkText)
	switch {
	case err != nil:
		return nil, cli.Exit(cli.ExitUsage, err)
	case !api.ValidName(name):
		return nil, cli.Usage("--name is the node's name in the mesh: %s", api.NameRule)
	}
	e := &enrollment{path: filepath.Join(dir, profileName), link: link, warn: func(format string, args ...any) {
		fmt.Fprintf(m.app.Stderr, "warning: "+format+"\n", args...)
	}}
	if ca, _ := cmd.Flags().GetString("ca"); ca != "" {
		if e.ca, err = filepath.Abs(ca); err != nil {
			return nil, err
		}
	}
	if _, err := link.TLSConfig(e.ca); err != nil {
		return nil, cli.Exit(cli.ExitUsage, err)
	}
	pw, err := m.app.Password(cmd, false)
	if err != nil {
		return nil, err
	}
	// Found out after the hub issued a credential, it would have taken the name for
	// nothing.
	if err := writable(dir); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	e.req = api.Login{Name: name, Password: pw.Reveal(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	return e, nil
}

// writable makes the data directory and a file in it, for a moment.
func writable(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".join-*")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// once tries to join and keeps the credential.
func (e *enrollment) once(ctx context.Context) (auth.Profile, error) {
	hc, err := e.link.HTTPClient(e.ca)
	if err != nil {
		return auth.Profile{}, err
	}
	defer hc.CloseIdleConnections()
	is, err := auth.Enroll(ctx, hc, e.link, auth.EnrollJoin, e.req)
	if err != nil {
		return auth.Profile{}, err
	}
	p := auth.NewProfile(e.link, e.ca, is)
	if old, err := auth.LoadProfile(e.path); err == nil && old.HubID == p.HubID && old.Name != p.Name {
		e.warn("this directory was the node %s, whose name stays taken at the hub; free it there with: meshhub revoke %s", old.Name, old.Name)
	}
	return p, auth.SaveProfile(e.path, p)
}

// patiently joins; a hub that does not answer is waited for until ctx ends.
func (e *enrollment) patiently(ctx context.Context, log *slog.Logger) (auth.Profile, error) {
	wait := joinRetryMin
	for {
		p, err := e.once(ctx)
		if err == nil || !passing(err) {
			return p, err
		}
		d := wait/2 + rand.N(wait/2)
		var refused *api.Error
		if errors.As(err, &refused) {
			d = max(d, refused.RetryAfter)
		}
		log.Warn("cannot join yet", "err", err, "again_in", d.Round(time.Millisecond).String())
		select {
		case <-time.After(d):
		case <-ctx.Done():
			return p, ctx.Err()
		}
		wait = min(2*wait, joinRetryMax)
	}
}

// passing reports whether a join that failed so may work later by itself.
func passing(err error) bool {
	var refused *api.Error
	if errors.As(err, &refused) {
		return refused.Code.Status() >= 500 || refused.Code == api.CodeRateLimited
	}
	var cert *tls.CertificateVerificationError
	if errors.Is(err, auth.ErrPinMismatch) || errors.Is(err, auth.ErrForeignRedirect) || errors.As(err, &cert) {
		return false
	}
	var transport *url.Error
	return errors.As(err, &transport)
}
