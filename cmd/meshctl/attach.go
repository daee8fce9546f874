package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/hub/client"
	"opencode-mesh/hub/client/forward"
)

// childPatience is how long a child that was asked to end may take.
const childPatience = 10 * time.Second

func (m *Main) attach() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "attach NODE [-- ARG…]",
		Short: "Attach opencode's terminal interface to a node",
		Long: `Runs opencode attach on this machine against the opencode of a node; what stands behind -- goes to it, such as --dir or --session. Its exit code is that of meshctl.

The local port in between wants a random password, which opencode gets in OPENCODE_SERVER_PASSWORD.`,
		Example: "  meshctl attach beta -- --continue",
		Args:    cobra.MinimumNArgs(1),
		RunE: m.with(func(cmd *cobra.Command, args []string, c *client.Client) error {
			if at := cmd.ArgsLenAtDash(); at >= 0 && at != 1 || at < 0 && len(args) > 1 {
				return cli.Usage("one node, and arguments of opencode behind --; see %s --help", cmd.CommandPath())
			}
			bin, _ := cmd.Flags().GetString("opencode-bin")
			path, err := m.program(bin)
			if err != nil {
				return cli.Usage("opencode is not installed here: %w; npm install -g opencode-ai installs it, --opencode-bin names one elsewhere", err)
			}
			secret := rand.Text()
			want := service{httpOnly: true, password: secret, quiet: true}
			return m.serve(cmd, c, args[0], "", want, func(ctx context.Context, url string) error {
				return m.child(ctx, path, append([]string{"attach", url}, args[1:]...),
					"OPENCODE_SERVER_USERNAME="+forward.Username, "OPENCODE_SERVER_PASSWORD="+secret)
			})
		}),
	}
	cmd.Flags().String("opencode-bin", "opencode", "the opencode program to run, on PATH")
	return cmd
}

// child runs a program on this terminal and returns how it ended as an error: errDone,
// or one with its exit code. When ctx ends it is asked to end too.
func (m *Main) child(ctx context.Context, path string, args []string, env ...string) error {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(m.app.ChildEnv(), env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = m.app.Stdin, m.app.Stdout, m.app.Stderr
	cmd.Cancel = func() error {
		if runtime.GOOS == "windows" {
			return cmd.Process.Kill() // there is nothing gentler
		}
		return cmd.Process.Signal(syscall.SIGTERM)
	}
	cmd.WaitDelay = childPatience
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case cmd.ProcessState == nil:
		return fmt.Errorf("start %s: %w", path, err)
	case errors.As(err, &exit) || cmd.ProcessState.ExitCode() != 0:
		return cli.Exit(exitCode(cmd.ProcessState), nil)
	}
	return errDone
}

// exitCode is a program's exit code as shells give it.
func exitCode(s *os.ProcessState) int {
	if ws, ok := s.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return s.ExitCode()
}

// program finds a program on the command's own PATH.
func (m *Main) program(name string) (string, error) {
	if strings.ContainsRune(name, filepath.Separator) {
		return exec.LookPath(name)
	}
	list, _ := m.app.Getenv("PATH")
	for _, dir := range filepath.SplitList(list) {
		if !filepath.IsAbs(dir) {
			continue // whatever lies in the current directory is not meant
		}
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s: %w", name, exec.ErrNotFound)
}
