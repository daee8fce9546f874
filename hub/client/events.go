package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
)

// maxEvent bounds one event of a stream, in bytes.
const maxEvent = 8 << 20

// Events calls fn for every event until ctx ends, fn fails or the hub refuses. It
// comes back by itself when the stream breaks, resumes after the last event, and
// hands on an api.EventResync when something may have been missed. lost is told
// each break; both are called from the caller's goroutine.
func (c *Client) Events(ctx context.Context, fn func(api.Event) error, lost func(error)) error {
	last, broken := "", false
	for try := 0; ; try++ {
		err := c.stream(ctx, last, func(e api.Event) error {
			try = -1 // the hub is there
			if broken && last == "" && e.Type != api.EventResync {
				// Nothing to resume after, so nobody can tell what the break hid.
				data, _ := json.Marshal(api.Resync{Reason: "the connection broke before the first event"})
				if err := fn(api.Event{Type: api.EventResync, Data: data}); err != nil {
					return stopped{err}
				}
			}
			broken = false
			if e.ID != "" {
				last = e.ID
			}
			if err := fn(e); err != nil {
				return stopped{err}
			}
			return nil
		})
		var stop stopped
		switch {
		case errors.As(err, &stop):
			return stop.err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !Passing(err):
			return err
		}
		broken = true
		if lost != nil {
			lost(err)
		}
		if !c.pause(ctx, max(try, 0), err) {
			return context.Cause(ctx)
		}
	}
}

// stopped carries what fn returned past the errors of the stream.
type stopped struct{ err error }

func (e stopped) Error() string { return e.err.Error() }

// stream reads the events of one connection; a silent one is given up. It always
// returns an error.
func (c *Client) stream(ctx context.Context, last string, fn func(api.Event) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	header := http.Header{"Accept": {"text/event-stream"}}
	if last != "" {
		header.Set("Last-Event-ID", last)
	}
	watch := time.AfterFunc(c.pace.silence, cancel)
	defer watch.Stop()
	resp, err := c.send(ctx, http.MethodGet, "/v1/events", nil, header)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	r := bufio.NewReader(resp.Body)
	for {
		e, err := readEvent(r, func() { watch.Reset(c.pace.silence) })
		if err != nil {
			return fmt.Errorf("%w: the event stream ended: %w", ErrUnreachable, err)
		}
		if e.Type == api.EventCut {
			var cut api.Cut
			_ = json.Unmarshal(e.Data, &cut)
			return fmt.Errorf("%w: the hub ended the event stream: %s", ErrUnreachable, mesh.CleanLine(cut.Reason))
		}
		if err := fn(e); err != nil {
			return err
		}
	}
}

// readEvent reads the next event that has a type; alive is called for every line.
func readEvent(r *bufio.Reader, alive func()) (e api.Event, err error) {
	size, lines := 0, 0
	for {
		line, err := readLine(r, maxEvent-size)
		if err != nil {
			return e, err
		}
		alive()
		size += len(line)
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case line == "" && e.Type != "":
			return e, nil
		case line == "":
			e, size, lines = api.Event{}, 0, 0
		case field == "id":
			e.ID = value
		case field == "event":
			e.Type = value
		case field == "data":
			if lines++; lines > 1 {
				e.Data = append(e.Data, '\n')
			}
			e.Data = append(e.Data, value...)
		}
	}
}

// readLine reads a line of up to limit bytes, without its end.
func readLine(r *bufio.Reader, limit int) (string, error) {
	var b []byte
	for {
		part, err := r.ReadSlice('\n')
		b = append(b, part...)
		switch {
		case len(b) > limit:
			return "", fmt.Errorf("an event is larger than %d bytes", maxEvent)
		case err == nil:
			return strings.TrimRight(string(b), "\r\n"), nil
		case errors.Is(err, io.EOF) && len(b) > 0:
			return "", io.ErrUnexpectedEOF
		case !errors.Is(err, bufio.ErrBufferFull):
			return "", err
		}
	}
}
