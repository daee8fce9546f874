// Package fleet runs a mesh of real processes on loopback for tests: the three
// binaries, built once, each with its own directory, started, stopped, killed and
// frozen as the world does it. Everything that it starts it ends, by PID.
package fleet

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"opencode-mesh/protocol/api"
)

// Password is the mesh's.
const Password = "correct horse battery staple"

// patience bounds every wait for a process; only a hang reaches it.
const patience = 4 * time.Minute

// built is where the commands are, once they were built.
var built string

var build = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "mesh-bin-")
	if err != nil {
		return "", err
	}
	built = dir
	out, err := exec.Command("go", "build", "-o", dir+string(filepath.Separator), "opencode-mesh/cmd/...").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build the commands: %w\n%s", err, out)
	}
	return dir, nil
})

// Main runs a package's tests, whose nodes are alone, and removes what Bin built.
func Main(m *testing.M) {
	end, err := Alone()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = end()
	if built != "" {
		_ = os.RemoveAll(built)
	}
	os.Exit(code)
}

// Bin is the path of one of the commands, built on first use.
func Bin(tb testing.TB, name string) string {
	tb.Helper()
	dir, err := build()
	if err != nil {
		tb.Fatal(err)
	}
	return filepath.Join(dir, name)
}

// Fleet is one mesh.
type Fleet struct {
	TB  testing.TB
	Dir string
	Hub *Hub
}

// New makes a fleet with a running hub.
func New(tb testing.TB, hubArgs ...string) *Fleet {
	tb.Helper()
	return NewAt(tb, filepath.Join(tb.TempDir(), "hub"), hubArgs...)
}

// NewAt is New with the hub's data in a directory of the caller's.
func NewAt(tb testing.TB, hubDir string, hubArgs ...string) *Fleet {
	tb.Helper()
	f := &Fleet{TB: tb, Dir: tb.TempDir()}
	f.Hub = &Hub{f: f, Dir: hubDir, listen: "127.0.0.1:0", args: hubArgs}
	f.Hub.Start()
	return f
}

// In is the same mesh seen by another test: what it starts ends with that test, and
// what fails, fails it.
func (f *Fleet) In(tb testing.TB) *Fleet {
	other := *f
	other.TB = tb
	return &other
}

// process is a child with its output kept.
type process struct {
	tb   testing.TB
	name string
	cmd  *exec.Cmd
	done chan struct{}
	log  logBuffer
}

// logBuffer keeps what a process said, for the report of a failed test.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func environment(extra ...string) []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "MESH") {
			env = append(env, kv)
		}
	}
	return append(env, extra...)
}

// spawn starts a process; out gets its stdout.
func spawn(tb testing.TB, name string, env []string, out io.Writer, bin string, args ...string) *process {
	tb.Helper()
	cmd := exec.Command(bin, args...)
	cmd.Env, cmd.Stdout = env, out
	return start(tb, name, cmd)
}

// start starts a command, keeps what it writes to stderr unless that goes somewhere
// already, and ends it with the test.
func start(tb testing.TB, name string, cmd *exec.Cmd) *process {
	tb.Helper()
	p := &process{tb: tb, name: name, cmd: cmd, done: make(chan struct{})}
	if cmd.Stderr == nil {
		cmd.Stderr = &p.log
	}
	if err := cmd.Start(); err != nil {
		tb.Fatalf("start %s: %v", name, err)
	}
	go func() { _ = cmd.Wait(); close(p.done) }()
	tb.Cleanup(func() {
		p.Kill()
		if tb.Failed() {
			tb.Logf("--- %s said:\n%s", name, tail(p.log.String(), 8000))
		}
	})
	return p
}

func tail(s string, n int) string {
	if len(s) > n {
		return "…" + s[len(s)-n:]
	}
	return s
}

// Kill ends the process as a power cut would, and waits for its end.
func (p *process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// Stop ends it gracefully and returns its exit code.
func (p *process) Stop() int {
	p.tb.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(patience):
		p.Kill()
		p.tb.Fatalf("%s did not stop", p.name)
	}
	return p.cmd.ProcessState.ExitCode()
}

// Ended reports whether the process is gone.
func (p *process) Ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Wait waits for the end by itself and returns the exit code.
func (p *process) Wait() int {
	p.tb.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		p.tb.Fatalf("%s does not end", p.name)
	}
	return p.cmd.ProcessState.ExitCode()
}

// Log is what it wrote to stderr so far.
func (p *process) Log() string { return p.log.String() }

// Pid is its process id.
func (p *process) Pid() int { return p.cmd.Process.Pid }

// Hub is the hub's process and its directory, which outlives it.
type Hub struct {
	*process
	f      *Fleet
	Dir    string
	URL    string
	Link   string
	listen string
	args   []string
	// Env is added to the hub's environment at its next start.
	Env []string
}

// Start starts the hub, again on the same address, and waits until it serves.
func (h *Hub) Start() {
	h.f.TB.Helper()
	r, w := io.Pipe()
	args := append([]string{"serve", "--data", h.Dir, "--listen", h.listen}, h.args...)
	p := spawn(h.f.TB, "hub", environment(append(h.Env, "MESH_PASSWORD="+Password)...), w, Bin(h.f.TB, "meshhub"), args...)
	h.process = p
	go func() { <-p.done; _ = w.Close() }()
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if v, ok := strings.CutPrefix(lines.Text(), "listening "); ok {
			h.URL = v
		}
		if v, ok := strings.CutPrefix(lines.Text(), "join "); ok {
			h.Link = v
			go func() { _, _ = io.Copy(io.Discard, r) }()
			h.listen = strings.TrimPrefix(strings.TrimPrefix(h.URL, "https://"), "http://")
			return
		}
	}
	h.f.TB.Fatalf("the hub did not serve:\n%s", h.Log())
}

// Addr is host:port.
func (h *Hub) Addr() string { return h.listen }

// Run runs a meshhub command on the hub's directory.
func (h *Hub) Run(args ...string) Output {
	h.f.TB.Helper()
	return run(h.f.TB, environment(), "", Bin(h.f.TB, "meshhub"), append(args, "--data", h.Dir)...)
}

// Passwd changes the password of the running hub.
func (h *Hub) Passwd(password string) Output {
	h.f.TB.Helper()
	return run(h.f.TB, environment("MESH_PASSWORD="+password), "", Bin(h.f.TB, "meshhub"), "passwd", "--data", h.Dir)
}

// Node is a node's process and its directory, which outlives it.
type Node struct {
	*process
	f    *Fleet
	Name string
	Dir  string
	Work string
	link string
	env  []string
	args []string
}

// NodeOption changes a node before it starts.
type NodeOption func(*Node)

// Env adds to the node's environment.
func Env(kv ...string) NodeOption { return func(n *Node) { n.env = append(n.env, kv...) } }

// Environ replaces the node's environment.
func Environ(env []string) NodeOption {
	return func(n *Node) { n.env = append([]string{"MESH_PASSWORD=" + Password}, env...) }
}

// Args adds arguments of meshnode run; those from "--" on are the command.
func Args(args ...string) NodeOption { return func(n *Node) { n.args = append(n.args, args...) } }

// Via joins through another address, such as a proxy's.
func Via(link string) NodeOption { return func(n *Node) { n.link = link } }

// DataDir uses an existing directory.
func DataDir(dir string) NodeOption { return func(n *Node) { n.Dir = dir } }

// Node makes and starts a node that joins the hub.
func (f *Fleet) Node(name string, opts ...NodeOption) *Node {
	f.TB.Helper()
	n := &Node{f: f, Name: name, Dir: filepath.Join(f.Dir, name), Work: filepath.Join(f.Dir, name+"-work"), link: f.Hub.Link, env: environment("MESH_PASSWORD=" + Password)}
	for _, o := range opts {
		o(n)
	}
	if err := os.MkdirAll(n.Work, 0o755); err != nil {
		f.TB.Fatal(err)
	}
	n.Start()
	return n
}

// Join runs meshnode join.
func (f *Fleet) Join(args ...string) Output {
	f.TB.Helper()
	return run(f.TB, environment("MESH_PASSWORD="+Password), "", Bin(f.TB, "meshnode"), append([]string{"join"}, args...)...)
}

// Demo is the built-in agent as a node's command.
func (f *Fleet) Demo() NodeOption {
	return Args("--agent", "command", "--", Bin(f.TB, "meshnode"), "demo-agent")
}

// Start starts the node, again with the same directory. It does not wait.
func (n *Node) Start() {
	n.f.TB.Helper()
	args := append([]string{"run", "--data", n.Dir, "--hub", n.link, "--name", n.Name, "--workspace", "main=" + n.Work}, n.args...)
	n.process = spawn(n.f.TB, n.Name, n.env, io.Discard, Bin(n.f.TB, "meshnode"), args...)
}

// Run runs a meshnode command on the node's directory.
func (n *Node) Run(args ...string) Output {
	n.f.TB.Helper()
	return run(n.f.TB, environment(), "", Bin(n.f.TB, "meshnode"), append(args, "--data", n.Dir)...)
}

// Ctl is a controller: meshctl with a login of its own.
type Ctl struct {
	f   *Fleet
	dir string // of the login
	env []string
}

// Ctl logs a controller in.
func (f *Fleet) Ctl(name string, args ...string) *Ctl {
	f.TB.Helper()
	c := &Ctl{f: f, dir: filepath.Join(f.Dir, "ctl-"+name)}
	c.env = environment("MESH_DIR="+c.dir, "MESH_PASSWORD="+Password)
	if out := c.Run(append([]string{"login", f.Hub.Link, "--as", name}, args...)...); out.Code != 0 {
		f.TB.Fatalf("login of %s: %+v", name, out)
	}
	return c
}

// In is the same controller used by another test.
func (c *Ctl) In(tb testing.TB) *Ctl {
	other := *c
	other.f = c.f.In(tb)
	return &other
}

// Output is what a command said and how it ended.
type Output struct {
	Stdout, Stderr string
	Code           int
}

// Run runs meshctl to its end.
func (c *Ctl) Run(args ...string) Output {
	c.f.TB.Helper()
	return run(c.f.TB, c.env, "", Bin(c.f.TB, "meshctl"), args...)
}

// RunStdin is Run with a text on stdin.
func (c *Ctl) RunStdin(stdin string, args ...string) Output {
	c.f.TB.Helper()
	return run(c.f.TB, c.env, stdin, Bin(c.f.TB, "meshctl"), args...)
}

// Shell runs a line with the programs on the PATH, as a person types it, and returns
// everything it printed.
func (c *Ctl) Shell(dir, line string) string {
	c.f.TB.Helper()
	return Shell(c.f.TB, dir, line, c.env...)
}

// Running is a command that runs beside the test.
type Running struct {
	*process
	out *logBuffer
}

// Start starts meshctl; it ends with the test at the latest.
func (c *Ctl) Start(args ...string) *Running {
	c.f.TB.Helper()
	out := &logBuffer{}
	return &Running{spawn(c.f.TB, "meshctl "+args[0], c.env, out, Bin(c.f.TB, "meshctl"), args...), out}
}

// Output is what it wrote to stdout so far.
func (r *Running) Output() string { return r.out.String() }

// Command is a meshctl command that the caller starts itself.
func (c *Ctl) Command(args ...string) *exec.Cmd {
	c.f.TB.Helper()
	cmd := exec.Command(Bin(c.f.TB, "meshctl"), args...)
	cmd.Env = c.env
	return cmd
}

// Forward runs meshctl forward until the test ends and returns where it serves.
func (c *Ctl) Forward(target string) (url string) {
	c.f.TB.Helper()
	r, w := io.Pipe()
	p := spawn(c.f.TB, "forward "+target, c.env, w, Bin(c.f.TB, "meshctl"), "forward", target)
	go func() { <-p.done; _ = w.Close() }()
	line, err := bufio.NewReader(r).ReadString('\n')
	url, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "forwarding ")
	if err != nil || !ok {
		c.f.TB.Fatalf("forward %s printed %q: %s", target, line, p.Log())
	}
	return url
}

// Dispatch runs meshctl dispatch --json and returns the tasks.
func (c *Ctl) Dispatch(args ...string) ([]api.Task, Output) {
	c.f.TB.Helper()
	out := c.Run(append([]string{"dispatch", "--json"}, args...)...)
	return c.f.tasks(out), out
}

// Tasks runs a meshctl command that prints tasks as JSON.
func (c *Ctl) Tasks(args ...string) ([]api.Task, Output) {
	c.f.TB.Helper()
	out := c.Run(append(args, "--json")...)
	return c.f.tasks(out), out
}

func (f *Fleet) tasks(out Output) []api.Task {
	f.TB.Helper()
	var tasks []api.Task
	for _, line := range strings.Split(strings.TrimSpace(out.Stdout), "\n") {
		if line == "" {
			continue
		}
		var t api.Task
		if err := json.Unmarshal([]byte(line), &t); err != nil {
			f.TB.Fatalf("not a task: %q: %v (stderr %s)", line, err, out.Stderr)
		}
		tasks = append(tasks, t)
	}
	return tasks
}

// AwaitNode waits until a node passes ok.
func (c *Ctl) AwaitNode(name string, ok func(api.Node) bool) api.Node {
	c.f.TB.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		out := c.Run("nodes", "--json")
		for _, line := range strings.Split(out.Stdout, "\n") {
			var n api.Node
			if json.Unmarshal([]byte(line), &n) == nil && n.Name == name && ok(n) {
				return n
			}
		}
	}
	c.f.TB.Fatalf("node %s: %s", name, c.Run("nodes", "--json").Stdout)
	return api.Node{}
}

// Online waits until the node is connected.
func (c *Ctl) Online(name string) api.Node {
	c.f.TB.Helper()
	return c.AwaitNode(name, func(n api.Node) bool { return n.State == api.NodeOnline })
}

// Healthy waits until the node is connected and its agent answers.
func (c *Ctl) Healthy(name string) api.Node {
	c.f.TB.Helper()
	return c.AwaitNode(name, func(n api.Node) bool { return n.State == api.NodeOnline && n.Agent.Health == api.HealthHealthy })
}

// Shell runs a line in a directory with the programs on the PATH and more variables,
// as a person types it, and returns everything it printed.
func Shell(tb testing.TB, dir, line string, env ...string) string {
	tb.Helper()
	path := filepath.Dir(Bin(tb, "meshctl")) + string(filepath.ListSeparator) + os.Getenv("PATH")
	env = append(environment(env...), "PATH="+path)
	return run(tb, env, "", "sh", "-c", "cd '"+dir+"' && exec 2>&1; "+line).Stdout
}

func run(tb testing.TB, env []string, stdin, bin string, args ...string) Output {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, args...)
	cmd.Env = env
	cmd.Stdin = strings.NewReader(stdin)
	var out, diag bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &diag
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		tb.Fatalf("%s %v: %v", filepath.Base(bin), args, err)
	}
	return Output{Stdout: out.String(), Stderr: diag.String(), Code: cmd.ProcessState.ExitCode()}
}
