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
	"golang.org/x/text/width"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/hub/client"
	"opencode-mesh/protocol/api"
)

// redrawEvery is how often the live table moves.
const redrawEvery = 120 * time.Millisecond

// board shows tasks until they are over: a live table on a terminal, else a line
// per task once it is.
type board struct {
	m     *Main
	json  bool
	live  bool
	style style
	start time.Time

	// mu guards the following fields.
	mu    sync.Mutex
	order []string
	tasks map[string]api.Task
	said  map[string]bool // printed for good
	drawn int             // lines of the live table on the screen
	frame int

	stop    chan struct{}
	stopped sync.WaitGroup
}

func newBoard(m *Main, asJSON bool, tasks []api.Task) *board {
	b := &board{m: m, json: asJSON, live: m.app.StdoutTerminal && !asJSON, style: m.style(), start: time.Now(),
		tasks: map[string]api.Task{}, said: map[string]bool{}, stop: make(chan struct{})}
	for _, t := range tasks {
		b.order = append(b.order, t.Task)
		b.tasks[t.Task] = t
	}
	if b.live {
		b.stopped.Go(b.animate)
	}
	return b
}

// errAllOver ends the event stream.
var errAllOver = errors.New("all over")

// watch follows the tasks by one event stream. What happened before it began, or
// while it was interrupted, is read anew.
func (b *board) watch(ctx context.Context, c *client.Client) error {
	fresh := false // the state was read after the stream began
	err := c.Events(ctx, func(e api.Event) error {
		switch e.Type {
		case api.EventResync:
			fresh = false
		case api.EventTask:
			var t api.Task
			if err := json.Unmarshal(e.Data, &t); err != nil {
				return err
			}
			if err := b.update(ctx, c, t); err != nil {
				return err
			}
		}
		if !fresh {
			if err := b.reload(ctx, c); err != nil {
				return err
			}
			fresh = true
		}
		if b.over() {
			return errAllOver
		}
		return nil
	}, func(err error) {
		fresh = false
		b.notice("the hub does not answer, still trying: " + err.Error())
	})
	if errors.Is(err, errAllOver) {
		return nil
	}
	return err
}

func (b *board) reload(ctx context.Context, c *client.Client) error {
	b.mu.Lock()
	var open []string
	for _, id := range b.order {
		if !finished(b.tasks[id]) || !b.said[id] {
			open = append(open, id)
		}
	}
	b.mu.Unlock()
	for _, id := range open {
		t, err := c.Task(ctx, id)
		if err != nil {
			return err
		}
		b.set(t)
	}
	return nil
}

// update takes an event; for the end of a task the whole record is read, because
// events carry a cut summary.
func (b *board) update(ctx context.Context, c *client.Client, t api.Task) error {
	b.mu.Lock()
	_, ours := b.tasks[t.Task]
	b.mu.Unlock()
	if !ours {
		return nil
	}
	if finished(t) {
		whole, err := c.Task(ctx, t.Task)
		if err != nil {
			return err
		}
		t = whole
	}
	b.set(t)
	return nil
}

func (b *board) set(t api.Task) {
	t.Text, t.Reply, t.Life = "", "", nil
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tasks[t.Task] = t
	if !b.live && finished(t) && !b.said[t.Task] {
		b.said[t.Task] = true
		b.say(t)
	}
}

// say prints a task for good. Called with mu held.
func (b *board) say(t api.Task) {
	if b.json {
		_ = jsonLine(b.m.app.Stdout, t)
		return
	}
	printLine(b.m.app.Stdout, b.style, t)
}

// finished reports whether waiting for the task is over; unknown is not an end
// (semantics 8).
func finished(t api.Task) bool { return t.State.Settled() || t.State == api.StateQuestion }

func (b *board) over() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range b.tasks {
		if !finished(t) {
			return false
		}
	}
	return true
}

// notice says something beside the table.
func (b *board) notice(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.erase()
	fmt.Fprintln(b.m.app.Stderr, text)
}

// close ends the live table with its last state.
func (b *board) close() {
	close(b.stop)
	b.stopped.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.erase()
	for _, id := range b.order {
		if !b.said[id] {
			b.say(b.tasks[id])
		}
	}
}

// verdict gives the exit code: 4 before 5 before 1.
func (b *board) verdict(m *Main, cmd *cobra.Command) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var open []string
	question, undone := false, false
	for _, id := range b.order {
		switch t := b.tasks[id]; {
		case t.State == api.StateQuestion:
			question = true
		case !t.State.Settled():
			open = append(open, id)
		case t.State != api.StateDone:
			undone = true
		}
	}
	switch {
	case len(open) > 0:
		fmt.Fprintf(m.app.Stderr, "still running: %s\ncome back with: meshctl task wait %s\n", strings.Join(open, " "), strings.Join(open, " "))
		return cli.Exit(cli.ExitWaiting, nil)
	case question:
		return cli.Exit(cli.ExitQuestion, nil)
	case undone:
		return cli.Exit(cli.ExitNotDone, nil)
	}
	return nil
}

func (b *board) animate() {
	t := time.NewTicker(redrawEvery)
	defer t.Stop()
	for {
		b.mu.Lock()
		b.draw()
		b.mu.Unlock()
		select {
		case <-b.stop:
			return
		case <-t.C:
		}
	}
}

var spinner = []rune("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")

// draw paints the table over its last picture. Called with mu held.
func (b *board) draw() {
	w, h := b.m.app.Size()
	var out strings.Builder
	b.up(&out)
	b.frame++
	lines, hidden := 0, 0
	for _, id := range b.order {
		if lines >= h-2 {
			hidden++
			continue
		}
		out.WriteString(b.row(b.tasks[id], w) + "\x1b[K\n")
		lines++
	}
	if hidden > 0 {
		fmt.Fprintf(&out, "… and %d more\x1b[K\n", hidden)
		lines++
	}
	b.drawn = lines
	fmt.Fprint(b.m.app.Stdout, out.String())
}

// row is one task of the live table, cut to the width before it is coloured.
func (b *board) row(t api.Task, w int) string {
	mark, elapsed := "•", time.Since(b.start)
	if !finished(t) {
		mark = string(spinner[b.frame%len(spinner)])
	} else if t.EndedAt != nil {
		elapsed = t.EndedAt.Sub(t.CreatedAt)
	}
	head := fmt.Sprintf("%s %-14s ", mark, t.Target)
	tail := fmt.Sprintf(" %6s ", elapsed.Round(time.Second))
	state := fmt.Sprintf("%-9s", t.State)
	ctx := ""
	if t.CtxPercent != nil {
		ctx = b.style.ctx(t.CtxPercent) + " "
	}
	room := w - columns(head) - len(state) - columns(tail) - 10 - 1
	return head + strings.Replace(state, string(t.State), b.style.state(t.State), 1) + tail + ctx + fit(headline(t), room)
}

// up moves to the first line of the last picture.
func (b *board) up(out *strings.Builder) {
	if b.drawn > 0 {
		fmt.Fprintf(out, "\x1b[%dA\r", b.drawn)
	}
}

// erase takes the table off the screen. Called with mu held.
func (b *board) erase() {
	if b.drawn == 0 {
		return
	}
	var out strings.Builder
	b.up(&out)
	out.WriteString("\x1b[J")
	b.drawn = 0
	fmt.Fprint(b.m.app.Stdout, out.String())
}

// columns is how many terminal cells s takes.
func columns(s string) int {
	n := 0
	for _, r := range s {
		n += cells(r)
	}
	return n
}

func cells(r rune) int {
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	}
	return 1
}

// fit cuts s to a number of cells.
func fit(s string, room int) string {
	if columns(s) <= room {
		return s
	}
	n := 0
	for i, r := range s {
		if n += cells(r); n > room-1 {
			return s[:i] + "…"
		}
	}
	return s
}
