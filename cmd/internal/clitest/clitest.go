// Package clitest runs the three commands in tests as a person would: with
// surroundings of their own, against a real hub on loopback and real nodes in the
// test's process.
//
// A test binary that starts nodes with programs as agents calls Main from its
// TestMain: the node re-executes it as its helpers.
package clitest

import (
	"bytes"
	"context"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/node/agent/command"
	"opencode-mesh/node/agent/demo"
	"opencode-mesh/node/agent/opencode"
	"opencode-mesh/test/fleet"
)

// patience is how long a test waits for something that must come.
const patience = 30 * time.Second

// Main is the TestMain of a package. It fails the run when goroutines are left.
func Main(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "shim":
			os.Exit(command.ShimMain(os.Args[2:]))
		case "guard":
			os.Exit(opencode.GuardMain(os.Stdin, os.Stdout))
		case "demo-agent":
			os.Exit(demo.Main(os.Stdin, os.Stdout, os.Stderr))
		}
	}
	fleet.Verify(m)
}

// Program is one of the commands: its Main's Run, for some surroundings.
type Program func(app *cli.App) func(ctx context.Context, args []string) int

// Shell is what a person has before them: an environment and a way to run a
// program. The zero fields of App are filled in.
type Shell struct {
	tb      testing.TB
	program Program
	prefix  string
	// Home is an empty directory, which Env names as HOME.
	Home string
	// Env is the environment, as KEY=VALUE.
	Env []string
}

// NewShell makes a Shell whose variables begin with prefix.
func NewShell(tb testing.TB, prefix string, program Program) *Shell {
	tb.Helper()
	home := tb.TempDir()
	return &Shell{tb: tb, program: program, prefix: prefix, Home: home, Env: []string{"HOME=" + home, "PATH=" + os.Getenv("PATH")}}
}

// Set adds a variable.
func (s *Shell) Set(key, value string) { s.Env = append(s.Env, key+"="+value) }

// Running is a command that runs.
type Running struct {
	tb       testing.TB
	Out, Err *Buffer
	code     chan int
	cancel   context.CancelFunc
}

// Start runs a command line; each of change may change the surroundings first.
func (s *Shell) Start(args []string, change ...func(*cli.App)) *Running {
	s.tb.Helper()
	r := &Running{tb: s.tb, Out: NewBuffer(), Err: NewBuffer(), code: make(chan int, 1)}
	app := &cli.App{
		Prefix: s.prefix, Env: append([]string(nil), s.Env...), Stdin: strings.NewReader(""), Stdout: r.Out, Stderr: r.Err,
		Size:     func() (int, int) { return 80, 24 },
		HardExit: func(int) { s.tb.Error("the process would have ended at once") },
	}
	for _, c := range change {
		c(app)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	run := s.program(app)
	go func() { r.code <- run(ctx, args) }()
	s.tb.Cleanup(func() { r.stop() })
	return r
}

// Interrupt is Ctrl-C.
func (r *Running) Interrupt() { r.cancel() }

// Wait returns how the command ended.
func (r *Running) Wait() Result {
	r.tb.Helper()
	select {
	case code := <-r.code:
		r.code <- code
		return Result{Code: code, Out: r.Out.String(), Err: r.Err.String()}
	case <-time.After(patience):
		r.tb.Fatalf("the command did not end; stdout:\n%s\nstderr:\n%s", r.Out, r.Err)
		return Result{}
	}
}

// Stop interrupts the command and returns how it ended.
func (r *Running) Stop() Result {
	r.tb.Helper()
	r.cancel()
	return r.Wait()
}

func (r *Running) stop() {
	r.cancel()
	code := <-r.code
	r.code <- code
}

// Result is how a command ended.
type Result struct {
	Code     int
	Out, Err string
}

// Run runs a command line to its end.
func (s *Shell) Run(args []string, change ...func(*cli.App)) Result {
	s.tb.Helper()
	return s.Start(args, change...).Wait()
}

// Want runs a command line that must end with a code.
func (s *Shell) Want(code int, args []string, change ...func(*cli.App)) Result {
	s.tb.Helper()
	r := s.Run(args, change...)
	if r.Code != code {
		s.tb.Fatalf("%v: exit code %d, want %d; stdout:\n%s\nstderr:\n%s", args, r.Code, code, r.Out, r.Err)
	}
	return r
}

// Buffer is a writer that can be waited on. Safe for concurrent use.
type Buffer struct {
	mu      sync.Mutex // guards the following fields
	buf     bytes.Buffer
	written chan struct{} // closed and replaced by each write
}

// NewBuffer makes an empty Buffer.
func NewBuffer() *Buffer { return &Buffer{written: make(chan struct{})} }

// Write implements io.Writer.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.written)
	b.written = make(chan struct{})
	return b.buf.Write(p)
}

// String is all that was written.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// Await waits until match likes what was written.
func (b *Buffer) Await(tb testing.TB, what string, match func(string) bool) {
	tb.Helper()
	deadline := time.After(patience)
	for {
		b.mu.Lock()
		text, next := b.buf.String(), b.written
		b.mu.Unlock()
		if match(text) {
			return
		}
		select {
		case <-next:
		case <-deadline:
			tb.Fatalf("waited in vain for %s; so far:\n%s", what, text)
		}
	}
}

// AwaitText waits until text was written.
func (b *Buffer) AwaitText(tb testing.TB, text string) {
	tb.Helper()
	b.Await(tb, text, func(s string) bool { return strings.Contains(s, text) })
}
