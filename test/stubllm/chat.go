package stubllm

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

const (
	// tick is the pause between the lines of SLOW.
	tick = 200 * time.Millisecond
	// chunk is the largest piece of text in one streamed event, in bytes.
	chunk = 400
)

// chatRequest is what of a request's body matters here.
type chatRequest struct {
	Model    string `json:"model"`
	Stream   bool   `json:"stream"`
	Messages []struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	} `json:"messages"`
	Tools []struct {
		Function struct {
			Name string `json:"name"`
		} `json:"function"`
	} `json:"tools"`
}

// input is what a request asks.
type input struct {
	system    string // all system texts
	user      string // the newest user message
	hasResult bool   // a tool's result follows it
	result    string // the newest one
}

// read finds the newest user message and what follows it.
func (c chatRequest) read() input {
	var in input
	var system []string
	for _, m := range c.Messages {
		content := contentText(m.Content)
		switch m.Role {
		case "system", "developer":
			system = append(system, content)
		case "user":
			in.user, in.hasResult, in.result = content, false, ""
		case "tool":
			in.hasResult, in.result = true, content
		}
	}
	in.system = strings.Join(system, "\n")
	return in
}

func (c chatRequest) toolNames() []string {
	var names []string
	for _, t := range c.Tools {
		names = append(names, t.Function.Name)
	}
	return names
}

// contentText reads a message's content, a string or a list of parts.
func contentText(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	var parts []struct {
		Text string `json:"text"`
	}
	if json.Unmarshal(raw, &parts) != nil {
		return ""
	}
	texts := make([]string, len(parts))
	for i, p := range parts {
		texts[i] = p.Text
	}
	return strings.Join(texts, "\n")
}

// answer carries the plan out and reports whether the client stayed to its end.
func (p plan) answer(ctx context.Context, w http.ResponseWriter, s *Server, n int, c chatRequest) bool {
	if !pause(ctx, p.delay) {
		return false
	}
	switch {
	case p.status != 0:
		fail(w, p.status)
		return true
	case p.overflow:
		writeJSON(w, http.StatusBadRequest, map[string]any{"error": map[string]any{
			"message": "This model's maximum context length is 200000 tokens. However, your messages resulted in 250000 tokens.",
			"type":    "invalid_request_error", "code": "context_length_exceeded",
		}})
		return true
	}
	out := &stream{w: w, flush: http.NewResponseController(w), id: fmt.Sprintf("chatcmpl-stub-%d", n), model: c.Model}
	if c.Stream {
		out.begin()
	}
	if p.hang {
		<-ctx.Done()
		return false
	}
	if p.gate != "" {
		select {
		case <-s.gate(p.gate):
		case <-ctx.Done():
			return false
		}
	}
	if !c.Stream {
		if !pause(ctx, p.slow) {
			return false
		}
		writeJSON(w, http.StatusOK, out.whole(p, n))
		return true
	}
	return p.stream(ctx, out, n)
}

// stream sends the reply in pieces.
func (p plan) stream(ctx context.Context, out *stream, n int) bool {
	out.delta(map[string]any{"role": "assistant", "content": ""}, nil)
	if p.reasoning != "" {
		out.delta(map[string]any{"reasoning_content": p.reasoning}, nil)
	}
	for i, left := 0, p.slow; left > 0; i, left = i+1, left-tick {
		out.delta(map[string]any{"content": fmt.Sprintf("tick %d\n", i)}, nil)
		if !pause(ctx, min(tick, left)) {
			return false
		}
	}
	for i := 0; p.ticks != nil; i++ {
		out.delta(map[string]any{"content": fmt.Sprintf("tick %d\n", i)}, nil)
		select {
		case <-p.ticks:
			p.ticks = nil
		case <-time.After(tick):
		case <-ctx.Done():
			return false
		}
	}
	if p.cutoff {
		out.delta(map[string]any{"content": "partial "}, nil)
		panic(http.ErrAbortHandler) // the one way to cut a connection from a handler
	}
	for rest := p.reply; rest != ""; {
		piece := cut(rest, chunk)
		out.delta(map[string]any{"content": piece}, nil)
		rest = rest[len(piece):]
	}
	for i, t := range p.tools {
		out.delta(map[string]any{"tool_calls": []any{t.json(n, i)}}, nil)
	}
	out.delta(map[string]any{}, p.finish)
	// Usage comes in a last chunk without choices.
	out.event(map[string]any{"choices": []any{}, "usage": p.usage.json()})
	out.line("[DONE]")
	return ctx.Err() == nil
}

// json is the i-th call of an answer.
func (t toolCall) json(n, i int) map[string]any {
	return map[string]any{"index": i, "id": fmt.Sprintf("call_stub_%d_%d", n, i), "type": "function",
		"function": map[string]any{"name": t.name, "arguments": t.args}}
}

func (u usage) json() map[string]any {
	return map[string]any{
		"prompt_tokens": u.prompt, "completion_tokens": u.completion, "total_tokens": u.prompt + u.completion,
		"prompt_tokens_details":     map[string]any{"cached_tokens": u.cached},
		"completion_tokens_details": map[string]any{"reasoning_tokens": u.reasoning},
	}
}

// stream writes the events of one answer. Write errors are left to the request's
// context, which ends when the client is gone.
type stream struct {
	w     http.ResponseWriter
	flush *http.ResponseController
	id    string
	model string
}

func (o *stream) begin() {
	o.w.Header().Set("Content-Type", "text/event-stream")
	o.w.Header().Set("Cache-Control", "no-cache")
	o.w.WriteHeader(http.StatusOK)
	_ = o.flush.Flush()
}

func (o *stream) delta(delta map[string]any, finish any) {
	o.event(map[string]any{"choices": []any{map[string]any{"index": 0, "delta": delta, "finish_reason": finish}}})
}

func (o *stream) event(fields map[string]any) {
	fields["id"], fields["object"], fields["model"] = o.id, "chat.completion.chunk", o.model
	fields["created"] = time.Now().Unix()
	// Marshal of strings and numbers cannot fail.
	b, _ := json.Marshal(fields)
	o.line(string(b))
}

func (o *stream) line(data string) {
	_, _ = fmt.Fprintf(o.w, "data: %s\n\n", data)
	_ = o.flush.Flush()
}

// whole is the answer when no stream was asked for.
func (o *stream) whole(p plan, n int) map[string]any {
	message := map[string]any{"role": "assistant", "content": p.reply}
	if p.reasoning != "" {
		message["reasoning_content"] = p.reasoning
	}
	if len(p.tools) > 0 {
		calls := make([]any, len(p.tools))
		for i, t := range p.tools {
			calls[i] = t.json(n, i)
		}
		message["tool_calls"] = calls
	}
	return map[string]any{"id": o.id, "object": "chat.completion", "model": o.model, "created": time.Now().Unix(), "usage": p.usage.json(),
		"choices": []any{map[string]any{"index": 0, "finish_reason": p.finish, "message": message}}}
}

// fail answers with a provider's error. The words matter: agents retry what looks
// like a server error or a rate limit.
func fail(w http.ResponseWriter, status int) {
	kind := "invalid_request_error"
	switch {
	case status == http.StatusTooManyRequests:
		kind = "rate_limit_exceeded"
		w.Header().Set("Retry-After", "1")
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		kind = "invalid_api_key"
	case status >= 500:
		kind = "server_error"
	}
	writeJSON(w, status, apiError(fmt.Sprintf("stub failure %d", status), kind))
}

// pause waits for d and reports whether ctx was still alive then.
func pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
