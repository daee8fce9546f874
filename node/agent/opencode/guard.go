package opencode

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// maxSpec is the longest guardSpec line, in bytes; it holds an environment.
	maxSpec = 4 << 20
	// maxTail is how much of the server's last error output is kept, in bytes.
	maxTail = 4 << 10
	// killLimit bounds the killing of the server's family.
	killLimit = 10 * time.Second
	// recordFile is the name of the record in the data directory.
	recordFile = "server.json"
)

// guardSpec is what a node tells its guard, as one line of JSON on its input. It
// holds secrets, which therefore stand on no command line.
type guardSpec struct {
	Bin      string        `json:"bin"`
	Dir      string        `json:"dir"` // working directory of the server
	Env      []string      `json:"env"` // complete
	Record   string        `json:"record"`
	Marker   string        `json:"marker"`
	Username string        `json:"username"`
	Password string        `json:"password"`
	Grace    time.Duration `json:"grace"`
}

// guardReport is what a guard tells its node, as lines of JSON on its output. One
// field is set.
type guardReport struct {
	Server *process `json:"server,omitempty"` // it was started
	URL    string   `json:"url,omitempty"`    // it listens
	Ended  string   `json:"ended,omitempty"`  // why it ended by itself
}

// record names the processes of a supervised server, for whoever finds them
// without their node.
type record struct {
	Guard  process  `json:"guard"`
	Server *process `json:"server,omitempty"` // nil until it was started
	Marker string   `json:"marker"`
}

// write puts the record in place as a whole, and on disk: one that cannot be read
// keeps the node from starting a server.
func (r record) write(path string) error {
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode record: %w", err)
	}
	next := path + ".new"
	f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	if err := os.Rename(next, path); err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	return nil
}

// newMarker makes a marker that nothing else carries.
func newMarker() string { return rand.Text() }

// GuardMain is the guard of a supervised server: it starts the server that it is
// told of on in, reports on out, and when in ends — because the node closed it, or
// is no more — it lets the server dispose what runs, terminates it, and kills what
// is left of its process tree. It returns the process's exit code. A node runs it
// as a process of its own (Config.GuardCommand), which must do nothing else.
func GuardMain(in io.Reader, out io.Writer) int {
	// The server is bound to this thread's life (see bound).
	runtime.LockOSThread()
	// Reports to a node that is gone must not end the guard.
	signal.Ignore(syscall.SIGPIPE)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)

	lines := bufio.NewReaderSize(io.LimitReader(in, maxSpec), 64<<10)
	line, err := lines.ReadBytes('\n')
	var spec guardSpec
	if err != nil || json.Unmarshal(line, &spec) != nil {
		fmt.Fprintln(os.Stderr, "guard: this command is started by meshnode itself and needs its instructions on its input")
		return 2
	}
	nodeGone := make(chan struct{})
	go func() {
		defer close(nodeGone)
		_, _ = io.Copy(io.Discard, lines) // ends with the node
	}()

	g := &guard{spec: spec, listening: make(chan string, 1), ended: make(chan struct{})}
	// The pipe holds a few small reports, and a node that is gone reads none.
	report := func(r guardReport) { _ = json.NewEncoder(out).Encode(r) }
	if err := g.begin(); err != nil {
		report(guardReport{Ended: err.Error()})
		g.end()
		return 1
	}
	report(guardReport{Server: &g.server})
	for {
		select {
		case g.url = <-g.listening:
			report(guardReport{URL: g.url})
			continue
		case <-nodeGone:
		case <-stop:
		case <-g.ended:
			report(guardReport{Ended: g.reason()})
		}
		g.end()
		return 0
	}
}

// guard owns one server. Only the goroutine of GuardMain uses it, but for what is
// said otherwise.
type guard struct {
	spec      guardSpec
	cmd       *exec.Cmd
	server    process
	url       string      // "" until the server listens
	listening chan string // gets it once
	tail      tail
	err       error         // of the server's end; read after ended
	ended     chan struct{} // closed when the server has ended
}

// begin records this process, starts the server and records that too.
func (g *guard) begin() error {
	if err := enclose(); err != nil {
		return err
	}
	self, ok := lookup(os.Getpid())
	if !ok {
		return errors.New("guard cannot look itself up")
	}
	rec := record{Guard: self, Marker: g.spec.Marker}
	if err := rec.write(g.spec.Record); err != nil {
		return err
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	cmd := exec.Command(g.spec.Bin, "serve", "--hostname", "127.0.0.1", "--port", strconv.Itoa(port))
	cmd.Dir, cmd.Env = g.spec.Dir, append(g.spec.Env, markerVariable+"="+g.spec.Marker)
	cmd.Stderr = &g.tail
	// What the server started may hold its output open.
	cmd.WaitDelay = time.Second
	bound(cmd)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("start opencode: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start opencode: %w", err)
	}
	g.cmd = cmd
	// Not waited for yet, so it can be looked up even if it has ended.
	g.server, _ = lookup(cmd.Process.Pid)
	go func() {
		defer close(g.ended)
		g.follow(stdout)
		g.err = cmd.Wait()
	}()
	rec.Server = &g.server
	return rec.write(g.spec.Record)
}

// freePort takes a port of the system's choice: the server's own choice is 4096
// whenever it is free, which people expect to be theirs.
func freePort() (int, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer func() { _ = ln.Close() }()
	return ln.Addr().(*net.TCPAddr).Port, nil
}

// follow reads the server's output until it ends, and says where it listens.
// Before that line, a connection would be accepted and never answered.
func (g *guard) follow(stdout io.Reader) {
	const announcement = "opencode server listening on "
	lines := bufio.NewReader(stdout)
	for {
		line, err := readLine(lines)
		if err != nil {
			return
		}
		if url, ok := strings.CutPrefix(string(line), announcement); ok {
			select {
			case g.listening <- strings.TrimSpace(url):
			default: // it says so once
			}
		}
	}
}

// reason says why the server ended by itself.
func (g *guard) reason() string {
	reason := "opencode serve ended"
	if g.err != nil {
		reason += " (" + g.err.Error() + ")"
	}
	if said := g.tail.String(); said != "" {
		reason += ": " + said
	}
	return reason
}

// end ends the server and all that it started, gently first, and removes the
// record when nothing is left.
func (g *guard) end() {
	roots := []process{g.server}
	if g.cmd != nil {
		// What is in the tree now may leave it when its parent ends.
		if members, err := family(roots, g.spec.Marker); err == nil {
			roots = append(roots, members...)
		}
		g.dispose()
		if terminate(g.server) == nil {
			select {
			case <-g.ended:
			case <-time.After(g.spec.Grace):
			}
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), killLimit)
	defer cancel()
	if err := killFamily(ctx, roots, g.spec.Marker); err != nil {
		fmt.Fprintln(os.Stderr, "guard: not everything that opencode started could be ended:", err)
		return
	}
	if g.cmd != nil {
		<-g.ended
	}
	_ = os.Remove(g.spec.Record)
}

// dispose lets the server close running turns: a plain signal would leave them
// half written and their children alive.
func (g *guard) dispose() {
	select {
	case <-g.ended:
		return
	default:
	}
	if g.url == "" {
		return
	}
	at, err := parseEndpoint(g.url, g.spec.Username, g.spec.Password)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), g.spec.Grace)
	defer cancel()
	t := newTransport(at)
	// If it does not work there is still the signal.
	_, _ = t.exchange(ctx, t.fresh, call{method: http.MethodPost, path: "/global/dispose", in: struct{}{}})
}

// tail keeps the end of what is written to it, without terminal colours. Safe for
// concurrent use.
type tail struct {
	mu   sync.Mutex
	kept []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, p...)
	if over := len(t.kept) - maxTail; over > 0 {
		t.kept = append([]byte(nil), t.kept[over:]...)
	}
	return len(p), nil
}

// String is the kept text on one line.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(strings.Fields(colours.ReplaceAllString(string(t.kept), "")), " ")
}

// reap ends what an earlier node's guard left: it waits for a guard that is at
// work, and ends one that is stuck, the server and its tree. It returns when
// nothing of them runs.
func reap(ctx context.Context, dataDir string, patience time.Duration) error {
	path := filepath.Join(dataDir, recordFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read record: %w", err)
	}
	var rec record
	if err := json.Unmarshal(b, &rec); err != nil {
		return fmt.Errorf("%s, which names the processes of an earlier opencode server, cannot be read: %w", path, err)
	}
	waiting, cancel := context.WithTimeout(ctx, patience)
	err = gone(waiting, rec.Guard)
	cancel()
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	roots := []process{rec.Guard}
	if rec.Server != nil {
		roots = append(roots, *rec.Server)
	}
	killing, cancel := context.WithTimeout(ctx, killLimit)
	defer cancel()
	if err := killFamily(killing, roots, rec.Marker); err != nil {
		return fmt.Errorf("end what is left of an earlier opencode server: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove record: %w", err)
	}
	return nil
}
