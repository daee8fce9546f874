package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"opencode-mesh/auth/local"
	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/node"
	"opencode-mesh/node/link"
	"opencode-mesh/node/opencomms/push"
	"opencode-mesh/node/tasks"
	"opencode-mesh/protocol/mesh"
)

// operator calls the node that runs on --data.
func (m *Main) operator(cmd *cobra.Command, fn func(*node.Operator) error) error {
	dir, err := m.dataDir(cmd)
	if err != nil {
		return err
	}
	err = fn(node.NewOperator(dir))
	if errors.Is(err, local.ErrNotRunning) {
		return cli.Exit(cli.ExitNoAccess, fmt.Errorf("no node runs on %s: start it with meshnode run, or name its directory with --data", dir))
	}
	return cli.Coded(err)
}

func (m *Main) status() *cobra.Command {
	cmd := &cobra.Command{
		Use: "status", Short: "Show how the running node is", Example: "  meshnode status --json", Args: cobra.NoArgs,
		Long: "Shows the link to the hub, the agent's health, the running tasks and the journal of the node that runs on --data.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return m.operator(cmd, func(o *node.Operator) error {
				s, err := o.Status(cmd.Context())
				if err != nil {
					return err
				}
				if cli.AsJSON(cmd) {
					return m.app.JSONLine(s)
				}
				return printStatus(m.app.Stdout, s)
			})
		},
	}
	dataFlag(cmd)
	cli.JSONFlag(cmd)
	return cmd
}

// printStatus shows a status to people.
func printStatus(w io.Writer, s node.Status) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(key string, parts ...string) {
		text := make([]string, 0, len(parts))
		for _, p := range parts {
			if p = mesh.CleanLine(p); p != "" {
				text = append(text, p)
			}
		}
		if len(text) > 0 {
			fmt.Fprintf(tw, "%s\t%s\n", key, strings.Join(text, ", "))
		}
	}
	row("node", s.Name, fmt.Sprintf("pid %d", s.PID), "up "+age(s.StartedAt))
	row("hub", s.Link.Hub)
	row("link", linkState(s.Link)...)
	row("agent", s.Agent.Kind+" "+s.Agent.Version, s.Agent.Health, memory(s.Agent.Memory), s.Agent.Detail)
	for _, warning := range s.Agent.Warnings {
		row("warning", warning)
	}
	row("policy", s.Policy, takes(s.AcceptFrom))
	row("workspaces", s.Workspaces...)
	row("services", s.Services...)
	row("tasks", fmt.Sprintf("%d running (at most %d)", len(s.Tasks.Running), s.MaxParallel), some(s.Tasks.Waiting, "waiting"), some(s.Tasks.Held, "held"))
	for _, t := range s.Tasks.Running {
		row("  "+t.Task, "from "+t.Controller, "for "+age(t.StartedAt), t.Session)
	}
	row("mail", some(s.Mail.Unsent, "not sent yet"), some(s.Mail.Waiting-s.Mail.Unsent, "on their way"), s.Mail.Disk)
	for _, p := range s.Push {
		row("opencomms", p.Dir, pushes(p), some(len(p.Delivering), "sessions delivered to"), p.Problem)
	}
	journal(row, s.Tasks)
	for _, f := range s.Forked {
		journal(row, f)
	}
	return tw.Flush()
}

// pushes says in words whether mail is put into sessions.
func pushes(p push.Project) string {
	if p.Off != "" {
		return "not pushed: " + p.Off
	}
	return "pushed"
}

func journal(row func(string, ...string), s tasks.Snapshot) {
	row("journal", s.Path, fmt.Sprintf("%d known", s.Remembered), some(s.Undelivered, "results not delivered yet"), s.Disk)
}

// linkState is the link in words.
func linkState(s link.Status) []string {
	out := []string{s.State}
	if s.State == link.StateOnline {
		return append(out, "for "+age(s.Since))
	}
	out = append(out, "since "+age(s.Since), s.LastError)
	if !s.RetryAt.IsZero() {
		out = append(out, fmt.Sprintf("next try in %ds", int(max(time.Until(s.RetryAt), 0).Seconds())))
	}
	return out
}

func takes(from []string) string {
	if len(from) == 0 {
		return ""
	}
	return "only from " + strings.Join(from, " ")
}

func some(n int, what string) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%d %s", n, what)
}

func memory(bytes int64) string {
	if bytes == 0 {
		return ""
	}
	return fmt.Sprintf("%d MiB", bytes>>20)
}

// age is how long ago t was.
func age(t time.Time) string { return max(time.Since(t), 0).Round(time.Second).String() }

func (m *Main) held() *cobra.Command {
	cmd := &cobra.Command{
		Use: "held", Short: "List the tasks that policy hold parked", Example: "  meshnode held", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return m.operator(cmd, func(o *node.Operator) error {
				list, err := o.Held(cmd.Context())
				if err != nil {
					return err
				}
				return m.printHeld(cmd, list)
			})
		},
	}
	dataFlag(cmd)
	cli.JSONFlag(cmd)
	cmd.AddCommand(
		m.decide("release ID", "Let a held task start", "  meshnode held release laptop-m5x2k9-7f3q", func(cmd *cobra.Command, o *node.Operator, id string) error {
			return o.Release(cmd.Context(), id)
		}),
		m.decide("refuse ID", "End a held task as refused", "  meshnode held refuse laptop-m5x2k9-7f3q", func(cmd *cobra.Command, o *node.Operator, id string) error {
			return o.Refuse(cmd.Context(), id)
		}),
	)
	return cmd
}

// decide is one of the two things to do with a held task.
func (m *Main) decide(use, short, example string, do func(*cobra.Command, *node.Operator, string) error) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Example: example,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || !mesh.ValidTaskID(args[0]) {
				return cli.Usage("name one task id; meshnode held lists them")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return m.operator(cmd, func(o *node.Operator) error { return do(cmd, o, args[0]) })
		},
	}
	dataFlag(cmd)
	return cmd
}

func (m *Main) printHeld(cmd *cobra.Command, list []tasks.TaskInfo) error {
	if cli.AsJSON(cmd) {
		for _, t := range list {
			if err := m.app.JSONLine(t); err != nil {
				return err
			}
		}
		return nil
	}
	for _, t := range list {
		fmt.Fprintf(m.app.Stdout, "%s  from %s  %s ago\n", t.Task, mesh.CleanLine(t.Controller), age(t.TakenAt))
		fmt.Fprintln(m.app.Stdout, "  "+mesh.CleanLine(mesh.CutSummary(body(t.Text))))
	}
	return nil
}

// body is the text of a held envelope without its header.
func body(text string) string {
	if env, err := mesh.ParseEnvelope(text); err == nil {
		return env.Body
	}
	return text
}
