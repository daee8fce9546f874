package registry_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"opencode-mesh/hub/registry"
	"opencode-mesh/protocol/api"
	"opencode-mesh/tunnel"
)

// serve answers the hub's calls at a node's end of a tunnel.
func serve(t *testing.T, node *tunnel.Session, h http.HandlerFunc) {
	t.Helper()
	srv := &http.Server{Handler: h}
	var served sync.WaitGroup
	served.Go(func() { _ = srv.Serve(node) })
	t.Cleanup(func() {
		_ = srv.Close()
		served.Wait()
	})
}

var triple = api.Triple{Task: "t1", Attempt: 2, Turn: 3}

func TestCallsGoThroughTheTunnelAndComeBack(t *testing.T) {
	hub, node := pair(t)
	var got []string
	serve(t, node, func(w http.ResponseWriter, r *http.Request) {
		var body struct{ Task string }
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		got = append(got, r.Method+" "+r.URL.Path+" "+body.Task)
		if strings.HasSuffix(r.URL.Path, "reconcile") {
			_ = json.NewEncoder(w).Encode(api.Reconciled{Tasks: []api.Receipt{{Triple: triple, State: api.StateRunning}}})
			return
		}
		w.WriteHeader(http.StatusAccepted)
		_ = json.NewEncoder(w).Encode(api.Receipt{Triple: triple, State: api.StateAccepted})
	})
	c := registry.NewClient(hub)
	defer c.Close()
	ctx := context.Background()
	if rc, err := c.Offer(ctx, api.Offer{Triple: triple}); err != nil || rc.Triple != triple || rc.State != api.StateAccepted {
		t.Errorf("%+v, %v", rc, err)
	}
	if rc, err := c.Withdraw(ctx, api.Withdraw{Triple: triple}); err != nil || rc.State != api.StateAccepted {
		t.Errorf("%+v, %v", rc, err)
	}
	if a, err := c.Reconcile(ctx, api.Reconcile{Tasks: []api.Triple{triple}}); err != nil || len(a.Tasks) != 1 {
		t.Errorf("%+v, %v", a, err)
	}
	if want := "PUT /v1/tasks/t1 t1, DELETE /v1/tasks/t1 t1, POST /v1/reconcile "; strings.Join(got, ", ") != want {
		t.Errorf("calls %q", got)
	}
}

func TestWhatANodeAnswersIsTakenForWhatItIs(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		body   string
		code   api.Code // "" for an error that is not a refusal
	}{
		"a refusal":            {507, `{"error":{"code":"node_full","message":"no room"}}`, api.CodeNodeFull},
		"a page of a proxy":    {502, `<html>`, api.CodeUnavailable},
		"a redirect":           {302, ``, api.CodeInternal},
		"no JSON":              {200, `hello`, ""},
		"more than it may say": {200, `"` + strings.Repeat("x", api.MaxTunnelBody) + `"`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			hub, node := pair(t)
			serve(t, node, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(c.status)
				_, _ = w.Write([]byte(c.body))
			})
			client := registry.NewClient(hub)
			defer client.Close()
			_, err := client.Offer(context.Background(), api.Offer{Triple: triple})
			if c.code == "" {
				if err == nil || api.ErrorCode(err) != api.CodeInternal {
					t.Errorf("got %v", err)
				}
			} else if api.ErrorCode(err) != c.code {
				t.Errorf("got %v, want %s", err, c.code)
			}
		})
	}
}

func TestACallEndsWithItsContextAndWithItsTunnel(t *testing.T) {
	hub, node := pair(t)
	arrived, release := make(chan struct{}, 2), make(chan struct{})
	t.Cleanup(func() { close(release) })
	serve(t, node, func(http.ResponseWriter, *http.Request) {
		arrived <- struct{}{}
		<-release
	})
	c := registry.NewClient(hub)
	defer c.Close()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		_, err := c.Offer(ctx, api.Offer{Triple: triple})
		ended <- err
	}()
	<-arrived
	cancel()
	if err := <-ended; err == nil {
		t.Error("a canceled call succeeded")
	}
	go func() {
		_, err := c.Offer(context.Background(), api.Offer{Triple: triple})
		ended <- err
	}()
	<-arrived
	_ = node.Close()
	if err := <-ended; err == nil {
		t.Error("a call through an ended tunnel succeeded")
	}
}

func TestANodesAnswersTakeABoundedRoom(t *testing.T) {
	hub, node := pair(t)
	held, done := make(chan struct{}, 8), make(chan struct{})
	serve(t, node, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/slow") {
			w.WriteHeader(http.StatusOK)
			// All but the end: what is beyond the window of the stream has been read.
			_, _ = w.Write([]byte(`"` + strings.Repeat("x", api.MaxTunnelBody-2)))
			_ = http.NewResponseController(w).Flush()
			held <- struct{}{}
			<-done
			return
		}
		_, _ = w.Write([]byte(`{}`))
	})
	c := registry.NewClient(hub)
	defer c.Close()
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() { _, _ = c.Offer(ctx, api.Offer{Triple: api.Triple{Task: "slow"}}) })
	}
	for range 4 {
		<-held
	}
	short, stop := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer stop()
	if _, err := c.Offer(short, api.Offer{Triple: triple}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a fifth answer beside four that stall: %v", err)
	}
	cancel()
	close(done)
	all.Wait()
	if _, err := c.Offer(context.Background(), api.Offer{Triple: triple}); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}
