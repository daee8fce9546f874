package transport

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"time"

	"opencode-mesh/node/internal/proc"
	"opencode-mesh/protocol/ocp"
)

// keptVariables are those that a child has of this process's environment: it finds
// programs and its user's files, and learns no secrets.
var keptVariables = func() []string {
	if runtime.GOOS == "windows" { // no program starts there without
		return []string{"PATH", "HOME", "SYSTEMROOT", "USERPROFILE", "TEMP", "TMP", "PATHEXT", "COMSPEC"}
	}
	return []string{"PATH", "HOME"}
}()

// drainDelay is how long what a child started may hold its stderr after its end.
const drainDelay = time.Second

// Command is how a provider is started.
type Command struct {
	// ID is the host's name of the provider.
	ID string
	// Args are program and arguments.
	Args []string
	// Dir is where it runs; "" is this process's directory.
	Dir string
	// Stderr gets what it writes there. nil discards it; otherwise it is used from
	// another goroutine until Close returns.
	Stderr io.Writer
	// Timeout bounds each exchange; 0 is ExchangeTimeout.
	Timeout time.Duration
	// Look gets each answer as it came, before it is read, for those who inspect a
	// provider; nil: nobody does. One call at a time.
	Look func(answer []byte)
}

// Process is a provider that runs as a child in a process group of its own. Its methods
// are safe for concurrent use.
type Process struct {
	id      string
	timeout time.Duration
	cmd     *exec.Cmd
	stdin   *os.File
	stdout  *os.File

	turn    chan struct{} // holds a value while nobody exchanges; guards session
	session session

	lines   chan readLine // what the child writes, one line at a time
	quit    chan struct{} // closed when nobody reads lines any more
	exited  chan struct{} // closed once the child has ended and was reaped
	workers sync.WaitGroup

	mu     sync.Mutex // guards the following
	broken error      // why the connection was given up

	closing sync.Once
	exit    Exit
}

type readLine struct {
	text []byte
	err  error
}

// Exit is how a provider ended.
type Exit struct {
	// Killed: it had to be ended.
	Killed bool
	Code   int // -1 where a signal ended it
}

// Spawn starts a provider. The caller closes what it returns; a *SpawnError leaves
// nothing behind.
func Spawn(c Command) (*Process, error) {
	p := &Process{
		id: c.ID, timeout: c.Timeout, session: session{id: c.ID, look: c.Look},
		turn: make(chan struct{}, 1), lines: make(chan readLine), quit: make(chan struct{}), exited: make(chan struct{}),
	}
	if p.timeout <= 0 {
		p.timeout = ExchangeTimeout
	}
	if len(c.Args) == 0 || c.Args[0] == "" {
		return nil, &SpawnError{ID: c.ID, Err: errors.New("no program is named")}
	}
	if err := p.start(c); err != nil {
		return nil, &SpawnError{ID: c.ID, Err: err}
	}
	p.turn <- struct{}{}
	p.workers.Go(p.wait)
	p.workers.Go(p.read)
	return p, nil
}

func (p *Process) start(c Command) error {
	theirIn, in, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make pipe: %w", err)
	}
	out, theirOut, err := os.Pipe()
	if err != nil {
		_ = theirIn.Close()
		_ = in.Close()
		return fmt.Errorf("make pipe: %w", err)
	}
	p.stdin, p.stdout = in, out
	p.cmd = exec.Command(c.Args[0], c.Args[1:]...)
	p.cmd.Dir, p.cmd.Stderr = c.Dir, c.Stderr
	p.cmd.Stdin, p.cmd.Stdout = theirIn, theirOut
	p.cmd.WaitDelay = drainDelay
	p.cmd.Env = make([]string, 0, len(keptVariables)) // never nil, which would mean all of it
	for _, name := range keptVariables {
		if value, ok := os.LookupEnv(name); ok {
			p.cmd.Env = append(p.cmd.Env, name+"="+value)
		}
	}
	proc.Detach(p.cmd)
	err = p.cmd.Start()
	_ = theirIn.Close()
	_ = theirOut.Close()
	if err != nil {
		_ = in.Close()
		_ = out.Close()
	}
	return err
}

// wait reaps the child, and ends what it leaves in its group.
func (p *Process) wait() {
	defer close(p.exited)
	// How it ended is in ProcessState.
	_ = p.cmd.Wait()
	if proc.GroupAlive(p.cmd.Process.Pid) {
		proc.KillGroup(p.cmd.Process.Pid)
	}
}

// read passes the child's lines on, until its end or that of the connection.
func (p *Process) read() {
	r := bufio.NewReaderSize(p.stdout, 64<<10)
	for {
		line, err := p.readLine(r)
		select {
		case p.lines <- readLine{line, err}:
		case <-p.quit:
			return
		}
		if err != nil {
			return
		}
	}
}

// readLine reads to the end of a line, or of the stream: a last line may lack its end.
func (p *Process) readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > ocp.MaxMessage+1 || err != nil && len(line) > ocp.MaxMessage:
			return nil, &ExchangeError{ID: p.id, Message: fmt.Sprintf("it wrote a line of more than %d bytes", ocp.MaxMessage)}
		case err == nil:
			return line, nil
		case errors.Is(err, bufio.ErrBufferFull):
		case len(line) > 0 && errors.Is(err, io.EOF):
			return line, nil
		default:
			return nil, &ProviderCrashedError{ID: p.id}
		}
	}
}

// Exchange implements Conn.
func (p *Process) Exchange(ctx context.Context, e ocp.Envelope) (ocp.Envelope, error) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	release, err := p.acquire(ctx)
	if err != nil {
		return ocp.Envelope{}, err
	}
	defer release()
	sent, line, err := p.session.encode(e)
	if err != nil {
		return ocp.Envelope{}, err // nothing was sent; the connection is as it was
	}
	if err := p.unasked(); err != nil {
		return ocp.Envelope{}, p.giveUp(err)
	}
	if err := p.send(ctx, line); err != nil {
		return ocp.Envelope{}, p.giveUp(err)
	}
	answer, err := p.receive(ctx)
	if err != nil {
		return ocp.Envelope{}, p.giveUp(err)
	}
	got, err := p.session.decode(sent, answer)
	if err != nil {
		// The answer proper may still come, and would be taken for the next one.
		return ocp.Envelope{}, p.giveUp(err)
	}
	return got, nil
}

// Send writes a line as it is, for those who test what a provider makes of it, whatever
// came before. The end of the line is added.
func (p *Process) Send(ctx context.Context, line []byte) error {
	release, err := p.acquire(ctx)
	if err != nil {
		return err
	}
	defer release()
	if err := p.send(ctx, line); err != nil {
		return p.giveUp(err)
	}
	return nil
}

// Receive returns the next line that the provider writes, whatever it is.
func (p *Process) Receive(ctx context.Context) ([]byte, error) {
	release, err := p.acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	line, err := p.receive(ctx)
	if err != nil {
		return nil, p.giveUp(err)
	}
	return line, nil
}

// acquire waits for this exchange's turn.
func (p *Process) acquire(ctx context.Context) (release func(), err error) {
	started := time.Now()
	select {
	case <-p.turn:
	case <-ctx.Done():
		return nil, p.overdue(ctx, started)
	}
	release = func() { p.turn <- struct{}{} }
	p.mu.Lock()
	broken := p.broken
	p.mu.Unlock()
	if broken != nil {
		release()
		return nil, fmt.Errorf("provider %s: %w (%w)", p.id, ErrBroken, broken)
	}
	return release, nil
}

// unasked looks for a line that came without a request: it would be taken for the
// answer to the next one.
func (p *Process) unasked() error {
	select {
	case l := <-p.lines:
		if l.err != nil {
			return l.err
		}
		return &WireError{ID: p.id, Err: errors.New("it wrote a line that nobody asked for")}
	default:
		return nil
	}
}

// send writes a line.
func (p *Process) send(ctx context.Context, line []byte) error {
	started := time.Now()
	written := make(chan error, 1)
	go func() {
		_, err := p.stdin.Write(append(line[:len(line):len(line)], '\n'))
		written <- err
	}()
	select {
	case err := <-written:
		if err != nil {
			return &ProviderCrashedError{ID: p.id}
		}
		return nil
	case <-ctx.Done():
		// It does not read. Nothing more can be said to it, and the writer ends with it.
		// What escaped its group may hold the other end of the pipe: closing ours ends the
		// write in any case.
		p.end()
		_ = p.stdin.Close()
		<-written //nolint:errcheck // it was told to end
		return p.overdue(ctx, started)
	}
}

func (p *Process) receive(ctx context.Context) ([]byte, error) {
	started := time.Now()
	select {
	case l := <-p.lines:
		return l.text, l.err
	case <-p.quit:
		return nil, ErrBroken
	case <-ctx.Done():
		return nil, p.overdue(ctx, started)
	}
}

// overdue is the error of a wait that ctx ended.
func (p *Process) overdue(ctx context.Context, started time.Time) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return &TimeoutError{ID: p.id, After: time.Since(started)}
	}
	return fmt.Errorf("provider %s: %w", p.id, context.Cause(ctx))
}

// giveUp ends a connection that is out of step, and returns err.
func (p *Process) giveUp(err error) error {
	p.mu.Lock()
	if p.broken == nil {
		p.broken = err
	}
	p.mu.Unlock()
	p.end()
	return err
}

// end kills the child; wait ends the rest of its group.
func (p *Process) end() {
	// It may have ended by itself.
	_ = p.cmd.Process.Kill()
}

// Close implements Conn. How the provider ended is told by Stop.
func (p *Process) Close() error {
	p.Stop()
	return nil
}

// Stop is Close, and returns how the provider ended. Its stdin stays open meanwhile: it
// is to end because it was told to.
func (p *Process) Stop() Exit {
	p.closing.Do(p.stop)
	return p.exit
}

func (p *Process) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), ShutdownGrace)
	defer cancel()
	if release, err := p.acquire(ctx); err == nil {
		if _, line, err := p.session.encode(ocp.Envelope{Shutdown: true}); err == nil {
			err = p.send(ctx, line)
			if err == nil {
				p.await(ctx)
			}
		}
		release()
	}
	select {
	case <-p.exited:
	default:
		p.exit.Killed = true
	}
	_ = p.giveUp(errors.New("it was closed"))
	close(p.quit)
	_ = p.stdin.Close()
	<-p.exited
	// What escaped the group may hold the other end; the reader does not wait for it.
	_ = p.stdout.Close()
	p.workers.Wait()
	p.exit.Code = p.cmd.ProcessState.ExitCode()
}

// await waits for the child's end. Nobody wants its last words.
func (p *Process) await(ctx context.Context) {
	for {
		select {
		case <-p.exited:
			return
		case l := <-p.lines:
			if l.err == nil {
				continue
			}
			select {
			case <-p.exited:
			case <-ctx.Done():
			}
			return
		case <-ctx.Done():
			return
		}
	}
}
