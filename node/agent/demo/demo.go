// Package demo is the built-in demo agent: a program for the command agent that
// needs no model. It reads a task's envelope, does something small and real (it
// counts the files and lines of its working directory) and answers with a result
// block.
//
// Lines of the task that begin with a directive make it behave like other agents;
// tests and demonstrations use them:
//
//	SLEEP:<duration>   waits, for example 1.5s
//	APPEND:<file>      adds the line "<task> <pid>" to the file and syncs it
//	FAIL:<text>        answers failed with this summary
//	ASK:<question>     answers with a question; options after it, split by "|"
//	FREE:<text>        answers with this text and no block
//
// They are obeyed in their order, and the first of the last three ends the run.
// The agent does what a task says, within the rights of its user, like any agent.
package demo

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"opencode-mesh/protocol/mesh"
)

// Exit codes of Main.
const (
	exitOK = 0
	// exitFailed: there was nothing to answer, or answering failed.
	exitFailed = 1
)

// maxInput is the largest input read, in bytes: a task text and the conduct
// before it.
const maxInput = mesh.MaxTextBytes + 64<<10

// maxQuoted is how many characters of the task the summary repeats.
const maxQuoted = 60

// Main runs the agent once and returns its exit code. The program gets its task
// on stdin and works in its current directory.
func Main(stdin io.Reader, stdout, stderr io.Writer) int {
	if err := run(stdin, stdout); err != nil {
		fmt.Fprintf(stderr, "demo agent: %v\n", err)
		return exitFailed
	}
	return exitOK
}

func run(stdin io.Reader, stdout io.Writer) error {
	input, err := io.ReadAll(io.LimitReader(stdin, maxInput))
	if err != nil {
		return fmt.Errorf("read task: %w", err)
	}
	env, err := mesh.ParseEnvelope(fromEnvelope(string(input)))
	if err != nil {
		return fmt.Errorf("read task: %w", err)
	}
	reply, err := obey(env)
	if err != nil {
		reply, err = block(env.Task, mesh.StatusFailed, err.Error())
		if err != nil {
			return err
		}
	}
	if _, err := io.WriteString(stdout, reply); err != nil {
		return fmt.Errorf("write reply: %w", err)
	}
	return nil
}

// fromEnvelope drops the conduct that may stand before an envelope.
func fromEnvelope(text string) string {
	for rest := text; rest != ""; {
		line, after, _ := strings.Cut(rest, "\n")
		if mesh.IsEnvelope(line) {
			return rest
		}
		rest = after
	}
	return text
}

// obey does what the directives of a task say and returns the reply.
func obey(env mesh.Envelope) (string, error) {
	var request string // the first line that is not a directive
	for line := range strings.Lines(env.Body) {
		line = strings.TrimSpace(line)
		directive, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch directive {
		case "SLEEP":
			d, err := time.ParseDuration(value)
			if err != nil {
				return "", fmt.Errorf("SLEEP: %w", err)
			}
			time.Sleep(d)
		case "APPEND":
			if err := appendLine(value, fmt.Sprintf("%s %d\n", env.Task, os.Getpid())); err != nil {
				return "", fmt.Errorf("APPEND: %w", err)
			}
		case "FAIL":
			return "", errors.New(value)
		case "ASK":
			if !answered(env.Body) {
				return ask(env.Task, value)
			}
		case "FREE":
			return value + "\n", nil
		default:
			if request == "" {
				request = line
			}
		}
	}
	report, err := survey(".")
	if err != nil {
		return "", err
	}
	if request != "" {
		report += fmt.Sprintf("; the task was %q", shorten(request))
	}
	return block(env.Task, mesh.StatusDone, report)
}

// answered reports whether a task brings the answer to its question along: a
// program remembers nothing, so it is told the whole story again.
func answered(body string) bool { return strings.Contains(body, "\n\nAnswer to your question (") }

// appendLine adds a line to a file in one write, and syncs it.
func appendLine(path, line string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func ask(task, value string) (string, error) {
	parts := strings.Split(value, "|")
	q := mesh.Question{Task: task, Text: mesh.QuoteSummary(parts[0])}
	for _, option := range parts[1:] {
		if option = strings.TrimSpace(option); option != "" {
			q.Options = append(q.Options, option)
		}
	}
	return q.Format()
}

func block(task string, status mesh.Status, summary string) (string, error) {
	return mesh.Result{Task: task, Status: status, Summary: mesh.QuoteSummary(summary)}.Format()
}

func shorten(s string) string {
	s = mesh.CleanLine(s)
	n := 0
	for i := range s {
		if n++; n > maxQuoted {
			return s[:i] + "…"
		}
	}
	return s
}
