package opencomms

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"

	"opencode-mesh/test/fleet"
)

// member is a `meshnode mcp` process: one member, spoken to as its host does.
type member struct {
	in  io.Writer
	out *bufio.Scanner
	id  int
}

// startMember starts the process of a session; it ends with the test.
func startMember(t *testing.T, project, session string) *member {
	t.Helper()
	cmd := exec.Command(fleet.Bin(t, "meshnode"), "mcp", "--project", project)
	cmd.Env = append(os.Environ(), "OPENCOMMS_MEMBER_ID="+session)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("member %s: %v", session, err)
		}
	})
	m := &member{in: in, out: bufio.NewScanner(out)}
	m.out.Buffer(nil, 4<<20)
	if err := m.call("initialize", map[string]any{
		"protocolVersion": "2025-06-18", "capabilities": map[string]any{}, "clientInfo": map[string]any{"name": "test", "version": "1"},
	}, nil); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(in, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return m
}

// call is one request and its answer.
func (m *member) call(method string, params, result any) error {
	m.id++
	b, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": m.id, "method": method, "params": params})
	if err != nil {
		return err
	}
	if _, err := m.in.Write(append(b, '\n')); err != nil {
		return err
	}
	for m.out.Scan() {
		var answer struct {
			ID     *int
			Result json.RawMessage
			Error  json.RawMessage
		}
		if err := json.Unmarshal(m.out.Bytes(), &answer); err != nil {
			return fmt.Errorf("%w: %s", err, m.out.Bytes())
		}
		if answer.ID == nil || *answer.ID != m.id {
			continue // a notification
		}
		if answer.Error != nil {
			return fmt.Errorf("%s: %s", method, answer.Error)
		}
		if result == nil {
			return nil
		}
		return json.Unmarshal(answer.Result, result)
	}
	return fmt.Errorf("%s: the process ended: %w", method, m.out.Err())
}

// tool calls a tool and decodes the data of its result.
func (m *member) tool(name string, arguments, data any) error {
	var result struct {
		Content []struct{ Text string }
		IsError bool
	}
	if err := m.call("tools/call", map[string]any{"name": name, "arguments": arguments}, &result); err != nil {
		return err
	}
	if len(result.Content) == 0 || result.IsError {
		return fmt.Errorf("%s: %+v", name, result)
	}
	return json.Unmarshal([]byte(result.Content[0].Text), &struct{ Data any }{data})
}

// send sends a message and returns its id.
func (m *member) send(channel, content string) (string, error) {
	var sent struct {
		MessageIDs []string `json:"message_ids"`
	}
	err := m.tool("opencomms_send", map[string]any{"channel": channel, "content": content}, &sent)
	if err == nil && len(sent.MessageIDs) != 1 {
		err = fmt.Errorf("not one message: %+v", sent)
	}
	if err != nil {
		return "", err
	}
	return sent.MessageIDs[0], nil
}
