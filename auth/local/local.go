// Package local is the admin socket of a running hub or node: HTTP over a Unix
// socket in the data directory. Who may use it is decided by the file system: the
// directory and the socket belong to the user that runs the process and nobody
// else may open them, so there is no password on it. It works on every system
// that has Unix sockets, Windows 10 included.
package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	socketName = "admin.sock"
	// pathName is a file that holds the socket's path when the data directory's own
	// is longer than systems allow.
	pathName = "admin.path"
	// maxPath is the longest path that every system takes for a socket, in bytes.
	maxPath = 100
	// dialTimeout bounds the connection to a process on the same machine.
	dialTimeout = 3 * time.Second
)

// ErrNotRunning means that no process serves the directory's socket.
var ErrNotRunning = errors.New("no running process serves this data directory")

// Listen opens the socket of dir. The caller must hold the directory's store
// lock: a socket file that is there is taken for a leftover and replaced.
func Listen(dir string) (net.Listener, error) {
	path := filepath.Join(dir, socketName)
	pointer := filepath.Join(dir, pathName)
	if err := os.Remove(pointer); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("admin socket: %w", err)
	}
	if len(path) > maxPath {
		short, err := os.MkdirTemp("", "mesh-")
		if err != nil {
			return nil, fmt.Errorf("admin socket: %w", err)
		}
		path = filepath.Join(short, socketName)
		if err := os.WriteFile(pointer, []byte(path), 0o600); err != nil {
			return nil, fmt.Errorf("admin socket: %w", err)
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("admin socket: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("admin socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("admin socket: %w", err), l.Close())
	}
	return l, nil
}

// Client calls the process that serves dir; its URLs start with http://local.
// Calls fail with ErrNotRunning when there is none.
func Client(dir string) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			path := filepath.Join(dir, socketName)
			if b, err := os.ReadFile(filepath.Join(dir, pathName)); err == nil {
				path = strings.TrimSpace(string(b))
			}
			d := net.Dialer{Timeout: dialTimeout}
			c, err := d.DialContext(ctx, "unix", path)
			if err != nil {
				return nil, errors.Join(ErrNotRunning, err)
			}
			return c, nil
		},
	}}
}
