package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/spf13/cobra"

	"opencode-mesh/auth"
	"opencode-mesh/cmd/internal/cli"
)

// profileName is the file of the data directory that holds the node's credential;
// meshctl login --same-as-node reads it too.
const profileName = "node.json"

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
		Use:     "meshnode",
		Short:   "One machine of an opencode mesh",
		Long:    "meshnode connects this machine to a hub, outbound only, and hands the tasks that arrive to a local agent.",
		Example: "  meshnode run --workspace .",
	}
	root.AddCommand(m.join(), m.run(), m.status(), m.held(), m.instructions(), m.opencomms(), m.peers(), m.ocp(), m.mcp())
	return root
}

// dataFlag adds --data, whose default depends on the environment.
func dataFlag(cmd *cobra.Command) {
	cmd.Flags().String("data", "", "data directory (default ~/.local/share/opencode-mesh/node)")
}

// dataDir is the absolute path of the data directory: the node's helpers run in
// other directories.
func (m *Main) dataDir(cmd *cobra.Command) (string, error) {
	dir, _ := cmd.Flags().GetString("data")
	if dir == "" {
		var err error
		if dir, err = m.app.DataDir("node"); err != nil {
			return "", err
		}
	}
	return filepath.Abs(dir)
}

// profile loads what a join left; ok is false when there was none yet.
func profile(dir string) (p auth.Profile, ok bool, err error) {
	p, err = auth.LoadProfile(filepath.Join(dir, profileName))
	if errors.Is(err, fs.ErrNotExist) {
		return p, false, nil
	}
	if errors.Is(err, auth.ErrBadProfile) {
		err = fmt.Errorf("%w; join the hub again", err)
	}
	return p, err == nil, err
}
