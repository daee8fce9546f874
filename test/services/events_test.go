package services

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	// readers is how many event streams are read at once, each directly and through node
	// and hub.
	readers = 6
	// events is how many each of them gets, one every pace.
	events, pace = 50, 100 * time.Millisecond
	// rounds is how often the measurement may be repeated: on a busy machine one may be
	// spoilt, while a stream that is held back spoils every one.
	rounds = 5
	// mayBe is what the gaps may be, as a multiple of those of direct connections in the
	// same run: 150 ms to 100.
	mayBe = 1.5
)

// ticking sends events at their pace.
func ticking(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/events" {
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for i := range events {
		select {
		case <-tick.C:
		case <-r.Context().Done():
			return
		}
		fmt.Fprintf(w, "id: %d\ndata: tick\n\n", i)
		_ = http.NewResponseController(w).Flush()
	}
}

// gaps reads one stream to its end and gives the times between its events.
func gaps(t *testing.T, hc *http.Client, req *http.Request) []time.Duration {
	resp, err := hc.Do(req)
	if err != nil {
		t.Error(err)
		return nil
	}
	defer resp.Body.Close()
	var out []time.Duration
	var last time.Time
	n := 0
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if !strings.HasPrefix(lines.Text(), "data: ") {
			continue
		}
		now := time.Now()
		if n++; n > 1 {
			out = append(out, now.Sub(last))
		}
		last = now
	}
	if lines.Err() != nil || n != events {
		t.Errorf("%d events, %v", n, lines.Err())
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	return out
}

// p99 is the 99th percentile of what is sorted.
func p99(sorted []time.Duration) time.Duration { return sorted[len(sorted)*99/100] }

// TestEventsArriveAtTheirPace measures the gaps between events that are sent 100 ms
// apart, through node and hub and directly at the same time.
func TestEventsArriveAtTheirPace(t *testing.T) {
	m := newMesh(t, ticking)
	for round := range rounds {
		var mu sync.Mutex
		var direct, through []time.Duration
		var all sync.WaitGroup
		read := func(into *[]time.Duration, req *http.Request) {
			all.Go(func() {
				g := gaps(t, m.hc, req)
				mu.Lock()
				defer mu.Unlock()
				*into = append(*into, g...)
			})
		}
		for range readers {
			own, err := http.NewRequest(http.MethodGet, m.direct+"events", nil)
			if err != nil {
				t.Fatal(err)
			}
			read(&direct, own)
			read(&through, m.request(http.MethodGet, "events", nil))
		}
		all.Wait()
		if t.Failed() {
			return
		}
		slices.Sort(direct)
		slices.Sort(through)
		ratio := float64(p99(through)) / float64(p99(direct))
		t.Logf("gaps of %d streams of events every %s: through node and hub median %s, p99 %s; direct median %s, p99 %s; ratio of p99 %.2f",
			readers, pace, through[len(through)/2].Round(time.Microsecond), p99(through).Round(time.Microsecond),
			direct[len(direct)/2].Round(time.Microsecond), p99(direct).Round(time.Microsecond), ratio)
		if ratio < mayBe {
			return
		}
		t.Logf("round %d is over the bound of %.1f", round+1, mayBe)
	}
	t.Errorf("in none of %d rounds did the events arrive at their pace", rounds)
}
