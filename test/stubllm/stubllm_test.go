package stubllm_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"opencode-mesh/test/stubllm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// limit bounds what can only hang by a fault.
const limit = 2 * time.Minute

type message struct {
	Role    string `json:"role"`
	Content any    `json:"content"`
}

// answer is what came back, streamed or not.
type answer struct {
	status    int
	text      string
	reasoning string
	tool      string
	args      string
	finish    string
	usage     map[string]any
	cut       bool
}

func ask(t *testing.T, s *stubllm.Server, stream bool, messages ...message) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return askContext(ctx, t, s, stream, messages...)
}

func askContext(ctx context.Context, t *testing.T, s *stubllm.Server, stream bool, messages ...message) answer {
	t.Helper()
	body, err := json.Marshal(map[string]any{"model": stubllm.Model, "stream": stream, "messages": messages,
		"tools": []any{map[string]any{"function": map[string]any{"name": "bash"}}}})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL()+"/chat/completions", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		return answer{cut: true}
	}
	defer func() { _ = res.Body.Close() }()
	a := answer{status: res.StatusCode}
	type choice struct {
		Finish string `json:"finish_reason"`
		Delta  struct {
			Content   string `json:"content"`
			Reasoning string `json:"reasoning_content"`
			ToolCalls []struct {
				Function struct{ Name, Arguments string }
			} `json:"tool_calls"`
		}
		Message struct{ Content string }
	}
	var event struct {
		Choices []choice
		Usage   map[string]any
	}
	if !stream || res.StatusCode != http.StatusOK {
		raw, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		if res.StatusCode != http.StatusOK {
			a.text = string(raw)
			return a
		}
		if err := json.Unmarshal(raw, &event); err != nil {
			t.Fatal(err)
		}
		a.text, a.finish, a.usage = event.Choices[0].Message.Content, event.Choices[0].Finish, event.Usage
		return a
	}
	a.cut = true
	lines := bufio.NewReader(res.Body)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return a
		}
		data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			a.cut = false
			continue
		}
		event.Choices, event.Usage = nil, nil
		if err := json.Unmarshal([]byte(data), &event); err != nil {
			t.Fatal(err)
		}
		if event.Usage != nil {
			a.usage = event.Usage
		}
		for _, c := range event.Choices {
			a.text += c.Delta.Content
			a.reasoning += c.Delta.Reasoning
			for _, call := range c.Delta.ToolCalls {
				a.tool, a.args = call.Function.Name, call.Function.Arguments
			}
			if c.Finish != "" {
				a.finish = c.Finish
			}
		}
	}
}

func user(text string) message { return message{"user", text} }

func TestReplies(t *testing.T) {
	s := stubllm.Start(t)
	s.Open("enough")
	envelope := "[opencode-mesh v1]\nfrom: a\ntask: a-1-xyzw\nmode: one-shot\nreply: result-block\n---\n"
	for _, c := range []struct {
		name, text, want string
	}{
		{"echo by default", "hello", "stub echo: hello"},
		{"a result block to an envelope", envelope + "do it", "task: a-1-xyzw\nstatus: done\nsummary: stub ok\n"},
		{"a question block to ASK", envelope + "ASK me", "[opencode-mesh-question v1]\ntask: a-1-xyzw\nquestion: "},
		{"no question to a word that contains it", "TASK", "stub echo: TASK"},
		{"a digest with its generation", "task: t\ngen: 4\nmake a digest", "[opencode-mesh-digest v1]\ntask: t\ngen: 4\nfacts:\n- "},
		{"a digest with given facts", "task: t\ngen: 2\ndigest FACTS:one | two", "gen: 2\nfacts:\n- one\n- two\npending: none\n"},
		{"REPLY word for word", `x REPLY:one\ntwo`, "one\ntwo"},
		{"REPLY with the task and the generation", "task: a-1-xyzw\n" + `REPLY:task: {task}\ngen: {gen}`, "task: a-1-xyzw\ngen: 1"},
		{"SLOW ticks first", "SLOW:0.01", "tick 0\nstub echo: SLOW:0.01"},
		{"TICKS until it is opened", "TICKS:enough", "tick 0\nstub echo: TICKS:enough"},
		{"LONG filler first", "LONG:2 REPLY:end", "filler \nend"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := ask(t, s, true, user(c.text))
			if got.cut || got.finish != "stop" || !strings.Contains(got.text, c.want) {
				t.Errorf("got %+v, want a reply with %q", got, c.want)
			}
		})
	}
	t.Run("the same without a stream", func(t *testing.T) {
		if got := ask(t, s, false, user("hello")); got.text != "stub echo: hello" || got.finish != "stop" {
			t.Errorf("got %+v", got)
		}
	})
	t.Run("the newest user message decides, given in parts", func(t *testing.T) {
		parts := message{"user", []map[string]string{{"type": "text", "text": "new"}}}
		if got := ask(t, s, true, user("FAIL:500"), message{"assistant", "x"}, parts); got.text != "stub echo: new" {
			t.Errorf("got %+v", got)
		}
	})
	t.Run("LONG is as long as it says", func(t *testing.T) {
		if got := ask(t, s, true, user("LONG:300")); len(got.text) < 300*1024 {
			t.Errorf("%d bytes", len(got.text))
		}
	})
	t.Run("USAGE, REASON and FINISH", func(t *testing.T) {
		got := ask(t, s, true, user("USAGE:1000,50,600,20 FINISH:length REASON:because"))
		if got.usage["prompt_tokens"] != 1000.0 || got.usage["total_tokens"] != 1050.0 ||
			got.usage["prompt_tokens_details"].(map[string]any)["cached_tokens"] != 600.0 {
			t.Errorf("usage %v", got.usage)
		}
		if got.finish != "length" || got.reasoning != "because" {
			t.Errorf("got %+v", got)
		}
	})
	t.Run("requests for a title do not fire directives", func(t *testing.T) {
		got := ask(t, s, true, message{"system", "You are a title generator."}, user("FAIL:500 HANG"))
		if got.text != "stub title" {
			t.Errorf("got %+v", got)
		}
		got = ask(t, s, true, message{"system", "You are a context summarization agent"}, user("FAIL:500"))
		if !strings.Contains(got.text, "compaction summary") {
			t.Errorf("got %+v", got)
		}
		if n := s.Count(func(r stubllm.Request) bool { return r.Kind == stubllm.KindTitle }); n != 1 {
			t.Errorf("%d title requests on record", n)
		}
	})
}

func TestDirectReplacesTheDirectivesOfTheText(t *testing.T) {
	s := stubllm.Start(t)
	digests := func(user string) bool { return strings.Contains(user, "digest") }
	stopFirst := s.Direct(digests, "FACTS:first")
	stopSecond := s.Direct(digests, "FACTS:second USAGE:7,1")
	request := user("task: t\ngen: 2\nthe digest, please FAIL:500 FACTS:own")
	got := ask(t, s, true, request)
	if !strings.Contains(got.text, "task: t\ngen: 2\nfacts:\n- second") || got.usage["total_tokens"] != 8.0 {
		t.Errorf("got %+v", got)
	}
	if got := ask(t, s, true, user("hello")); got.text != "stub echo: hello" {
		t.Errorf("another text: %+v", got)
	}
	stopSecond()
	if got := ask(t, s, true, request); !strings.Contains(got.text, "- first\n") {
		t.Errorf("after the newer stopped: %+v", got)
	}
	stopFirst()
	if got := ask(t, s, true, request); got.status != 500 {
		t.Errorf("after both stopped: %+v", got)
	}
}

func TestFailures(t *testing.T) {
	s := stubllm.Start(t)
	t.Run("FAIL answers the code, always", func(t *testing.T) {
		for range 2 {
			if got := ask(t, s, true, user("FAIL:429")); got.status != 429 || !strings.Contains(got.text, "stub failure 429") {
				t.Errorf("got %+v", got)
			}
		}
	})
	t.Run("FAIL with times fails the first of one text only", func(t *testing.T) {
		var got []int
		for _, text := range []string{"FAIL:500:2 a", "FAIL:500:2 a", "FAIL:500:2 b", "FAIL:500:2 a"} {
			got = append(got, ask(t, s, true, user(text)).status)
		}
		if want := []int{500, 500, 500, 200}; !equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
	t.Run("OVERFLOW", func(t *testing.T) {
		if got := ask(t, s, true, user("OVERFLOW")); got.status != 400 || !strings.Contains(got.text, "context_length_exceeded") {
			t.Errorf("got %+v", got)
		}
	})
	t.Run("FAILSTREAM cuts the stream and is on record as aborted", func(t *testing.T) {
		got := ask(t, s, true, user("FAILSTREAM"))
		if got.status != 200 || !got.cut || got.text != "partial " {
			t.Errorf("got %+v", got)
		}
		await(t, s, func(r stubllm.Request) bool { return r.User == "FAILSTREAM" && r.Aborted })
	})
	t.Run("bad JSON and unknown paths", func(t *testing.T) {
		res, err := http.Post(s.URL()+"/chat/completions", "application/json", strings.NewReader("{"))
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusBadRequest {
			t.Errorf("bad JSON: %d", res.StatusCode)
		}
		res, err = http.Get(s.URL() + "/responses")
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusNotFound {
			t.Errorf("unknown path: %d", res.StatusCode)
		}
		http.DefaultClient.CloseIdleConnections()
	})
}

func TestToolCallsComeOnceBeforeTheirResult(t *testing.T) {
	s := stubllm.Start(t)
	got := ask(t, s, true, user(`TOOL:echo "hi"`))
	if got.tool != "bash" || got.finish != "tool_calls" || !strings.Contains(got.args, `"echo \"hi\""`) {
		t.Errorf("got %+v", got)
	}
	got = ask(t, s, true, user(`TOOL:echo "hi"`), message{"assistant", ""}, message{"tool", "hi"})
	if got.tool != "" || got.finish != "stop" || !strings.HasPrefix(got.text, "tool output: hi\n") {
		t.Errorf("after the result: %+v", got)
	}
	got = ask(t, s, true, user(`TOOLNAME:read TOOLARGS:{"filePath":"x"}`))
	if got.tool != "read" || got.args != `{"filePath":"x"}` {
		t.Errorf("got %+v", got)
	}
	got = ask(t, s, true, user("TOOL:ls\nTOOLNAME:read TOOLARGS:{}"))
	if got.tool != "read" || got.text != "calling tool bash read" {
		t.Errorf("got %+v", got)
	}
}

func TestWaitForSeesRequestsAndTheirEnd(t *testing.T) {
	s := stubllm.Start(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan answer, 1)
	go func() { done <- askContext(ctx, t, s, true, user("HANG")) }()
	r := await(t, s, func(r stubllm.Request) bool { return r.User == "HANG" })
	if r.Ended || len(r.Tools) != 1 || r.Tools[0] != "bash" || r.Model != stubllm.Model {
		t.Errorf("on record: %+v", r)
	}
	cancel()
	<-done
	if r := await(t, s, func(r stubllm.Request) bool { return r.User == "HANG" && r.Ended }); !r.Aborted {
		t.Errorf("on record: %+v", r)
	}

	ended, stop := context.WithCancel(context.Background())
	stop()
	if _, err := s.WaitFor(ended, func(stubllm.Request) bool { return false }); err == nil {
		t.Error("WaitFor found what is not there")
	}
}

func TestGateHoldsUntilOpened(t *testing.T) {
	s := stubllm.Start(t)
	done := make(chan answer, 1)
	go func() { done <- ask(t, s, true, user("GATE:a REPLY:through")) }()
	await(t, s, func(r stubllm.Request) bool { return strings.HasPrefix(r.User, "GATE:a") })
	select {
	case got := <-done:
		t.Fatalf("the gate let %+v pass", got)
	default:
	}
	s.Open("a")
	s.Open("a")
	if got := <-done; got.text != "through" {
		t.Errorf("got %+v", got)
	}
	if got := ask(t, s, true, user("GATE:a again")); got.cut {
		t.Errorf("an open gate held %+v", got)
	}
}

func await(t *testing.T, s *stubllm.Server, match func(stubllm.Request) bool) stubllm.Request {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	r, err := s.WaitFor(ctx, match)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func equal(a, b []int) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}
