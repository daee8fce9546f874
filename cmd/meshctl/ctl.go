package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"runtime"

	"github.com/spf13/cobra"

	"opencode-mesh/auth"
	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/hub/client"
	"opencode-mesh/protocol/api"
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
		Use:     "meshctl",
		Short:   "Dispatch tasks to the nodes of an opencode mesh",
		Long:    "meshctl hands tasks to one node or all of them and shows what becomes of them.",
		Example: "  meshctl dispatch beta -- run the tests and say what fails",
	}
	root.PersistentFlags().String("profile", "default", "which login to use, for several hubs")
	root.AddCommand(m.login(), m.nodes(), m.dispatch(), m.task(), m.session(), m.artifact(), m.channel(), m.context(), m.envelope(), m.watch(), m.top(), m.credentials(), m.revoke(), m.audit())
	root.AddCommand(m.forward(), m.attach(), m.open())
	return root
}

// profilePath is where the login of --profile is kept.
func (m *Main) profilePath(cmd *cobra.Command) (string, error) {
	dir, err := m.app.ConfigDir()
	if err != nil {
		return "", err
	}
	name, _ := cmd.Flags().GetString("profile")
	if !api.ValidName(name) {
		return "", cli.Usage("--profile is a name of %s", api.NameRule)
	}
	return filepath.Join(dir, name+".json"), nil
}

// connect makes the client of the login.
func (m *Main) connect(cmd *cobra.Command) (*client.Client, error) {
	path, err := m.profilePath(cmd)
	if err != nil {
		return nil, err
	}
	p, err := auth.LoadProfile(path)
	if errors.Is(err, fs.ErrNotExist) {
		err = errors.New("not logged in: run meshctl login LINK --as NAME (meshhub link prints the link)")
	}
	if err != nil {
		return nil, cli.Exit(cli.ExitNoAccess, err)
	}
	token, _ := m.app.Getenv(api.TaskTokenEnv)
	c, err := client.New(p, token)
	if err != nil {
		return nil, cli.Exit(cli.ExitNoAccess, err)
	}
	return c, nil
}

// with runs fn with a connection and gives its errors their exit codes.
func (m *Main) with(fn func(cmd *cobra.Command, args []string, c *client.Client) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := m.connect(cmd)
		if err != nil {
			return err
		}
		defer c.Close()
		return coded(fn(cmd, args, c))
	}
}

// coded gives errors their exit codes (cli.md).
func coded(err error) error {
	var exit *cli.ExitError
	switch {
	case errors.As(err, &exit):
		return err
	case errors.Is(err, context.Canceled):
		return cli.Exit(cli.ExitNoAccess, errors.New("interrupted"))
	case errors.Is(err, client.ErrUnreachable):
		return cli.Exit(cli.ExitNoAccess, err)
	}
	return cli.Coded(err)
}

func (m *Main) login() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "login LINK --as NAME",
		Short:   "Log in at a hub",
		Long:    "Takes the mesh's password (MESH_PASSWORD, --password-file or a prompt) and keeps the credential that the hub issues, readable by you only. --same-as-node uses the identity of this machine's node instead.",
		Example: "  meshctl login 'mesh://192.0.2.7:8443?pin=sha256:5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef' --as laptop",
		Args:    cobra.MaximumNArgs(1),
		RunE:    m.runLogin,
	}
	cli.PasswordFlag(cmd)
	f := cmd.Flags()
	f.String("as", "", "name of this controller")
	f.Bool("operator", false, "log in as an operator, who sees everything and may revoke")
	f.Bool("same-as-node", false, "use the credential of the node on this machine")
	f.String("node-data", "", "the node's data directory for --same-as-node (default ~/.local/share/opencode-mesh/node)")
	f.String("ca", "", "certificate file to trust for an https link")
	return cmd
}

func (m *Main) runLogin(cmd *cobra.Command, args []string) error {
	path, err := m.profilePath(cmd)
	if err != nil {
		return err
	}
	f := cmd.Flags()
	name, _ := f.GetString("as")
	var link auth.Link
	if len(args) > 0 {
		if link, err = auth.ParseLink(args[0]); err != nil {
			return cli.Exit(cli.ExitUsage, err)
		}
	}
	if same, _ := f.GetBool("same-as-node"); same {
		return m.sameAsNode(cmd, path, link, name)
	}
	switch {
	case len(args) == 0:
		return cli.Usage("which hub? give its join link (meshhub link prints it)")
	case !api.ValidName(name):
		return cli.Usage("--as is the name of this controller: %s", api.NameRule)
	}
	ca, _ := f.GetString("ca")
	if ca != "" {
		if ca, err = filepath.Abs(ca); err != nil {
			return err
		}
	}
	hc, err := link.HTTPClient(ca)
	if err != nil {
		return cli.Exit(cli.ExitUsage, err)
	}
	defer hc.CloseIdleConnections()
	pw, err := m.app.Password(cmd, false)
	if err != nil {
		return err
	}
	operator, _ := f.GetBool("operator")
	is, err := auth.Enroll(cmd.Context(), hc, link, auth.EnrollLogin, api.Login{
		Name: name, Password: pw.Reveal(), Operator: operator, Platform: runtime.GOOS + "/" + runtime.GOARCH,
	})
	if err != nil {
		return cli.Exit(cli.ExitNoAccess, err)
	}
	if err := auth.SaveProfile(path, auth.NewProfile(link, ca, is)); err != nil {
		return err
	}
	fmt.Fprintf(m.app.Stderr, "logged in as %s (%s)\n", is.Name, is.Role)
	return nil
}

// sameAsNode takes the identity of the machine's node over, so that both are one
// (semantics 9). A link and a name may be given and must then be the node's.
func (m *Main) sameAsNode(cmd *cobra.Command, path string, link auth.Link, name string) error {
	dir, _ := cmd.Flags().GetString("node-data")
	operator, _ := cmd.Flags().GetBool("operator")
	if dir == "" {
		var err error
		if dir, err = m.app.DataDir("node"); err != nil {
			return err
		}
	}
	p, err := auth.LoadProfile(filepath.Join(dir, "node.json"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return cli.Usage("no node has joined from %s; name its directory with --node-data", dir)
	case err != nil:
		return err
	case operator:
		return cli.Usage("--operator and --same-as-node exclude each other: a node is no operator")
	case name != "" && name != p.Name:
		return cli.Usage("the node of this machine is %s, not %s", p.Name, name)
	case link != (auth.Link{}) && link != p.Link && (link.Pin == "" || link.Pin != p.Link.Pin):
		return cli.Usage("the node of this machine has joined another hub, at %s", p.Link.BaseURL())
	}
	if link != (auth.Link{}) {
		p.Link = link // the same hub at the address that is asked for
	}
	if err := auth.SaveProfile(path, p); err != nil {
		return err
	}
	fmt.Fprintf(m.app.Stderr, "logged in as %s, the node of this machine\n", p.Name)
	return nil
}
