package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/text/width"

	"opencode-mesh/protocol/api"
)

// redrawEvery is how often the live table moves.
const redrawEvery = 120 * time.Millisecond

// table is the display of a terminal: a line per task, painted over itself. Its
// goroutine owns the screen until end.
type table struct {
	m       *Main
	changes chan change
	ended   chan struct{}
}

// change is a task's new state, or a notice.
type change struct {
	task   api.Task
	notice string
}

func (m *Main) newTable(tasks []api.Task) *table {
	t := &table{m: m, changes: make(chan change), ended: make(chan struct{})}
	p := &picture{m: m, style: m.style(), start: time.Now(), tasks: map[string]api.Task{}}
	for _, task := range tasks {
		p.order = append(p.order, task.Task)
		p.tasks[task.Task] = task
	}
	go func() {
		defer close(t.ended)
		p.run(t.changes)
	}()
	return t
}

func (t *table) task(task api.Task) { t.changes <- change{task: task} }

func (t *table) notice(text string) { t.changes <- change{notice: text} }

// end implements display: the table makes room for what stays.
func (t *table) end(tasks []api.Task) {
	close(t.changes)
	<-t.ended
	for _, task := range tasks {
		printTask(t.m.app.Stdout, t.m.style(), task)
	}
}

// picture is what a table shows now.
type picture struct {
	m     *Main
	style style
	start time.Time
	order []string
	tasks map[string]api.Task
	frame int
	drawn []int // width of each line on the screen, in cells
}

func (p *picture) run(changes <-chan change) {
	tick := time.NewTicker(redrawEvery)
	defer tick.Stop()
	p.draw()
	for {
		select {
		case <-tick.C:
			p.frame++
			p.draw()
		case c, ok := <-changes:
			switch {
			case !ok:
				p.erase()
				return
			case c.notice != "":
				p.erase()
				fmt.Fprintln(p.m.app.Stderr, c.notice)
				p.draw()
			default:
				p.tasks[c.task.Task] = c.task // seen with the next frame
			}
		}
	}
}

// erase takes the picture off the screen.
func (p *picture) erase() {
	if len(p.drawn) == 0 {
		return
	}
	w, _ := p.m.app.Size()
	fmt.Fprint(p.m.app.Stdout, p.up(w)+"\x1b[J")
	p.drawn = p.drawn[:0]
}

// draw paints the picture over the last one.
func (p *picture) draw() {
	w, h := p.m.app.Size()
	var out strings.Builder
	out.WriteString(p.up(w))
	p.drawn = p.drawn[:0]
	line := func(segments ...segment) {
		text, cells := p.style.line(w-1, segments)
		out.WriteString(text + "\x1b[K\n")
		p.drawn = append(p.drawn, cells)
	}
	shown, hidden := p.choose(h - 2)
	for _, task := range shown {
		line(p.row(task)...)
	}
	if hidden != "" {
		line(segment{text: hidden})
	}
	out.WriteString("\x1b[J")
	fmt.Fprint(p.m.app.Stdout, out.String())
}

// up moves to where the last picture begins. A terminal that became narrower has
// broken its lines into several.
func (p *picture) up(w int) string {
	rows := 0
	for _, cells := range p.drawn {
		rows += max(1, (cells+w-1)/max(w, 1))
	}
	if rows == 0 {
		return ""
	}
	return fmt.Sprintf("\x1b[%dA\r", rows)
}

// choose picks the tasks that have room, those that go on first, and sums the
// others up.
func (p *picture) choose(room int) (shown []api.Task, hidden string) {
	if len(p.order) <= room {
		for _, id := range p.order {
			shown = append(shown, p.tasks[id])
		}
		return shown, ""
	}
	counts := map[api.State]int{}
	picked := map[string]bool{}
	for _, over := range []bool{false, true} {
		for _, id := range p.order {
			task := p.tasks[id]
			switch {
			case finished(task) != over:
			case len(picked) < room:
				picked[id] = true
			default:
				counts[task.State]++
			}
		}
	}
	for _, id := range p.order {
		if picked[id] {
			shown = append(shown, p.tasks[id])
		}
	}
	var parts []string
	for state, n := range counts {
		parts = append(parts, fmt.Sprintf("%d %s", n, state))
	}
	slices.Sort(parts)
	return shown, fmt.Sprintf("… and %d more: %s", len(p.order)-len(shown), strings.Join(parts, ", "))
}

var spinner = []rune("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")

// row is one task.
func (p *picture) row(task api.Task) []segment {
	mark, elapsed := "•", time.Since(p.start)
	if !finished(task) {
		mark = string(spinner[p.frame%len(spinner)])
	} else if task.EndedAt != nil {
		elapsed = task.EndedAt.Sub(task.CreatedAt)
	}
	row := []segment{
		{text: fmt.Sprintf("%s %-14s ", mark, task.Target)},
		{text: fmt.Sprintf("%-9s", task.State), colour: stateColour(task.State)},
		{text: fmt.Sprintf(" %6s ", elapsed.Round(time.Second))},
	}
	if task.Op != "" {
		row = append(row, segment{text: " " + task.Op + " "})
	}
	if p := fill(task); p != nil {
		row = append(row, segment{text: fmt.Sprintf(" ctx %d%% ", *p), colour: ctxColour(*p)})
	}
	if used := tokens(task.Activity); used != "" && !finished(task) {
		row = append(row, segment{text: " " + used + " "})
	}
	return append(row, segment{text: " " + headline(task)})
}

// segment is a part of a line in one colour.
type segment struct{ text, colour string }

// line joins segments, cut to a width in cells, and returns the cells it takes.
func (s style) line(room int, segments []segment) (text string, cells int) {
	var b strings.Builder
	for _, seg := range segments {
		part := fit(seg.text, room-cells)
		cells += columns(part)
		b.WriteString(s.paint(seg.colour, part))
		if part != seg.text {
			break
		}
	}
	return b.String(), cells
}

// columns is how many cells of a terminal s takes, at most.
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
	switch {
	case columns(s) <= room:
		return s
	case room < 1:
		return ""
	}
	n := 0
	for i, r := range s {
		if n += cells(r); n > room-1 {
			return s[:i] + "…"
		}
	}
	return s
}
