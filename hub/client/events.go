package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"opencode-mesh/protocol/api"
)

// silence is how long an event stream may say nothing before it is taken for
// dead: two heartbeats and some.
const silence = 2*api.EventHeartbeat + 5*time.Second

// maxEventLine bounds one line of an event stream, in bytes.
const maxEventLine = 8 << 20

// Events calls fn for every event until ctx ends, fn fails or the hub refuses. It
// comes back by itself when the stream breaks, resumes with the last id, and
// hands on api.EventResync when something was missed. path is "/v1/events" or
// that of one task (see TaskEvents). lost is told each break.
func (c *Client) Events(ctx context.Context, fn func(api.Event) error, lost func(error)) error {
	return c.follow(ctx, "/v1/events", fn, lost)
}

// TaskEvents is Events of one task.
func (c *Client) TaskEvents(ctx context.Context, id string, fn func(api.Event) error, lost func(error)) error {
	return c.follow(ctx, taskPath(id)+"/events", fn, lost)
}

// errStop wraps what fn returned.
type errStop struct{ err error }

func (e errStop) Error() string { return e.err.Error() }

func (c *Client) follow(ctx context.Context, path string, fn func(api.Event) error, lost func(error)) error {
	last := ""
	for try := 0; ; try++ {
		err := c.stream(ctx, path, &last, func(e api.Event) error {
			try = -1
			if err := fn(e); err != nil {
				return errStop{err}
			}
			return nil
		})
		var stop errStop
		switch {
		case errors.As(err, &stop):
			return stop.err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil && !passing(err):
			return err
		}
		if lost != nil {
			lost(err)
		}
		if !pause(ctx, max(try, 0), err) {
			return context.Cause(ctx)
		}
	}
}

// stream reads one connection's events. A silent one is given up.
func (c *Client) stream(ctx context.Context, path string, last *string, fn func(api.Event) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	header := http.Header{"Accept": {"text/event-stream"}}
	if *last != "" {
		header.Set("Last-Event-ID", *last)
	}
	watch := time.AfterFunc(silence, cancel)
	defer watch.Stop()
	resp, err := c.send(ctx, http.MethodGet, path, nil, header)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	r := bufio.NewReader(resp.Body)
	var e api.Event
	for {
		line, err := readLine(r)
		if err != nil {
			return fmt.Errorf("%w: the event stream ended: %w", ErrUnreachable, err)
		}
		watch.Reset(silence)
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "id":
			e.ID = value
		case "event":
			e.Type = value
		case "data":
			e.Data = append(e.Data, value...)
		case "":
			if line != "" || e.Type == "" {
				continue // a comment, or nothing to hand on
			}
			if e.ID != "" {
				*last = e.ID
			}
			if e.Type == api.EventResync {
				*last = ""
			}
			if err := fn(e); err != nil {
				return err
			}
			e = api.Event{}
		}
	}
}

// readLine reads a line of any length up to maxEventLine.
func readLine(r *bufio.Reader) (string, error) {
	var b []byte
	for {
		part, err := r.ReadSlice('\n')
		b = append(b, part...)
		switch {
		case len(b) > maxEventLine:
			return "", fmt.Errorf("a line is larger than %d bytes", maxEventLine)
		case err == nil:
			return strings.TrimRight(string(b), "\r\n"), nil
		case !errors.Is(err, bufio.ErrBufferFull):
			if errors.Is(err, io.EOF) && len(b) > 0 {
				err = io.ErrUnexpectedEOF
			}
			return "", err
		}
	}
}
