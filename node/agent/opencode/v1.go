package opencode

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"opencode-mesh/protocol/mesh"
)

const (
	// sessionPage is how many of a directory's sessions are searched for one that
	// a crash kept from the journal; it is among the newest.
	sessionPage = 1000
	// messagePage and maxPages bound how far back a turn's messages are read.
	messagePage = 20
	maxPages    = 200
	// maxResultPages is how far back a session's last result is looked for.
	maxResultPages = 10
)

// v1Client speaks the HTTP interface of opencode 1.x.
type v1Client struct {
	t *transport
}

type v1Session struct {
	ID        string `json:"id"`
	Directory string `json:"directory"`
	Title     string `json:"title"`
	ParentID  string `json:"parentID"`
	Metadata  struct {
		Mesh json.RawMessage `json:"mesh"`
	} `json:"metadata"`
	Time struct {
		Created float64 `json:"created"`
		Updated float64 `json:"updated"`
	} `json:"time"`
}

func (s v1Session) session() session {
	out := session{id: s.ID, dir: s.Directory, title: s.Title, parent: s.ParentID,
		created: time.UnixMilli(int64(s.Time.Created)), updated: time.UnixMilli(int64(s.Time.Updated))}
	var m mark
	// What is not of our form was not written by a node.
	if len(s.Metadata.Mesh) > 0 && json.Unmarshal(s.Metadata.Mesh, &m) == nil {
		out.mark = &m
	}
	return out
}

// sessionPath is the path of a session. The server answers 500, not 404, to an id
// of another form.
func sessionPath(id, rest string) (string, error) {
	if !strings.HasPrefix(id, "ses") || strings.ContainsAny(id, "/?#%") {
		return "", errNotFound
	}
	return "/session/" + id + rest, nil
}

func (c *v1Client) session(ctx context.Context, id string) (session, error) {
	path, err := sessionPath(id, "")
	if err != nil {
		return session{}, err
	}
	var s v1Session
	if _, err := c.t.do(ctx, call{method: http.MethodGet, path: path, out: &s}); err != nil {
		return session{}, err
	}
	return s.session(), nil
}

func (c *v1Client) sessions(ctx context.Context, dir, title string) ([]session, error) {
	query := url.Values{"limit": {strconv.Itoa(sessionPage)}, "roots": {"true"}}
	if title != "" {
		query.Set("search", title)
	}
	var list []v1Session
	_, err := c.t.do(ctx, call{method: http.MethodGet, path: "/session", dir: dir, query: query, out: &list})
	if err != nil {
		return nil, err
	}
	out := make([]session, len(list))
	for i, s := range list {
		out[i] = s.session()
	}
	return out, nil
}

func (c *v1Client) newSession(ctx context.Context, dir, title string, m mark) (session, error) {
	var s v1Session
	_, err := c.t.do(ctx, call{method: http.MethodPost, path: "/session", dir: dir, out: &s,
		in: map[string]any{"title": title, "metadata": map[string]any{"mesh": m}}})
	if err != nil {
		return session{}, err
	}
	return s.session(), nil
}

func (c *v1Client) statuses(ctx context.Context, dir string) (map[string]status, error) {
	var all map[string]struct {
		Type    string `json:"type"`
		Attempt int    `json:"attempt"`
		Message string `json:"message"`
	}
	if _, err := c.t.do(ctx, call{method: http.MethodGet, path: "/session/status", dir: dir, out: &all}); err != nil {
		return nil, err
	}
	out := make(map[string]status, len(all))
	for id, s := range all {
		if s.Type != "idle" {
			out[id] = status{retry: s.Type == "retry", attempt: s.Attempt, message: s.Message}
		}
	}
	return out, nil
}

func (c *v1Client) prompt(ctx context.Context, session string, p prompt) error {
	path, err := sessionPath(session, "/prompt_async")
	if err != nil {
		return err
	}
	parts := []any{}
	if p.part != "" {
		part := map[string]any{"id": p.part, "type": "text", "text": p.text}
		if p.synthetic {
			part["synthetic"] = true
		}
		if p.metadata != nil {
			part["metadata"] = p.metadata
		}
		parts = append(parts, part)
	}
	in := map[string]any{
		"messageID": p.message,
		"model":     map[string]string{"providerID": p.provider, "modelID": p.model},
		"agent":     p.agent,
		"parts":     parts,
	}
	if p.system != "" {
		in["system"] = p.system
	}
	_, err = c.t.do(ctx, call{method: http.MethodPost, path: path, in: in})
	return err
}

func (c *v1Client) habits(ctx context.Context, session string) (habits, error) {
	path, err := sessionPath(session, "/message")
	if err != nil {
		return habits{}, err
	}
	var page []v1Message
	query := url.Values{"limit": {strconv.Itoa(messagePage)}}
	if _, err := c.t.do(ctx, call{method: http.MethodGet, path: path, query: query, out: &page, limit: maxMessages}); err != nil {
		return habits{}, err
	}
	for _, m := range slices.Backward(page) {
		if m.Info.Role == "user" {
			return habits{provider: m.Info.Model.ProviderID, model: m.Info.Model.ModelID, agent: m.Info.Agent}, nil
		}
	}
	return habits{}, nil
}

func (c *v1Client) stored(ctx context.Context, session, message string) (bool, error) {
	path, err := sessionPath(session, "/message/"+message)
	if err != nil {
		return false, err
	}
	var m v1Message
	_, err = c.t.do(ctx, call{method: http.MethodGet, path: path, out: &m, limit: maxMessages})
	switch {
	case errors.Is(err, errNotFound):
		return false, nil
	case err != nil:
		return false, err
	}
	return m.Info.ID == message, nil
}

func (c *v1Client) answered(ctx context.Context, session, message string) (string, error) {
	path, err := sessionPath(session, "/message/"+url.PathEscape(message))
	if err != nil {
		return "", err
	}
	var m v1Message
	if _, err := c.t.do(ctx, call{method: http.MethodGet, path: path, out: &m, limit: maxMessages}); err != nil {
		return "", err
	}
	return m.Info.ParentID, nil
}

func (c *v1Client) abort(ctx context.Context, session string) error {
	path, err := sessionPath(session, "/abort")
	if err != nil {
		return err
	}
	_, err = c.t.do(ctx, call{method: http.MethodPost, path: path, in: struct{}{}})
	return err
}

func (c *v1Client) remove(ctx context.Context, session string) error {
	path, err := sessionPath(session, "")
	if err != nil {
		return err
	}
	_, err = c.t.do(ctx, call{method: http.MethodDelete, path: path})
	return err
}

// v1Failure is an error as messages and events carry it.
type v1Failure struct {
	Name string `json:"name"`
	Data struct {
		Message string `json:"message"`
	} `json:"data"`
}

func (f *v1Failure) fault() *fault {
	if f == nil {
		return nil
	}
	message := firstLine(f.Data.Message)
	if message == "" {
		message = f.Name
	}
	return &fault{name: f.Name, message: message}
}

// v1Info is the head of a message. Times are numbers that need not be whole; a
// user's message has an object as its summary, and alone has a model.
type v1Info struct {
	ID    string `json:"id"`
	Agent string `json:"agent"`
	Model struct {
		ProviderID string `json:"providerID"`
		ModelID    string `json:"modelID"`
	} `json:"model"`
	Role       string          `json:"role"`
	ParentID   string          `json:"parentID"`
	ProviderID string          `json:"providerID"`
	ModelID    string          `json:"modelID"`
	Finish     string          `json:"finish"`
	Summary    json.RawMessage `json:"summary"`
	Error      *v1Failure      `json:"error"`
	Time       struct {
		Completed float64 `json:"completed"`
	} `json:"time"`
	Tokens struct {
		Total float64 `json:"total"`
	} `json:"tokens"`
}

// v1Message is a message with its parts.
type v1Message struct {
	Info  v1Info `json:"info"`
	Parts []struct {
		Type      string `json:"type"`
		Text      string `json:"text"`
		Synthetic bool   `json:"synthetic"`
		Ignored   bool   `json:"ignored"`
	} `json:"parts"`
}

// texts are the words of whoever wrote the message.
func (m v1Message) texts() []string {
	var out []string
	for _, p := range m.Parts {
		if p.Type == "text" && p.Text != "" && !p.Synthetic && !p.Ignored {
			out = append(out, p.Text)
		}
	}
	return out
}

func (m v1Message) answer() answer {
	return answer{
		id: m.Info.ID, provider: m.Info.ProviderID, model: m.Info.ModelID, finish: m.Info.Finish,
		completed: m.Info.Time.Completed > 0, fault: m.Info.Error.fault(), tokens: int64(m.Info.Tokens.Total), texts: m.texts(),
	}
}

// answers reads pages from the newest back to the message itself.
func (c *v1Client) answers(ctx context.Context, session, message string) (answers, error) {
	path, err := sessionPath(session, "/message")
	if err != nil {
		return answers{}, err
	}
	var out answers
	query := url.Values{"limit": {strconv.Itoa(messagePage)}}
	for range maxPages {
		var page []v1Message
		header, err := c.t.do(ctx, call{method: http.MethodGet, path: path, query: query, out: &page, limit: maxMessages})
		if err != nil {
			return answers{}, err
		}
		found := false
		for _, m := range slices.Backward(page) {
			switch {
			case m.Info.ID == message:
				found = true
			case m.Info.Role == "user" && !found:
				out.overtaken = out.overtaken || len(out.list) > 0
			case m.Info.Role == "assistant" && m.Info.ParentID == message && string(m.Info.Summary) != "true":
				out.list = append(out.list, m.answer())
			}
		}
		cursor := header.Get("X-Next-Cursor")
		if found || cursor == "" || len(page) == 0 {
			break
		}
		query.Set("before", cursor)
	}
	slices.Reverse(out.list)
	return out, nil
}

// lastResult goes back to the newest mesh envelope that was answered.
func (c *v1Client) lastResult(ctx context.Context, session string) (string, error) {
	path, err := sessionPath(session, "/message")
	if err != nil {
		return "", err
	}
	said := make(map[string][]string) // by the message that it answers, newest first
	query := url.Values{"limit": {strconv.Itoa(messagePage)}}
	for range maxResultPages {
		var page []v1Message
		header, err := c.t.do(ctx, call{method: http.MethodGet, path: path, query: query, out: &page, limit: maxMessages})
		if err != nil {
			return "", err
		}
		for _, m := range slices.Backward(page) {
			switch m.Info.Role {
			case "assistant":
				for _, text := range slices.Backward(m.texts()) {
					said[m.Info.ParentID] = append(said[m.Info.ParentID], text)
				}
			case "user":
				replies := said[m.Info.ID]
				envelope, err := mesh.ParseEnvelope(strings.Join(m.texts(), "\n"))
				if err != nil || len(replies) == 0 {
					continue // a human's, or never answered
				}
				slices.Reverse(replies)
				if reply := mesh.ReadReply(envelope.Task, strings.Join(replies, "\n")); reply.Kind != mesh.KindQuestion {
					return reply.Result.Summary, nil
				}
			}
		}
		cursor := header.Get("X-Next-Cursor")
		if cursor == "" || len(page) == 0 {
			break
		}
		query.Set("before", cursor)
	}
	return "", nil
}
