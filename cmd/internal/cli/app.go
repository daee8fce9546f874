// Package cli is what the three commands have in common: where settings come
// from (flag, then environment, then file, then default), how a password is
// asked for, exit codes, signals and logs (cli.md).
//
// A command runs against an injected environment, so that tests start it as a
// person would, inside their own process.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// Version is set at build time.
var Version = "dev"

// Exit codes (cli.md).
const (
	ExitOK       = 0
	ExitNotDone  = 1
	ExitUsage    = 2
	ExitNoAccess = 3
	ExitWaiting  = 4
	ExitQuestion = 5
)

// ExitError ends a command with a code of its own. Err may be nil when
// everything was said already.
type ExitError struct {
	Code int
	Err  error
}

func (e *ExitError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit %d", e.Code)
	}
	return e.Err.Error()
}

// Unwrap returns the cause.
func (e *ExitError) Unwrap() error { return e.Err }

// Usage makes an error that ends with ExitUsage.
func Usage(format string, args ...any) error {
	return &ExitError{Code: ExitUsage, Err: fmt.Errorf(format, args...)}
}

// Exit gives err a code of its own.
func Exit(code int, err error) error { return &ExitError{Code: code, Err: err} }

// App is the surroundings of one command: its streams and its environment. Tests
// make their own.
type App struct {
	// Prefix is MESHHUB, MESHNODE or MESHCTL.
	Prefix         string
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Env is the environment as KEY=VALUE.
	Env []string
	// StdinTerminal says that a person sits at stdin, StdoutTerminal and
	// StderrTerminal that one reads there. A stdout that shows no escape sequences
	// does not count.
	StdinTerminal, StdoutTerminal, StderrTerminal bool
	// ReadPassword reads a line without echo from the terminal.
	ReadPassword func() (string, error)
	// Restore brings the terminal back from reading without echo; nil does nothing.
	Restore func()
	// Size is the terminal's width and height in characters.
	Size func() (width, height int)
	// HardExit is called for the second signal; os.Exit unless a test replaces it.
	HardExit func(code int)
}

// System is the process's own surroundings. It takes every MESH… variable out of
// the process, so that no child inherits one (semantics 2).
func System(prefix string) *App {
	a := &App{
		Prefix: prefix, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Env: os.Environ(),
		StdinTerminal:  term.IsTerminal(int(os.Stdin.Fd())),
		StdoutTerminal: term.IsTerminal(int(os.Stdout.Fd())),
		StderrTerminal: term.IsTerminal(int(os.Stderr.Fd())),
		ReadPassword: func() (string, error) {
			b, err := term.ReadPassword(int(os.Stdin.Fd()))
			return string(b), err
		},
		Restore: restorer(int(os.Stdin.Fd())),
		Size: func() (int, int) {
			w, h, err := term.GetSize(int(os.Stdout.Fd()))
			if err != nil {
				return 80, 24
			}
			return w, h
		},
		HardExit: os.Exit,
	}
	// A terminal that would show escape sequences as text gets plain lines.
	if name, _ := a.Getenv("TERM"); name == "dumb" || a.StdoutTerminal && !escapes(os.Stdout) {
		a.StdoutTerminal = false
	}
	for _, kv := range a.Env {
		if k, _, _ := strings.Cut(kv, "="); meshVariable(kv) {
			_ = os.Unsetenv(k)
		}
	}
	return a
}

// restorer remembers how a terminal is now.
func restorer(fd int) func() {
	state, err := term.GetState(fd)
	return func() {
		if err == nil {
			_ = term.Restore(fd, state)
		}
	}
}

// Await runs a read from a person, which knows no context: when ctx ends first, as
// with Ctrl-C, the terminal is as before and the error is of ExitNoAccess. The read
// then ends with the process.
func Await[T any](ctx context.Context, a *App, read func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		v, err := read()
		done <- result{v, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		if a.Restore != nil {
			a.Restore()
		}
		var none T
		return none, Exit(ExitNoAccess, errors.New("interrupted"))
	}
}

// Getenv looks a variable up; ok is false when it is not set.
func (a *App) Getenv(key string) (value string, ok bool) {
	for _, kv := range a.Env {
		if k, v, found := strings.Cut(kv, "="); found && k == key {
			value, ok = v, true // the last one wins, as in exec
		}
	}
	return value, ok
}

// ChildEnv is the environment for a child: without the mesh's variables, passwords
// among them (semantics 2).
func (a *App) ChildEnv() []string {
	var env []string
	for _, kv := range a.Env {
		if !meshVariable(kv) {
			env = append(env, kv)
		}
	}
	return env
}

// meshVariable reports whether a variable is one of the mesh's.
func meshVariable(kv string) bool {
	return len(kv) >= 4 && (kv[:4] == "MESH" || runtime.GOOS == "windows" && strings.EqualFold(kv[:4], "MESH"))
}

// Run executes root with args until it is done or a signal ends it, and returns
// the exit code. The first SIGINT or SIGTERM cancels the command's context, the
// second ends the process at once.
func (a *App) Run(ctx context.Context, root *cobra.Command, args []string) int {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	finished := make(chan struct{})
	watcher := make(chan struct{})
	go func() {
		defer close(watcher)
		for n := 0; ; n++ {
			select {
			case <-signals:
				if n > 0 {
					a.HardExit(130)
					return
				}
				cancel()
			case <-finished:
				return
			}
		}
	}()
	defer func() { close(finished); <-watcher }()

	a.prepare(root, args)
	return a.report(root.ExecuteContext(ctx))
}

// report says an error once and turns it into the exit code.
func (a *App) report(err error) int {
	if err == nil {
		return ExitOK
	}
	code := ExitNotDone
	var exit *ExitError
	if errors.As(err, &exit) {
		code = exit.Code
		if exit.Err == nil {
			return code
		}
	}
	fmt.Fprintln(a.Stderr, "error:", err)
	return code
}

// Log makes the command's log on stderr: text for people, JSON otherwise.
func (a *App) Log(cmd *cobra.Command) (*slog.Logger, error) {
	level, err := logLevel(cmd)
	if err != nil {
		return nil, err
	}
	return a.logger(level), nil
}

// logLevel reads --log-level. Every command checks it, also one that logs nothing.
func logLevel(cmd *cobra.Command) (level slog.Level, err error) {
	name, _ := cmd.Flags().GetString("log-level")
	if err := level.UnmarshalText([]byte(name)); err != nil {
		return level, Usage("--log-level is debug, info, warn or error, not %q", name)
	}
	return level, nil
}

// Warnings is the log of commands that do one thing: only what is wrong.
func (a *App) Warnings() *slog.Logger { return a.logger(slog.LevelWarn) }

func (a *App) logger(level slog.Level) *slog.Logger {
	opts := &slog.HandlerOptions{Level: level}
	if a.StderrTerminal {
		return slog.New(slog.NewTextHandler(a.Stderr, opts))
	}
	return slog.New(slog.NewJSONHandler(a.Stderr, opts))
}

// DataDir is the default data directory of a kind ("hub", "node"): MESH_DIR/kind,
// else ~/.local/share/opencode-mesh/kind.
func (a *App) DataDir(kind string) (string, error) {
	if dir, ok := a.Getenv("MESH_DIR"); ok && dir != "" {
		return filepath.Join(dir, kind), nil
	}
	home, err := a.Home()
	if err != nil {
		return "", err
	}
	return filepath.Join(home, ".local", "share", "opencode-mesh", kind), nil
}

// ConfigDir is where meshctl keeps its profiles: MESH_DIR, else
// ~/.config/opencode-mesh.
func (a *App) ConfigDir() (string, error) {
	if dir, ok := a.Getenv("MESH_DIR"); ok && dir != "" {
		return dir, nil
	}
	home, err := a.Home()
	if err != nil {
		return "", err
	}
	return filepath.Join(home, ".config", "opencode-mesh"), nil
}

// Home is the person's home directory.
func (a *App) Home() (string, error) {
	for _, key := range []string{"HOME", "USERPROFILE"} {
		if dir, ok := a.Getenv(key); ok && dir != "" {
			return dir, nil
		}
	}
	return "", Usage("no home directory: set HOME, MESH_DIR, or name the directory with its flag")
}
