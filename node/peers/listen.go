package peers

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"time"

	"golang.org/x/net/netutil"

	"opencode-mesh/protocol/peers"
)

const (
	// MaxConnections is how many connections the socket, and likewise the port, has open
	// at once; the next wait to be taken.
	MaxConnections = 128
	// RequestTimeout is how long a client may take over its request.
	RequestTimeout = 5 * time.Second
	// AnswerTimeout is how long a client may take over the answer, from its request on.
	AnswerTimeout = 30 * time.Second
	// MaxHeader is the largest header of a request, and of an answer, in bytes.
	MaxHeader = 16 << 10
	// probeTimeout is after how much silence a socket counts as in use.
	probeTimeout = 500 * time.Millisecond
	// stopTimeout is how long requests that are under way have at the end.
	stopTimeout = 2 * time.Second
)

// maxSocketPath is the longest path of a socket in bytes that the system and Go take.
func maxSocketPath() int {
	if runtime.GOOS == "linux" {
		return 107
	}
	return 103 // the BSDs, macOS among them
}

// listener takes requests on a Unix socket and on a loopback port; on Windows, or where
// the socket cannot be, on the port alone.
type listener struct {
	socket string // path; "": none
	port   int
	server *http.Server
	serves sync.WaitGroup
}

// listen opens both. Where the socket cannot be, log gets why.
func listen(ctx context.Context, dir string, h http.Handler, log *slog.Logger) (*listener, error) {
	l := &listener{server: &http.Server{
		Handler:           h,
		ReadHeaderTimeout: RequestTimeout,
		ReadTimeout:       RequestTimeout,
		WriteTimeout:      AnswerTimeout,
		IdleTimeout:       RequestTimeout,
		MaxHeaderBytes:    MaxHeader,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}}
	tcp, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for peers: %w", err)
	}
	l.port = tcp.Addr().(*net.TCPAddr).Port
	l.serve(tcp)
	if runtime.GOOS == "windows" {
		return l, nil
	}
	path := filepath.Join(dir, peers.NewProcessID()+".sock")
	unix, err := listenUnix(ctx, path)
	if err != nil {
		log.Warn("peers: no Unix socket, so peers come by the loopback port", "err", err)
		return l, nil
	}
	l.socket = path
	l.serve(unix)
	return l, nil
}

func (l *listener) serve(at net.Listener) {
	// Each has its own bound: whoever fills the port, which other users can, does not
	// shut the socket.
	at = netutil.LimitListener(at, MaxConnections)
	l.serves.Go(func() { _ = l.server.Serve(at) }) // ends by stop
}

// stop lets the requests that are under way end, and waits. The socket is gone then.
func (l *listener) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if l.server.Shutdown(ctx) != nil {
		_ = l.server.Close()
	}
	l.serves.Wait()
}

// transport is what the entries of the registry say.
func (l *listener) transport() peers.Transport {
	if l.socket != "" {
		return peers.Transport{Type: "unix", Path: l.socket}
	}
	return peers.Transport{Type: "tcp", Host: "127.0.0.1", Port: l.port}
}

// url is where peers of version 1 go.
func (l *listener) url() string { return "http://127.0.0.1:" + strconv.Itoa(l.port) }

// listenUnix opens a socket that only this user may use.
func listenUnix(ctx context.Context, path string) (net.Listener, error) {
	if n := len(path); n > maxSocketPath() {
		return nil, fmt.Errorf("%s has %d bytes and a socket's path at most %d: set XDG_RUNTIME_DIR to a shorter one", path, n, maxSocketPath())
	}
	if err := privateDir(filepath.Dir(path)); err != nil {
		return nil, err
	}
	if err := vacate(ctx, path); err != nil {
		return nil, err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// privateDir makes a directory that only this user may use. One of another user cannot
// be made so, and a link may lead anywhere: the parent may be open to all.
func privateDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	info, err := os.Lstat(dir)
	switch {
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("%s is no directory", dir)
	}
	return os.Chmod(dir, 0o700)
}

// vacate sees to it that nothing is at a socket's path: a socket that nobody serves goes.
func vacate(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s is there and no socket", path)
	}
	d := net.Dialer{Timeout: probeTimeout}
	c, err := d.DialContext(ctx, "unix", path)
	var silent net.Error
	switch {
	case err == nil:
		_ = c.Close()
		return fmt.Errorf("%s is in use", path)
	case errors.As(err, &silent) && silent.Timeout():
		return fmt.Errorf("%s is in use", path)
	case !refused(err):
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// refused reports that nobody listens there, or nothing is there.
func refused(err error) bool {
	return errors.Is(err, errRefused) || errors.Is(err, fs.ErrNotExist)
}
