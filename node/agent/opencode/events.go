package opencode

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

const (
	// maxEvent is the longest event that is looked at, in bytes. An event carries
	// a whole message part; a longer one is skipped.
	maxEvent = 4 << 20
	// eventSilence is how long the stream may be silent; the server sends a
	// heartbeat every 10 s.
	eventSilence = 35 * time.Second
	// eventHead is where the type of an event stands, in bytes from its start.
	eventHead = 256
)

// errSilent ends a stream without a heartbeat.
var errSilent = errors.New("the event stream is silent")

// watch follows GET /event, which has neither ids nor a replay.
func (c *v1Client) watch(ctx context.Context, dir string, on func(event)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(eventSilence, func() { cancel(errSilent) })
	defer silence.Stop()

	req, err := c.t.request(ctx, http.MethodGet, "/event", dir, nil, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "text/event-stream")
	res, err := c.t.fresh.Do(req)
	if err != nil {
		return netError(err)
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return answered(res, nil, false)
	}
	if !hasType(res, "text/event-stream") {
		return errNotOpencode
	}
	lines := bufio.NewReaderSize(res.Body, 64<<10)
	for {
		line, err := readLine(lines)
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				return cause
			}
			return fmt.Errorf("event stream: %w", err)
		}
		silence.Reset(eventSilence)
		if data, ok := bytes.CutPrefix(line, []byte("data:")); ok {
			if e, ok := readEvent(bytes.TrimSpace(data)); ok {
				on(e)
			}
		}
	}
}

// readLine returns the next line without its end. Of a line longer than maxEvent
// it returns nothing.
func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	tooLong := false
	for {
		piece, err := r.ReadSlice('\n')
		if len(line)+len(piece) > maxEvent {
			line, tooLong = nil, true
		}
		if !tooLong {
			line = append(line, piece...)
		}
		switch {
		case err == nil:
			return bytes.TrimRight(line, "\r\n"), nil
		case !errors.Is(err, bufio.ErrBufferFull):
			if errors.Is(err, io.EOF) && len(line) > 0 {
				return line, nil
			}
			return nil, err
		}
	}
}

// readEvent reports whether an event is worth a look.
func readEvent(data []byte) (event, bool) {
	// Deltas and parts are the bulk of the stream and say nothing here.
	if bytes.Contains(data[:min(len(data), eventHead)], []byte(`"type":"message.part.`)) {
		return event{}, false
	}
	var e struct {
		Type       string `json:"type"`
		Properties struct {
			SessionID string     `json:"sessionID"`
			Error     *v1Failure `json:"error"`
		} `json:"properties"`
	}
	if json.Unmarshal(data, &e) != nil {
		return event{}, false
	}
	switch e.Type {
	case "server.connected":
		return event{kind: eventConnected}, true
	case "server.instance.disposed", "global.disposed":
		return event{kind: eventDisposed}, true
	case "session.error":
		f := e.Properties.Error.fault()
		if f == nil {
			f = &fault{}
		}
		return event{kind: eventFault, session: e.Properties.SessionID, text: f.message}, true
	case "session.status", "session.idle", "session.deleted", "permission.asked", "question.asked":
		return event{kind: eventChange, session: e.Properties.SessionID}, true
	}
	return event{}, false
}
