package opencodebin

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// Server is a running opencode of a test, protected as a user's own would be.
type Server struct {
	URL      string
	Password string
}

// Serve starts an opencode that is nobody's but the test's, with dir as its
// directory, and returns when it listens. It ends with the test.
func Serve(tb testing.TB, o Options, dir string) *Server {
	tb.Helper()
	s := &Server{Password: "of the tests"}
	cmd := exec.Command(Find(tb), "serve", "--hostname", "127.0.0.1", "--port", "0")
	cmd.Dir = dir
	cmd.Env = append(Env(tb, o), s.Environ()...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if _, url, ok := strings.Cut(lines.Text(), "listening on "); ok {
			go func() { _, _ = io.Copy(io.Discard, out) }()
			s.URL = strings.TrimSpace(url)
			return s
		}
	}
	tb.Fatal("opencode does not listen")
	return nil
}

// Environ is what its clients and its process find the password in.
func (s *Server) Environ() []string { return []string{"OPENCODE_SERVER_PASSWORD=" + s.Password} }

// Call sends a request to the server's own interface and returns the status; the
// answer goes to into unless that is nil or the status is not 200.
func (s *Server) Call(tb testing.TB, method, path string, body, into any) (status int) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
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
