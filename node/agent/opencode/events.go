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
	"net/url"
	"time"
)

const (
	// maxEvent is the longest event that is looked at, in bytes. An event carries
	// a whole message part; a longer one is skipped.
	maxEvent = 4 << 20
	// eventSilence is how long the stream may be silent; the server sends a
	// heartbeat every 10 s.
	eventSilence = 35 * time.Second
	// eventHead is where the type of an event and its session stand, in bytes from
	// its start.
	eventHead = 256
	// maxShown is the longest event of a message that is read, in bytes: progress is
	// for a glance, and the longer ones repeat what came in pieces before.
	maxShown = 32 << 10
)

// errSilent ends a stream without a heartbeat.
var errSilent = errors.New("the event stream is silent")

// watch follows GET /event, which has neither ids nor a replay.
func (c *v1Client) watch(ctx context.Context, dir string, ours func(session string) bool, on func(event)) error {
	return c.stream(ctx, "/event", dir, func(data []byte) {
		if e, ok := readEvent(data, ours); ok {
			on(e)
		}
	})
}

// watchAll follows GET /global/event, which is as that but wraps each event.
func (c *v1Client) watchAll(ctx context.Context, on func(event)) error {
	return c.stream(ctx, "/global/event", "", func(data []byte) {
		if e, ok := readLife(data); ok {
			on(e)
		}
	})
}

// stream hands the data of a stream of events over until it ends, or ctx does.
func (c *v1Client) stream(ctx context.Context, path, dir string, on func(data []byte)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(eventSilence, func() { cancel(errSilent) })
	defer silence.Stop()

	req, err := c.t.request(ctx, http.MethodGet, path, dir, nil, nil)
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
			on(bytes.TrimSpace(data))
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

// readEvent reports whether an event is worth a look. Events of messages are the
// bulk of the stream: what is not ours is not decoded.
func readEvent(data []byte, ours func(session string) bool) (event, bool) {
	head := data[:min(len(data), eventHead)]
	if bytes.Contains(head, []byte(`"type":"message.`)) {
		if len(data) > maxShown || !ours(headSession(head)) {
			return event{}, false
		}
		return readMessage(data)
	}
	var e struct {
		Type       string `json:"type"`
		Properties struct {
			SessionID string     `json:"sessionID"`
			Error     *v1Failure `json:"error"`
			Info      struct {
				ParentID string `json:"parentID"`
			} `json:"info"`
		} `json:"properties"`
	}
	if json.Unmarshal(data, &e) != nil {
		return event{}, false
	}
	session := e.Properties.SessionID
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
		return event{kind: eventFault, session: session, text: f.message}, true
	case "session.created":
		return event{kind: eventChild, session: session, parent: e.Properties.Info.ParentID}, e.Properties.Info.ParentID != ""
	case "session.status", "session.idle", "session.deleted",
		"permission.asked", "permission.replied", "question.asked", "question.replied", "question.rejected":
		return event{kind: eventChange, session: session}, true
	}
	return event{}, false
}

// headSession finds the session in the head of an event.
func headSession(head []byte) string {
	_, rest, _ := bytes.Cut(head, []byte(`"sessionID":"`))
	id, _, ok := bytes.Cut(rest, []byte(`"`))
	if !ok {
		return ""
	}
	return string(id)
}

// readMessage reads an event of a message or of a part of one.
func readMessage(data []byte) (event, bool) {
	var e struct {
		Type       string `json:"type"`
		Properties struct {
			SessionID string `json:"sessionID"`
			Info      v1Info `json:"info"`
			Part      v1Part `json:"part"`
			MessageID string `json:"messageID"`
			PartID    string `json:"partID"`
			Field     string `json:"field"`
			Delta     string `json:"delta"`
		} `json:"properties"`
	}
	if json.Unmarshal(data, &e) != nil {
		return event{}, false
	}
	p := e.Properties
	switch e.Type {
	case "message.updated":
		return p.Info.event(p.SessionID)
	case "message.part.updated":
		return p.Part.event(p.SessionID)
	case "message.part.delta":
		return event{kind: eventDelta, session: p.SessionID, message: p.MessageID, part: p.PartID, text: p.Delta}, p.Field == "text"
	}
	return event{}, false
}

// event is what a message's head says of progress.
func (i v1Info) event(session string) (event, bool) {
	return event{kind: eventMessage, session: session, message: i.ID, provider: i.ProviderID, model: i.ModelID,
		tokens: int64(i.Tokens.Total)}, i.Role == "assistant"
}

// v1Part is a part of a message as far as it shows progress.
type v1Part struct {
	ID        string `json:"id"`
	MessageID string `json:"messageID"`
	Type      string `json:"type"`
	Text      string `json:"text"`
	Tool      string `json:"tool"`
	State     struct {
		Title string         `json:"title"`
		Input map[string]any `json:"input"`
	} `json:"state"`
	Tokens struct {
		Total float64 `json:"total"`
	} `json:"tokens"`
}

// subjects are the arguments that say what a tool is called for, best first.
var subjects = []string{"command", "filePath", "path", "url", "query", "pattern", "description"}

func (p v1Part) event(session string) (event, bool) {
	e := event{session: session, message: p.MessageID, part: p.ID}
	switch p.Type {
	case "text":
		e.kind, e.text = eventText, p.Text
	case "step-finish":
		e.kind, e.tokens = eventStep, int64(p.Tokens.Total)
	case "tool":
		e.kind, e.text = eventTool, p.Tool
		what := p.State.Title
		for i := 0; what == "" && i < len(subjects); i++ {
			what, _ = p.State.Input[subjects[i]].(string)
		}
		if what = firstLine(what); what != "" {
			e.text += ": " + what
		}
	default:
		return event{}, false
	}
	return e, true
}

// newest reads what the events of a session's newest message would have told.
func (c *v1Client) newest(ctx context.Context, session string) ([]event, error) {
	path, err := sessionPath(session, "/message")
	if err != nil {
		return nil, err
	}
	var page []struct {
		Info  v1Info   `json:"info"`
		Parts []v1Part `json:"parts"`
	}
	if _, err := c.t.do(ctx, call{method: http.MethodGet, path: path, query: url.Values{"limit": {"1"}}, out: &page}); err != nil {
		return nil, err
	}
	var out []event
	for _, m := range page {
		e, ok := m.Info.event(session)
		if !ok {
			continue
		}
		out = append(out, e)
		for _, p := range m.Parts {
			if e, ok := p.event(session); ok {
				e.message = m.Info.ID
				out = append(out, e)
			}
		}
	}
	return out, nil
}
