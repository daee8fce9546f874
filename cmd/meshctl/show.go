package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"opencode-mesh/cmd/internal/cli"
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

// doing says in one line what a running agent does: what its node says of it, the
// tool that it uses, the last line that it wrote.
func doing(a *api.Activity) string {
	if a == nil {
		return ""
	}
	var parts []string
	for _, p := range []string{a.Note, a.Tool, a.Line} {
		if p = mesh.CleanLine(p); p != "" {
			parts = append(parts, p)
		}
	}
	return strings.Join(parts, " · ")
}

// fill is how full a task's session is: at its end, or so far.
func fill(t api.Task) *int {
	if t.CtxPercent == nil && t.Activity != nil {
		return t.Activity.Tokens.Percent()
	}
	return t.CtxPercent
}

// tokens shows how many tokens a running agent has used, "" when that is not known.
func tokens(a *api.Activity) string {
	switch {
	case a == nil || a.Tokens == nil:
		return ""
	case a.Tokens.Total < 1000:
		return fmt.Sprintf("%d tokens", a.Tokens.Total)
	}
	return fmt.Sprintf("%.1fk tokens", float64(a.Tokens.Total)/1000)
}

// printTask prints a task in a few plain lines.
func printTask(w io.Writer, s style, t api.Task) {
	parts := []string{t.Target}
	if t.Op != "" {
		parts = append(parts, t.Op)
	}
	parts = append(parts, s.state(t.State))
	if t.DurationMS != nil && *t.DurationMS > 0 {
		d := time.Duration(*t.DurationMS) * time.Millisecond
		if d > time.Second {
			d = d.Round(100 * time.Millisecond)
		}
		parts = append(parts, d.String())
	}
	if p := fill(t); p != nil {
		parts = append(parts, s.ctx(p))
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
	if slices.Contains(t.Flags, api.FlagAssumed) && t.State.Settled() {
		fmt.Fprintln(w, "  nobody answered in time: the agent went on by an assumption, which its summary names")
	}
}

func printOptions(w io.Writer, t api.Task) {
	for i, o := range t.Question.Options {
		fmt.Fprintf(w, "  %d) %s\n", i+1, mesh.CleanLine(o))
	}
	text := "TEXT"
	if t.Question.Kind == api.QuestionPermission {
		text = "once|always|reject [MESSAGE]"
	}
	fmt.Fprintf(w, "  answer with: meshctl task answer %s %s\n", t.Task, text)
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
	row("operation", t.Op)
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
	if a := t.Activity; a != nil {
		row("note", mesh.CleanLine(a.Note))
		row("tool", mesh.CleanLine(a.Tool))
		row("line", mesh.CleanLine(a.Line))
		row("so far", tokens(a))
	}
	for _, f := range t.Files {
		row("artifact", strings.Join([]string{mesh.CleanLine(f.Path), artifactSize(f), shortHash(f)}, "  "))
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
		fmt.Fprintln(w, "  "+cli.Indented(line))
	}
}
