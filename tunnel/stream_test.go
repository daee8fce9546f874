package tunnel_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"opencode-mesh/tunnel"
)

// streams is both ends of one api stream that the hub opened.
func streams(t *testing.T) (opener, acceptor *tunnel.Stream) {
	t.Helper()
	hubSide, nodeSide := pair(t, tunnel.Config{}, tunnel.Config{})
	return streamOf(t, hubSide, nodeSide)
}

func streamOf(t *testing.T, from, to *tunnel.Session) (opener, acceptor *tunnel.Stream) {
	t.Helper()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, _ := to.Accept()
		accepted <- c
	}()
	c, err := from.Open(within(t), tunnel.KindAPI)
	if err != nil {
		t.Fatal(err)
	}
	a := receive(t, accepted, "the stream to be accepted")
	deadline(t, c)
	deadline(t, a)
	return c.(*tunnel.Stream), a.(*tunnel.Stream)
}

func TestAStreamKnowsItsKindAndSession(t *testing.T) {
	hubSide, nodeSide := pair(t, tunnel.Config{}, tunnel.Config{})
	opener, acceptor := streamOf(t, hubSide, nodeSide)
	if opener.Session() != hubSide || acceptor.Session() != nodeSide {
		t.Error("a stream names another session")
	}
	if opener.Kind() != tunnel.KindAPI || acceptor.Kind() != tunnel.KindAPI {
		t.Error("a stream names another kind")
	}
	if acceptor.RemoteAddr().String() != hubSide.Addr().String() || opener.LocalAddr().String() != hubSide.Addr().String() {
		t.Error("a stream has not the addresses of its tunnel")
	}
}

func TestHalfCloseLeavesTheOtherDirectionOpen(t *testing.T) {
	opener, acceptor := streams(t)
	if _, err := io.WriteString(opener, "question"); err != nil {
		t.Fatal(err)
	}
	if err := opener.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(acceptor); err != nil || string(b) != "question" {
		t.Errorf("the acceptor read %q, %v", b, err)
	}
	if _, err := io.WriteString(acceptor, "answer"); err != nil {
		t.Fatal(err)
	}
	if err := acceptor.Close(); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(opener); err != nil || string(b) != "answer" {
		t.Errorf("the opener read %q, %v", b, err)
	}
	if _, err := opener.Write([]byte("more")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("writing after CloseWrite gives %v", err)
	}
	if err := opener.Close(); err != nil {
		t.Errorf("closing a finished stream gives %v", err)
	}
	await(t, "both tables to be empty", func() bool {
		return opener.Session().Stats().Streams == 0 && acceptor.Session().Stats().Streams == 0
	})
}

func TestTheOpenersCloseIsAResetUnlessBothDirectionsEnded(t *testing.T) {
	for name, prepare := range map[string]func(opener, acceptor *tunnel.Stream) error{
		"nothing ended":        func(_, _ *tunnel.Stream) error { return nil },
		"only its own ended":   func(opener, _ *tunnel.Stream) error { return opener.CloseWrite() },
		"only the other ended": func(_, acceptor *tunnel.Stream) error { return acceptor.CloseWrite() },
		"the end was not read": func(opener, acceptor *tunnel.Stream) error {
			_, err := acceptor.Write([]byte("unread"))
			return errors.Join(err, acceptor.CloseWrite())
		},
	} {
		t.Run(name, func(t *testing.T) {
			opener, acceptor := streams(t)
			if err := prepare(opener, acceptor); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(opener.Close(), opener.Close()); err != nil {
				t.Fatal(err)
			}
			// A reset after a FIN does not show to the reader, but the stream is gone.
			await(t, "both tables to be empty", func() bool {
				return opener.Session().Stats().Streams == 0 && acceptor.Session().Stats().Streams == 0
			})
			if name == "nothing ended" {
				wantReset(t, acceptor, tunnel.ResetCanceled)
				if _, err := acceptor.Write([]byte("x")); err == nil {
					t.Error("writing after a reset succeeds")
				}
			}
			if _, err := opener.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
				t.Errorf("reading after Close gives %v", err)
			}
			if _, err := opener.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
				t.Errorf("writing after Close gives %v", err)
			}
			if err := opener.SetDeadline(time.Time{}); !errors.Is(err, net.ErrClosed) {
				t.Errorf("a deadline after Close gives %v", err)
			}
		})
	}
}

func TestResetCarriesItsCode(t *testing.T) {
	opener, acceptor := streams(t)
	if err := opener.Reset(tunnel.ResetBusy); err != nil {
		t.Fatal(err)
	}
	wantReset(t, acceptor, tunnel.ResetBusy)
}

func TestTheAcceptorsCloseDeliversEverything(t *testing.T) {
	hubSide, nodeSide := pair(t, tunnel.Config{}, tunnel.Config{})
	body := bytes.Repeat([]byte("0123456789"), 20<<10) // below one window
	closed := make(chan struct{}, 1)
	srv := &http.Server{
		ReadHeaderTimeout: patience,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/marker" {
				return
			}
			w.Header().Set("Connection", "close") // the server closes the stream behind the answer
			_, _ = w.Write(body)
		}),
		ConnState: func(_ net.Conn, s http.ConnState) {
			if s == http.StateClosed {
				closed <- struct{}{}
			}
		},
	}
	served := make(chan struct{})
	go func() { defer close(served); _ = srv.Serve(nodeSide.Listener()) }()
	t.Cleanup(func() { _ = srv.Close(); <-served })

	c, err := hubSide.Open(within(t), tunnel.KindAPI)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	deadline(t, c)
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: node\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	// Before anything is read here, all that the server sent has arrived: the
	// answer to a later request comes behind it.
	receive(t, closed, "the server to close its end")
	get(t, client(t, hubSide), "http://node/marker")
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(resp.Body); err != nil || !bytes.Equal(b, body) {
		t.Errorf("read %d bytes of %d, %v", len(b), len(body), err)
	}
}

func TestTheAcceptorsCloseInterruptsItsReader(t *testing.T) {
	_, acceptor := streams(t)
	result := make(chan error, 1)
	reading := make(chan struct{})
	go func() {
		close(reading)
		_, err := acceptor.Read(make([]byte, 1))
		result <- err
	}()
	<-reading
	if err := acceptor.Close(); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, result, "the reader to return"); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the reader got %v", err)
	}
}

func TestAPeerThatIgnoresTheAcceptorsCloseIsReset(t *testing.T) {
	opener, acceptor := streams(t)
	if err := acceptor.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := opener.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Fatalf("the opener reads %v", err)
	}
	// It may finish what it is saying, but not talk for ever.
	chunk := make([]byte, 32<<10)
	sent := 0
	for {
		n, err := opener.Write(chunk)
		sent += n
		if reset, ok := errors.AsType[*tunnel.ResetError](err); ok && reset.Remote {
			break
		}
		if err != nil {
			t.Fatalf("after %d bytes: %v", sent, err)
		}
		if sent > 4*tunnel.DefaultWindow {
			t.Fatalf("%d bytes went into a closed stream", sent)
		}
	}
	if sent < tunnel.LingerBytes/2 {
		t.Errorf("reset after %d bytes already", sent)
	}
}

func TestDeadlinesEndOneReadAndNotTheStream(t *testing.T) {
	opener, acceptor := streams(t)
	if err := acceptor.SetReadDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	_, err := acceptor.Read(make([]byte, 1))
	var ne net.Error
	if !errors.As(err, &ne) || !ne.Timeout() {
		t.Fatalf("the read gives %v", err)
	}
	deadline(t, acceptor)
	if _, err := opener.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(acceptor, make([]byte, 1)); err != nil {
		t.Errorf("the next read gives %v", err)
	}
}

func TestOpenRefusesKindsThatCannotBeWritten(t *testing.T) {
	hubSide, _ := pair(t, tunnel.Config{}, tunnel.Config{})
	for _, k := range []tunnel.Kind{
		"", "goaway", "apis", "service/", "service/a b", "service/ä", "service/a/b",
		tunnel.Service(strings.Repeat("x", 65)),
	} {
		if _, err := hubSide.Open(t.Context(), k); !errors.Is(err, tunnel.ErrBadKind) {
			t.Errorf("kind %q gives %v", k, err)
		}
	}
}

func TestIncomingStreamsAreRefusedWithTheRightCode(t *testing.T) {
	const short, long = 50 * time.Millisecond, patience
	for _, tt := range []struct {
		name  string
		limit time.Duration
		open  func(hubSide *tunnel.Session) (net.Conn, error)
		want  tunnel.ResetCode
	}{
		{"a kind from the future", long, func(s *tunnel.Session) (net.Conn, error) { return tunnel.OpenAny(s, "teleport") }, tunnel.ResetUnknownKind},
		{"a service while there are none", long, func(s *tunnel.Session) (net.Conn, error) { return s.Open(context.Background(), tunnel.Service("x")) }, tunnel.ResetNoService},
		{"no preamble in time", short, tunnel.OpenBare, tunnel.ResetBadPreamble},
		{"another version", long, func(s *tunnel.Session) (net.Conn, error) {
			c, err := tunnel.OpenBare(s)
			if err == nil {
				_, err = c.Write([]byte{2, 3, 'a', 'p', 'i'})
			}
			return c, err
		}, tunnel.ResetBadPreamble},
		{"nobody in Accept", short, func(s *tunnel.Session) (net.Conn, error) { return s.Open(context.Background(), tunnel.KindAPI) }, tunnel.ResetBusy},
	} {
		t.Run(tt.name, func(t *testing.T) {
			hubSide, nodeSide := pair(t, tunnel.Config{}, tunnel.Config{PreambleTimeout: tt.limit})
			c, err := tt.open(hubSide)
			if err != nil {
				t.Fatal(err)
			}
			if _, ours := c.(*tunnel.Stream); ours {
				wantReset(t, c, tt.want)
			} else {
				deadline(t, c)
				if _, err := c.Read(make([]byte, 1)); err == nil || !strings.Contains(err.Error(), "reset by remote") {
					t.Errorf("the stream gives %v", err)
				}
			}
			if nodeSide.Err() != nil {
				t.Errorf("the session ended: %v", nodeSide.Err())
			}
		})
	}
}

func TestASlowPreambleHoldsUpNoOtherStream(t *testing.T) {
	hubSide, nodeSide := pair(t, tunnel.Config{}, tunnel.Config{})
	for range 8 {
		if _, err := tunnel.OpenBare(hubSide); err != nil {
			t.Fatal(err)
		}
	}
	streamOf(t, hubSide, nodeSide)
}

func TestOpenEndsWithItsContext(t *testing.T) {
	h := newHub(t, tunnel.Config{}, nil)
	f, addr := newFreezer(t, h.URL)
	nodeSide := dial(t, addr, tunnel.Config{})
	hubSide := h.next(t)
	f.freeze()
	// Nothing is answered any more, so Open waits once the backlog is full.
	ctx, cancel := context.WithCancel(t.Context())
	opened := make(chan error, 1)
	go func() {
		for {
			if _, err := hubSide.Open(ctx, tunnel.KindAPI); err != nil {
				opened <- err
				return
			}
		}
	}()
	await(t, "a full backlog", func() bool { return hubSide.Stats().Streams >= 256 })
	cancel()
	if err := receive(t, opened, "Open to return"); !errors.Is(err, context.Canceled) {
		t.Errorf("Open gives %v", err)
	}
	f.thaw()
	_ = nodeSide.Close()
}

func TestKindsNameTheirService(t *testing.T) {
	if name, ok := tunnel.Service("opencode").Service(); !ok || name != "opencode" {
		t.Errorf("got %q, %v", name, ok)
	}
	if _, ok := tunnel.KindAPI.Service(); ok {
		t.Error("api is a service")
	}
}

func TestPreambleIsReadBackAndNothingBeyondIt(t *testing.T) {
	for _, k := range []tunnel.Kind{tunnel.KindAPI, tunnel.Service("a"), tunnel.Service(strings.Repeat("x", 64)), tunnel.Kind(strings.Repeat("k", tunnel.MaxKind))} {
		r := bytes.NewReader(append(tunnel.AppendPreamble(nil, k), "rest"...))
		got, err := tunnel.ReadPreamble(r)
		if err != nil || got != k {
			t.Errorf("%q came back as %q, %v", k, got, err)
		}
		if r.Len() != len("rest") {
			t.Errorf("%d bytes are left after %q", r.Len(), k)
		}
	}
	for name, b := range map[string]string{
		"empty":            "",
		"half a header":    "\x01",
		"no kind":          "\x01\x00",
		"too long":         "\x01\x51" + strings.Repeat("k", 81),
		"cut off":          "\x01\x03ap",
		"wrong version":    "\x00\x03api",
		"a control byte":   "\x01\x03a\np",
		"an HTTP request":  "GET / HTTP/1.1\r\n\r\n",
		"a byte not ASCII": "\x01\x02\xc3\xa4",
	} {
		if k, err := tunnel.ReadPreamble(strings.NewReader(b)); err == nil {
			t.Errorf("%s: read as %q", name, k)
		}
	}
}

func FuzzReadPreamble(f *testing.F) {
	f.Add([]byte("\x01\x03api"))
	f.Add([]byte("\x01\x09service/x"))
	f.Add([]byte("\x01\x00"))
	f.Add([]byte("\x01\xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		k, err := tunnel.ReadPreamble(r)
		if err != nil {
			return
		}
		used := b[:len(b)-r.Len()]
		if again := tunnel.AppendPreamble(nil, k); !bytes.Equal(again, used) {
			t.Errorf("%q was read from %q but is written as %q", k, used, again)
		}
		if len(k) == 0 || len(k) > tunnel.MaxKind {
			t.Errorf("a kind of %d bytes", len(k))
		}
	})
}

// pieced gives a stream of bytes to read and notes how large the pieces could be.
type pieced struct {
	left, smallest int
	err            error
}

func (p *pieced) Read(b []byte) (int, error) {
	if p.left == 0 {
		return 0, p.err
	}
	p.smallest = min(p.smallest, len(b))
	n := min(len(b), p.left)
	p.left -= n
	return n, nil
}

func TestABodyIsCopiedInFullFrames(t *testing.T) {
	const size = 1 << 20
	opener, acceptor := streams(t)
	got := make(chan int64, 1)
	go func() {
		n, _ := io.Copy(io.Discard, acceptor)
		got <- n
	}()
	from := &pieced{left: size, smallest: size, err: io.EOF}
	if n, err := io.Copy(opener, from); n != size || err != nil {
		t.Fatalf("copied %d bytes, %v", n, err)
	}
	if from.smallest < 60<<10 {
		t.Errorf("read in pieces of %d bytes", from.smallest)
	}
	broken := errors.New("broken")
	if n, err := io.Copy(opener, &pieced{left: 5, smallest: size, err: broken}); n != 5 || !errors.Is(err, broken) {
		t.Errorf("from a source that breaks: %d bytes, %v", n, err)
	}
	if err := opener.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if n := receive(t, got, "the end"); n != size+5 {
		t.Errorf("%d bytes arrived", n)
	}
	if n, err := io.Copy(opener, &pieced{left: 5, smallest: size}); n != 0 || !errors.Is(err, net.ErrClosed) {
		t.Errorf("into a stream that ended: %d bytes, %v", n, err)
	}
}
