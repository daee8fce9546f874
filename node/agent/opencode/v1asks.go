package opencode

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"

	"opencode-mesh/protocol/api"
)

// v1Permission is an element of GET /permission.
type v1Permission struct {
	ID         string                     `json:"id"`
	SessionID  string                     `json:"sessionID"`
	Permission string                     `json:"permission"`
	Patterns   []string                   `json:"patterns"`
	Always     []string                   `json:"always"`
	Metadata   map[string]json.RawMessage `json:"metadata"`
	Tool       v1Tool                     `json:"tool"`
}

// v1Tool is the tool call that asks.
type v1Tool struct {
	MessageID string `json:"messageID"`
}

func (p v1Permission) ask() ask {
	a := ask{id: p.ID, session: p.SessionID, message: p.Tool.MessageID, permission: p.Permission, patterns: p.Patterns, always: p.Always}
	for _, name := range slices.Sorted(maps.Keys(p.Metadata)) {
		var value string
		// A diff says at length what the file's name says in short.
		if name != "diff" && json.Unmarshal(p.Metadata[name], &value) == nil && value != "" {
			a.details = append(a.details, name+": "+value)
		}
	}
	return a
}

// v1Question is an element of GET /question.
type v1Question struct {
	ID        string `json:"id"`
	SessionID string `json:"sessionID"`
	Questions []struct {
		Question string `json:"question"`
		Options  []struct {
			Label       string `json:"label"`
			Description string `json:"description"`
		} `json:"options"`
		Multiple bool `json:"multiple"`
	} `json:"questions"`
	Tool v1Tool `json:"tool"`
}

func (q v1Question) ask() ask {
	a := ask{id: q.ID, session: q.SessionID, message: q.Tool.MessageID, question: true}
	for _, one := range q.Questions {
		p := part{text: one.Question, several: one.Multiple}
		for _, o := range one.Options {
			p.options = append(p.options, o.Label)
		}
		a.parts = append(a.parts, p)
	}
	return a
}

func (c *v1Client) asks(ctx context.Context, dir string) ([]ask, error) {
	var permissions []v1Permission
	if _, err := c.t.do(ctx, call{method: http.MethodGet, path: "/permission", dir: dir, out: &permissions}); err != nil {
		return nil, err
	}
	var questions []v1Question
	_, err := c.t.do(ctx, call{method: http.MethodGet, path: "/question", dir: dir, out: &questions})
	// Releases without the question tool answer with their web page.
	if err != nil && !errors.Is(err, errNotOpencode) {
		return nil, err
	}
	var out []ask
	for _, p := range permissions {
		out = append(out, p.ask())
	}
	for _, q := range questions {
		out = append(out, q.ask())
	}
	return out, nil
}

func (c *v1Client) permit(ctx context.Context, dir, id, reply, message string) error {
	in := map[string]string{"reply": reply}
	if reply == api.PermitReject {
		in["message"] = message
	}
	_, err := c.t.do(ctx, call{method: http.MethodPost, path: "/permission/" + url.PathEscape(id) + "/reply", dir: dir, in: in})
	return err
}

func (c *v1Client) inform(ctx context.Context, dir, id string, answers [][]string) error {
	_, err := c.t.do(ctx, call{method: http.MethodPost, path: "/question/" + url.PathEscape(id) + "/reply", dir: dir,
		in: map[string]any{"answers": answers}})
	return err
}
