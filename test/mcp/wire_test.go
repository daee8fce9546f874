package mcp_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// parseError answers what is no frame.
const parseError = `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}`

func TestMalformedFramesHaveTheirAnswersAndTheServerGoesOn(t *testing.T) {
	s := as(t, project(t), "")
	for _, c := range []struct{ frame, answer string }{
		{`hello`, parseError},
		{`{"jsonrpc":"2.0","id":1,"method":"ping"`, parseError},
		{strings.Repeat("x", 1<<20+1), `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error: the line is longer than 1 MiB"}}`},
		// A character of three bytes counts as three.
		{`"` + strings.Repeat("€", 350_000) + `"`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error: the line is longer than 1 MiB"}}`},
		{`[{"jsonrpc":"2.0","id":1,"method":"ping"}]`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Invalid Request: batches are not supported"}}`},
		{`5`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Invalid Request: a request is an object"}}`},
		{`{"jsonrpc":"2.0","id":4,"method":"prompts/list"}`, `{"jsonrpc":"2.0","id":4,"error":{"code":-32601,"message":"Method not found"}}`},
		{`{"jsonrpc":"2.0","id":4,"method":"resources/read"}`, `{"jsonrpc":"2.0","id":4,"error":{"code":-32601,"message":"Method not found"}}`},
		{`{"jsonrpc":"2.0","id":4,"method":"nonsense"}`, `{"jsonrpc":"2.0","id":4,"error":{"code":-32601,"message":"Method not found"}}`},
		{`{"jsonrpc":"2.0","id":4,"method":"notifications/initialized"}`, `{"jsonrpc":"2.0","id":4,"error":{"code":-32600,"message":"invalid request: unexpected id for \"notifications/initialized\""}}`},
		{`{"jsonrpc":"2.0","id":4,"method":"tools/call"}`, `{"jsonrpc":"2.0","id":4,"error":{"code":-32602,"message":"Invalid params: params are missing"}}`},
		{`{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{}}`, `{"jsonrpc":"2.0","id":4,"error":{"code":-32602,"message":"Invalid params: name must be a string"}}`},
		{`{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":5}}`, `{"jsonrpc":"2.0","id":4,"error":{"code":-32602,"message":"Invalid params: name must be a string"}}`},
		{`{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"nonsense"}}`, `{"jsonrpc":"2.0","id":4,"error":{"code":-32602,"message":"unknown tool \"nonsense\""}}`},
		{`{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"opencomms_send","arguments":[]}}`, `{"jsonrpc":"2.0","id":4,"error":{"code":-32602,"message":"Invalid params: arguments must be an object"}}`},
		{`{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"opencomms_send","arguments":{"channel":"c"}}}`, `{"jsonrpc":"2.0","id":4,"error":{"code":-32602,"message":"Invalid params: missing required argument: content"}}`},
		{`{"jsonrpc":"2.0","id":4,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`, `{"jsonrpc":"2.0","id":4,"error":{"code":-32600,"message":"duplicate \"initialize\" received"}}`},
		{`{"jsonrpc":"2.0","id":4,"method":"ping"}`, `{"jsonrpc":"2.0","id":4,"result":{}}`},
		{`{"jsonrpc":"2.0","id":4,"method":"ping","params":{"x":1}}`, `{"jsonrpc":"2.0","id":4,"result":{}}`},
		// These have none.
		{`{"jsonrpc":"2.0","method":"ping"}`, ""},
		{`{"jsonrpc":"2.0","id":null,"method":"tools/list"}`, ""},
		{`{"jsonrpc":"2.0","method":"tools/call","params":{"name":"opencomms_status"}}`, ""},
		{`{"jsonrpc":"2.0","method":"notifications/nonsense"}`, ""},
		{`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"unknown"}}`, ""},
		{`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":[]}}`, ""},
		{`{"jsonrpc":"2.0","id":9,"result":{}}`, ""},
		{``, ""},
	} {
		s.send("%s", c.frame)
		shown := c.frame[:min(len(c.frame), 80)]
		if c.answer != "" {
			if got := s.line(); got != c.answer {
				t.Fatalf("%s: answered %s, want %s", shown, got, c.answer)
			}
		}
		s.send(`{"jsonrpc":"2.0","id":"after","method":"ping"}`)
		if got := s.line(); got != `{"jsonrpc":"2.0","id":"after","result":{}}` {
			t.Fatalf("%s: then %s", shown, got)
		}
	}
	if code := s.end(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestTheProtocolVersionIsTheClientsIfItIsKnown(t *testing.T) {
	for asked, want := range map[string]string{
		"2024-11-05": "2024-11-05", "2025-03-26": "2025-03-26", "2025-06-18": "2025-06-18", "2025-11-25": "2025-11-25",
		// That one knows no initialize; the newest that does is meant.
		"2026-07-28": "2025-11-25",
		"1999-01-01": "2024-11-05", "2099-01-01": "2024-11-05", "": "2024-11-05", "nonsense": "2024-11-05",
	} {
		s := start(t, project(t), environ(t, ""))
		r := s.shake(asked)
		info, _ := r["serverInfo"].(map[string]any)
		if r["protocolVersion"] != want || info["name"] != "opencomms" || fmt.Sprint(r["capabilities"]) != "map[tools:map[]]" {
			t.Errorf("%q: %v", asked, r)
		}
	}
}

func TestCallsBeforeTheHandshakeAreRefusedAndAPingIsNot(t *testing.T) {
	s := start(t, project(t), environ(t, ""))
	s.send(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
	if e, _ := s.object()["error"].(map[string]any); e["code"] != -32600.0 {
		t.Errorf("%v", e)
	}
	s.send(`{"jsonrpc":"2.0","id":2,"method":"ping"}`)
	if got := s.line(); got != `{"jsonrpc":"2.0","id":2,"result":{}}` {
		t.Error(got)
	}
	s.shake("2025-06-18")
}

func TestWhatIsPipedInIsAnsweredBeforeTheServerEnds(t *testing.T) {
	s := start(t, project(t, "sess_a"), environ(t, "sess_a", "OPENCOMMS_PROJECT_ID= p1 "))
	go func() {
		io.WriteString(s.in, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"opencomms_create","arguments":{"channel":"c","role":"A","role_prompt":"x"}}}
{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"opencomms_status"}}`)
		s.in.Close()
	}()
	if s.object()["id"] != 0.0 {
		t.Error("initialize is not answered first")
	}
	if m := s.object(); m["id"] != 1.0 {
		t.Error(m)
	}
	if line := s.line(); !strings.Contains(line, `\"id\":\"chn_`) || !strings.Contains(line, `\"project_id\":\"p1\"`) {
		t.Error(line)
	}
	if code := s.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if s.err.String() != "" {
		t.Errorf("stderr: %s", s.err)
	}
}

// locked takes the lock of a project as another program does.
func locked(t *testing.T, dir string) (unlock func()) {
	t.Helper()
	file := filepath.Join(dir, ".opencomms", ".state.lock")
	write(t, file, fmt.Sprintf("1@%d", time.Now().UnixMilli()))
	return func() { _ = os.Remove(file) }
}

func TestACallThatFailsIsAnInternalErrorAndOthersAreAnswered(t *testing.T) {
	t.Parallel()
	dir, a, _ := pair(t)
	defer locked(t, dir)()
	a.send("%s", a.request("send", args{"channel": "c", "content": "x"}))
	a.send(`{"jsonrpc":"2.0","id":"meanwhile","method":"ping"}`)
	if got := a.line(); got != `{"jsonrpc":"2.0","id":"meanwhile","result":{}}` {
		t.Fatal(got)
	}
	if got, want := a.line(), fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"error":{"code":-32603,"message":"Internal error"}}`, a.next); got != want {
		t.Fatalf("%s, want %s", got, want)
	}
	a.end() // what it said is all there then
	if !strings.Contains(a.err.String(), ".state.lock") {
		t.Errorf("stderr does not say why: %s", a.err)
	}
}

func TestACancelledCallIsGivenUpWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	dir, a, _ := pair(t)
	unlock := locked(t, dir)
	defer unlock()
	a.send("%s", a.request("send", args{"channel": "c", "content": "cancelled"}))
	a.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d,"reason":"test"}}`, a.next)
	// This one waits for its turn behind the first.
	if r := a.call("status", args{}); !r.OK || r.Data["total_messages"] != 0.0 {
		t.Fatal(r.text)
	}
	if a.err.String() != "" {
		t.Errorf("the call ended otherwise: %s", a.err)
	}
	unlock()
	if r := a.call("send", args{"channel": "c", "content": "not cancelled"}); !r.OK {
		t.Fatal(r.text)
	}
	if text := read(t, dir, "state.json"); strings.Contains(text, `"cancelled"`) || !strings.Contains(text, `"not cancelled"`) {
		t.Error(text)
	}
}

func TestASignalEndsTheServerAlsoInTheMiddleOfACall(t *testing.T) {
	t.Parallel()
	dir, a, b := pair(t)
	defer locked(t, dir)()
	a.send("%s", a.request("send", args{"channel": "c", "content": "x"}))
	for _, s := range []*server{a, b} {
		if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if code := s.wait(); code != 0 {
			t.Errorf("exit code %d; stderr: %s", code, s.err)
		}
		// A call that waited for the lock to the end would say so.
		if s.err.String() != "" {
			t.Errorf("stderr: %s", s.err)
		}
	}
	if strings.Contains(read(t, dir, "state.json"), `"x"`+",\n      \"reply_to\"") {
		t.Error("the message was sent all the same")
	}
}
