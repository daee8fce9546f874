package bench

import (
	"context"
	"fmt"
	"net/http"
	"slices"
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
	server := opencodebin.Serve(b, opencodebin.Options{ModelURL: llm.URL()}, dir)
	f := newBed(b, "self", 0, 1)
	ws := []agent.Workspace{{Name: "main", Dir: dir}}
	a, err := opencode.New(opencode.Config{URL: server.URL, Password: server.Password, Workspaces: ws, Log: quiet})
	if err != nil {
		b.Fatal(err)
	}
	f.startNode("n0", a)
	ctx := context.Background()
	c := f.clients[0]
	f.awaitOnline(1)
	var session struct {
		ID string `json:"id"`
	}
	if server.Call(b, http.MethodPost, "/session", map[string]string{"title": "direct"}, &session); session.ID == "" {
		b.Fatal("no session")
	}

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
		status := server.Call(b, http.MethodPost, "/session/"+session.ID+"/message", map[string]any{
			"model": map[string]string{"providerID": opencodebin.Provider, "modelID": opencodebin.Model}, "agent": "build",
			"system": mesh.Conduct(), "parts": []map[string]string{{"type": "text", "text": text}},
		}, nil)
		if status != http.StatusOK {
			b.Fatalf("directly: %d", status)
		}
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
