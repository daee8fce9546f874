package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	// MaxCalls bounds how many calls of a client are under way. At the bound its
	// next line is not read until one is answered.
	MaxCalls = 32
	// maxErrorMessage bounds what an error says, in bytes: the SDK quotes its input.
	maxErrorMessage = 300
)

const (
	methodCancelled = "notifications/cancelled"
	methodCall      = "tools/call"
)

// transport is the wire: lines on a pair of streams. The SDK's own ends the server
// at the first line that is not JSON; this one answers it and goes on. It is used
// for one connection.
type transport struct {
	in  io.Reader // closed at the end, if it can be
	out io.Writer
	// admit refuses a request before the SDK sees it, with a nil id; nil passes it on.
	admit func(*jsonrpc.Request) *refusal
	order *order
	// work is what goes on after an answer. Whoever made the transport waits for it when
	// the connection is over.
	work sync.WaitGroup
}

// Connect implements the SDK's Transport.
func (t *transport) Connect(context.Context) (sdk.Connection, error) {
	c := &conn{
		transport: t, lines: make(chan line), closed: make(chan struct{}),
		slots: make(chan struct{}, MaxCalls), calls: map[jsonrpc.ID]*inFlight{},
	}
	go c.readLines()
	return c, nil
}

// conn implements the SDK's Connection. Read is called by one goroutine.
type conn struct {
	*transport
	lines  chan line
	closed chan struct{}
	once   sync.Once

	// slots has an element for each call that was read and not answered yet. Only
	// Read adds to it.
	slots chan struct{}

	mu    sync.Mutex // guards calls
	calls map[jsonrpc.ID]*inFlight

	writing sync.Mutex // held while out is written
}

// inFlight is a call that is not answered yet.
type inFlight struct {
	cancelled bool              // its answer is not wanted any more
	turn      *sdk.RequestExtra // its place in the order; nil if it has none
}

type line struct {
	text []byte
	err  error
}

// readLines ends with the stream or with Close. A read of a terminal or pipe that
// Close does not interrupt ends with the process.
func (c *conn) readLines() {
	r := newLineReader(c.in)
	for {
		text, err := r.next()
		select {
		case c.lines <- line{text, err}:
		case <-c.closed:
			return
		}
		if err != nil && !errors.Is(err, errTooLong) {
			return
		}
	}
}

// Read returns the next request that the SDK is to see. Frames that are none are
// answered here. At the end of the stream it waits until every call was answered:
// the SDK gives up what is under way when Read fails.
func (c *conn) Read(ctx context.Context) (jsonrpc.Message, error) {
	for {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-c.closed:
			return nil, io.EOF
		case l := <-c.lines:
			req, refused, err := c.take(l)
			if err != nil {
				c.drain(ctx)
				return nil, err
			}
			if refused != nil {
				err = c.send(refused.encode())
			}
			if err == nil && req != nil && req.IsCall() {
				err = c.begin(ctx, req)
			}
			if err != nil {
				return nil, err
			}
			if req != nil {
				return req, nil
			}
		}
	}
}

// take looks at one line: a request for the SDK, a refusal, neither, or the end of
// the stream.
func (c *conn) take(l line) (*jsonrpc.Request, *refusal, error) {
	if errors.Is(l.err, errTooLong) {
		return nil, &refusal{code: jsonrpc.CodeParseError, message: "Parse error: " + l.err.Error()}, nil
	}
	if l.err != nil {
		return nil, nil, l.err
	}
	req, refused := parse(l.text)
	if req == nil {
		return nil, refused, nil
	}
	if !req.IsCall() {
		if req.Method == methodCancelled {
			c.cancel(req.Params)
		}
		// A call that forgot its id is not made: nobody would hear how it went.
		if !strings.HasPrefix(req.Method, "notifications/") || c.admit(req) != nil {
			return nil, nil, nil
		}
		return req, nil, nil
	}
	if refused = c.admit(req); refused != nil {
		refused.id = encodeID(req.ID)
		return nil, refused, nil
	}
	if c.underWay(req.ID) {
		// With the id it would be taken for the answer of the first.
		return nil, &refusal{code: jsonrpc.CodeInvalidRequest, message: "Invalid Request: the id is in use"}, nil
	}
	return req, nil, nil
}

func encodeID(id jsonrpc.ID) json.RawMessage {
	data, err := json.Marshal(id.Raw())
	if err != nil {
		panic(err) // a string or an integer
	}
	return data
}

func (c *conn) underWay(id jsonrpc.ID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls[id] != nil
}

// begin notes a call, when there is room for one.
func (c *conn) begin(ctx context.Context, req *jsonrpc.Request) error {
	select {
	case c.slots <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	case <-c.closed:
		return io.EOF
	}
	call := &inFlight{}
	if req.Method == methodCall {
		call.turn = c.order.enter()
		req.Extra = call.turn
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls[req.ID] = call
	return nil
}

// cancel notes that a call's answer is not wanted. The SDK cancels the work itself.
func (c *conn) cancel(params json.RawMessage) {
	var p struct {
		RequestID json.RawMessage `json:"requestId"`
	}
	if json.Unmarshal(params, &p) != nil {
		return
	}
	id, ok := requestID(p.RequestID)
	if !ok {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if call := c.calls[id]; call != nil {
		call.cancelled = true
	}
}

// drain waits until every call was answered.
func (c *conn) drain(ctx context.Context) {
	for range cap(c.slots) {
		select {
		case c.slots <- struct{}{}:
		case <-ctx.Done():
			return
		case <-c.closed:
			return
		}
	}
}

// Write sends a message. The answer of a call that was cancelled is dropped.
func (c *conn) Write(_ context.Context, msg jsonrpc.Message) error {
	resp, ok := msg.(*jsonrpc.Response)
	if !ok {
		return c.encode(msg)
	}
	c.mu.Lock()
	call := c.calls[resp.ID]
	delete(c.calls, resp.ID)
	c.mu.Unlock()
	resp.Error = plainError(resp.Error)
	if call == nil {
		return c.encode(resp)
	}
	end := func() { c.order.leave(call.turn); <-c.slots }
	var err error
	if !call.cancelled {
		err = c.encode(resp)
		if taken := c.order.whenTaken(call.turn); taken != nil && err == nil {
			// Other answers go out meanwhile. The next call waits, and so does the end of
			// the input.
			c.work.Go(func() { defer end(); taken() })
			return nil
		}
	}
	end()
	return err
}

// encode writes a message as a line.
func (c *conn) encode(msg jsonrpc.Message) error {
	data, err := jsonrpc.EncodeMessage(msg)
	if err != nil {
		return err
	}
	return c.send(data)
}

// plainError bounds an error and gives it a code: those of the SDK without one are
// of requests at the wrong time.
func plainError(err error) error {
	if err == nil {
		return nil
	}
	out := &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest}
	var wire *jsonrpc.Error
	if errors.As(err, &wire) && wire.Code != 0 {
		out.Code, out.Data = wire.Code, wire.Data
	}
	out.Message = err.Error()
	if len(out.Message) > maxErrorMessage {
		cut := maxErrorMessage
		for !utf8.RuneStart(out.Message[cut]) {
			cut--
		}
		out.Message = out.Message[:cut] + "…"
	}
	return out
}

// send writes one line as a whole.
func (c *conn) send(data []byte) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	_, err := c.out.Write(append(data, '\n'))
	return err
}

// Close ends Read. It does not wait for a read of the stream.
func (c *conn) Close() error {
	var err error
	c.once.Do(func() {
		close(c.closed)
		if in, ok := c.in.(io.Closer); ok {
			err = in.Close()
		}
	})
	return err
}

// SessionID implements the SDK's Connection: there is one session only.
func (c *conn) SessionID() string { return "" }
