package bench

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
)

// BenchmarkDispatch is a whole dispatch: submit → durable → node journal → result
// journal → durable → seen by the controller.
func BenchmarkDispatch(b *testing.B) {
	for _, tls := range []string{"off", "self"} {
		f := newBed(b, tls, 8, 8)
		for _, flight := range []int{1, 64} {
			b.Run(fmt.Sprintf("tls=%s/inflight=%d", tls, flight), func(b *testing.B) { dispatches(b, f, flight) })
		}
	}
}

func dispatches(b *testing.B, f *bed, flight int) {
	perSecond := floor(b, 500*time.Millisecond)
	took := make([]time.Duration, b.N)
	var next atomic.Int64
	var wg sync.WaitGroup
	b.ResetTimer()
	start := time.Now()
	for w := range flight {
		c, target := f.clients[w%len(f.clients)], f.names[(w/len(f.clients))%len(f.names)]
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= b.N {
					return
				}
				at := time.Now()
				id := mesh.NewID("bench")
				if _, err := c.Dispatch(context.Background(), api.Dispatch{Text: "go", Targets: []api.DispatchTarget{{Name: target, ID: id}}}); err != nil {
					b.Error(err)
					return
				}
				t, err := c.Wait(context.Background(), id, nil)
				if err != nil || t.State != api.StateDone {
					b.Errorf("%s: %s %v", id, t.State, err)
					return
				}
				took[i] = time.Since(at)
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	total := time.Since(start).Seconds()
	slices.Sort(took)
	p50, p99 := took[len(took)/2], took[len(took)*99/100]
	rate := float64(b.N) / total
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(p50.Microseconds()), "p50-us")
	b.ReportMetric(float64(p99.Microseconds()), "p99-us")
	b.ReportMetric(rate, "tasks/s")
	b.ReportMetric(rate/perSecond, "tasks/fdatasync")
	b.ReportMetric(p50.Seconds()*perSecond, "p50-in-fdatasyncs")
}
