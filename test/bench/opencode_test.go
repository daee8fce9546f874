package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"opencode-mesh/node/agent"
	"opencode-mesh/node/agent/opencode"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
	"opencode-mesh/test/opencodebin"
	"opencode-mesh/test/stubllm"
)

// modelTakes is how long the model thinks before it answers.
const modelTakes = time.Second

// BenchmarkOpencode compares a dispatch to a real opencode with the same prompt
// sent to its API directly, with a model that answers after a second.
func BenchmarkOpencode(b *testing.B) {
	llm := stubllm.Start(b)
	dir := b.TempDir()
	url, pw := serve(b, llm, dir)
	f := newBed(b, "self", 0, 1)
	ws := []agent.Workspace{{Name: "main", Dir: dir}}
	a, err := opencode.New(opencode.Config{URL: url, Password: pw, Workspaces: ws, Log: quiet})
	if err != nil {
		b.Fatal(err)
	}
	f.startNode("n0", a)
	ctx := context.Background()
	c := f.clients[0]
	f.awaitOnline(1)
	session := newSession(b, url, pw)

	text := fmt.Sprintf("DELAY:%d say hello", modelTakes.Milliseconds())
	viaMesh := func() {
		id := mesh.NewID("bench")
		if _, err := c.Dispatch(ctx, api.Dispatch{Text: text, Targets: []api.DispatchTarget{{Name: "n0", ID: id}}}); err != nil {
			b.Fatal(err)
		}
		if t, err := c.Wait(ctx, id, nil); err != nil || t.State != api.StateDone {
			b.Fatalf("%+v %v", t, err)
		}
	}
	direct := func() {
		call(b, url, pw, "/session/"+session+"/message", map[string]any{
			"model": map[string]string{"providerID": opencodebin.Provider, "modelID": opencodebin.Model}, "agent": "build",
			"system": mesh.Conduct(), "parts": []map[string]string{{"type": "text", "text": text}},
		})
	}
	viaMesh() // the first turn of each session boots things
	direct()
	var meshed, directly []time.Duration
	b.ResetTimer()
	for range b.N { // alternating, so that both see the same machine
		start := time.Now()
		direct()
		mid := time.Now()
		viaMesh()
		directly, meshed = append(directly, mid.Sub(start)), append(meshed, time.Since(mid))
	}
	b.StopTimer()
	slices.Sort(meshed)
	slices.Sort(directly)
	m, d := meshed[len(meshed)/2], directly[len(directly)/2]
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(m)/float64(d), "mesh/direct")
	b.ReportMetric(float64((m-d).Microseconds())/1000, "overhead-ms")
}

// serve starts an opencode of its own.
func serve(b *testing.B, llm *stubllm.Server, dir string) (url, password string) {
	b.Helper()
	password = "bench"
	cmd := exec.Command(opencodebin.Find(b), "serve", "--hostname", "127.0.0.1", "--port", "0")
	cmd.Dir = dir
	cmd.Env = append(opencodebin.Env(b, opencodebin.Options{ModelURL: llm.URL()}), "OPENCODE_SERVER_PASSWORD="+password)
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if _, u, ok := strings.Cut(lines.Text(), "listening on "); ok {
			go func() { _, _ = io.Copy(io.Discard, out) }()
			return strings.TrimSpace(u), password
		}
	}
	b.Fatal("opencode does not listen")
	return "", ""
}

func newSession(b *testing.B, url, pw string) string {
	b.Helper()
	var s struct {
		ID string `json:"id"`
	}
	if err := json.Unmarshal(call(b, url, pw, "/session", map[string]string{"title": "direct"}), &s); err != nil || s.ID == "" {
		b.Fatalf("no session: %v", err)
	}
	return s.ID
}

func call(b *testing.B, url, pw, path string, body any) []byte {
	b.Helper()
	j, err := json.Marshal(body)
	if err != nil {
		b.Fatal(err)
	}
	req, err := http.NewRequest(http.MethodPost, url+path, bytes.NewReader(j))
	if err != nil {
		b.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.SetBasicAuth("opencode", pw)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		b.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		b.Fatalf("%s: %d %s %v", path, resp.StatusCode, data, err)
	}
	return data
}
