package mcp

import (
	"context"
	"errors"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"opencode-mesh/node/mcp"
	"opencode-mesh/node/peers/access"
	"opencode-mesh/protocol/api"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a node that has messages and may not be able to note what was taken.
type fake struct {
	Node
	unread []access.Received
	fails  error // of Taken
	told   int   // how often a message was said to be taken
	sends  error
}

func (f *fake) Register(context.Context, access.Registration) (access.Identity, error) {
	return access.Identity{}, nil
}
func (f *fake) Unread(context.Context) (access.Unread, error) {
	return access.Unread{Messages: append([]access.Received{}, f.unread...)}, nil
}
func (f *fake) Taken(_ context.Context, keys []access.Key) error {
	f.told += len(keys)
	if f.fails == nil {
		f.unread = nil
	}
	return f.fails
}
func (f *fake) Send(context.Context, string, string) (access.Message, error) {
	return access.Message{}, f.sends
}

func call(t *testing.T, a *Agent, name string) mcp.Result {
	t.Helper()
	for _, tool := range a.Tools() {
		if tool.Name == name {
			r, err := tool.Call(t.Context(), mcp.Arguments{})
			if err != nil {
				t.Fatal(err)
			}
			if r.Taken != nil {
				r.Taken()
			}
			return r
		}
	}
	t.Fatal("no such tool")
	return mcp.Result{}
}

func TestAMessageIsShownOnceAndTheNodeToldUntilItNotesThat(t *testing.T) {
	f := &fake{
		unread: []access.Received{{Key: access.Key{From: "session-s", ID: "1"}, Text: "hello\tthere\n\x1b[2Jred\x00"}},
		fails:  errors.New("the spool is locked"),
	}
	a := New(Config{Node: f})
	if got := call(t, a, "read_messages").Text; !strings.Contains(got, "\nhello\tthere\nred\n") {
		t.Errorf("%q", got)
	}
	for range 3 {
		if got := call(t, a, "read_messages").Text; got != "No messages." {
			t.Errorf("shown again: %s", got)
		}
	}
	if f.told != 4 {
		t.Errorf("the node was told %d times, not at each read", f.told)
	}
	f.fails = nil // another node, which has not heard of it
	a.tell(t.Context())
	a.tell(t.Context())
	if f.told != 5 || len(f.unread) != 0 {
		t.Errorf("told %d times, %d unread", f.told, len(f.unread))
	}
}

func TestAnAgentHearsWhatIsWrongAtTheNode(t *testing.T) {
	f := &fake{sends: api.Errorf(api.CodeInternal, "keep the message before it is sent: no space left on device")}
	if r := call(t, New(Config{Node: f}), "send_message"); !r.IsError || !strings.Contains(r.Text, "no space left on device") {
		t.Errorf("%+v", r)
	}
}
