package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/hub/client"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
	"opencode-mesh/protocol/ocp"
)

// contextFlags are those by which a task gets context.
func contextFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.String("context", "", "add what the nodes that you have consented to find for this goal, as quotes below the text")
	f.Int("context-tokens", api.DefaultContextTokens, "what these quotes may cost")
	f.StringArray("context-node", nil, "ask this node only (repeatable)")
}

// contextWanted is the query that --context asks for, nil without it.
func contextWanted(cmd *cobra.Command) (*api.ContextQuery, error) {
	f := cmd.Flags()
	if !f.Changed("context") {
		for _, name := range []string{"context-tokens", "context-node"} {
			if f.Changed(name) {
				return nil, cli.Usage("--%s goes with --context GOAL", name)
			}
		}
		return nil, nil
	}
	q := &api.ContextQuery{Compose: true}
	if q.Goal, _ = f.GetString("context"); strings.TrimSpace(q.Goal) == "" {
		return nil, cli.Usage("--context says what the context is for; leave it out to ask for none")
	}
	var err error
	if q.MaxTokens, err = cli.Bounded(cmd, "context-tokens", api.MaxContextTokens); err != nil {
		return nil, err
	}
	if q.Nodes, err = nodeNames(cmd, "context-node"); err != nil {
		return nil, err
	}
	return q, api.CheckContextQuery(&q.Query)
}

// withContext puts context below the text of d; repeat: d may be there already, under an
// id that was given.
func (m *Main) withContext(ctx context.Context, c *client.Client, d *api.Dispatch, q api.ContextQuery, repeat bool) error {
	if repeat {
		before, err := asBefore(ctx, c, *d)
		if err != nil {
			return err
		}
		if before != "" {
			fmt.Fprintf(m.app.Stderr, "context: %s was dispatched before; it is sent again as it was, and nobody is asked\n", d.Targets[0].ID)
			d.Text = before
			return nil
		}
	}
	return m.addContext(ctx, c, d, q)
}

// addContext asks for context and puts it below the text of d. Whoever could not be asked
// is told; the task goes without, but not if the query itself is wrong.
func (m *Main) addContext(ctx context.Context, c *client.Client, d *api.Dispatch, q api.ContextQuery) error {
	r, err := c.QueryContext(ctx, q)
	if err != nil {
		return fmt.Errorf("ask for context (nothing was dispatched): %w", err)
	}
	m.printLegs(r.Legs)
	frames, tokens := len(r.Frames), r.Tokens
	if r.Text != "" {
		room := min(api.MaxText, api.MaxDispatch/len(d.Targets)) - len(d.Text)
		quote, used := fitting(r, room-len(gap(d.Text)))
		if left := len(r.Frames) - len(used.Frames); left > 0 {
			fmt.Fprintf(m.app.Stderr, "context: %s left out, the text would be larger than a task may be\n", counted(left, "frame"))
		}
		frames, tokens = len(used.Frames), used.Tokens
		if quote != "" {
			d.Text += gap(d.Text) + quote
			d.ContextQuery = r.ID
		}
	}
	fmt.Fprintln(m.app.Stderr, usageLine(r.ID, frames, tokens, q.MaxTokens, r.Legs, r.Truncated))
	return nil
}

// gap parts a quote from the text above by a blank line.
func gap(text string) string {
	if strings.HasSuffix(text, "\n") {
		return "\n"
	}
	return "\n\n"
}

// fitting is the quote of a result in so many bytes: all frames, or the best ones that fit.
func fitting(r api.ContextResult, room int) (string, ocp.Usage) {
	if len(r.Text) <= room && r.Usage != nil {
		return r.Text, *r.Usage
	}
	nonce := mesh.NewNonce()
	var kept []ocp.Cited
	var quote string
	var usage ocp.Usage
	for _, f := range r.Frames {
		more := append(kept, f)
		if text, u := ocp.Compose(more, nonce); len(text) <= room {
			kept, quote, usage = more, text, u
		}
	}
	return quote, usage
}

// asBefore is the text of an earlier dispatch under the same id that had the same text
// and context below it: sent again as it was, it is that dispatch, whereas what is found
// now would make it another. It is "" if there was none.
func asBefore(ctx context.Context, c *client.Client, d api.Dispatch) (string, error) {
	t, err := c.Task(ctx, d.Targets[0].ID)
	var refused *api.Error
	switch {
	case errors.As(err, &refused) && !client.Passing(err):
		return "", nil // there is none, or none that may be seen: the dispatch decides
	case err != nil:
		return "", err
	}
	quote, ok := strings.CutPrefix(t.Text, d.Text+gap(d.Text))
	if t.Text == d.Text || ok && ocp.IsQuote(quote) {
		return t.Text, nil
	}
	return "", nil
}
