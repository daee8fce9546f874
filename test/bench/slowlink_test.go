package bench

import (
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// slowLink forwards TCP as a long thin line does: every byte takes its time on the
// line, then half a round trip. What waits in it is bounded: a line full of bytes and
// one buffer before it.
type slowLink struct {
	listener net.Listener
	target   string
	rate     float64       // bytes per second, each way
	delay    time.Duration // one way
	wg       sync.WaitGroup

	mu    sync.Mutex // guards the following field
	conns []net.Conn
}

// linkBuffer is the emulator's own buffer at each end of the line, in bytes.
const linkBuffer = 64 << 10

// linkPiece is what enters the line at once, in bytes.
const linkPiece = 4 << 10

func newSlowLink(tb testing.TB, target string, bitsPerSecond float64, roundTrip time.Duration) *slowLink {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	s := &slowLink{listener: l, target: target, rate: bitsPerSecond / 8, delay: roundTrip / 2}
	s.wg.Go(s.accept)
	tb.Cleanup(s.close)
	return s
}

// through is a join link through the line.
func (s *slowLink) through(link string) string {
	return strings.Replace(link, s.target, s.listener.Addr().String(), 1)
}

func (s *slowLink) accept() {
	for {
		in, err := s.listener.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", s.target)
		if err != nil {
			_ = in.Close()
			continue
		}
		s.mu.Lock()
		s.conns = append(s.conns, in, out)
		s.mu.Unlock()
		for _, c := range []net.Conn{in, out} {
			_ = c.(*net.TCPConn).SetReadBuffer(linkBuffer)
			_ = c.(*net.TCPConn).SetWriteBuffer(linkBuffer)
		}
		s.wg.Go(func() { s.carry(out, in) })
		s.wg.Go(func() { s.carry(in, out) })
	}
}

// piece is some bytes on their way.
type piece struct {
	data    []byte
	arrives time.Time
}

func (s *slowLink) carry(dst, src net.Conn) {
	line := make(chan piece, int(s.rate*s.delay.Seconds())/linkPiece+linkBuffer/linkPiece)
	var far sync.WaitGroup
	far.Go(func() {
		for p := range line {
			time.Sleep(time.Until(p.arrives))
			if _, err := dst.Write(p.data); err != nil {
				_ = src.Close()
			}
		}
		_ = dst.Close()
	})
	defer far.Wait()
	defer close(line)
	free := time.Now() // when the line takes the next byte
	for {
		data := make([]byte, linkPiece)
		n, err := src.Read(data)
		if err != nil {
			return
		}
		if now := time.Now(); free.Before(now) {
			free = now
		}
		free = free.Add(time.Duration(float64(n) / s.rate * float64(time.Second)))
		line <- piece{data[:n], free.Add(s.delay)}
		// Sleeping is coarse, so it is done once it is worth it.
		if ahead := time.Until(free); ahead > 2*time.Millisecond {
			time.Sleep(ahead)
		}
	}
}

func (s *slowLink) close() {
	_ = s.listener.Close()
	s.mu.Lock()
	for _, c := range s.conns {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}
