package cli

import (
	"encoding/json"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"opencode-mesh/protocol/mesh"
)

// JSONFlag adds --json to a command that lists or shows.
func JSONFlag(cmd *cobra.Command) { cmd.Flags().Bool("json", false, "one JSON object per line") }

// AsJSON says whether --json was given.
func AsJSON(cmd *cobra.Command) bool {
	b, _ := cmd.Flags().GetBool("json")
	return b
}

// JSONLine writes one JSON object on a line of its own to stdout.
func (a *App) JSONLine(v any) error { return json.NewEncoder(a.Stdout).Encode(v) }

// List prints rows to stdout: as a table under a heading, cells parted by tabs, or
// with --json one object per line.
func List[T any](a *App, cmd *cobra.Command, rows []T, heading string, row func(T) string) error {
	if AsJSON(cmd) {
		for _, r := range rows {
			if err := a.JSONLine(r); err != nil {
				return err
			}
		}
		return nil
	}
	w := tabwriter.NewWriter(a.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, heading)
	for _, r := range rows {
		fmt.Fprintln(w, row(r))
	}
	return w.Flush()
}

// Or is foreign text made safe for one line, or a dash when nothing is left.
func Or(s string) string {
	if s = mesh.CleanLine(s); s != "" {
		return s
	}
	return "-"
}
