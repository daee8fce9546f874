package opencodebin

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"
)

const (
	// startLimit bounds the server's start, callLimit an answer and disposeLimit the end of
	// what it started; only a hang reaches them.
	startLimit   = 4 * time.Minute
	callLimit    = 4 * time.Minute
	disposeLimit = 10 * time.Second
)

// Server is a running opencode of a test, protected as a user's own would be.
type Server struct {
	URL      string
	Password string
}

// Serve starts an opencode that is nobody's but the test's, with dir as its
// directory, and returns when it listens. It ends with the test, however that ends;
// on Linux also if the test's process is killed.
func Serve(tb testing.TB, o Options, dir string) *Server {
	tb.Helper()
	s := &Server{Password: "of the tests"}
	cmd := exec.Command(Find(tb), "serve", "--hostname", "127.0.0.1", "--port", "0")
	cmd.Dir = dir
	cmd.Env = append(Env(tb, o), s.Environ()...)
	bind(cmd)
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	started, ended := make(chan error), make(chan struct{})
	read := make(chan struct{}) // closed when the output has ended
	go func() {
		defer close(ended)
		runtime.LockOSThread() // the server is bound to the life of this thread
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			<-read
			_ = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { s.end(cmd); <-ended })
	listens := make(chan string, 1)
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if _, url, ok := strings.Cut(lines.Text(), "listening on "); ok {
				listens <- strings.TrimSpace(url)
				break
			}
		}
		close(listens)
		_, _ = io.Copy(io.Discard, out)
	}()
	select {
	case url, ok := <-listens:
		if !ok {
			tb.Fatal("opencode does not listen")
		}
		s.URL = url
	case <-time.After(startLimit):
		tb.Fatalf("opencode does not listen after %v", startLimit)
	}
	return s
}

// end ends the server, and first what its turns started: that would outlive it.
func (s *Server) end(cmd *exec.Cmd) {
	if s.URL != "" {
		ctx, cancel := context.WithTimeout(context.Background(), disposeLimit)
		defer cancel()
		if req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/global/dispose", nil); err == nil {
			req.SetBasicAuth("opencode", s.Password)
			if resp, err := http.DefaultClient.Do(req); err == nil {
				_ = resp.Body.Close()
			}
		}
		http.DefaultClient.CloseIdleConnections()
	}
	_ = cmd.Process.Kill()
}

// Environ is what its clients and its process find the password in.
func (s *Server) Environ() []string { return []string{"OPENCODE_SERVER_PASSWORD=" + s.Password} }

// Call sends a request to the server's own interface and returns the status; the
// answer goes to into unless that is nil or the status is not 200.
func (s *Server) Call(tb testing.TB, method, path string, body, into any) (status int) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), callLimit)
	defer cancel()
	var sent io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			tb.Fatal(err)
		}
		sent = strings.NewReader(string(b))
	}
	req, err := http.NewRequestWithContext(ctx, method, s.URL+path, sent)
	if err != nil {
		tb.Fatal(err)
	}
	req.SetBasicAuth("opencode", s.Password)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		tb.Fatalf("opencode: %s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		tb.Fatalf("opencode: %s %s: %v", method, path, err)
	}
	if into != nil && resp.StatusCode == http.StatusOK {
		if err := json.Unmarshal(answer, into); err != nil {
			tb.Fatalf("opencode: %s %s: %v: %s", method, path, err, answer)
		}
	}
	return resp.StatusCode
}
