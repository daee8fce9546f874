// Package mcp_test talks to the real meshnode mcp as the programs of agents do.
package mcp_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"opencode-mesh/test/fleet"
)

func TestMain(m *testing.M) { fleet.Main(m) }

// patience bounds every wait; only a hang reaches it.
const patience = 4 * time.Minute

// project is an empty directory in which members are pinned.
func project(t *testing.T, members ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, m := range members {
		write(t, filepath.Join(dir, ".opencomms", "pins", m+".json"), fmt.Sprintf(`{"member_id":%q,"host":"codex","saved_at":1770000000000}`, m))
	}
	return dir
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, dir, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, ".opencomms", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// server is a running meshnode mcp.
type server struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string // what it said, closed at the end
	err   *safeBuffer
	next  int
}

// safeBuffer is what a process says on stderr.
type safeBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// environ is one in which nothing of the person's own is.
func environ(t *testing.T, member string, more ...string) []string {
	env := append([]string{"HOME=" + t.TempDir(), "PATH=" + os.Getenv("PATH")}, more...)
	if member != "" {
		env = append(env, "OPENCOMMS_MEMBER_ID="+member)
	}
	return env
}

// start runs the server in a project without any handshake.
func start(t *testing.T, dir string, env []string, args ...string) *server {
	t.Helper()
	cmd := exec.Command(fleet.Bin(t, "meshnode"), append([]string{"mcp", "--project", dir}, args...)...)
	cmd.Env = env
	cmd.Dir = t.TempDir()
	s := &server{t: t, cmd: cmd, lines: make(chan string, 1000), err: &safeBuffer{}}
	cmd.Stderr = s.err
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.in = in
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(s.lines)
		r := bufio.NewReader(out)
		for {
			line, err := r.ReadString('\n')
			if line != "" {
				s.lines <- line
			}
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		in.Close()
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
		}
		for range s.lines {
		}
		<-done
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("stderr of the server:\n%s", s.err)
		}
	})
	return s
}

// as starts the server for a member, handshake included.
func as(t *testing.T, dir, member string, args ...string) *server {
	t.Helper()
	s := start(t, dir, environ(t, member), args...)
	s.shake("2025-06-18")
	return s
}

// shake does the handshake and returns the result of initialize.
func (s *server) shake(version string) map[string]any {
	s.t.Helper()
	s.send(`{"jsonrpc":"2.0","id":"hello","method":"initialize","params":{"protocolVersion":%q,"capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`, version)
	m := s.object()
	s.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	result, _ := m["result"].(map[string]any)
	if result == nil {
		s.t.Fatalf("initialize: %v", m)
	}
	return result
}

func (s *server) send(format string, args ...any) {
	s.t.Helper()
	if _, err := fmt.Fprintf(s.in, format+"\n", args...); err != nil {
		s.t.Fatalf("the server does not listen: %v", err)
	}
}

// line is the next line of the server.
func (s *server) line() string {
	s.t.Helper()
	select {
	case line, ok := <-s.lines:
		if !ok {
			s.t.Fatalf("the server ended; stderr:\n%s", s.err)
		}
		return strings.TrimSuffix(line, "\n")
	case <-time.After(patience):
		s.t.Fatalf("the server says nothing; stderr:\n%s", s.err)
	}
	return ""
}

func (s *server) object() map[string]any {
	s.t.Helper()
	return object(s.t, s.line())
}

func object(t *testing.T, text string) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return m
}

// request is a tools/call of the next id.
func (s *server) request(tool string, args map[string]any) string {
	s.next++
	data, err := json.Marshal(map[string]any{
		"jsonrpc": "2.0", "id": s.next, "method": "tools/call", "params": map[string]any{"name": "opencomms_" + tool, "arguments": args},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return string(data)
}

// reply is the JSON in a tool's answer.
type reply struct {
	OK      bool           `json:"ok"`
	Message string         `json:"message"`
	Data    map[string]any `json:"data"`
	text    string
}

type args = map[string]any

// call makes a call and reads the JSON of its result; the form of the result is
// checked with it.
func (s *server) call(tool string, a args) reply {
	s.t.Helper()
	s.send("%s", s.request(tool, a))
	return s.reply()
}

func (s *server) reply() reply {
	s.t.Helper()
	line := s.line()
	var answer struct {
		ID     int `json:"id"`
		Result *struct {
			Content []struct{ Type, Text string } `json:"content"`
			IsError *bool                         `json:"isError"`
		} `json:"result"`
	}
	if err := json.Unmarshal([]byte(line), &answer); err != nil || answer.Result == nil || answer.ID != s.next {
		s.t.Fatalf("no result of call %d: %s (%v)", s.next, line, err)
	}
	if r := answer.Result; len(r.Content) != 1 || r.Content[0].Type != "text" || r.IsError == nil {
		s.t.Fatalf("the result has another form: %s", line)
	}
	var r reply
	r.text = answer.Result.Content[0].Text
	if err := json.Unmarshal([]byte(r.text), &r); err != nil {
		s.t.Fatalf("%s: %v", r.text, err)
	}
	if r.OK == *answer.Result.IsError || r.Message == "" {
		s.t.Fatalf("isError and ok do not agree, or there is no message: %s", line)
	}
	return r
}

// ok makes a call that must succeed and have exactly the named data.
func (s *server) ok(tool string, a args, keys ...string) map[string]any {
	s.t.Helper()
	r := s.call(tool, a)
	if !r.OK {
		s.t.Fatalf("%s: %s", tool, r.text)
	}
	for _, k := range keys {
		if _, there := r.Data[k]; !there {
			s.t.Errorf("%s: %s is missing in %s", tool, k, r.text)
		}
	}
	if len(r.Data) != len(keys) {
		s.t.Errorf("%s: want the data %v in %s", tool, keys, r.text)
	}
	return r.Data
}

// refused makes a call that must be refused with a code.
func (s *server) refused(tool string, a args, code string) reply {
	s.t.Helper()
	r := s.call(tool, a)
	if r.OK || r.Data["code"] != code {
		s.t.Fatalf("%s: want a refusal with %s: %s", tool, code, r.text)
	}
	return r
}

// fails makes a call that must be answered with an error of the protocol.
func (s *server) fails(tool string, a args, code int) string {
	s.t.Helper()
	s.send("%s", s.request(tool, a))
	m := s.object()
	e, _ := m["error"].(map[string]any)
	if e == nil || e["code"] != float64(code) || m["id"] != float64(s.next) {
		s.t.Fatalf("%s: want the error %d: %v", tool, code, m)
	}
	return e["message"].(string)
}

// pulled pulls until n messages came; a cooldown may hold them back for a second.
func (s *server) pulled(n int) []map[string]any {
	s.t.Helper()
	var out []map[string]any
	for end := time.Now().Add(patience); len(out) < n; {
		r := s.call("pull", args{"channel": "any"})
		if !r.OK {
			s.t.Fatal(r.text)
		}
		out = append(out, list(s.t, r.Data, "messages")...)
		if time.Now().After(end) {
			s.t.Fatalf("%d of %d messages came", len(out), n)
		}
	}
	return out
}

func list(t *testing.T, data map[string]any, key string) []map[string]any {
	t.Helper()
	raw, ok := data[key].([]any)
	if !ok {
		t.Fatalf("%s is no list in %v", key, data)
	}
	out := make([]map[string]any, len(raw))
	for i, v := range raw {
		out[i], _ = v.(map[string]any)
	}
	return out
}

// end closes stdin and returns how the process ended.
func (s *server) end() int {
	s.t.Helper()
	s.in.Close()
	return s.wait()
}

func (s *server) wait() int {
	s.t.Helper()
	for range s.lines { // Wait closes the pipe under a reader
	}
	err := s.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		s.t.Fatal(err)
	}
	return s.cmd.ProcessState.ExitCode()
}
