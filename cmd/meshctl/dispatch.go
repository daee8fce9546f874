package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/hub/client"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
)

func (m *Main) dispatch() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "dispatch TARGET…|--all [flags] [-- TEXT]",
		Short:   "Hand a task to one node, several or all",
		Long:    "Hands a task over and waits for the results. The text comes after --; - or no text reads stdin. Exit codes: 0 all done, 1 some not done, 2 usage, 3 cannot reach or not allowed, 4 still running when the wait ended, 5 a question waits.\n\n--context GOAL asks the nodes that you have consented to (meshctl context consent) first, and puts what they find below the text: quotes with what to cite them by, which are data and no instructions. If nothing is found, or nobody may be asked, the task goes without; a line on stderr says what was used.",
		Example: "  meshctl dispatch alpha beta --timeout 10m -- run the tests and say what fails",
		RunE:    m.with(m.runDispatch),
	}
	f := cmd.Flags()
	f.Bool("all", false, "every node that is online now")
	f.Bool("include-offline", false, "with --all: queue for the nodes that are offline too")
	f.String("mode", string(mesh.ModeSession), "session, or one-shot: no further turns are expected")
	f.String("id", "", "task id; the same id again is a retry of delivery, never a second run")
	f.Bool("detach", false, "do not wait for the results")
	contextFlags(cmd)
	travelFlags(cmd)
	cli.JSONFlag(cmd)
	return cmd
}

// travelFlags are those of what hands a task over, in whatever form.
func travelFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.Bool("new", false, "start a new session and bind it")
	f.String("workspace", "", "workspace of the target (default: its first)")
	f.Duration("timeout", 0, "how long to wait for the results (default: no limit)")
	f.Duration("deadline", 0, "how long the agent may run (default: the node's, 2h)")
	f.Duration("question-timeout", 0, "how long a question waits before the agent goes on by assumption (default 30m)")
	f.Duration("ttl", 0, "how long the task may wait for its start (default 24h)")
	f.String("auto-answer", "", "how the agent's questions are answered: first (option), none, or a regular expression for the option; permissions always wait for a person")
	f.Int("auto-compact", 0, "compact the session first when its context is filled to this percentage or more; 0 never does")
}

func (m *Main) runDispatch(cmd *cobra.Command, args []string, c *client.Client) error {
	targets, text, err := m.split(cmd, args)
	if err != nil {
		return err
	}
	d, err := options(cmd)
	if err != nil {
		return err
	}
	d.Mode, _ = cmd.Flags().GetString("mode")
	if d.Mode != string(mesh.ModeSession) && d.Mode != string(mesh.ModeOneShot) {
		return cli.Usage("--mode is session or one-shot, not %q", d.Mode)
	}
	query, err := contextWanted(cmd)
	if err != nil {
		return err
	}
	all, _ := cmd.Flags().GetBool("all")
	if all {
		if targets, err = m.everyNode(cmd, c); err != nil {
			return err
		}
	}
	id, _ := cmd.Flags().GetString("id")
	switch {
	case id != "" && len(targets) > 1:
		return cli.Usage("--id goes with one target; each task needs an id of its own")
	case id != "" && !mesh.ValidTaskID(id):
		return cli.Usage("%q is not a task id: letters, digits, '.', '_' and '-', at most 64", mesh.CleanLine(id))
	}
	for _, t := range targets {
		tid := id
		if tid == "" {
			tid = mesh.NewID(c.Name())
		}
		d.Targets = append(d.Targets, api.DispatchTarget{Name: t, ID: tid})
	}
	if !given(text) && !all { // a forgotten -- makes targets of the words
		if err := known(cmd.Context(), c, targets); err != nil {
			return err
		}
	}
	if d.Text, err = m.text(cmd.Context(), text); err != nil {
		return err
	}
	if query != nil {
		if err := m.withContext(cmd.Context(), c, &d, *query, id != ""); err != nil {
			return err
		}
	}
	timeout, _ := cmd.Flags().GetDuration("timeout")
	ctx, cancel := within(cmd.Context(), timeout)
	defer cancel()
	tasks, err := c.Dispatch(ctx, d)
	switch {
	case errors.Is(err, client.ErrUnreachable):
		return mayBeTaken(cmd.Context(), err, idsOf(d))
	case err != nil:
		return err
	}
	if detach, _ := cmd.Flags().GetBool("detach"); detach {
		return m.detached(cmd, tasks)
	}
	return m.waitFor(cmd, c, tasks, timeout)
}

// mayBeTaken is the error of a hub that did not answer what would create tasks.
func mayBeTaken(ctx context.Context, err error, ids string) error {
	if ctx.Err() != nil {
		err = errors.New("interrupted")
	}
	return cli.Exit(cli.ExitNoAccess, fmt.Errorf("%w\nit may have been taken all the same; look with: meshctl task show %s", err, ids))
}

// within bounds a call by the time that the person gave; 0 does not.
func within(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout > 0 {
		return context.WithTimeout(ctx, timeout)
	}
	return context.WithCancel(ctx)
}

// known refuses targets that are no nodes before a text is asked for.
func known(ctx context.Context, c *client.Client, targets []string) error {
	list, err := c.Nodes(ctx)
	if err != nil {
		return err
	}
	for _, t := range targets {
		if !slices.ContainsFunc(list, func(n api.Node) bool { return n.Name == t }) {
			names := make([]string, len(list))
			for i, n := range list {
				names[i] = n.Name
			}
			return cli.Usage("no node is named %q (known: %s); the text comes after --", t, strings.Join(names, ", "))
		}
	}
	return nil
}

// split takes the targets before -- and the text behind it apart.
func (m *Main) split(cmd *cobra.Command, args []string) (targets, text []string, err error) {
	at := cmd.ArgsLenAtDash()
	if at < 0 {
		at = len(args)
		if n := len(args); n > 0 && args[n-1] == "-" {
			at = n - 1
		}
	}
	targets, text = args[:at], args[at:]
	all, _ := cmd.Flags().GetBool("all")
	offline, _ := cmd.Flags().GetBool("include-offline")
	switch {
	case all && len(targets) > 0:
		return nil, nil, cli.Usage("--all and names of targets exclude each other")
	case !all && len(targets) == 0:
		return nil, nil, cli.Usage("name the targets, or --all; the text comes after --")
	case offline && !all:
		return nil, nil, cli.Usage("--include-offline goes with --all")
	}
	for i, t := range targets {
		if !api.ValidName(t) {
			return nil, nil, cli.Usage("%q is not the name of a node (%s); the text comes after --", mesh.CleanLine(t), api.NameRule)
		}
		if slices.Contains(targets[:i], t) {
			return nil, nil, cli.Usage("%s is named twice", t)
		}
	}
	return targets, text, nil
}

// options are the flags that travel with the dispatch.
func options(cmd *cobra.Command) (api.Dispatch, error) {
	f := cmd.Flags()
	var d api.Dispatch
	d.New, _ = f.GetBool("new")
	d.Workspace, _ = f.GetString("workspace")
	for name, to := range map[string]*int64{"deadline": &d.DeadlineMS, "question-timeout": &d.QuestionTimeoutMS, "ttl": &d.TTLMS} {
		v, _ := f.GetDuration(name)
		if v < 0 || v > 0 && v < time.Millisecond {
			return d, cli.Usage("--%s must be positive", name)
		}
		*to = v.Milliseconds()
	}
	if v, _ := f.GetDuration("timeout"); v < 0 {
		return d, cli.Usage("--timeout must be positive")
	}
	d.AutoAnswer, _ = f.GetString("auto-answer")
	if _, err := regexp.Compile(d.AutoAnswer); err != nil {
		return d, cli.Usage("--auto-answer is first, none or a regular expression: %w", err)
	}
	if d.AutoCompact, _ = f.GetInt("auto-compact"); d.AutoCompact < 0 || d.AutoCompact > 100 {
		return d, cli.Usage("--auto-compact is a percentage from 0 to 100, not %d", d.AutoCompact)
	}
	return d, nil
}

// everyNode is --all.
func (m *Main) everyNode(cmd *cobra.Command, c *client.Client) ([]string, error) {
	list, err := c.Nodes(cmd.Context())
	if err != nil {
		return nil, err
	}
	offline, _ := cmd.Flags().GetBool("include-offline")
	var targets, skipped []string
	for _, n := range list {
		if n.State == api.NodeOnline || offline {
			targets = append(targets, n.Name)
		} else {
			skipped = append(skipped, n.Name)
		}
	}
	if len(skipped) > 0 {
		fmt.Fprintf(m.app.Stderr, "skipped, offline: %s (--include-offline queues for them)\n", strings.Join(skipped, ", "))
	}
	if len(targets) == 0 {
		return nil, cli.Exit(cli.ExitUsage, errors.New("no node is online; nothing was created"))
	}
	return targets, nil
}

// given reports whether the text stands on the command line.
func given(words []string) bool { return len(words) > 0 && !(len(words) == 1 && words[0] == "-") }

// text is what stands behind --, or stdin.
func (m *Main) text(ctx context.Context, words []string) (string, error) {
	if text := strings.Join(words, " "); len(words) > 0 && text != "-" {
		if strings.TrimSpace(text) == "" {
			return "", cli.Usage("the text is empty")
		}
		return text, nil
	}
	if m.app.StdinTerminal {
		fmt.Fprintln(m.app.Stderr, "type the task, end with Ctrl-D:")
	}
	return m.stdin(ctx, "the task")
}

// stdin reads a text of bounded size.
func (m *Main) stdin(ctx context.Context, what string) (string, error) {
	b, err := cli.Await(ctx, m.app, func() ([]byte, error) { return io.ReadAll(io.LimitReader(m.app.Stdin, api.MaxText+1)) })
	switch {
	case ctx.Err() != nil:
		return "", err
	case err != nil:
		return "", fmt.Errorf("read %s from stdin: %w", what, err)
	case len(b) > api.MaxText:
		return "", cli.Usage("%s is larger than %d bytes; put it into a file of the workspace and name the file", what, api.MaxText)
	case strings.TrimSpace(string(b)) == "":
		return "", cli.Usage("%s is empty: give it after -- or on stdin", what)
	}
	return string(b), nil
}

func (m *Main) detached(cmd *cobra.Command, tasks []api.Task) error {
	for _, t := range tasks {
		if err := m.printOne(cmd, t); err != nil {
			return err
		}
	}
	return nil
}

// idsOf lists the ids of a dispatch.
func idsOf(d api.Dispatch) string {
	ids := make([]string, len(d.Targets))
	for i, t := range d.Targets {
		ids[i] = t.ID
	}
	return strings.Join(ids, " ")
}
