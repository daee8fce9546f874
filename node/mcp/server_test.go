package mcp

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
)

// client is the test at the other end of a whole server.
type client struct {
	t     *testing.T
	in    *io.PipeWriter
	out   *bufio.Reader
	ended chan error
}

// serve runs a server with tools until its input ends.
func serve(t *testing.T, tools ...Tool) *client {
	t.Helper()
	in, w := io.Pipe()
	r, out := io.Pipe()
	c := &client{t: t, in: w, out: bufio.NewReader(r), ended: make(chan error, 1)}
	go func() {
		err := Run(context.Background(), Config{Name: "test", Tools: tools, In: in, Out: out})
		out.Close()
		c.ended <- err
	}()
	t.Cleanup(func() { w.Close(); r.Close() })
	c.put(`{"jsonrpc":"2.0","id":"hello","method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`)
	c.line()
	return c
}

func (c *client) put(line string) {
	c.t.Helper()
	if _, err := io.WriteString(c.in, line+"\n"); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) call(id int, tool string) {
	c.put(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q}}`, id, tool))
}

func (c *client) line() string {
	c.t.Helper()
	line, err := c.out.ReadString('\n')
	if err != nil {
		c.t.Fatal(err)
	}
	return line
}

func TestWhatATakenAnswerEntailsIsDoneBeforeTheNextCallAndTheEnd(t *testing.T) {
	var did []string
	release := make(chan struct{})
	c := serve(t,
		Tool{Name: "take", Call: func(context.Context, Arguments) (Result, error) {
			did = append(did, "called")
			return Result{Text: "it", Taken: func() { <-release; did = append(did, "taken") }}, nil
		}},
		Tool{Name: "next", Call: func(context.Context, Arguments) (Result, error) {
			return Result{Text: strings.Join(did, " ")}, nil
		}})
	c.call(1, "take")
	if got := c.line(); !strings.Contains(got, `"text":"it"`) || !strings.Contains(got, `"isError":false`) {
		t.Error(got)
	}
	c.call(2, "next")
	c.put(`{"jsonrpc":"2.0","id":"meanwhile","method":"ping"}`)
	if got := c.line(); !strings.Contains(got, "meanwhile") {
		t.Errorf("the ping is not answered meanwhile: %s", got)
	}
	close(release)
	if got := c.line(); !strings.Contains(got, "called taken") {
		t.Error(got)
	}
	c.call(3, "take")
	c.line()
	c.in.Close()
	if err := <-c.ended; err != nil || len(did) != 4 {
		t.Errorf("%v, %v", did, err)
	}
}

func TestAnAnswerThatIsNotWantedIsNotTaken(t *testing.T) {
	began, goOn, taken := make(chan struct{}), make(chan struct{}), false
	c := serve(t,
		Tool{Name: "take", Call: func(context.Context, Arguments) (Result, error) {
			close(began)
			<-goOn
			return Result{Text: "it", Taken: func() { taken = true }}, nil
		}},
		Tool{Name: "next", Call: func(context.Context, Arguments) (Result, error) { return Result{Text: "next"}, nil }})
	c.call(1, "take")
	<-began
	c.put(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	c.put(`{"jsonrpc":"2.0","id":"seen","method":"ping"}`)
	c.line()
	close(goOn)
	c.call(2, "next")
	if got := c.line(); !strings.Contains(got, "next") {
		t.Error(got)
	}
	c.in.Close()
	if err := <-c.ended; err != nil || taken {
		t.Errorf("taken %v, %v", taken, err)
	}
}
