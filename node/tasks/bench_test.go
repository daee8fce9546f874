package tasks_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"opencode-mesh/node/agent"
	"opencode-mesh/node/tasks"
	"opencode-mesh/protocol/api"
)

// noop is an agent that answers at once.
type noop struct{}

func (noop) Kind() string                               { return "noop" }
func (noop) HasSessions() bool                          { return true }
func (noop) Start(context.Context) error                { return nil }
func (noop) Stop(context.Context) error                 { return nil }
func (noop) Status(context.Context) (s api.AgentStatus) { return s }
func (noop) Run(context.Context, agent.Turn, agent.Host) (api.Outcome, error) {
	return api.Outcome{State: api.StateDone, Summary: "ok"}, nil
}

// instantHub acknowledges every result at once.
type instantHub struct{ waiting sync.Map }

// Call implements tasks.Hub.
func (h *instantHub) Call(_ context.Context, _, path string, in, _ any) error {
	if _, err := json.Marshal(in); err != nil {
		return err
	}
	if c, ok := h.waiting.LoadAndDelete(path); ok {
		close(c.(chan struct{}))
	}
	return nil
}

// BenchmarkOfferToResult measures a task's way through the node, both commits on
// disk, without a network.
func BenchmarkOfferToResult(b *testing.B) {
	for _, inFlight := range []int{1, 64} {
		b.Run(fmt.Sprintf("inflight=%d", inFlight), func(b *testing.B) {
			r, err := tasks.Open(tasks.Config{
				Path: filepath.Join(b.TempDir(), "journal.db"), HubID: hubID, Agent: noop{}, MaxParallel: 64,
			})
			if err != nil {
				b.Fatal(err)
			}
			defer r.Stop(context.Background())
			id, epoch, err := r.Propose()
			if err != nil {
				b.Fatal(err)
			}
			hub := &instantHub{}
			r.Connect(hub)
			r.Start()
			mux := newMux(r)
			var n atomic.Int64
			var wg sync.WaitGroup
			b.ResetTimer()
			start := time.Now()
			for w := range inFlight {
				wg.Go(func() {
					for {
						i := n.Add(1)
						if i > int64(b.N) {
							return
						}
						task := fmt.Sprintf("bench-%08d", i)
						ended := make(chan struct{})
						hub.waiting.Store("/v1/tasks/"+task+"/result", ended)
						body, err := json.Marshal(api.Offer{
							Triple: api.Triple{Task: task, Attempt: 1, Turn: 1}, HubID: hubID, JournalID: id, Epoch: epoch,
							Hash: "0123456789abcdef", Seq: uint64(i), Kind: api.TurnTask, CreatedMS: i, Mode: "session",
							Controller: api.Party{ID: fmt.Sprint("controller-", w), Name: "bench"}, Text: text,
						})
						if err != nil {
							b.Error(err)
							return
						}
						rec := httptest.NewRecorder()
						mux.ServeHTTP(rec, httptest.NewRequest(http.MethodPut, "/v1/tasks/"+task, bytes.NewReader(body)))
						if rec.Code != http.StatusAccepted {
							b.Errorf("offer: %d %s", rec.Code, rec.Body)
							return
						}
						<-ended
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/time.Since(start).Seconds(), "tasks/s")
		})
	}
}

// text is a task of 2 KB.
var text = string(bytes.Repeat([]byte("do something useful, please. "), 70))
