package proxy_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/tunnel"
)

// TestEventsArePassedOnOneByOneAndOutliveTheWriteTimeout sends the next event only after the one before has
// arrived: if anything on the way held one back, it would stand still. The stream
// lives several times as long as the hub's server lets a write take.
func TestEventsArePassedOnOneByOneAndOutliveTheWriteTimeout(t *testing.T) {
	const events, pause, writes = 20, 65 * time.Millisecond, 400 * time.Millisecond
	for _, typ := range []string{"text/event-stream", "text/event-stream; charset=utf-8", "application/octet-stream", "text/event-stream; over=h2"} {
		t.Run(typ, func(t *testing.T) {
			arrived := make(chan struct{}, 1)
			lastID := make(chan string, 1)
			b := newBed(t, func(b *bed) { b.writes, b.http2 = writes, strings.HasSuffix(typ, "h2") }, web(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				lastID <- r.Header.Get("Last-Event-ID")
				w.Header().Set("Content-Type", typ)
				for i := range events {
					fmt.Fprintf(w, "data: %d\n\n", i)
					w.(http.Flusher).Flush()
					select {
					case <-arrived:
					case <-r.Context().Done():
						return
					}
					time.Sleep(pause)
				}
			})))
			start := time.Now()
			resp := b.get("", "Last-Event-ID", "41")
			if id := <-lastID; id != "41" {
				t.Errorf("Last-Event-ID %q", id)
			}
			if says := resp.Header.Get("X-Accel-Buffering"); (says == "no") != strings.HasPrefix(typ, "text/event-stream") {
				t.Errorf("X-Accel-Buffering %q", says)
			}
			if b.http2 != (resp.ProtoMajor == 2) {
				t.Errorf("over %s", resp.Proto)
			}
			r := bufio.NewReader(resp.Body)
			for i := range events {
				line, err := r.ReadString('\n')
				if err != nil || line != fmt.Sprintf("data: %d\n", i) {
					t.Fatalf("after %s: %q, %v", time.Since(start), line, err)
				}
				_, _ = r.ReadString('\n')
				arrived <- struct{}{}
			}
			if _, err := r.ReadByte(); err != io.EOF {
				t.Errorf("it ended with %v", err)
			}
			if took := time.Since(start); took < 3*writes {
				t.Errorf("it took only %s", took)
			}
		})
	}
}

func TestAServiceMayAnswerWhileTheRequestIsStillSent(t *testing.T) {
	t.Run("HTTP/1.1", func(t *testing.T) { bothWays(t, false) })
	t.Run("HTTP/2", func(t *testing.T) { bothWays(t, true) })
}

func bothWays(t *testing.T, http2 bool) {
	b := newBed(t, func(b *bed) { b.http2 = http2 }, web(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		in := bufio.NewReader(r.Body)
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				return
			}
			fmt.Fprint(w, strings.ToUpper(line))
			w.(http.Flusher).Flush()
		}
	})))
	body, w := io.Pipe()
	defer w.Close()
	go func() { fmt.Fprint(w, "first\n") }()
	resp := b.do(b.request(http.MethodPost, "", body))
	r := bufio.NewReader(resp.Body)
	for _, word := range []string{"first", "second", "third"} {
		if word != "first" {
			fmt.Fprintln(w, word)
		}
		if line, err := r.ReadString('\n'); err != nil || line != strings.ToUpper(word)+"\n" {
			t.Fatalf("got %q, %v", line, err)
		}
	}
}

func TestABodyMayTakeLongerThanThoseOfTheHub(t *testing.T) {
	const reads = 50 * time.Millisecond
	b := newBed(t, func(b *bed) { b.reads = reads }, web(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		fmt.Fprint(w, string(body), err)
	})))
	body, w := io.Pipe()
	go func() {
		for range 5 {
			fmt.Fprint(w, "x")
			time.Sleep(reads)
		}
		_ = w.Close()
	}()
	if got := text(t, b.do(b.request(http.MethodPost, "", body))); got != "xxxxx<nil>" {
		t.Errorf("the service got %q", got)
	}
}

func TestTrailersAndInformationalAnswersPass(t *testing.T) {
	b := newBed(t, web(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</style.css>")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Link")
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Trailer", "X-Sum")
		fmt.Fprint(w, "answer")
		w.Header().Set("X-Sum", "of "+r.Trailer.Get("X-Up"))
	})))
	req := b.request(http.MethodPut, "", io.MultiReader(strings.NewReader("body")))
	req.Trailer = http.Header{"X-Up": {"sent"}}
	req.Header.Set("Te", "trailers")
	resp := b.do(req)
	if body := text(t, resp); body != "answer" || resp.Trailer.Get("X-Sum") != "of sent" {
		t.Errorf("%q with trailer %v", body, resp.Trailer)
	}
}

func TestABodyThatTheServiceDoesNotWantIsNotSent(t *testing.T) {
	b := newBed(t, httpService(raw(t, func(c net.Conn, r *bufio.Reader) {
		req, err := http.ReadRequest(r)
		if err != nil || req.Header.Get("Expect") != "100-continue" {
			return
		}
		fmt.Fprint(c, "HTTP/1.1 417 Expectation Failed\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")
	})))
	c, err := net.Dial("tcp", strings.TrimPrefix(b.root, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1000\r\n\r\n", webPath)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || resp.StatusCode != http.StatusExpectationFailed || text(t, resp) != "no" {
		t.Errorf("got %v, %v", resp, err)
	}
}

func TestAClientThatGoesAwayEndsTheRequestAtTheService(t *testing.T) {
	ended := make(chan error, 3)
	arrived := make(chan struct{}, 3)
	b := newBed(t, web(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/begun" {
			fmt.Fprint(w, "some")
			w.(http.Flusher).Flush()
		}
		arrived <- struct{}{}
		select {
		case <-r.Context().Done():
			ended <- context.Cause(r.Context())
		case <-time.After(2 * time.Minute):
			ended <- errors.New("nobody told it")
		}
	})))
	for _, path := range []string{"", "begun"} {
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			resp, err := b.hc.Do(b.request(http.MethodGet, path, nil).WithContext(ctx))
			if err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
		}()
		<-arrived
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("%q: %v", path, err)
		}
		<-gone
	}
}

func TestTheLossOfTheTunnelEndsWhatIsUnderWay(t *testing.T) {
	arrived := make(chan struct{}, 3)
	b := newBed(t, tcp(raw(t, upper)), web(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/begun" {
			fmt.Fprint(w, "some")
			w.(http.Flusher).Flush()
		}
		arrived <- struct{}{}
		<-r.Context().Done()
	})))
	answers := make(chan *http.Response, 1)
	go func() {
		resp, err := b.hc.Do(b.request(http.MethodGet, "", nil))
		if err != nil {
			t.Error(err)
		}
		answers <- resp
	}()
	begun := b.get("begun")
	raw, _ := b.rawStream("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	stream := bufio.NewReader(raw)
	<-arrived
	<-arrived
	if line, err := stream.ReadString('\n'); err != nil || !strings.HasPrefix(line, "HTTP/1.1 101") {
		t.Fatalf("%q, %v", line, err)
	}
	_ = b.far.CloseWith(tunnel.ReasonLost)

	resp := <-answers
	defer resp.Body.Close()
	want(t, resp, api.CodeNodeOffline, "alpha")
	if body, err := io.ReadAll(begun.Body); err == nil || string(body) != "some" {
		t.Errorf("an answer that had begun ended with %q, %v", body, err)
	}
	if _, err := io.Copy(io.Discard, stream); err == nil {
		t.Error("a raw stream ended as if it were whole")
	}
	want(t, b.get(""), api.CodeNodeOffline, "alpha")
}

// TestAFrozenTunnelEndsWhatIsUnderWay is jpillora/chisel#445: a connection that is
// still open, over which nothing comes any more.
func TestAFrozenTunnelEndsWhatIsUnderWay(t *testing.T) {
	arrived := make(chan struct{}, 1)
	b := newBed(t, func(b *bed) { b.pulse = 100 * time.Millisecond }, web(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		<-r.Context().Done()
	})))
	answers := make(chan *http.Response, 1)
	go func() {
		resp, err := b.hc.Do(b.request(http.MethodGet, "", nil))
		if err != nil {
			t.Error(err)
		}
		answers <- resp
	}()
	<-arrived
	b.freeze()
	resp := <-answers
	defer resp.Body.Close()
	want(t, resp, api.CodeNodeOffline, "alpha")
}

func TestAServiceThatCannotBeUsedIsNamed(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	for name, c := range map[string]struct {
		setting setting
		code    api.Code
		words   []string
	}{
		"it does not run":   {httpService(closed.Addr().String()), api.CodeServiceDown, []string{"web of node alpha", "does not run"}},
		"it closes at once": {httpService(raw(t, func(net.Conn, *bufio.Reader) {})), api.CodeServiceDown, []string{"web of node alpha"}},
		"it answers what is not HTTP": {httpService(raw(t, func(c net.Conn, r *bufio.Reader) {
			_, _ = r.ReadString('\n')
			fmt.Fprint(c, "220 ready\r\n\r\n")
		})), api.CodeServiceDown, []string{"web of node alpha", "HTTP"}},
		"it takes no connection in time": {func(b *bed) {
			httpService("127.0.0.1:1")(b)
			b.failed = context.DeadlineExceeded
		}, api.CodeTimeout, []string{"web of node alpha", "10s"}},
		"the node does not know it": {offers(api.Service{Name: "web", Kind: api.ServiceHTTP}, ""), api.CodeNotFound, []string{"alpha offers web no longer"}},
		"it was never offered":      {offers(api.Service{Name: "other", Kind: api.ServiceHTTP}, ""), api.CodeNotFound, []string{"it offers: other"}},
		"nothing is offered":        {func(*bed) {}, api.CodeNotFound, []string{"it offers none"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, c.setting)
			if b.addrs["web"] == "" {
				delete(b.addrs, "web")
			}
			want(t, b.get(""), c.code, c.words...)
		})
	}
}

func TestTheAllowListOfANodeHoldsForServices(t *testing.T) {
	for name, c := range map[string]struct {
		allow []string
		let   bool
	}{
		"nobody is named":   {nil, true},
		"the caller's name": {[]string{"other", "desk"}, true},
		"the caller's id":   {[]string{"id_desk"}, true},
		"somebody else":     {[]string{"other"}, false},
		"an empty name":     {[]string{""}, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, web(http.HandlerFunc(echo)), tcp(raw(t, upper)), func(b *bed) { b.hello.AcceptFrom = c.allow })
			_, _, stream := b.upgrade(dbPath, api.UpgradeStream, "")
			resp := b.get("")
			if c.let {
				if resp.StatusCode != http.StatusOK || stream.StatusCode != http.StatusSwitchingProtocols {
					t.Errorf("got %d and %d", resp.StatusCode, stream.StatusCode)
				}
				return
			}
			want(t, resp, api.CodeRefused, "alpha", "desk")
			want(t, stream, api.CodeRefused, "alpha", "desk")
		})
	}
}

func TestRequestsUnderWayToOneNodeAreBounded(t *testing.T) {
	arrived := make(chan struct{}, api.MaxRequestsPerNode)
	release := make(chan struct{})
	b := newBed(t, web(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})))
	done := make(chan error, api.MaxRequestsPerNode)
	for range api.MaxRequestsPerNode {
		go func() {
			resp, err := b.hc.Do(b.request(http.MethodGet, "", nil))
			if err == nil {
				_ = resp.Body.Close()
			}
			done <- err
		}()
	}
	for range api.MaxRequestsPerNode {
		<-arrived
	}
	resp := b.get("")
	if resp.Header.Get("Retry-After") != "1" {
		t.Errorf("Retry-After %q", resp.Header.Get("Retry-After"))
	}
	want(t, resp, api.CodeUnavailable, "alpha")
	close(release)
	for range api.MaxRequestsPerNode {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if resp := b.get(""); resp.StatusCode != http.StatusOK {
		t.Errorf("afterwards: %d", resp.StatusCode)
	}
}

// TestAStalledReaderDelaysNobody is remotedialer#57 and yamux#142: one reader stops
// after the first KiB of an endless answer.
func TestAStalledReaderDelaysNobodyAndHoldsAWindowAtMost(t *testing.T) {
	block := bytes.Repeat([]byte("x"), 64<<10)
	sent := make(chan int, 1<<16)
	b := newBed(t, web(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/endless":
			for {
				n, err := w.Write(block)
				if err != nil {
					return
				}
				sent <- n
			}
		case "/large":
			for range 256 {
				_, _ = w.Write(block)
			}
		default:
			fmt.Fprint(w, "small")
		}
	})))
	// A connection with a small receive buffer of its own, so that what waits waits in
	// the mesh.
	c, err := net.Dial("tcp", strings.TrimPrefix(b.root, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.(*net.TCPConn).SetReadBuffer(4 << 10)
	fmt.Fprintf(c, "GET %sendless HTTP/1.1\r\nHost: x\r\n\r\n", webPath)
	if _, err := io.ReadFull(c, make([]byte, 1<<10)); err != nil {
		t.Fatal(err)
	}
	total, quiet := 0, false
	for !quiet { // until the service cannot write any more
		select {
		case n := <-sent:
			total += n
		case <-time.After(time.Second):
			quiet = true
		}
	}
	t.Logf("a stalled reader lets its service write %d KiB", total>>10)
	// A window, and what the sockets at both ends of the hub and of the node hold.
	if limit := 32 << 20; total > limit {
		t.Errorf("the service could write %d MiB", total>>20)
	}
	done := make(chan error, 50)
	for range 50 {
		go func() {
			resp, err := b.hc.Do(b.request(http.MethodGet, "small", nil))
			if err == nil {
				_, err = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
			done <- err
		}()
	}
	for range 50 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if n, err := io.Copy(io.Discard, b.get("large").Body); err != nil || n != int64(256*len(block)) {
		t.Errorf("a second large transfer: %d bytes, %v", n, err)
	}
}
