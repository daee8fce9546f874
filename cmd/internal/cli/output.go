package cli

import (
	"encoding/json"
	"fmt"
	"text/tabwriter"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

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

// JSONLine writes one JSON object on a line of its own to stdout. Characters that
// steer a terminal or cannot be seen are escaped: foreign text is in it, and a person
// may be looking. Whoever reads the JSON gets them as they were.
func (a *App) JSONLine(v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = a.Stdout.Write(append(visible(line), '\n'))
	return err
}

// visible is a JSON text without raw controls and formatting characters, such as
// those that turn the direction of writing. The encoder leaves all from U+007F on as
// they are, and they stand in strings only.
func visible(text []byte) []byte {
	out := make([]byte, 0, len(text)+1)
	for len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		if r < 0x7f || !unicode.In(r, unicode.Cc, unicode.Cf) {
			out = append(out, text[:size]...)
		} else {
			for _, unit := range utf16.AppendRune(nil, r) {
				out = fmt.Appendf(out, `\u%04x`, unit)
			}
		}
		text = text[size:]
	}
	return out
}

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
