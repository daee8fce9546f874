package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/test/fleet"
	"opencode-mesh/test/opencodebin"
	"opencode-mesh/test/stubllm"
)

// remote is a node's opencode as it is reached through the hub.
type remote struct {
	t      *testing.T
	base   string // without a slash at the end
	host   string // of the hub
	secret string
}

func (r *remote) do(method, path string, body any, header ...string) (*http.Response, []byte) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	var sent io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			r.t.Fatal(err)
		}
		sent = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, r.base+path, sent)
	if err != nil {
		r.t.Fatal(err)
	}
	// What opencode's own clients do.
	req.SetBasicAuth("opencode", r.secret)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatalf("%s %s: %v", method, path, err)
	}
	return resp, answer
}

// json is do for a JSON answer.
func (r *remote) json(method, path string, body, into any, header ...string) {
	r.t.Helper()
	resp, answer := r.do(method, path, body, header...)
	if resp.StatusCode != http.StatusOK {
		r.t.Fatalf("%s %s: %d %.300s", method, path, resp.StatusCode, answer)
	}
	if err := json.Unmarshal(answer, into); err != nil {
		r.t.Fatalf("%s %s: %v: %.300s", method, path, err, answer)
	}
}

// key is that of the model provider, which must stay on the node.
const key = "sk-never-leaves-the-node"

// TestTheRealOpencodeIsUsedThroughTheHub is one fleet for all of its cases, like
// TestTheRealOpencodeWorksForTheFleet.
func TestTheRealOpencodeIsUsedThroughTheHub(t *testing.T) {
	llm := stubllm.Start(t)
	env := opencodebin.Env(t, opencodebin.Options{ModelURL: llm.URL(), Config: map[string]any{
		"provider": map[string]any{opencodebin.Provider: map[string]any{
			"npm": "@ai-sdk/openai-compatible", "name": "Stub",
			"options": map[string]any{"baseURL": llm.URL(), "apiKey": key, "headers": map[string]any{"X-Own": key}},
			"models":  map[string]any{opencodebin.Model: map[string]any{"name": "Stub Model", "tool_call": true, "limit": map[string]any{"context": 200000, "output": 8192}}},
		}},
		"mcp": map[string]any{"far": map[string]any{"type": "remote", "url": "http://127.0.0.1:9/mcp", "enabled": false, "headers": map[string]any{"Authorization": "Bearer " + key}}},
	}})
	bin := opencodebin.Find(t)
	f := fleet.New(t, "--tls", "off")
	for _, name := range []string{"alpha", "beta"} {
		f.Node(name, func(n *fleet.Node) {
			fleet.Environ(env)(n)
			args := []string{"--agent", "opencode", "--opencode-bin", bin}
			if name == "beta" {
				args = append(args, "--opencode-filter=false")
			}
			fleet.Args(args...)(n)
		})
	}
	ctl := f.Ctl("desk")
	at := func(name string) *remote {
		ctl.Healthy(name)
		return &remote{t: t, base: f.Hub.URL + "/v1/nodes/" + name + "/services/opencode", host: f.Hub.Addr(), secret: ctl.Profile().Credential.Reveal()}
	}
	alpha, beta := at("alpha"), at("beta")

	t.Run("keys stay on the node, unless its owner says otherwise", func(t *testing.T) {
		leaks := 0
		for _, path := range []string{"/config", "/global/config", "/config/providers", "/provider", "/api/provider"} {
			resp, body := alpha.do(http.MethodGet, path, nil)
			if resp.StatusCode != http.StatusOK || !json.Valid(body) || path != "/api/provider" && !bytes.Contains(body, []byte(opencodebin.Provider)) {
				t.Errorf("%s: %d %.300s", path, resp.StatusCode, body)
			}
			if bytes.Contains(body, []byte(key)) {
				t.Errorf("%s has a key: %s", path, body)
			}
			if _, body := beta.do(http.MethodGet, path, nil); bytes.Contains(body, []byte(key)) {
				leaks++
			}
		}
		if leaks == 0 {
			t.Error("opencode itself shows no keys: the test looks for the wrong ones")
		}
		t.Logf("without the filter, %d of them have the key", leaks)
	})
	t.Run("what its owner decides is refused", func(t *testing.T) {
		for _, c := range [][2]string{
			{"PUT", "/auth/stub"}, {"PATCH", "/config"}, {"PATCH", "/global/config"}, {"POST", "/global/dispose"}, {"POST", "/instance/dispose"},
			{"POST", "/global/upgrade"}, {"POST", "/api/session"}, {"PUT", "/x/%2e%2e/auth/stub"}, {"PUT", "/%61uth/stub"},
		} {
			resp, body := alpha.do(c[0], c[1], map[string]any{})
			if resp.StatusCode != http.StatusForbidden || !bytes.Contains(body, []byte(api.CodeRefused)) {
				t.Errorf("%s %s: %d %s", c[0], c[1], resp.StatusCode, body)
			}
		}
	})
	t.Run("opencode run --attach works on it", func(t *testing.T) {
		ctx := bounded(t)
		cmd := exec.CommandContext(ctx, bin, "run", "--attach", alpha.base, "-u", "opencode", "-p", alpha.secret, "REPLY:through the tunnel")
		cmd.Env, cmd.Dir = env, t.TempDir()
		// What it prints depends on when its event stream was up, also without a hub: the
		// model has the prompt, and the node's opencode has the answer.
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), opencodebin.Model) {
			t.Errorf("%v: %s", err, out)
		}
		asked(t, llm, has("through the tunnel"))
	})
	t.Run("the calls of opencode attach", func(t *testing.T) { attach(t, alpha) })
	t.Run("a terminal", func(t *testing.T) {
		terminal(t, alpha)
		terminal(t, beta)
	})
	t.Run("its web interface and its password stay its own", func(t *testing.T) {
		resp, body := alpha.do(http.MethodGet, "/", nil)
		if resp.StatusCode != http.StatusOK || !bytes.Contains(body, []byte("<html")) || resp.Header.Get("Content-Security-Policy") != "sandbox" {
			t.Errorf("%d %v %.200s", resp.StatusCode, resp.Header, body)
		}
		if resp, body := alpha.do(http.MethodGet, "/session", nil, "Authorization", "Bearer wrong"); resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("%d %s", resp.StatusCode, body)
		}
	})
}

// attach makes the calls that the terminal interface of opencode makes, in its order:
// what it looks up first, its event stream, a session, a prompt.
func attach(t *testing.T, r *remote) {
	for _, path := range []string{"/config/providers", "/config", "/agent", "/command", "/session?limit=5", "/session/status", "/provider", "/provider/auth", "/mcp", "/lsp", "/formatter", "/vcs", "/path", "/project/current", "/global/health", "/api/health"} {
		if resp, body := r.do(http.MethodGet, path, nil); resp.StatusCode != http.StatusOK || !json.Valid(body) {
			t.Errorf("%s: %d %.200s", path, resp.StatusCode, body)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, r.base+"/global/event", nil)
	req.SetBasicAuth("opencode", r.secret)
	events, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer events.Body.Close()
	lines := bufio.NewScanner(events.Body)
	lines.Buffer(nil, 1<<20)
	if !lines.Scan() || !strings.Contains(lines.Text(), "server.connected") {
		t.Fatalf("the event stream begins with %q, %v", lines.Text(), lines.Err())
	}
	var session struct{ ID string }
	r.json(http.MethodPost, "/session", map[string]any{"title": "attached"}, &session)
	var answer struct{ Parts []struct{ Type, Text string } }
	r.json(http.MethodPost, "/session/"+session.ID+"/message", map[string]any{"parts": []any{map[string]any{"type": "text", "text": "REPLY:hello from afar"}}}, &answer)
	if all := fmt.Sprint(answer); !strings.Contains(all, "hello from afar") {
		t.Errorf("the answer is %s", all)
	}
	for lines.Scan() {
		if strings.Contains(lines.Text(), "hello from afar") && strings.Contains(lines.Text(), session.ID) {
			break
		}
	}
	if lines.Err() != nil {
		t.Errorf("the answer was on no event: %v", lines.Err())
	}
	if resp, body := r.do(http.MethodDelete, "/session/"+session.ID, nil); resp.StatusCode != http.StatusOK {
		t.Errorf("delete: %d %s", resp.StatusCode, body)
	}
}

// terminal opens a terminal on the node and has it say something.
func terminal(t *testing.T, r *remote) {
	var pty struct{ ID string }
	r.json(http.MethodPost, "/pty", map[string]any{"title": "t", "command": "/bin/sh"}, &pty)
	var ticket struct{ Ticket string }
	// It compares Origin with Host: the hub must have left both alone.
	r.json(http.MethodPost, "/pty/"+pty.ID+"/connect-token", map[string]any{}, &ticket, "X-Opencode-Ticket", "1", "Origin", "http://"+r.host)
	c, err := net.Dial("tcp", r.host)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	path := strings.TrimPrefix(r.base, "http://"+r.host) + "/pty/" + pty.ID + "/connect?ticket=" + ticket.Ticket
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\nOrigin: http://%s\r\nMesh-Authorization: Bearer %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n", path, r.host, r.host, r.secret)
	in := bufio.NewReader(c)
	resp, err := http.ReadResponse(in, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("Sec-Websocket-Accept") != "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" {
		t.Fatalf("%+v, %v", resp, err)
	}
	if _, err := c.Write(textFrame("echo far-$((40+2))\n")); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	for !strings.Contains(said.String(), "far-42") {
		payload, err := readFrame(in)
		if err != nil {
			t.Fatalf("after %q: %v", said.String(), err)
		}
		said.Write(payload)
	}
	if resp, body := r.do(http.MethodDelete, "/pty/"+pty.ID, nil); resp.StatusCode != http.StatusOK {
		t.Errorf("delete: %d %s", resp.StatusCode, body)
	}
	for { // its end reaches the client
		if _, err := readFrame(in); err != nil {
			break
		}
	}
}

// textFrame is one short masked text message (RFC 6455).
func textFrame(s string) []byte {
	var mask [4]byte
	_, _ = rand.Read(mask[:])
	frame := append([]byte{0x81, 0x80 | byte(len(s))}, mask[:]...)
	for i := range len(s) {
		frame = append(frame, s[i]^mask[i%4])
	}
	return frame
}

// readFrame reads one frame; io.EOF for the one that closes.
func readFrame(r io.Reader) ([]byte, error) {
	var head [2]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	if head[0]&0xf == 8 {
		return nil, io.EOF
	}
	n := uint64(head[1] & 0x7f)
	switch n {
	case 126:
		var size [2]byte
		if _, err := io.ReadFull(r, size[:]); err != nil {
			return nil, err
		}
		n = uint64(binary.BigEndian.Uint16(size[:]))
	case 127:
		return nil, fmt.Errorf("a frame of this size is not expected")
	}
	payload := make([]byte, n)
	_, err := io.ReadFull(r, payload)
	return payload, err
}
