package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"opencode-mesh/hub/client"
)

func (m *Main) open() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "open NODE[/SERVICE]",
		Short: "Open the web interface of a node's service in the browser",
		Long: `Serves a node's service as forward does, and opens it in the browser: the program in BROWSER, else that of the system. The page works until Ctrl-C.

Other users of this machine can use the port too.`,
		Example: "  meshctl open beta",
		Args:    cobra.ExactArgs(1),
		RunE: m.with(func(cmd *cobra.Command, args []string, c *client.Client) error {
			no, _ := cmd.Flags().GetBool("no-browser")
			return m.serve(cmd, c, args[0], "", service{httpOnly: true}, func(ctx context.Context, url string) error {
				if !no {
					m.browse(ctx, url)
				}
				return nil
			})
		}),
	}
	cmd.Flags().Bool("no-browser", false, "print the address only")
	return cmd
}

// browse opens a page. Failing is no reason to stop: the address is there to be
// typed. It returns when the program that opened it has ended, or ctx has; a browser
// outlives the command.
func (m *Main) browse(ctx context.Context, url string) {
	var tried []string
	for _, args := range m.browsers(url) {
		path, err := m.program(args[0])
		if err != nil {
			tried = append(tried, args[0])
			continue
		}
		cmd := exec.Command(path, args[1:]...)
		cmd.Env = m.app.ChildEnv()
		if err = cmd.Start(); err == nil {
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }() // ends with the browser, or with this process
			select {
			case err = <-ended:
			case <-ctx.Done():
				return
			}
		}
		if err == nil {
			return
		}
		tried = append(tried, fmt.Sprintf("%s (%v)", args[0], err))
	}
	fmt.Fprintf(m.app.Stderr, "no browser could be opened, tried %s: open %s yourself\n", strings.Join(tried, ", "), url)
}

// browsers are command lines to try: those of BROWSER, parted as PATH is, with %s for
// the address, else the system's own.
func (m *Main) browsers(url string) [][]string {
	if list, _ := m.app.Getenv("BROWSER"); list != "" {
		var out [][]string
		for _, line := range strings.Split(list, string(filepath.ListSeparator)) {
			args := strings.Fields(line)
			if len(args) == 0 {
				continue
			}
			if !strings.Contains(line, "%s") {
				args = append(args, "%s")
			}
			for i := range args {
				args[i] = strings.ReplaceAll(args[i], "%s", url)
			}
			out = append(out, args)
		}
		return out
	}
	switch runtime.GOOS {
	case "darwin":
		return [][]string{{"open", url}}
	case "windows":
		return [][]string{{"rundll32", "url.dll,FileProtocolHandler", url}}
	}
	return [][]string{{"xdg-open", url}, {"x-www-browser", url}}
}
