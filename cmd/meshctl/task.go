package main

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/hub/client"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
)

func (m *Main) task() *cobra.Command {
	cmd := &cobra.Command{Use: "task", Short: "Look after tasks", Example: "  meshctl task list --open"}
	cmd.AddCommand(m.taskList(), m.taskShow(), m.taskWait(), m.taskCancel(), m.taskRetry(), m.taskAnswer(), m.taskEvents(), m.taskAbandon())
	return cmd
}

func (m *Main) taskList() *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Short: "List tasks, newest first", Example: "  meshctl task list --open --target beta --search deploy", Args: cobra.NoArgs,
		RunE: m.with(func(cmd *cobra.Command, _ []string, c *client.Client) error {
			f := cmd.Flags()
			q := url.Values{}
			if open, _ := f.GetBool("open"); open {
				q.Set("open", "true")
			}
			for name, as := range map[string]string{"target": "target", "controller": "controller", "search": "q"} {
				if v, _ := f.GetString(name); v != "" {
					q.Set(as, v)
				}
			}
			states, _ := f.GetStringArray("state")
			for _, s := range states {
				q.Add("state", s)
			}
			limit, _ := f.GetInt("limit")
			if limit < 1 {
				return cli.Usage("--limit is at least 1")
			}
			for limit > 0 {
				q.Set("limit", strconv.Itoa(min(limit, api.MaxPage)))
				page, err := c.Tasks(cmd.Context(), q)
				if err != nil {
					return err
				}
				if err := m.listed(cmd, page.Tasks); err != nil {
					return err
				}
				limit -= len(page.Tasks)
				if page.Next == "" {
					return nil
				}
				q.Set("before", page.Next)
			}
			return nil
		}),
	}
	f := cmd.Flags()
	f.Bool("open", false, "only tasks that are not settled")
	f.String("target", "", "only tasks of this node")
	f.String("controller", "", "only tasks of this controller (operators)")
	f.String("search", "", "only tasks that have this text in their id, the names, the summary or the text of the dispatch, in any case")
	f.StringArray("state", nil, "only tasks in this state (repeatable)")
	f.Int("limit", api.DefaultPage, "at most so many")
	cli.JSONFlag(cmd)
	return cmd
}

func (m *Main) listed(cmd *cobra.Command, tasks []api.Task) error {
	s := m.style()
	for _, t := range tasks {
		if cli.AsJSON(cmd) {
			if err := m.app.JSONLine(t); err != nil {
				return err
			}
			continue
		}
		target := t.Target
		if t.Op != "" {
			target += "  " + t.Op
		}
		fmt.Fprintf(m.app.Stdout, "%s  %4s  %s -> %s  %s  %s\n", t.Task, since(t.CreatedAt), t.Controller, target, s.state(t.State), headline(t))
	}
	return nil
}

// someIDs demands task ids that could be some.
func someIDs(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cli.Usage("name at least one task id; meshctl task list shows them")
	}
	for _, id := range args {
		if !mesh.ValidTaskID(id) {
			return cli.Usage("%q is not a task id", mesh.CleanLine(id))
		}
	}
	return nil
}

func oneID(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return cli.Usage("name one task id")
	}
	return someIDs(cmd, args)
}

func (m *Main) taskShow() *cobra.Command {
	cmd := &cobra.Command{
		Use: "show ID…", Short: "Everything about tasks", Example: "  meshctl task show laptop-m5x2k9-7f3q", Args: someIDs,
		RunE: m.with(func(cmd *cobra.Command, args []string, c *client.Client) error {
			for _, id := range args {
				t, err := c.Task(cmd.Context(), id)
				if err != nil {
					return err
				}
				if cli.AsJSON(cmd) {
					if err := m.app.JSONLine(t); err != nil {
						return err
					}
					continue
				}
				printWhole(m.app.Stdout, m.style(), t)
			}
			return nil
		}),
	}
	cli.JSONFlag(cmd)
	return cmd
}

func (m *Main) taskWait() *cobra.Command {
	cmd := &cobra.Command{
		Use: "wait ID…", Short: "Wait for tasks again", Example: "  meshctl task wait laptop-m5x2k9-7f3q --timeout 5m", Args: someIDs,
		RunE: m.with(func(cmd *cobra.Command, args []string, c *client.Client) error {
			timeout, _ := cmd.Flags().GetDuration("timeout")
			if timeout < 0 {
				return cli.Usage("--timeout must be positive")
			}
			var tasks []api.Task
			for _, id := range args {
				t, err := c.Task(cmd.Context(), id)
				if err != nil {
					return err
				}
				tasks = append(tasks, t)
			}
			return m.waitFor(cmd, c, tasks, timeout)
		}),
	}
	cmd.Flags().Duration("timeout", 0, "how long to wait (default: no limit)")
	cli.JSONFlag(cmd)
	return cmd
}

// printOne prints a task as it is now.
func (m *Main) printOne(cmd *cobra.Command, t api.Task) error {
	if cli.AsJSON(cmd) {
		return m.app.JSONLine(t)
	}
	printTask(m.app.Stdout, m.style(), t)
	return nil
}

// each runs one change per id and prints the task.
func (m *Main) each(do func(cmd *cobra.Command, c *client.Client, id string) (api.Task, error)) func(*cobra.Command, []string) error {
	return m.with(func(cmd *cobra.Command, args []string, c *client.Client) error {
		for _, id := range args {
			t, err := do(cmd, c, id)
			if err != nil {
				return fmt.Errorf("%s: %w", id, err)
			}
			if err := m.printOne(cmd, t); err != nil {
				return err
			}
		}
		return nil
	})
}

func (m *Main) taskCancel() *cobra.Command {
	cmd := &cobra.Command{
		Use: "cancel ID…", Short: "Ask for the end of tasks", Example: "  meshctl task cancel laptop-m5x2k9-7f3q", Args: someIDs,
		Long: "Asks for the end of tasks. A task that its node has decides there: the answer shows its state now, meshctl task wait its end.",
		RunE: m.each(func(cmd *cobra.Command, c *client.Client, id string) (api.Task, error) {
			return c.Cancel(cmd.Context(), id)
		}),
	}
	cli.JSONFlag(cmd)
	return cmd
}

func (m *Main) taskRetry() *cobra.Command {
	cmd := &cobra.Command{
		Use: "retry ID…", Short: "Run settled tasks once more under the same id", Example: "  meshctl task retry laptop-m5x2k9-7f3q", Args: someIDs,
		RunE: m.each(func(cmd *cobra.Command, c *client.Client, id string) (api.Task, error) {
			return c.Retry(cmd.Context(), id)
		}),
	}
	cli.JSONFlag(cmd)
	return cmd
}

func (m *Main) taskAbandon() *cobra.Command {
	cmd := &cobra.Command{
		Use: "abandon ID…", Short: "Give up tasks whose node does not return (operators)", Example: "  meshctl task abandon laptop-m5x2k9-7f3q", Args: someIDs,
		RunE: m.each(func(cmd *cobra.Command, c *client.Client, id string) (api.Task, error) {
			return c.Abandon(cmd.Context(), id)
		}),
	}
	cli.JSONFlag(cmd)
	return cmd
}

func (m *Main) taskAnswer() *cobra.Command {
	cmd := &cobra.Command{
		Use: "answer ID TEXT", Short: "Answer a task's question", Example: "  meshctl task answer laptop-m5x2k9-7f3q staging",
		Long: "Answers the question that a task waits for. The number of an option stands for the option. When the agent asks for a permission the options are once, always (for the rest of its session) and reject, which may be followed by a message that tells the agent why.",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 {
				return cli.Usage("give a task id and the answer")
			}
			return oneID(cmd, args[:1])
		},
		RunE: m.with(func(cmd *cobra.Command, args []string, c *client.Client) error {
			question, _ := cmd.Flags().GetString("question")
			t, err := c.Answer(cmd.Context(), args[0], api.Answer{Question: question, Text: strings.Join(args[1:], " ")})
			if err != nil {
				return err
			}
			return m.printOne(cmd, t)
		}),
	}
	cmd.Flags().String("question", "", "id of the question that is meant (default: the one that waits)")
	cli.JSONFlag(cmd)
	return cmd
}

func (m *Main) envelope() *cobra.Command {
	cmd := &cobra.Command{
		Use: "envelope TARGET < FILE", Short: "Hand over a ready-made envelope and print the reply", Example: "  meshctl envelope beta < task.txt", Args: cobra.ExactArgs(1),
		Long: "Hands over an envelope as it is, waits and prints the reply. Its from: is this controller's name and its task: the id. Exit codes are those of dispatch.",
		RunE: m.with(m.runEnvelope),
	}
	travelFlags(cmd)
	return cmd
}

func (m *Main) runEnvelope(cmd *cobra.Command, args []string, c *client.Client) error {
	if !api.ValidName(args[0]) {
		return cli.Usage("%q is not the name of a node", mesh.CleanLine(args[0]))
	}
	d, err := options(cmd)
	if err != nil {
		return err
	}
	d.Targets = []api.DispatchTarget{{Name: args[0]}}
	if d.Text, err = m.stdin(cmd.Context(), "the envelope"); err != nil {
		return err
	}
	sent, err := c.Envelope(cmd.Context(), d)
	if err != nil {
		return err
	}
	timeout, _ := cmd.Flags().GetDuration("timeout")
	ctx, cancel := within(cmd.Context(), timeout)
	defer cancel()
	hub := &outage{tell: func(text string) { fmt.Fprintln(m.app.Stderr, text) }}
	t, err := c.Wait(ctx, sent.Task, hub.lost)
	if ctx.Err() != nil {
		fmt.Fprintln(m.app.Stderr, "still running:", sent.Task)
		return cli.Exit(cli.ExitWaiting, nil)
	}
	if err != nil {
		return err
	}
	m.printReply(t.Reply)
	switch {
	case t.State == api.StateQuestion:
		if t.Question != nil {
			fmt.Fprintln(m.app.Stderr, mesh.CleanLine(t.Question.Text))
			printOptions(m.app.Stderr, t)
		}
		return cli.Exit(cli.ExitQuestion, nil)
	case t.State != api.StateDone:
		if t.Error != nil {
			return fmt.Errorf("%s: %s", t.State, mesh.CleanLine(t.Error.Message))
		}
		return cli.Exit(cli.ExitNotDone, nil)
	}
	return nil
}

// printReply prints a reply as it came, but for what would steer a terminal.
func (m *Main) printReply(reply string) {
	for line := range strings.Lines(strings.TrimRight(reply, "\n")) {
		if m.app.StdoutTerminal {
			line = cli.Indented(line)
		}
		fmt.Fprintln(m.app.Stdout, strings.TrimSuffix(line, "\n"))
	}
}
