package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
	"opencode-mesh/protocol/ocp"
)

// ContextFlags adds those of a query for context; whose are the frames that the bounds are
// for.
func ContextFlags(cmd *cobra.Command, whose string) {
	f := cmd.Flags()
	f.Int("max-tokens", api.DefaultContextTokens, "what "+whose+" may cost")
	f.Int("max-frames", api.DefaultContextFrames, "how many frames there may be: "+whose)
	f.StringArray("kind", nil, "frames of this kind only: fact, episode, memory, doc, snippet, symbol or graph (repeatable)")
	f.StringArray("anchor", nil, "file or symbol near which to look (repeatable)")
	f.String("as-of", "", "what was valid at a time such as 2026-01-31T12:00:00Z")
}

// OneGoal demands what context is for, as one argument.
func OneGoal(_ *cobra.Command, args []string) error {
	if len(args) != 1 || strings.TrimSpace(args[0]) == "" {
		return Usage("say in one argument what the context is for; put it into quotes")
	}
	return nil
}

// ContextQuery reads the flags of ContextFlags. What makes no sense is a usage error.
func ContextQuery(cmd *cobra.Command, goal string) (ocp.Query, error) {
	f := cmd.Flags()
	q := ocp.Query{Goal: goal}
	var err error
	if q.MaxTokens, err = Bounded(cmd, "max-tokens", api.MaxContextTokens); err != nil {
		return q, err
	}
	if q.MaxFrames, err = Bounded(cmd, "max-frames", api.MaxContextFrames); err != nil {
		return q, err
	}
	kinds, _ := f.GetStringArray("kind")
	for _, k := range kinds {
		q.Kinds = append(q.Kinds, ocp.FrameKind(k))
	}
	q.Anchors, _ = f.GetStringArray("anchor")
	q.AsOf, _ = f.GetString("as-of")
	if err := api.CheckContextQuery(&q); err != nil {
		return q, Exit(ExitUsage, err)
	}
	return q, nil
}

// Bounded reads a flag that is a number from 1 to most.
func Bounded(cmd *cobra.Command, name string, most int) (uint32, error) {
	n, _ := cmd.Flags().GetInt(name)
	if n < 1 || n > most {
		return 0, Usage("--%s is from 1 to %d", name, most)
	}
	return uint32(n), nil
}

// PrintFrame shows people a frame and what to cite it by; what is in it stands behind a bar.
func (a *App) PrintFrame(number int, from string, f *ocp.Frame) {
	about := []string{string(f.Kind), "from " + from, fmt.Sprintf("score %.2f", f.Score), fmt.Sprintf("%d tokens", f.Weight())}
	if f.ValidFrom != "" {
		about = append(about, "valid from "+f.ValidFrom)
	}
	fmt.Fprintf(a.Stdout, "[%d] %s\n    %s\n    %s\n", number, Or(f.CitationLabel), Or(f.Title), Or(strings.Join(about, ", ")))
	if f.URI != "" {
		fmt.Fprintf(a.Stdout, "    %s\n", Or(f.URI))
	}
	for line := range strings.Lines(f.Content) {
		fmt.Fprintf(a.Stdout, "  | %s\n", Indented(line))
	}
}

// Indented is a foreign line made safe, with its indent, which matters in code.
func Indented(line string) string {
	indent := line[:len(line)-len(strings.TrimLeft(line, " \t"))]
	return strings.TrimRight(strings.ReplaceAll(indent, "\t", "    ")+mesh.CleanLine(line), " ")
}

// ConsentText is how it stands with the consent to a provider, in words.
func ConsentText(p api.ContextProvider) string {
	switch {
	case len(p.Changed) > 0:
		return "needed again, changed: " + Or(strings.Join(p.Changed, ", "))
	case p.Consent != nil:
		return p.Consent.GrantedAt.Local().Format(time.DateTime) + ": " + Or(p.Consent.Scope)
	case p.NeedsConsent:
		return "needed"
	}
	return "not needed"
}

// ContextWhere is the last cell of a listing of providers: where one is, and why it cannot
// be asked.
func ContextWhere(p api.ContextProvider) string {
	if p.Error != "" {
		return Or(strings.TrimSpace(p.Where + " (" + p.Error + ")"))
	}
	return Or(p.Where)
}

// FlowText is a data flow in words.
func FlowText(d ocp.DataFlow) string {
	var words []string
	for _, w := range []struct {
		does bool
		text string
	}{{d.Reads, "reads"}, {d.Writes, "keeps"}, {d.Egress, "leaves this machine"}} {
		if w.does {
			words = append(words, w.text)
		}
	}
	text := strings.Join(words, ", ")
	if len(d.EgressScopes) > 0 {
		text += " (" + strings.Join(d.EgressScopes, " ") + ")"
	}
	return Or(text)
}

// ConsentTo shows to whom a consent is about to be given, as it is listed, and returns the
// consent: to that and nothing else.
func (a *App) ConsentTo(list []api.ContextProvider, id, scope string) api.ContextConsent {
	c := api.ContextConsent{Scope: scope, Shown: "nothing"} // which is never what is there
	for _, p := range list {
		if p.ID == id && p.Shown != "" {
			c.Shown = p.Shown
			fmt.Fprintf(a.Stderr, "%s calls itself %s, is at %s, and what it does with data is: %s\n", id, Or(p.Name), ContextWhere(p), FlowText(p.DataFlow))
		}
	}
	return c
}
