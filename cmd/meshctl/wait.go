package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/hub/client"
	"opencode-mesh/protocol/api"
)

// reloads is how many tasks are read anew at once.
const reloads = 8

// waitFor shows the tasks until each is settled or asks something, or the wait
// ends.
func (m *Main) waitFor(cmd *cobra.Command, c *client.Client, tasks []api.Task, timeout time.Duration) error {
	ctx, cancel := within(cmd.Context(), timeout)
	defer cancel()
	w := &wait{c: c, tasks: map[string]api.Task{}, whole: cli.AsJSON(cmd)}
	for _, t := range tasks {
		if _, twice := w.tasks[t.Task]; !twice {
			w.order = append(w.order, t.Task)
		}
		w.tasks[t.Task] = t
	}
	if m.app.StdoutTerminal && !cli.AsJSON(cmd) {
		w.shown = m.newTable(w.all())
	} else {
		w.shown = &lines{m: m, json: cli.AsJSON(cmd), said: map[string]api.State{}}
	}
	err := w.run(ctx)
	w.shown.end(w.all())
	if err != nil && ctx.Err() == nil {
		return err
	}
	return m.verdict(w.all(), w.hub.away)
}

// wait follows tasks until all are over. It is used by one goroutine.
type wait struct {
	c     *client.Client
	order []string
	tasks map[string]api.Task
	whole bool // summaries are wanted whole
	shown display
	hub   outage
}

// display shows what a wait learns. Calls return soon.
type display interface {
	task(t api.Task)
	notice(text string)
	// end is called last, with all tasks as they are then.
	end(tasks []api.Task)
}

// finished reports whether waiting for the task is over; unknown is not an end
// (semantics 8).
func finished(t api.Task) bool { return t.State.Settled() || t.State == api.StateQuestion }

// errAllOver ends the event stream.
var errAllOver = errors.New("all over")

// run follows the tasks by one event stream. What happened before it began, or
// while it was interrupted, is read anew.
func (w *wait) run(ctx context.Context) error {
	fresh := false // every task was read after the stream began
	w.hub.tell = w.shown.notice
	err := w.c.Events(ctx, func(e api.Event) error {
		w.hub.back()
		if e.Type == api.EventResync {
			fresh = false
		}
		err := w.event(ctx, e)
		if err == nil && !fresh {
			err = w.reload(ctx)
		}
		if client.Passing(err) {
			fresh = false // the stream will break as well, and come back
			return nil
		}
		if err != nil {
			return err
		}
		fresh = true
		if w.over() {
			return errAllOver
		}
		return nil
	}, func(err error) {
		fresh = false
		w.hub.lost(err)
	})
	if errors.Is(err, errAllOver) {
		return nil
	}
	return err
}

// event takes an event, about any task. Events carry a summary that is cut for
// display.
func (w *wait) event(ctx context.Context, e api.Event) error {
	if e.Type != api.EventTask {
		return nil
	}
	var t api.Task
	if err := json.Unmarshal(e.Data, &t); err != nil {
		return fmt.Errorf("an event cannot be read: %w", err)
	}
	if _, ours := w.tasks[t.Task]; !ours {
		return nil
	}
	if w.whole && finished(t) {
		var err error
		if t, err = w.c.Task(ctx, t.Task); err != nil {
			return err
		}
	}
	w.set(t)
	return nil
}

// reload reads the tasks that may have changed.
func (w *wait) reload(ctx context.Context) error {
	var ids []string
	for _, t := range w.all() {
		if t.State.Settled() && !w.whole {
			w.shown.task(t)
		} else {
			ids = append(ids, t.Task)
		}
	}
	tasks, errs := make([]api.Task, len(ids)), make([]error, len(ids))
	turns := make(chan struct{}, reloads)
	var wg sync.WaitGroup
	for i, id := range ids {
		turns <- struct{}{}
		wg.Go(func() {
			tasks[i], errs[i] = w.c.Task(ctx, id)
			<-turns
		})
	}
	wg.Wait()
	for i, t := range tasks {
		if errs[i] == nil {
			w.set(t)
		}
	}
	return errors.Join(errs...)
}

func (w *wait) set(t api.Task) {
	t.Text, t.Reply, t.Life = "", "", nil // left to task show
	w.tasks[t.Task] = t
	w.shown.task(t)
}

// all are the tasks in the order in which they were named.
func (w *wait) all() []api.Task {
	out := make([]api.Task, len(w.order))
	for i, id := range w.order {
		out[i] = w.tasks[id]
	}
	return out
}

func (w *wait) over() bool {
	for _, t := range w.tasks {
		if !finished(t) {
			return false
		}
	}
	return true
}

// verdict gives the exit code: 3 before 4 before 5 before 1. away says that the hub
// did not answer when the wait ended, so that nobody knows what goes on.
func (m *Main) verdict(tasks []api.Task, away bool) error {
	var open []string
	question, undone := false, false
	for _, t := range tasks {
		switch {
		case t.State == api.StateQuestion:
			question = true
		case !t.State.Settled():
			open = append(open, t.Task)
		case t.State != api.StateDone:
			undone = true
		}
	}
	switch {
	case len(open) > 0:
		ids := strings.Join(open, " ")
		fmt.Fprintf(m.app.Stderr, "still running: %s\ncome back with: meshctl task wait %s\n", ids, ids)
		if away {
			return cli.Exit(cli.ExitNoAccess, nil) // why was said when it began
		}
		return cli.Exit(cli.ExitWaiting, nil)
	case question:
		return cli.Exit(cli.ExitQuestion, nil)
	case undone:
		return cli.Exit(cli.ExitNotDone, nil)
	}
	return nil
}

// lines prints every task when it is over, for programs and for logs.
type lines struct {
	m    *Main
	json bool
	said map[string]api.State // the state that was printed
}

// task implements display. A question is said to people at once, because they can
// answer it while other tasks go on; in JSON a task has one line.
func (l *lines) task(t api.Task) {
	if t.State.Settled() || t.State == api.StateQuestion && !l.json {
		l.say(t)
	}
}

func (l *lines) notice(text string) { fmt.Fprintln(l.m.app.Stderr, text) }

func (l *lines) end(tasks []api.Task) {
	for _, t := range tasks {
		l.say(t)
	}
}

func (l *lines) say(t api.Task) {
	if l.said[t.Task] == t.State {
		return
	}
	l.said[t.Task] = t.State
	if l.json {
		t.Text, t.Reply, t.Life = "", "", nil
		_ = l.m.app.JSONLine(t)
		return
	}
	printTask(l.m.app.Stdout, l.m.style(), t)
}
