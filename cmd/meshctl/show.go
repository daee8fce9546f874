package main

import (
	"encoding/json"
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
	no, set := m.app.Getenv("NO_COLOR")
	return style{colour: m.app.StdoutTerminal && !(set && no != "")}
}

func (s style) paint(code, text string) string {
	if !s.colour || code == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

const (
	red    = "31"
	green  = "32"
	yellow = "33"
	dim    = "2"
)

// ctx shows a session's fill: neutral below 60, yellow from 60, red from 80
// (mesh-protocol.md §9).
func (s style) ctx(p *int) string {
	if p == nil {
		return "-"
	}
	text := fmt.Sprintf("ctx %d%%", *p)
	switch {
	case *p >= 80:
		return s.paint(red, text)
	case *p >= 60:
		return s.paint(yellow, text)
	}
	return text
}

func (s style) state(st api.State) string {
	switch st {
	case api.StateDone:
		return s.paint(green, string(st))
	case api.StateFailed, api.StateRefused, api.StateExpired:
		return s.paint(red, string(st))
	case api.StatePartial, api.StateQuestion, api.StateUnknown:
		return s.paint(yellow, string(st))
	case api.StateCanceled:
		return s.paint(dim, string(st))
	}
	return string(st)
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
	return mesh.CleanLine(t.Progress)
}

// printLine is a task as one plain line.
func printLine(w io.Writer, s style, t api.Task) {
	parts := []string{t.Target, s.state(t.State)}
	if t.DurationMS != nil && *t.DurationMS > 0 {
		parts = append(parts, (time.Duration(*t.DurationMS) * time.Millisecond).Round(100*time.Millisecond).String())
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

// printTask is everything about one task.
func printTask(w io.Writer, s style, t api.Task) {
	printLine(w, s, t)
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
		row(st.At.Local().Format("15:04:05.000"), strings.TrimSpace(fmt.Sprintf("%s  attempt %d turn %d  %s", st.State, st.Attempt, st.Turn, st.Note)))
	}
	_ = tw.Flush()
	block(w, "text", t.Text)
	block(w, "reply", t.Reply)
}

// block prints a text of several lines with its control characters removed.
func block(w io.Writer, name, text string) {
	if text == "" {
		return
	}
	fmt.Fprintf(w, "  --- %s\n", name)
	for _, line := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		fmt.Fprintln(w, "  "+mesh.CleanLine(line))
	}
}

// jsonLine writes one JSON object on a line of its own. The contract's fields come
// first; texts and life are left to task show.
func jsonLine(w io.Writer, v any) error { return json.NewEncoder(w).Encode(v) }
