package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/hub"
	hubapi "opencode-mesh/hub/api"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
	"opencode-mesh/store/bolt"
)

// admin runs fn with the admin interface of the hub in --data, running or not.
func (m *Main) admin(cmd *cobra.Command, fn func(admin) error) (err error) {
	dir, err := m.dataDir(cmd)
	if err != nil {
		return err
	}
	if err := mustExist(dir); err != nil {
		return err
	}
	hc, done, err := hub.Admin(cmd.Context(), dir, m.app.Warnings())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	return cli.Coded(fn(admin{cmd.Context(), hc}))
}

// mustExist keeps the commands that look after data from making a store where
// there is none.
func mustExist(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, "hub.db")); err != nil {
		return cli.Usage("there is no hub in %s; name its directory with --data", dir)
	}
	return nil
}

// admin calls the local admin interface.
type admin struct {
	ctx context.Context
	hc  *http.Client
}

func (a admin) call(method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(a.ctx, method, "http://local"+path, body)
	if err != nil {
		return err
	}
	resp, err := a.hc.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return err
	case resp.StatusCode >= 300:
		return api.DecodeError(resp.StatusCode, data)
	case out == nil:
		return nil
	}
	return json.Unmarshal(data, out)
}

func (m *Main) passwd() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "passwd",
		Short:   "Set or change the password",
		Long:    "Sets the password from MESH_PASSWORD, --password-file or a prompt (twice). Works beside a running hub. Credentials that were issued live on unless --revoke-all is given.",
		Example: "  meshhub passwd --password-file new.txt",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := m.dataDir(cmd)
			if err != nil {
				return err
			}
			pw, err := m.app.Password(cmd, true)
			if err != nil {
				return err
			}
			all, _ := cmd.Flags().GetBool("revoke-all")
			if err := os.MkdirAll(dir, 0o700); err != nil {
				return err
			}
			hc, done, err := hub.Admin(cmd.Context(), dir, m.app.Warnings())
			if err != nil {
				return err
			}
			err = admin{cmd.Context(), hc}.call(http.MethodPost, "/v1/passwd", hubapi.Passwd{Password: pw.Reveal(), RevokeAll: all}, nil)
			if err = errors.Join(err, done()); err != nil {
				return cli.Coded(err)
			}
			fmt.Fprintln(m.app.Stderr, "the password is set")
			return nil
		},
	}
	dataFlag(cmd)
	cli.PasswordFlag(cmd)
	cmd.Flags().Bool("revoke-all", false, "revoke every credential: all nodes and controllers must join and log in again")
	return cmd
}

func (m *Main) link() *cobra.Command {
	cmd := &cobra.Command{
		Use: "link", Short: "Print the join link", Example: "  meshhub link", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return m.admin(cmd, func(a admin) error {
				var l hubapi.Link
				if err := a.call(http.MethodGet, "/v1/link", nil, &l); err != nil {
					return err
				}
				if l.Link == "" {
					return errors.New("the hub has not served yet; run meshhub serve once")
				}
				fmt.Fprintln(m.app.Stdout, l.Link)
				return nil
			})
		},
	}
	dataFlag(cmd)
	return cmd
}

func (m *Main) nodes() *cobra.Command {
	cmd := &cobra.Command{
		Use: "nodes", Short: "List the nodes", Example: "  meshhub nodes --json", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return m.admin(cmd, func(a admin) error {
				var list api.NodeList
				if err := a.call(http.MethodGet, "/v1/nodes", nil, &list); err != nil {
					return err
				}
				return cli.List(m.app, cmd, list.Nodes, "NAME\tSTATE\tSINCE\tPLATFORM\tAGENT\tHEALTH", func(n api.Node) string {
					return fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%s", n.Name, n.State, n.Since.Format(time.RFC3339), cli.Or(n.Platform), cli.Or(n.Agent.Kind), cli.Or(n.Agent.Health))
				})
			})
		},
	}
	dataFlag(cmd)
	cli.JSONFlag(cmd)
	return cmd
}

func (m *Main) credentials() *cobra.Command {
	cmd := &cobra.Command{
		Use: "credentials", Short: "List issued credentials", Example: "  meshhub credentials", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return m.admin(cmd, func(a admin) error {
				var list api.CredentialList
				if err := a.call(http.MethodGet, "/v1/credentials", nil, &list); err != nil {
					return err
				}
				return cli.List(m.app, cmd, list.Credentials, "NAME\tROLE\tCREATED\tLAST USED\tREVOKED", func(c api.Credential) string {
					role := string(c.Role)
					if c.Browser {
						role += " (browser)"
					}
					return fmt.Sprintf("%s\t%s\t%s\t%s\t%s", c.Name, role, c.CreatedAt.Format(time.RFC3339), when(c.LastUsed), when(c.RevokedAt))
				})
			})
		},
	}
	dataFlag(cmd)
	cli.JSONFlag(cmd)
	return cmd
}

func (m *Main) revoke() *cobra.Command {
	cmd := &cobra.Command{
		Use: "revoke NAME", Short: "Revoke a node or controller at once", Example: "  meshhub revoke old-laptop", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return m.admin(cmd, func(a admin) error {
				if err := a.call(http.MethodPost, "/v1/revoke/"+url.PathEscape(args[0]), nil, nil); err != nil {
					return err
				}
				fmt.Fprintf(m.app.Stderr, "%s is revoked: its tunnels, streams and credentials have ended\n", mesh.CleanLine(args[0]))
				return nil
			})
		},
	}
	dataFlag(cmd)
	return cmd
}

func (m *Main) check() *cobra.Command {
	cmd := &cobra.Command{
		Use: "check", Short: "Verify a stopped hub's store: pages and every record", Example: "  meshhub check", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := m.dataDir(cmd)
			if err != nil {
				return err
			}
			if err := mustExist(dir); err != nil {
				return err
			}
			problems, err := bolt.Check(dir)
			if err != nil {
				return err
			}
			for _, p := range problems {
				fmt.Fprintln(m.app.Stdout, p)
			}
			if len(problems) > 0 {
				return fmt.Errorf("%d problems; restore a backup, and keep this file for whoever looks into it", len(problems))
			}
			fmt.Fprintln(m.app.Stdout, "ok")
			return nil
		},
	}
	dataFlag(cmd)
	return cmd
}

func (m *Main) compact() *cobra.Command {
	cmd := &cobra.Command{
		Use: "compact", Short: "Give a stopped hub's free pages back to the disk", Example: "  meshhub compact", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := m.dataDir(cmd)
			if err != nil {
				return err
			}
			if err := mustExist(dir); err != nil {
				return err
			}
			before, after, err := bolt.Compact(dir)
			if err == nil {
				fmt.Fprintf(m.app.Stdout, "%d bytes before, %d after\n", before, after)
			}
			return err
		},
	}
	dataFlag(cmd)
	return cmd
}

func when(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return t.Format(time.RFC3339)
}
