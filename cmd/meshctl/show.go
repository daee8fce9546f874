package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
)

// style colours what people read on a terminal; the zero style leaves it plain.
type style struct{ colour bool }

// style follows https://no-color.org and the terminal.
func (m *Main) style() style {
	no, _ := m.app.Getenv("NO_COLOR")
	return style{colour: m.app.StdoutTerminal && no == ""}
}

// Colours, as the numbers of the escape sequence.
const (
	red    = "31"
	green  = "32"
	yellow = "33"
	dim    = "2"
)

func (s style) paint(colour, text string) string {
	if !s.colour || colour == "" {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

func (s style) state(st api.State) string { return s.paint(stateColour(st), string(st)) }

func stateColour(st api.State) string {
	switch st {
	case api.StateDone:
		return green
	case api.StateFailed, api.StateRefused, api.StateExpired:
		return red
	case api.StatePartial, api.StateQuestion, api.StateUnknown:
		return yellow
	case api.StateCanceled:
		return dim
	}
	return ""
}

// ctx shows a session's fill.
func (s style) ctx(p *int) string {
	if p == nil {
		return "-"
	}
	return s.paint(ctxColour(*p), fmt.Sprintf("ctx %d%%", *p))
}

// ctxColour is neutral below 60, yellow from 60, red from 80 (mesh-protocol.md §9).
func ctxColour(percent int) string {
	switch {
	case percent >= 80:
		return red
	case percent >= 60:
		return yellow
	}
	return ""
}

// headline is what a task has to say in one line.
func headline(t api.Task) string {
	switch {
	case t.State == api.StateQuestion && t.Question != nil:
		return mesh.CleanLine(t.Question.Text)
	case t.Summary != "":
		return mesh.CleanLine(mesh.CutSummary(t.Summary))
	case t.Error != nil:
		return mesh.CleanLine(t.Error.Message)
	}
	return doing(t.Activity)
}

// doing says in one line what a running agent does.
func doing(a *api.Activity) string {
	if a == nil {
		return ""
	}
	return mesh.CleanLine(cmp.Or(a.Note, a.Tool, a.Line))
}

// printTask prints a task in a few plain lines.
func printTask(w io.Writer, s style, t api.Task) {
	parts := []string{t.Target, s.state(t.State)}
	if t.DurationMS != nil && *t.DurationMS > 0 {
		d := time.Duration(*t.DurationMS) * time.Millisecond
		if d > time.Second {
			d = d.Round(100 * time.Millisecond)
		}
		parts = append(parts, d.String())
	}
	if t.CtxPercent != nil {
		parts = append(parts, s.ctx(t.CtxPercent))
	}
	parts = append(parts, t.Task)
	fmt.Fprintln(w, strings.Join(parts, "  "))
	if h := headline(t); h != "" {
		fmt.Fprintln(w, "  "+h)
	}
	if t.State == api.StateQuestion && t.Question != nil {
		printOptions(w, t)
	}
	if len(t.Artifacts) > 0 {
		clean := make([]string, len(t.Artifacts))
		for i, a := range t.Artifacts {
			clean[i] = mesh.CleanLine(a)
		}
		fmt.Fprintln(w, "  artifacts: "+strings.Join(clean, ", "))
	}
	if flags := otherFlags(t); flags != "" {
		fmt.Fprintln(w, "  flags: "+flags)
	}
}

func printOptions(w io.Writer, t api.Task) {
	for i, o := range t.Question.Options {
		fmt.Fprintf(w, "  %d) %s\n", i+1, mesh.CleanLine(o))
	}
	fmt.Fprintf(w, "  answer with: meshctl task answer %s TEXT\n", t.Task)
}

// otherFlags are those worth a line of their own.
func otherFlags(t api.Task) string {
	var out []string
	for _, f := range t.Flags {
		if f != api.FlagFreeReply && f != api.FlagSummaryTooLong {
			out = append(out, mesh.CleanLine(f))
		}
	}
	if t.LateResult {
		out = append(out, "late_result")
	}
	return strings.Join(out, ", ")
}

// printWhole prints everything about one task.
func printWhole(w io.Writer, s style, t api.Task) {
	printTask(w, s, t)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(k, v string) {
		if v != "" {
			fmt.Fprintf(tw, "  %s\t%s\n", k, v)
		}
	}
	row("controller", t.Controller)
	row("workspace", t.Workspace)
	row("mode", t.Mode)
	if t.Session != nil {
		row("session", mesh.CleanLine(*t.Session))
	}
	if t.Tokens != nil {
		row("tokens", fmt.Sprintf("%d of %d", t.Tokens.Total, t.Tokens.Limit))
	}
	if t.Error != nil {
		row("error", mesh.CleanLine(t.Error.Code+": "+t.Error.Message))
	}
	for _, st := range t.Life {
		row(st.At.Local().Format("15:04:05.000"), strings.TrimSpace(fmt.Sprintf("%s  attempt %d turn %d  %s", st.State, st.Attempt, st.Turn, mesh.CleanLine(st.Note))))
	}
	_ = tw.Flush()
	block(w, "text", t.Text)
	block(w, "reply", t.Reply)
}

// block prints a text of several lines without its control characters.
func block(w io.Writer, name, text string) {
	if text == "" {
		return
	}
	fmt.Fprintf(w, "  --- %s\n", name)
	for line := range strings.Lines(text) {
		fmt.Fprintln(w, "  "+clean(line))
	}
}

// clean takes control characters out of a line and keeps its indent, which matters
// in code.
func clean(line string) string {
	indent := line[:len(line)-len(strings.TrimLeft(line, " \t"))]
	return strings.TrimRight(strings.ReplaceAll(indent, "\t", "    ")+mesh.CleanLine(line), " ")
}
