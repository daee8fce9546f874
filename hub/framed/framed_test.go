package framed_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/iotest"

	"go.uber.org/goleak"

	"opencode-mesh/hub/framed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tape is a connection that gives what it holds and keeps what is written.
type tape struct {
	io.Reader
	bytes.Buffer
}

func (t *tape) Read(p []byte) (int, error) { return t.Reader.Read(p) }
func (t *tape) Close() error               { return nil }

func TestWhatIsWrittenIsReadToItsSaidEnd(t *testing.T) {
	a, b := net.Pipe()
	sent := make([]byte, 3*framed.MaxFrame+17)
	_, _ = rand.Read(sent)
	from, to := framed.New(a), framed.New(b)
	done := make(chan error, 1)
	go func() {
		_, err := from.Write(sent[:5])
		if err == nil {
			_, err = from.Write(nil) // which is no end
		}
		if err == nil {
			_, err = from.Write(sent[5:])
		}
		done <- errors.Join(err, from.CloseWrite())
	}()
	got, err := io.ReadAll(iotest.OneByteReader(to))
	if err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	go func() { _, err := to.Write([]byte("back")); done <- errors.Join(err, to.CloseWrite()) }()
	if got, err := io.ReadAll(from); err != nil || string(got) != "back" {
		t.Errorf("the other direction goes on: %q %v", got, err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n, err := from.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %d %v", n, err)
	}
}

func TestAnEndThatNobodySaidIsAFailure(t *testing.T) {
	var whole tape
	s := framed.New(&whole)
	_, _ = s.Write([]byte("some bytes"))
	_ = s.CloseWrite()
	wire := whole.Bytes()
	for cut := range wire {
		got, err := io.ReadAll(framed.New(&tape{Reader: bytes.NewReader(wire[:cut])}))
		if !errors.Is(err, io.ErrUnexpectedEOF) || !strings.HasPrefix("some bytes", string(got)) {
			t.Errorf("cut after %d bytes: %q %v", cut, got, err)
		}
	}
	if got, err := io.ReadAll(framed.New(&tape{Reader: bytes.NewReader(append(wire, "more"...))})); err != nil || string(got) != "some bytes" {
		t.Errorf("behind the end: %q %v", got, err)
	}
	for _, long := range []string{"\x00\x00\x80\x01", "\xff\xff\xff\xff", "HTTP/1.1 200 OK\r\n"} {
		if got, err := io.ReadAll(framed.New(&tape{Reader: strings.NewReader(long + strings.Repeat("x", 40000))})); err == nil || len(got) > 0 {
			t.Errorf("%q: %d bytes, %v", long, len(got), err)
		}
	}
	broken := errors.New("broken")
	if _, err := io.ReadAll(framed.New(&tape{Reader: io.MultiReader(bytes.NewReader(wire[:6]), iotest.ErrReader(broken))})); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}
