package mcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// patience is how long a test waits for something that must come.
const patience = 2 * time.Minute

// wire is a connection with the test at the other end.
type wire struct {
	*conn
	t   *testing.T
	in  *io.PipeWriter
	out *bufio.Reader
}

func newWire(t *testing.T) *wire {
	t.Helper()
	in, client := io.Pipe()
	answers, out := io.Pipe()
	tr := &transport{in: in, out: out, admit: func(r *jsonrpc.Request) *refusal {
		if r.Method == "forbidden" {
			return &refusal{code: jsonrpc.CodeMethodNotFound, message: "no"}
		}
		return nil
	}, order: newOrder()}
	c, err := tr.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); out.Close(); client.Close() })
	return &wire{conn: c.(*conn), t: t, in: client, out: bufio.NewReaderSize(answers, 4<<20)}
}

// put writes text in the background, as a client does that does not listen meanwhile.
func (w *wire) put(text string) {
	go io.WriteString(w.in, text)
}

func (w *wire) answer() string {
	w.t.Helper()
	line, err := w.out.ReadString('\n')
	if err != nil {
		w.t.Fatal(err)
	}
	return strings.TrimSuffix(line, "\n")
}

func (w *wire) request() *jsonrpc.Request {
	w.t.Helper()
	msg, err := w.Read(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return msg.(*jsonrpc.Request)
}

func result(id jsonrpc.ID) *jsonrpc.Response {
	return &jsonrpc.Response{ID: id, Result: json.RawMessage(`{}`)}
}

// badFrames are lines that no server sees, with their exact answers; "" is none.
var badFrames = []struct{ name, frame, answer string }{
	{"no JSON", `hello`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}`},
	{"half a frame", `{"jsonrpc":"2.0","id":1,"method":"ping"`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}`},
	{"two frames on a line", `{"jsonrpc":"2.0","id":1,"method":"ping"}{"jsonrpc":"2.0","id":2,"method":"ping"}`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}`},
	{"a byte order mark", "\uFEFF" + `{"jsonrpc":"2.0","id":1,"method":"ping"}`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}`},
	{"no UTF-8", "{\"jsonrpc\":\"2.0\",\"id\":\"\xff\",\"method\":\"ping\"}", `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}`},
	{"beyond every depth", strings.Repeat("[", 100_000), `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}`},
	{"a batch", `[{"jsonrpc":"2.0","id":1,"method":"ping"}]`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Invalid Request: batches are not supported"}}`},
	{"an empty batch", `[]`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Invalid Request: batches are not supported"}}`},
	{"a number", `5`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Invalid Request: a request is an object"}}`},
	{"null", `null`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Invalid Request: a request is an object"}}`},
	{"a string", `"ping"`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Invalid Request: a request is an object"}}`},
	{"an empty object", `{}`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Invalid Request: jsonrpc must be \"2.0\""}}`},
	{"another version", `{"jsonrpc":"1.0","id":7,"method":"ping"}`, `{"jsonrpc":"2.0","id":7,"error":{"code":-32600,"message":"Invalid Request: jsonrpc must be \"2.0\""}}`},
	{"no method", `{"jsonrpc":"2.0","id":"a"}`, `{"jsonrpc":"2.0","id":"a","error":{"code":-32600,"message":"Invalid Request: method must be a string"}}`},
	{"a method that is none", `{"jsonrpc":"2.0","id":1,"method":5}`, `{"jsonrpc":"2.0","id":1,"error":{"code":-32600,"message":"Invalid Request: method must be a string"}}`},
	{"a key in other case", `{"jsonrpc":"2.0","id":1,"Method":"ping"}`, `{"jsonrpc":"2.0","id":1,"error":{"code":-32600,"message":"Invalid Request: method must be a string"}}`},
	{"an object as id", `{"jsonrpc":"2.0","id":{},"method":"ping"}`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Invalid Request: id must be a string or an integer"}}`},
	{"a truth value as id", `{"jsonrpc":"2.0","id":true,"method":"ping"}`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Invalid Request: id must be a string or an integer"}}`},
	{"a fraction as id", `{"jsonrpc":"2.0","id":1.5,"method":"ping"}`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Invalid Request: id must be a string or an integer"}}`},
	{"an id that is not exact", `{"jsonrpc":"2.0","id":9007199254740993,"method":"ping"}`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Invalid Request: id must be a string or an integer"}}`},
	{"nested too deep", `{"jsonrpc":"2.0","id":1,"method":"ping","params":` + strings.Repeat(`{"a":`, 70) + "1" + strings.Repeat("}", 71), `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Invalid Request: nested too deep"}}`},
	{"a list of params", `{"jsonrpc":"2.0","id":1,"method":"ping","params":[1]}`, `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"Invalid params: params must be an object"}}`},
	{"a refused method", `{"jsonrpc":"2.0","id":0,"method":"forbidden"}`, `{"jsonrpc":"2.0","id":0,"error":{"code":-32601,"message":"no"}}`},
	{"one byte too long", strings.Repeat(" ", MaxFrame) + "1", `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error: the line is longer than 1 MiB"}}`},
	{"far too long", strings.Repeat("x", 5*MaxFrame), `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error: the line is longer than 1 MiB"}}`},
	{"a blank line", " \t", ""},
	{"nothing", "", ""},
	{"an answer", `{"jsonrpc":"2.0","id":1,"result":{}}`, ""},
	{"an error", `{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"x"}}`, ""},
	{"a call without id", `{"jsonrpc":"2.0","method":"tools/call","params":{}}`, ""},
	{"a call with null as id", `{"jsonrpc":"2.0","id":null,"method":"ping"}`, ""},
	{"a notification with a list", `{"jsonrpc":"2.0","method":"notifications/initialized","params":[]}`, ""},
}

func TestAFrameThatIsNoRequestIsAnsweredAndTheNextOneIsRead(t *testing.T) {
	for _, c := range badFrames {
		for _, end := range []string{"\n", "\r\n"} {
			w := newWire(t)
			w.put(c.frame + end + `{"jsonrpc":"2.0","id":"next","method":"ping"}` + "\n")
			read := make(chan *jsonrpc.Request, 1)
			go func() {
				msg, _ := w.Read(context.Background())
				req, _ := msg.(*jsonrpc.Request)
				read <- req
			}()
			if c.answer != "" {
				if got := w.answer(); got != c.answer {
					t.Errorf("%s: answered %s, want %s", c.name, got, c.answer)
				}
			}
			if req := <-read; req == nil || req.ID != mustID(t, "next") {
				t.Errorf("%s: then read %+v", c.name, req)
			}
		}
	}
}

func mustID(t *testing.T, v any) jsonrpc.ID {
	t.Helper()
	id, err := jsonrpc.MakeID(v)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestALineOfExactlyTheLimitIsRead(t *testing.T) {
	for _, end := range []string{"\n", "\r\n", ""} {
		frame := `{"jsonrpc":"2.0","id":1,"method":"ping"}`
		frame = strings.Repeat(" ", MaxFrame-len(frame)) + frame
		r := newLineReader(strings.NewReader(frame + end))
		line, err := r.next()
		if err != nil || string(line) != frame {
			t.Fatalf("%q: %d bytes, %v", end, len(line), err)
		}
		if _, err = r.next(); !errors.Is(err, io.EOF) {
			t.Errorf("%q: then %v", end, err)
		}
	}
}

// endless is a line without an end; it counts what was read of it.
type endless struct{ read int }

func (e *endless) Read(p []byte) (int, error) {
	if e.read > 64*MaxFrame {
		return 0, io.EOF
	}
	for i := range p {
		p[i] = 'x'
	}
	e.read += len(p)
	return len(p), nil
}

func TestALineWithoutEndIsRefusedAtTheLimitAndNotKept(t *testing.T) {
	source := &endless{}
	r := newLineReader(source)
	if _, err := r.next(); !errors.Is(err, errTooLong) {
		t.Fatal(err)
	}
	if source.read > MaxFrame+128<<10 {
		t.Errorf("%d bytes were read before the refusal", source.read)
	}
	bytes := testing.AllocsPerRun(1, func() { _, _ = r.next() })
	if bytes > 10 {
		t.Errorf("%v allocations while the rest was passed over", bytes)
	}
	if _, err := r.next(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

func TestIdsComeBackAsTheyWere(t *testing.T) {
	for _, id := range []string{`0`, `1`, `-5`, `9007199254740991`, `""`, `"1"`, `"a\"b"`, `"ü"`} {
		w := newWire(t)
		w.put(`{"jsonrpc":"2.0","id":` + id + `,"method":"ping"}` + "\n")
		req := w.request()
		go w.Write(context.Background(), result(req.ID))
		if got, want := w.answer(), `{"jsonrpc":"2.0","id":`+id+`,"result":{}}`; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestAnIdThatIsInUseIsRefusedAndFreeAfterwards(t *testing.T) {
	w := newWire(t)
	ping := `{"jsonrpc":"2.0","id":1,"method":"ping"}` + "\n"
	w.put(ping + ping + `{"jsonrpc":"2.0","id":2,"method":"ping"}` + "\n" + ping)
	first := w.request()
	answers := make(chan string, 1)
	go func() { answers <- w.answer() }()
	second := w.request()
	if got := <-answers; got != `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Invalid Request: the id is in use"}}` {
		t.Error(got)
	}
	if second.ID == first.ID {
		t.Error("the same id was handed over twice")
	}
	go w.Write(context.Background(), result(first.ID))
	w.answer()
	if again := w.request(); again.ID != first.ID {
		t.Errorf("%v", again.ID)
	}
}

func TestTheAnswerOfACancelledCallIsDropped(t *testing.T) {
	w := newWire(t)
	w.put(`{"jsonrpc":"2.0","id":1,"method":"ping"}
{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}
{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":{}}}
{"jsonrpc":"2.0","method":"notifications/cancelled"}
{"jsonrpc":"2.0","id":2,"method":"ping"}
`)
	first := w.request()
	var seen []string
	for {
		req := w.request()
		seen = append(seen, req.Method)
		if req.IsCall() {
			go func() {
				w.Write(context.Background(), result(first.ID))
				w.Write(context.Background(), result(req.ID))
			}()
			break
		}
	}
	if got := w.answer(); got != `{"jsonrpc":"2.0","id":2,"result":{}}` {
		t.Error(got)
	}
	// The SDK cancels the work.
	if !slices.Contains(seen, methodCancelled) {
		t.Errorf("the SDK saw %v", seen)
	}
}

func TestNoMoreCallsThanTheLimitAreUnderWay(t *testing.T) {
	w := newWire(t)
	var frames bytes.Buffer
	for i := range MaxCalls + 1 {
		fmt.Fprintf(&frames, `{"jsonrpc":"2.0","id":%d,"method":"ping"}`+"\n", i)
	}
	w.put(frames.String())
	var open []jsonrpc.ID
	for range MaxCalls {
		open = append(open, w.request().ID)
	}
	next := make(chan jsonrpc.Message, 1)
	go func() {
		msg, _ := w.Read(context.Background())
		next <- msg
	}()
	// It cannot come before one is answered, however long it would be waited for.
	select {
	case msg := <-next:
		t.Fatalf("%+v was read at the limit", msg)
	case <-time.After(50 * time.Millisecond):
	}
	go w.Write(context.Background(), result(open[0]))
	w.answer()
	select {
	case msg := <-next:
		if msg == nil {
			t.Error("the connection ended")
		}
	case <-time.After(patience):
		t.Fatal("nothing was read after an answer")
	}
}

func TestTheEndOfTheInputWaitsForWhatIsUnderWay(t *testing.T) {
	w := newWire(t)
	go func() {
		io.WriteString(w.in, `{"jsonrpc":"2.0","id":1,"method":"ping"}`) // without an end
		w.in.Close()
	}()
	first := w.request()
	ended := make(chan error, 1)
	go func() {
		_, err := w.Read(context.Background())
		ended <- err
	}()
	// It cannot come before the answer, however long it would be waited for.
	select {
	case err := <-ended:
		t.Fatalf("the end came before the answer: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	go w.Write(context.Background(), result(first.ID))
	w.answer()
	if err := <-ended; !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

func TestCloseEndsAReadAtOnce(t *testing.T) {
	for _, busy := range []bool{false, true} {
		w := newWire(t)
		if busy { // at the end of the input, with a call that is never answered
			go func() {
				io.WriteString(w.in, `{"jsonrpc":"2.0","id":1,"method":"ping"}`+"\n")
				w.in.Close()
			}()
			w.request()
		}
		ended := make(chan error, 1)
		go func() {
			_, err := w.Read(context.Background())
			ended <- err
		}()
		w.Close()
		select {
		case err := <-ended:
			if !errors.Is(err, io.EOF) {
				t.Error(err)
			}
		case <-time.After(patience):
			t.Fatal("Read goes on")
		}
	}
}

func TestErrorsOfTheSDKAreBoundedAndHaveACode(t *testing.T) {
	long := strings.Repeat("ü", 1000)
	for _, c := range []struct {
		err  error
		code int64
	}{
		{errors.New(long), jsonrpc.CodeInvalidRequest},
		{fmt.Errorf("about %s: %w", long, &jsonrpc.Error{Code: -32602, Message: "x"}), jsonrpc.CodeInvalidParams},
	} {
		var wire *jsonrpc.Error
		if !errors.As(plainError(c.err), &wire) || wire.Code != c.code || len(wire.Message) > maxErrorMessage+len("…") ||
			!json.Valid([]byte(`"`+wire.Message+`"`)) {
			t.Errorf("%v", plainError(c.err))
		}
	}
}

// FuzzTransport sends any bytes, in pieces of any size: the connection never
// panics, every answer is one line of JSON, nothing but requests gets through, and
// what follows on a line of its own is read.
func FuzzTransport(f *testing.F) {
	for _, c := range badFrames {
		if len(c.frame) < 1000 {
			f.Add([]byte(c.frame), byte(3))
		}
	}
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"method":"ping"}`+"\n"+`{"jsonrpc":"2.0","id":1,"method":"ping"}`), byte(0))
	f.Fuzz(func(t *testing.T, data []byte, piece byte) {
		const last = `{"jsonrpc":"2.0","id":"the last of all","method":"ping"}`
		in := pieces{data: append(append(data, '\n'), last...), size: int(piece) + 1}
		var out bytes.Buffer
		tr := &transport{in: &in, out: &out, admit: func(*jsonrpc.Request) *refusal { return nil }, order: newOrder()}
		c, _ := tr.Connect(context.Background())
		defer c.Close()
		read := ""
		for {
			msg, err := c.Read(context.Background())
			if err != nil {
				break
			}
			req := msg.(*jsonrpc.Request)
			if req.IsCall() {
				read = fmt.Sprint(req.ID.Raw())
				_ = c.Write(context.Background(), result(req.ID))
			} else if !strings.HasPrefix(req.Method, "notifications/") {
				t.Fatalf("%q got through without an id", req.Method)
			}
		}
		if read != "the last of all" {
			t.Fatalf("the last call was %q", read)
		}
		for line := range strings.Lines(out.String()) {
			var a struct {
				Version string          `json:"jsonrpc"`
				ID      json.RawMessage `json:"id"`
			}
			if err := json.Unmarshal([]byte(line), &a); err != nil || a.Version != "2.0" || a.ID == nil && !strings.Contains(line, `"id":null`) {
				t.Fatalf("answered %q: %v", line, err)
			}
		}
	})
}

// pieces hands out data in pieces of one size.
type pieces struct {
	data []byte
	size int
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.data) == 0 {
		return 0, io.EOF
	}
	n := copy(b[:min(len(b), p.size)], p.data)
	p.data = p.data[n:]
	return n, nil
}
