package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
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

// topEvery is how long after an answer of the hub the next one is asked for, and how
// often the screen is painted, because ages go on.
const topEvery = time.Second

// topStale is how old what is shown may be before the screen says so.
const topStale = 5 * topEvery

func (m *Main) top() *cobra.Command {
	return &cobra.Command{
		Use: "top", Short: "Show nodes and open tasks, full-screen", Example: "  meshctl top", Args: cobra.NoArgs,
		Long: "Shows the nodes and the tasks that have not ended on the whole terminal, as they are now, until Ctrl-C. Those that work or wait come first.",
		RunE: m.with(func(cmd *cobra.Command, _ []string, c *client.Client) error {
			if !m.app.StdoutTerminal {
				return cli.Usage("top needs a terminal; programs use meshctl nodes, meshctl task list --open or meshctl watch, with --json")
			}
			return m.runTop(cmd.Context(), c)
		}),
	}
}

// sight is what a hub showed at one time, or why it showed nothing.
type sight struct {
	nodes []api.Node
	tasks []api.Task
	more  bool // there are more open tasks than these
	at    time.Time
	err   error
}

// look asks the hub once. What passes by itself is tried again for some seconds.
func look(ctx context.Context, c *client.Client) sight {
	nodes, err := c.Nodes(ctx)
	if err != nil {
		return sight{err: err}
	}
	page, err := c.Tasks(ctx, url.Values{"open": {"true"}, "limit": {strconv.Itoa(api.MaxPage)}})
	return sight{nodes: nodes, tasks: page.Tasks, more: page.Next != "", at: time.Now(), err: err}
}

// runTop paints what the hub shows until ctx ends, which is the normal end. The first
// answer comes before the screen is taken, so that an error stands where others do.
func (m *Main) runTop(ctx context.Context, c *client.Client) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := &overview{style: m.style(), hub: c.Name()}
	if s.now = look(ctx, c); s.now.err != nil {
		return s.now.err
	}
	sights := make(chan sight)
	go func() {
		defer close(sights)
		for {
			select {
			case <-time.After(topEvery):
			case <-ctx.Done():
				return
			}
			select {
			case sights <- look(ctx, c):
			case <-ctx.Done():
				return
			}
		}
	}()
	defer func() {
		cancel()
		for range sights { // until it has ended
		}
	}()

	fmt.Fprint(m.app.Stdout, "\x1b[?1049h\x1b[?25l") // a screen of its own, without cursor
	defer fmt.Fprint(m.app.Stdout, "\x1b[?25h\x1b[?1049l")
	tick := time.NewTicker(topEvery)
	defer tick.Stop()
	for {
		w, h := m.app.Size()
		fmt.Fprint(m.app.Stdout, s.paint(w, h))
		select {
		case <-tick.C:
		case next := <-sights:
			switch {
			case ctx.Err() != nil:
			case next.err == nil:
				s.now, s.trouble = next, nil
			case client.Passing(next.err) || errors.Is(next.err, client.ErrUnreachable):
				s.trouble = next.err
			default:
				return next.err
			}
		}
		if ctx.Err() != nil {
			return nil
		}
	}
}

// overview is what the screen shows.
type overview struct {
	style   style
	hub     string // who looks
	now     sight
	trouble error // why now is old
}

// paint is the screen anew, from its upper left corner.
func (o *overview) paint(width, height int) string {
	var rows []string
	row := func(segments ...segment) {
		text, _ := o.style.line(width-1, segments)
		rows = append(rows, text)
	}
	row(o.title()...)
	if why := o.age(); why != "" {
		row(segment{text: why, colour: yellow})
	} else {
		row()
	}
	// Title, note, two headings, the line between and two for what has no room.
	room := max(height-7, 2)
	tasks := min(len(o.now.tasks), max(room/2, room-len(o.now.nodes)))
	nodes := min(len(o.now.nodes), room-tasks)
	row(segment{text: fmt.Sprintf("%-16s %-13s %-22s %7s %6s  %s", "NODE", "STATE", "AGENT", "RUNNING", "QUEUED", "CTX"), colour: dim})
	list := o.busiest()
	for _, n := range list[:nodes] {
		row(nodeRow(n)...)
	}
	if rest := len(list) - nodes; rest > 0 {
		row(segment{text: fmt.Sprintf("… and %d more", rest), colour: dim})
	}
	row()
	row(segment{text: fmt.Sprintf("%-16s %-9s %6s  %s", "TASK ON", "STATE", "SINCE", "TASK"), colour: dim})
	for _, t := range o.now.tasks[:tasks] {
		row(openRow(t)...)
	}
	switch rest := len(o.now.tasks) - tasks; {
	case o.now.more:
		row(segment{text: fmt.Sprintf("… and more than %d more", rest), colour: dim})
	case rest > 0:
		row(segment{text: fmt.Sprintf("… and %d more", rest), colour: dim})
	}
	rows = rows[:min(len(rows), max(height, 1))]
	return "\x1b[H" + strings.Join(rows, "\x1b[K\r\n") + "\x1b[J"
}

func (o *overview) title() []segment {
	online, running, queued := 0, 0, 0
	for _, n := range o.now.nodes {
		if n.State == api.NodeOnline {
			online++
		}
		running, queued = running+n.Running, queued+n.Queued
	}
	return []segment{{text: fmt.Sprintf("%s  %d of %d nodes online, %d tasks running, %d queued  (Ctrl-C ends)", o.hub, online, len(o.now.nodes), running, queued)}}
}

// age says that what stands below is not how it is now.
func (o *overview) age() string {
	if o.trouble == nil && time.Since(o.now.at) < topStale {
		return ""
	}
	why := "the hub does not answer"
	if o.trouble != nil {
		why = mesh.CleanLine(o.trouble.Error())
	}
	return fmt.Sprintf("connection lost, this is %s old, still trying: %s", since(o.now.at), why)
}

// busiest is the nodes with those first that work, then those that are there.
func (o *overview) busiest() []api.Node {
	return slices.SortedStableFunc(slices.Values(o.now.nodes), func(a, b api.Node) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), strings.Compare(a.Name, b.Name))
	})
}

func rank(n api.Node) int {
	switch {
	case n.State != api.NodeOnline && n.Running+n.Queued == 0:
		return 2
	case n.Running+n.Queued == 0:
		return 1
	}
	return 0
}

func nodeRow(n api.Node) []segment {
	agent := strings.Join(strings.Fields(mesh.CleanLine(n.Agent.Kind+" "+n.Agent.Version+" "+n.Agent.Health)), " ")
	state := segment{text: fmt.Sprintf("%-13s ", n.State+" "+since(n.Since))}
	if n.State != api.NodeOnline {
		state.colour = yellow
	}
	row := []segment{{text: fmt.Sprintf("%-16s ", n.Name)}, state, {text: fmt.Sprintf("%-22s %7d %6d", fit(agent, 22), n.Running, n.Queued)}}
	if n.CtxPercent != nil {
		row = append(row, segment{text: fmt.Sprintf("  %d%%", *n.CtxPercent), colour: ctxColour(*n.CtxPercent)})
	}
	return row
}

func openRow(t api.Task) []segment {
	row := []segment{
		{text: fmt.Sprintf("%-16s ", t.Target)},
		{text: fmt.Sprintf("%-9s", t.State), colour: stateColour(t.State)},
		{text: fmt.Sprintf(" %6s  %s ", since(t.Since), t.Task)},
	}
	if t.Op != "" {
		row = append(row, segment{text: " " + t.Op + " "})
	}
	if p := fill(t); p != nil {
		row = append(row, segment{text: fmt.Sprintf(" ctx %d%% ", *p), colour: ctxColour(*p)})
	}
	return append(row, segment{text: " " + headline(t)})
}
