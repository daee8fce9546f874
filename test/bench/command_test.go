package bench

import (
	"context"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"opencode-mesh/node/agent/command"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
	"opencode-mesh/test/fleet"
)

// BenchmarkCommand prints a dispatch to a command agent, shim and all, beside
// starting the same program without a mesh.
func BenchmarkCommand(b *testing.B) {
	f := newBed(b, "off", 0, 1)
	program := []string{"/bin/echo", "ok"}
	a, err := command.New(command.Config{
		Command: program, Stdin: command.StdinEnvelope, RunsDir: filepath.Join(f.dir, "runs"),
		ShimCommand: []string{fleet.Bin(b, "meshnode"), "shim"}, Log: quiet,
	})
	if err != nil {
		b.Fatal(err)
	}
	f.startNode("n0", a)
	f.awaitOnline(1)
	c := f.clients[0]
	var meshed, raw []time.Duration
	b.ResetTimer()
	for range b.N {
		start := time.Now()
		if err := exec.Command(program[0], program[1:]...).Run(); err != nil {
			b.Fatal(err)
		}
		mid := time.Now()
		id := mesh.NewID("bench")
		if _, err := c.Dispatch(context.Background(), api.Dispatch{Text: "go", Targets: []api.DispatchTarget{{Name: "n0", ID: id}}}); err != nil {
			b.Fatal(err)
		}
		if t, err := c.Wait(context.Background(), id, nil); err != nil || t.State != api.StateDone {
			b.Fatalf("%+v %v", t, err)
		}
		raw, meshed = append(raw, mid.Sub(start)), append(meshed, time.Since(mid))
	}
	b.StopTimer()
	slices.Sort(meshed)
	slices.Sort(raw)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(meshed[len(meshed)/2].Microseconds())/1000, "mesh-ms")
	b.ReportMetric(float64(raw[len(raw)/2].Microseconds())/1000, "fork-exec-ms")
}
