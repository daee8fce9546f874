package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/hub/client"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
)

func (m *Main) session() *cobra.Command {
	cmd := &cobra.Command{
		Use: "session", Short: "Look after the sessions that tasks run in", Example: "  meshctl session list",
		Long: "Your tasks for one node run in one session there, which keeps its context. compact hands a session that fills up over to a new one by a digest, reset lets the next task begin a new one, clear deletes it.",
	}
	cmd.AddCommand(m.sessionList(), m.sessionShow(), m.sessionDigest(),
		m.operation(api.OpCompact, "Hand the session over to a new one by a digest",
			"Asks the session for a digest, merged with the last one, starts a new session with it and the last results, and binds that one once its agent acknowledged. If a step fails the binding is as it was."),
		m.operation(api.OpClear, "Delete the session", "Deletes the bound session on its node and drops the binding. It cannot be undone, so it asks first."),
		m.operation(api.OpReset, "Let the next task begin a new session", "Drops the binding. The session stays on its node as it is."))
	return cmd
}

// sessionFlags say whose session in which workspace is meant.
func sessionFlags(cmd *cobra.Command) {
	cmd.Flags().String("workspace", "", "workspace of the target (default: its first)")
	cmd.Flags().String("controller", "", "whose session (operators; default: your own)")
	cli.JSONFlag(cmd)
}

// place is the session that the flags of a command mean.
func place(cmd *cobra.Command) (controller, workspace string, err error) {
	controller, _ = cmd.Flags().GetString("controller")
	workspace, _ = cmd.Flags().GetString("workspace")
	if controller == "" {
		return client.Caller, workspace, nil
	}
	if !api.ValidName(controller) {
		return "", "", cli.Usage("%q is not the name of a controller", mesh.CleanLine(controller))
	}
	return controller, workspace, nil
}

func oneTarget(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return cli.Usage("name one node")
	}
	return aTarget(args)
}

// aTarget refuses a first argument that cannot be a node's name.
func aTarget(args []string) error {
	if len(args) > 0 && !api.ValidName(args[0]) {
		return cli.Usage("%q is not the name of a node (%s)", mesh.CleanLine(args[0]), api.NameRule)
	}
	return nil
}

func (m *Main) sessionList() *cobra.Command {
	cmd := &cobra.Command{
		Use: "list [TARGET]", Short: "List bound sessions", Example: "  meshctl session list beta",
		Long: "Lists the sessions that your tasks run in; an operator sees everybody's.",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return cli.Usage("name one node, or none for all")
			}
			return aTarget(args)
		},
		RunE: m.with(m.runSessionList),
	}
	sessionFlags(cmd)
	return cmd
}

func (m *Main) runSessionList(cmd *cobra.Command, args []string, c *client.Client) error {
	controller, workspace, err := place(cmd)
	if err != nil {
		return err
	}
	if controller == client.Caller {
		controller = "" // all that may be seen
	}
	list, err := c.Sessions(cmd.Context(), controller, strings.Join(args, ""), 0)
	if err != nil {
		return err
	}
	if workspace != "" {
		list = slices.DeleteFunc(list, func(s api.Session) bool { return s.Workspace != workspace })
	}
	others := slices.ContainsFunc(list, func(s api.Session) bool { return s.Controller != c.Name() })
	heading, st := "TARGET\tWORKSPACE\tSESSION\tUSED\tDIGEST\tOPERATION\tCTX", m.style()
	if others {
		heading = "CONTROLLER\t" + heading
	}
	return cli.List(m.app, cmd, list, heading, func(s api.Session) string {
		row := fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%s\t%s", cli.Or(s.Target), cli.Or(s.Workspace), sessionID(s), age(s.LastUsed), digestGeneration(s), operationOf(s), st.ctx(s.CtxPercent))
		if others {
			row = cli.Or(s.Controller) + "\t" + row
		}
		return row
	})
}

// sessionID is the bound session, or a dash when the next task begins one.
func sessionID(s api.Session) string {
	if s.Session == nil {
		return "-"
	}
	return cli.Or(*s.Session)
}

// age shows how long ago something was, if ever.
func age(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return since(t)
}

func digestGeneration(s api.Session) string {
	if s.Digest == 0 {
		return "-"
	}
	return fmt.Sprint(s.Digest)
}

// operationOf is what is under way, or waits.
func operationOf(s api.Session) string {
	if s.Operation == nil {
		return "-"
	}
	return cli.Or(s.Operation.Op + " " + string(s.Operation.State))
}

func (m *Main) sessionShow() *cobra.Command {
	cmd := &cobra.Command{
		Use: "show TARGET", Short: "Everything about the session on a node", Example: "  meshctl session show beta", Args: oneTarget,
		Long: "Shows the bound session, how its context filled up, and the sessions that were bound before.",
		RunE: m.with(func(cmd *cobra.Command, args []string, c *client.Client) error {
			controller, workspace, err := place(cmd)
			if err != nil {
				return err
			}
			s, err := c.Session(cmd.Context(), controller, args[0], workspace)
			if err != nil {
				return err
			}
			if cli.AsJSON(cmd) {
				return m.app.JSONLine(s)
			}
			m.printSession(s)
			return nil
		}),
	}
	sessionFlags(cmd)
	return cmd
}

// printSession prints a session in plain lines.
func (m *Main) printSession(s api.Session) {
	w, st := m.app.Stdout, m.style()
	fmt.Fprintln(w, strings.Join([]string{cli.Or(s.Target), cli.Or(s.Workspace), sessionID(s), st.ctx(s.CtxPercent)}, "  "))
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(k, v string) { fmt.Fprintf(tw, "  %s\t%s\n", k, v) }
	row("controller", cli.Or(s.Controller))
	row("title", cli.Or(s.Title))
	row("generation", fmt.Sprint(s.Generation))
	row("created", stamp(s.CreatedAt))
	row("last used", stamp(s.LastUsed))
	if s.Tokens != nil {
		row("tokens", fmt.Sprintf("%d of %d", s.Tokens.Total, s.Tokens.Limit))
	}
	row("digest", digestGeneration(s))
	if s.Operation != nil {
		row("operation", operationOf(s)+"  "+cli.Or(s.Operation.Task))
	}
	if line := m.history(s.Fills); line != "" {
		row("fill", line)
	}
	_ = tw.Flush()
	if len(s.Former) > 0 {
		fmt.Fprintln(w, "  former sessions")
		formerTable(w, st, s.Former)
	}
}

func formerTable(w io.Writer, st style, former []api.FormerSession) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "    GENERATION\tSESSION\tENDED BY\tENDED\tCTX")
	for _, f := range former {
		fmt.Fprintf(tw, "    %d\t%s\t%s\t%s\t%s\n", f.Generation, cli.Or(f.Session), cli.Or(f.Why), stamp(f.EndedAt), st.ctx(f.Tokens.Percent()))
	}
	_ = tw.Flush()
}

// stamp shows a time, if there is one.
func stamp(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format(time.DateTime)
}

// shownFills is how many points of a session's history are shown.
const shownFills = 40

// levels are the steps of a sparkline.
var levels = []rune("▁▂▃▄▅▆▇█")

// history shows how full the context was over time, oldest first: as a sparkline on
// a terminal, in numbers elsewhere. A bar stands where another session began.
func (m *Main) history(fills []api.Fill) string {
	var points []string
	last := 0
	for i, f := range fills[max(0, len(fills)-shownFills):] {
		p := f.Percent()
		if p == nil {
			continue
		}
		if i > 0 && len(points) > 0 && f.Generation != fills[max(0, len(fills)-shownFills)+i-1].Generation {
			points = append(points, "|")
		}
		point := fmt.Sprintf("%d%%", *p)
		if m.app.StdoutTerminal {
			point = m.style().paint(ctxColour(*p), string(levels[min(max(*p, 0)*len(levels)/100, len(levels)-1)]))
		}
		points, last = append(points, point), *p
	}
	if len(points) == 0 {
		return ""
	}
	if m.app.StdoutTerminal {
		return fmt.Sprintf("%s  %d%%", strings.Join(points, ""), last)
	}
	return strings.Join(points, " ")
}
