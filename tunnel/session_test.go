package tunnel_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"opencode-mesh/tunnel"
)

func TestHTTPPassesBothWays(t *testing.T) {
	hubSide, nodeSide := pair(t, tunnel.Config{}, tunnel.Config{})
	echo := func(name string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			fmt.Fprintf(w, "%s %s %s %s", name, r.Method, r.URL.Path, b)
		})
	}
	serve(t, nodeSide, echo("node"))
	serve(t, hubSide, echo("hub"))

	if got := get(t, client(t, hubSide), "http://node/a"); got != "node GET /a " {
		t.Errorf("hub to node: %q", got)
	}
	if got := get(t, client(t, nodeSide), "http://hub/b"); got != "hub GET /b " {
		t.Errorf("node to hub: %q", got)
	}

	big := strings.Repeat("0123456789abcdef", 200<<10) // 3.2 MB, several windows
	resp, err := client(t, hubSide).Post("http://node/c", "text/plain", strings.NewReader(big))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "node POST /c "+big {
		t.Errorf("a large body came back as %d bytes, error %v", len(b), err)
	}
}

func TestManyConcurrentRequestsShareOneTunnel(t *testing.T) {
	hubSide, nodeSide := pair(t, tunnel.Config{}, tunnel.Config{})
	serve(t, nodeSide, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		_, _ = w.Write(b)
	}))
	c := client(t, hubSide)
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			want := strings.Repeat(string(rune('a'+i%26)), 1000*i)
			resp, err := c.Post("http://node/", "text/plain", strings.NewReader(want))
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			if b, err := io.ReadAll(resp.Body); err != nil || string(b) != want {
				t.Errorf("request %d: %d bytes, %v", i, len(b), err)
			}
		})
	}
	wg.Wait()
}

func TestCancellationReachesTheRequestContextOfTheOtherSide(t *testing.T) {
	hubSide, nodeSide := pair(t, tunnel.Config{}, tunnel.Config{})
	for name, ends := range map[string][2]*tunnel.Session{
		"from hub to node": {hubSide, nodeSide},
		"from node to hub": {nodeSide, hubSide},
	} {
		t.Run(name, func(t *testing.T) {
			started, canceled := make(chan struct{}), make(chan struct{})
			serve(t, ends[1], http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				close(started)
				<-r.Context().Done()
				close(canceled)
			}))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://other/", nil)
			if err != nil {
				t.Fatal(err)
			}
			result := make(chan error, 1)
			go func() {
				resp, err := client(t, ends[0]).Do(req)
				if err == nil {
					resp.Body.Close()
				}
				result <- err
			}()
			receive(t, started, "the request to arrive")
			cancel()
			receive(t, canceled, "the cancellation to arrive")
			if err := receive(t, result, "the client to return"); !errors.Is(err, context.Canceled) {
				t.Errorf("the client got %v", err)
			}
		})
	}
}

func TestLossOfTheTunnelFailsRequestsUnderWay(t *testing.T) {
	hubSide, nodeSide := pair(t, tunnel.Config{}, tunnel.Config{})
	started, canceled := make(chan struct{}), make(chan struct{})
	serve(t, nodeSide, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(started)
		<-r.Context().Done()
		close(canceled)
	}))
	result := make(chan error, 1)
	c := client(t, hubSide)
	go func() {
		resp, err := c.Get("http://node/")
		if err == nil {
			resp.Body.Close()
		}
		result <- err
	}()
	receive(t, started, "the request to arrive")
	_ = nodeSide.CloseWith(tunnel.ReasonLost)
	if err := receive(t, result, "the request to fail"); err == nil {
		t.Error("the request succeeded")
	}
	receive(t, canceled, "the handler to notice")
	wantEnd(t, hubSide, tunnel.ReasonLost)
}

func TestTheOtherSideLearnsTheReason(t *testing.T) {
	for _, tt := range []struct {
		give, want tunnel.Reason
		remote     bool
	}{
		{tunnel.ReasonNone, tunnel.ReasonNone, true},
		{tunnel.ReasonSuperseded, tunnel.ReasonSuperseded, true},
		{tunnel.ReasonRevoked, tunnel.ReasonRevoked, true},
		{tunnel.ReasonShutdown, tunnel.ReasonShutdown, true},
		{tunnel.ReasonProtocol, tunnel.ReasonProtocol, true},
		{tunnel.ReasonStalled, tunnel.ReasonLost, false},
		{tunnel.ReasonLost, tunnel.ReasonLost, false},
	} {
		t.Run(tt.give.String(), func(t *testing.T) {
			hubSide, nodeSide := pair(t, tunnel.Config{}, tunnel.Config{})
			if nodeSide.Err() != nil {
				t.Errorf("a live session has the error %v", nodeSide.Err())
			}
			if err := hubSide.CloseWith(tt.give); err != nil {
				t.Fatal(err)
			}
			if e := wantEnd(t, nodeSide, tt.want); e.Remote != tt.remote {
				t.Errorf("Remote is %v", e.Remote)
			}
			if e := wantEnd(t, hubSide, tt.give); e.Remote {
				t.Error("the closing side blames the other")
			}
			receive(t, nodeSide.Context().Done(), "the session's context to end")
			if !errors.Is(nodeSide.Err(), net.ErrClosed) {
				t.Error("the error does not match net.ErrClosed")
			}
			if _, err := nodeSide.Accept(); !errors.Is(err, net.ErrClosed) {
				t.Errorf("Accept gives %v", err)
			}
			if _, err := nodeSide.Open(t.Context(), tunnel.KindAPI); !tunnel.IsReason(err, tt.want) {
				t.Errorf("Open gives %v", err)
			}
		})
	}
}

func TestEndsReadLikeSentences(t *testing.T) {
	for err, want := range map[error]string{
		&tunnel.CloseError{Reason: tunnel.ReasonShutdown, Remote: true}:                 "tunnel ended by the other side: shutdown",
		&tunnel.CloseError{Reason: tunnel.ReasonLost, Err: errors.New("read: timeout")}: "tunnel ended: lost: read: timeout",
		&tunnel.CloseError{Reason: 99}:                                                  "tunnel ended: unknown",
		&tunnel.ResetError{Code: tunnel.ResetNoService, Remote: true}:                   "stream reset by the other side: no such service",
		&tunnel.ResetError{Code: tunnel.ResetCanceled}:                                  "stream reset: canceled",
		&tunnel.ResetError{Code: 77, Remote: true}:                                      "stream reset by the other side: code 77",
	} {
		if err.Error() != want {
			t.Errorf("got %q, want %q", err, want)
		}
	}
	seen := map[string]bool{}
	for code := tunnel.ResetCanceled; code <= tunnel.ResetBusy; code++ {
		text := code.String()
		if seen[text] || strings.HasPrefix(text, "code ") {
			t.Errorf("code %d reads %q", uint32(code), text)
		}
		seen[text] = true
	}
}

func TestTheFirstReasonCounts(t *testing.T) {
	hubSide, nodeSide := pair(t, tunnel.Config{}, tunnel.Config{})
	_ = hubSide.CloseWith(tunnel.ReasonSuperseded)
	_ = hubSide.CloseWith(tunnel.ReasonShutdown)
	wantEnd(t, hubSide, tunnel.ReasonSuperseded)
	wantEnd(t, nodeSide, tunnel.ReasonSuperseded)
	_ = nodeSide.CloseWith(tunnel.ReasonRevoked)
	wantEnd(t, nodeSide, tunnel.ReasonSuperseded)
}

func TestCloseIsIdempotentAndLeavesNoGoroutine(t *testing.T) {
	before := goleak.IgnoreCurrent()
	h := newHub(t, tunnel.Config{}, nil)
	afterHub := goleak.IgnoreCurrent()
	nodeSide := dial(t, h.URL, tunnel.Config{ServiceDial: func(context.Context, string) (net.Conn, error) {
		a, b := net.Pipe()
		t.Cleanup(func() { _ = b.Close() })
		return a, nil
	}})
	hubSide := h.next(t)

	// Something of everything that has goroutines: an idle api stream, a service
	// pipe, a stream without a preamble, one that nobody accepts, one that lingers.
	accepted := make(chan net.Conn, 1)
	go func() {
		c, _ := nodeSide.Accept()
		accepted <- c
	}()
	if _, err := hubSide.Open(within(t), tunnel.KindAPI); err != nil {
		t.Fatal(err)
	}
	_ = receive(t, accepted, "the stream").Close()
	if _, err := hubSide.Open(within(t), tunnel.KindAPI); err != nil {
		t.Fatal(err)
	}
	if _, err := hubSide.Open(within(t), tunnel.Service("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := tunnel.OpenBare(hubSide); err != nil {
		t.Fatal(err)
	}

	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { _ = nodeSide.Close() })
		wg.Go(func() { _ = hubSide.Close() })
	}
	wg.Wait()
	if err := errors.Join(nodeSide.Close(), hubSide.Close()); err != nil {
		t.Errorf("a further Close gives %v", err)
	}
	goleak.VerifyNone(t, afterHub)
	h.Server.Close()
	goleak.VerifyNone(t, before)
}

func TestGoAwayLetsOpenStreamsFinish(t *testing.T) {
	hubSide, nodeSide := pair(t, tunnel.Config{}, tunnel.Config{})
	release := make(chan struct{})
	started := make(chan struct{})
	serve(t, nodeSide, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(started)
		<-release
		_, _ = io.WriteString(w, "finished")
	}))
	serve(t, hubSide, http.NotFoundHandler())
	c := client(t, hubSide)
	body := make(chan string, 1)
	go func() { body <- get(t, c, "http://node/") }()
	receive(t, started, "the request")

	if err := errors.Join(hubSide.GoAway(), hubSide.GoAway()); err != nil {
		t.Fatal(err)
	}
	receive(t, nodeSide.Draining(), "the node to hear of it")
	receive(t, hubSide.Draining(), "the hub to drain")
	for name, s := range map[string]*tunnel.Session{"hub": hubSide, "node": nodeSide} {
		if _, err := s.Open(t.Context(), tunnel.KindAPI); !errors.Is(err, tunnel.ErrGoingAway) {
			t.Errorf("the %s opens another stream: %v", name, err)
		}
	}
	// One that was on its way when the hub went.
	late, err := tunnel.OpenAny(nodeSide, tunnel.KindAPI)
	if err != nil {
		t.Fatal(err)
	}
	wantReset(t, late, tunnel.ResetGoingAway)

	close(release)
	if got := receive(t, body, "the answer"); got != "finished" {
		t.Errorf("the request under way got %q", got)
	}
	if hubSide.Err() != nil || nodeSide.Err() != nil {
		t.Error("the session ended by itself")
	}
}

func TestClosingTheListenerKeepsTheSession(t *testing.T) {
	hubSide, nodeSide := pair(t, tunnel.Config{}, tunnel.Config{})
	release, started := make(chan struct{}), make(chan struct{})
	srv := &http.Server{ReadHeaderTimeout: patience, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(started)
		<-release
		_, _ = io.WriteString(w, "finished")
	})}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(nodeSide.Listener()) }()
	body := make(chan string, 1)
	go func() { body <- get(t, client(t, hubSide), "http://node/") }()
	receive(t, started, "the request")

	stopped := make(chan error, 1)
	go func() { stopped <- srv.Shutdown(within(t)) }()
	if err := receive(t, served, "Serve to return"); !errors.Is(err, http.ErrServerClosed) {
		t.Errorf("Serve gives %v", err)
	}
	st, err := hubSide.Open(within(t), tunnel.KindAPI)
	if err != nil {
		t.Fatal(err)
	}
	wantReset(t, st, tunnel.ResetGoingAway)
	close(release)
	if got := receive(t, body, "the answer"); got != "finished" {
		t.Errorf("the request under way got %q", got)
	}
	if err := receive(t, stopped, "Shutdown to return"); err != nil {
		t.Errorf("Shutdown gives %v", err)
	}
}

func TestOneServerServesManyTunnels(t *testing.T) {
	in := tunnel.NewInbox()
	h := newHub(t, tunnel.Config{Inbox: in}, nil)
	type key struct{}
	srv := &http.Server{
		ReadHeaderTimeout: patience,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, key{}, c.(*tunnel.Stream).Session())
		},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, r.Context().Value(key{}).(*tunnel.Session).RemoteAddr())
		}),
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(in) }()
	var nodes []*tunnel.Session
	for range 3 {
		n := dial(t, h.URL, tunnel.Config{})
		h.next(t)
		if got := get(t, client(t, n), "http://hub/"); got != n.Addr().String() {
			t.Errorf("the node at %v is taken for %s", n.Addr(), got)
		}
		nodes = append(nodes, n)
	}
	if err := srv.Close(); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, served, "Serve to return"); !errors.Is(err, http.ErrServerClosed) {
		t.Errorf("Serve gives %v", err)
	}
	if _, err := in.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept gives %v", err)
	}
	st, err := nodes[0].Open(within(t), tunnel.KindAPI)
	if err != nil {
		t.Fatal(err)
	}
	wantReset(t, st, tunnel.ResetGoingAway)
	if nodes[0].Err() != nil {
		t.Errorf("the session ended: %v", nodes[0].Err())
	}
	if in.Addr().Network() != "tunnel" {
		t.Errorf("the address is %v", in.Addr())
	}
}

func TestOneStalledReaderNeitherDelaysOthersNorGrows(t *testing.T) {
	hubSide, nodeSide := pair(t, tunnel.Config{}, tunnel.Config{})
	endless := bytes.Repeat([]byte("x"), 32<<10)
	serve(t, nodeSide, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/small" {
			_, _ = io.WriteString(w, "small")
			return
		}
		for r.Context().Err() == nil {
			if _, err := w.Write(endless); err != nil {
				return
			}
		}
	}))
	c := client(t, hubSide)
	before := heap()
	const stalled = 16
	for range stalled {
		resp, err := c.Get("http://node/endless")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if _, err := io.CopyN(io.Discard, resp.Body, 1<<10); err != nil {
			t.Fatal(err)
		}
	}
	// The others get through however long the stalled ones stand still, and a
	// second large transfer works.
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if got := get(t, c, "http://node/small"); got != "small" {
				t.Errorf("a small request got %q", got)
			}
		})
	}
	resp, err := c.Get("http://node/endless")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(io.Discard, resp.Body, 8<<20); err != nil {
		t.Errorf("the second transfer: %v", err)
	}
	resp.Body.Close()
	wg.Wait()
	// Both ends live in this process; what a stalled stream may hold is its window
	// here and a frame or two there.
	if grown := heap() - before; grown > stalled*2*tunnel.DefaultWindow {
		t.Errorf("%d stalled streams hold %d KiB", stalled, grown>>10)
	}
}

func TestMoreStreamsThanAllowedAreReset(t *testing.T) {
	const limit = 3
	check := func(t *testing.T, from, to *tunnel.Session, limit int) {
		accepted := make(chan net.Conn, limit)
		go func() {
			for range limit {
				c, err := to.Accept()
				if err != nil {
					return
				}
				accepted <- c
			}
		}()
		var open []net.Conn
		for range limit {
			c, err := from.Open(within(t), tunnel.KindAPI)
			if err != nil {
				t.Fatal(err)
			}
			open = append(open, c)
			receive(t, accepted, "the stream")
		}
		over, err := from.Open(within(t), tunnel.KindAPI)
		if err != nil {
			t.Fatal(err)
		}
		wantReset(t, over, tunnel.ResetCanceled)
		// One that ends makes room for another.
		_ = open[0].Close()
		await(t, "room for another stream", func() bool { return to.Stats().Streams < limit })
		go func() {
			c, _ := to.Accept()
			accepted <- c
		}()
		if _, err := from.Open(within(t), tunnel.KindAPI); err != nil {
			t.Fatal(err)
		}
		receive(t, accepted, "the stream that has room again")
	}
	t.Run("at the node, as configured", func(t *testing.T) {
		hubSide, nodeSide := pair(t, tunnel.Config{}, tunnel.Config{MaxIncomingStreams: limit})
		check(t, hubSide, nodeSide, limit)
	})
	t.Run("at the hub, 64 by default", func(t *testing.T) {
		hubSide, nodeSide := pair(t, tunnel.Config{}, tunnel.Config{})
		check(t, nodeSide, hubSide, tunnel.DefaultHubStreams)
	})
}

func TestStatsTellWhatPassed(t *testing.T) {
	hubSide, nodeSide := pair(t, tunnel.Config{}, tunnel.Config{})
	serve(t, nodeSide, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(make([]byte, 100<<10))
	}))
	before := time.Now()
	get(t, client(t, hubSide), "http://node/")
	h, n := hubSide.Stats(), nodeSide.Stats()
	if h.BytesIn < 100<<10 || n.BytesOut < 100<<10 {
		t.Errorf("the hub received %d, the node sent %d", h.BytesIn, n.BytesOut)
	}
	if h.LastReceived.Before(before) {
		t.Errorf("last received %v, before the request", h.LastReceived)
	}
	if h.Streams != 1 {
		t.Errorf("%d streams are open, not the one that is kept alive", h.Streams)
	}
	await(t, "a measured round trip", func() bool { return hubSide.Stats().RTT > 0 })
	if hubSide.RemoteAddr().String() != nodeSide.Addr().String() {
		t.Errorf("the hub sees %v, the node is %v", hubSide.RemoteAddr(), nodeSide.Addr())
	}
}

func TestWindowGrowsOnlyAsFarAsConfigured(t *testing.T) {
	if err := (tunnel.Config{Window: tunnel.MinWindow - 1}).Validate(); err == nil {
		t.Error("a window below the minimum passes")
	}
	if err := (tunnel.Config{Window: tunnel.MaxWindow + 1}).Validate(); err == nil {
		t.Error("a window above the maximum passes")
	}
	for name, c := range map[string]tunnel.Config{
		"heartbeat":     {Heartbeat: -1},
		"write timeout": {WriteTimeout: -1},
		"streams":       {MaxIncomingStreams: -1},
	} {
		if err := c.Validate(); err == nil {
			t.Errorf("a negative %s passes", name)
		}
	}
	if err := (tunnel.Config{}).Validate(); err != nil {
		t.Errorf("the zero value gives %v", err)
	}
	// A writer gets no further than one window while nobody reads.
	hubSide, nodeSide := pair(t, tunnel.Config{}, tunnel.Config{Window: tunnel.MinWindow})
	go func() { _, _ = nodeSide.Accept() }()
	st, err := hubSide.Open(within(t), tunnel.KindAPI)
	if err != nil {
		t.Fatal(err)
	}
	if err := st.SetWriteDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	n, err := st.Write(make([]byte, 4*tunnel.MinWindow))
	var ne net.Error
	if !errors.As(err, &ne) || !ne.Timeout() {
		t.Errorf("the write gives %v", err)
	}
	if n > tunnel.MinWindow {
		t.Errorf("%d bytes went out against a window of %d", n, tunnel.MinWindow)
	}
}
