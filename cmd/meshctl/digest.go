package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/hub/client"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
)

// lastTwo is the value of --diff without one.
const lastTwo = "last"

var span = regexp.MustCompile(`^([0-9]{1,9})\.\.([0-9]{1,9})$`)

func (m *Main) sessionDigest() *cobra.Command {
	cmd := &cobra.Command{
		Use: "digest TARGET", Short: "Show what compactions handed over", Example: "  meshctl session digest beta --diff",
		Long: "Shows the newest digest, one of an earlier generation, all of them, or what changed between two: --diff compares the last two, --diff A..B any.",
		Args: func(cmd *cobra.Command, args []string) error {
			if d, _ := cmd.Flags().GetString("diff"); len(args) == 2 && d == lastTwo && span.MatchString(args[1]) {
				return aTarget(args) // --diff A..B, written with a blank
			}
			return oneTarget(cmd, args)
		},
		RunE: m.with(m.runDigest),
	}
	sessionFlags(cmd)
	f := cmd.Flags()
	f.Int("generation", 0, "the digest of this generation (default: the newest)")
	f.Bool("all", false, "all generations, oldest first")
	f.String("diff", "", "what changed from generation A to B, as A..B, or between the last two")
	f.Lookup("diff").NoOptDefVal = lastTwo
	return cmd
}

func (m *Main) runDigest(cmd *cobra.Command, args []string, c *client.Client) error {
	controller, workspace, err := place(cmd)
	if err != nil {
		return err
	}
	f := cmd.Flags()
	generation, _ := f.GetInt("generation")
	all, _ := f.GetBool("all")
	diff, _ := f.GetString("diff")
	if len(args) == 2 {
		diff = args[1]
	}
	switch {
	case generation < 0:
		return cli.Usage("--generation is at least 1")
	case generation > 0 && all, generation > 0 && diff != "", all && diff != "":
		return cli.Usage("--generation, --all and --diff exclude each other")
	case diff != "" && diff != lastTwo && !span.MatchString(diff):
		return cli.Usage("--diff compares two generations, as in --diff 1..2, not %q", mesh.CleanLine(diff))
	}
	list, err := c.Digests(cmd.Context(), controller, args[0], workspace)
	if err != nil {
		return err
	}
	if len(list) == 0 {
		return cli.Exit(cli.ExitNotDone, fmt.Errorf("there is no digest yet; meshctl session compact %s makes one", args[0]))
	}
	switch {
	case diff != "":
		return m.digestDiff(cmd, list, diff)
	case generation > 0:
		d, err := ofGeneration(list, generation)
		if err != nil {
			return err
		}
		list = []api.Digest{d}
	case !all:
		list = list[len(list)-1:]
	}
	for i, d := range list {
		if cli.AsJSON(cmd) {
			if err := m.app.JSONLine(d); err != nil {
				return err
			}
			continue
		}
		if i > 0 {
			fmt.Fprintln(m.app.Stdout)
		}
		m.printDigest(d)
	}
	return nil
}

func ofGeneration(list []api.Digest, generation int) (api.Digest, error) {
	if i := slices.IndexFunc(list, func(d api.Digest) bool { return d.Generation == generation }); i >= 0 {
		return list[i], nil
	}
	known := make([]string, len(list))
	for i, d := range list {
		known[i] = strconv.Itoa(d.Generation)
	}
	return api.Digest{}, cli.Usage("there is no digest of generation %d (there are %s)", generation, strings.Join(known, ", "))
}

func (m *Main) printDigest(d api.Digest) {
	w := m.app.Stdout
	fmt.Fprintf(w, "digest %d  %s  task %s  session %s\n", d.Generation, d.At.Local().Format(time.DateTime), cli.Or(d.Task), cli.Or(d.Session))
	for _, part := range digestParts(d) {
		fmt.Fprintln(w, part.name)
		if len(part.lines) == 0 {
			fmt.Fprintln(w, "  none")
		}
		for _, l := range part.lines {
			fmt.Fprintln(w, "  "+l)
		}
	}
}

// digestPart is one of the three things that a digest says, in lines that are safe
// to show.
type digestPart struct {
	name  string
	lines []string
}

func digestParts(d api.Digest) []digestPart {
	return []digestPart{
		{"facts", cleaned(d.Facts)},
		{"pending", cleaned(strings.Split(d.Pending, "\n"))},
		{"refs", cleaned(strings.Split(d.Refs, "\n"))},
	}
}

// cleaned makes lines safe to show and leaves empty ones out.
func cleaned(lines []string) []string {
	out := []string{}
	for _, l := range lines {
		if l = mesh.CleanLine(l); l != "" {
			out = append(out, l)
		}
	}
	return out
}

// digestDiff shows what changed between two generations.
func (m *Main) digestDiff(cmd *cobra.Command, list []api.Digest, which string) error {
	var a, b api.Digest
	if which == lastTwo {
		if len(list) < 2 {
			return cli.Exit(cli.ExitNotDone, errors.New("there is only one digest, nothing to compare it with"))
		}
		a, b = list[len(list)-2], list[len(list)-1]
	} else {
		ends := span.FindStringSubmatch(which)
		for i, d := range []*api.Digest{&a, &b} {
			n, err := strconv.Atoi(ends[i+1])
			if err == nil {
				*d, err = ofGeneration(list, n)
			}
			if err != nil {
				return err
			}
		}
	}
	from, to := digestParts(a), digestParts(b)
	if cli.AsJSON(cmd) {
		return m.app.JSONLine(jsonDiff(a, b, from, to))
	}
	w, s := m.app.Stdout, m.style()
	fmt.Fprintf(w, "digest %d -> %d\n", a.Generation, b.Generation)
	same := true
	for i := range from {
		if slices.Equal(from[i].lines, to[i].lines) {
			continue
		}
		same = false
		fmt.Fprintln(w, from[i].name)
		for _, l := range diffLines(from[i].lines, to[i].lines) {
			fmt.Fprintln(w, s.paint(l.colour(), "  "+string(l.mark)+" "+l.text))
		}
	}
	if same {
		fmt.Fprintln(w, "nothing changed")
	}
	return nil
}

// partDiff is what changed in one part of a digest.
type partDiff struct {
	Removed []string `json:"removed"`
	Added   []string `json:"added"`
}

// jsonDiff is a comparison for programs: the two generations and a partDiff for each
// part.
func jsonDiff(a, b api.Digest, from, to []digestPart) map[string]any {
	out := map[string]any{"from": a.Generation, "to": b.Generation}
	for i := range from {
		d := partDiff{Removed: []string{}, Added: []string{}}
		for _, l := range diffLines(from[i].lines, to[i].lines) {
			switch l.mark {
			case removed:
				d.Removed = append(d.Removed, l.text)
			case added:
				d.Added = append(d.Added, l.text)
			}
		}
		out[from[i].name] = d
	}
	return out
}
