package tunnel

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"
)

func TestAFrameIsReadAsItWasWritten(t *testing.T) {
	for _, n := range []int{0, 1, 3, 63, 64, 65, 125, 126, 127, 511, 512, 513, 1<<16 - 1, 1 << 16, 1<<16 + 7} {
		for _, mask := range []bool{false, true} {
			payload := make([]byte, n)
			for i := range payload {
				payload[i] = byte(i * 7)
			}
			frame := appendFrame([]byte("before"), opBinary, payload, mask)
			r := bufio.NewReader(bytes.NewReader(frame[len("before"):]))
			h, err := readFrameHead(r)
			if err != nil || h.op != opBinary || !h.fin || h.masked != mask || h.length != uint64(n) {
				t.Fatalf("%d bytes, masked %v: %+v, %v", n, mask, h, err)
			}
			// In odd pieces, as a socket gives them.
			got, key := []byte(nil), h.key
			for size := 1; ; size = size*3 + 1 {
				piece := make([]byte, size)
				k, err := io.ReadFull(r, piece)
				key.apply(piece[:k])
				got = append(got, piece[:k]...)
				if err != nil {
					break
				}
			}
			if !bytes.Equal(got, payload) {
				t.Errorf("%d bytes, masked %v: the payload is another one", n, mask)
			}
			if plain := bytes.Contains(frame, payload); n > 8 && plain == mask {
				t.Errorf("%d bytes, masked %v: on the wire as it is: %v", n, mask, plain)
			}
		}
	}
}

func TestMaskKeysDiffer(t *testing.T) {
	seen := map[string]bool{}
	for range 64 {
		seen[string(appendFrame(nil, opBinary, nil, true)[2:])] = true
	}
	if len(seen) < 60 {
		t.Errorf("%d different keys in 64 frames", len(seen))
	}
}

func FuzzReadFrameHead(f *testing.F) {
	f.Add([]byte{0x82, 1, 'x'})
	f.Add([]byte{0x88, 0x80 | 2, 1, 2, 3, 4, 3, 0xe8})
	f.Add([]byte{0x82, 127, 0xff, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := readFrameHead(bufio.NewReader(bytes.NewReader(b)))
		switch {
		case err != nil:
		case h.length > 1<<63-1, h.op > 15:
			t.Errorf("%+v", h)
		case h.op >= opClose && (h.length > maxControl || !h.fin):
			t.Errorf("a control frame: %+v", h)
		}
	})
}

// joined are two ends of a TCP connection, one of them a link.
func joined(t *testing.T) (*link, net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	near, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = near.Close(); _ = far.Close() })
	return newLink(near, 20*time.Second), far
}

func TestFramesOfManyWritersArriveWholeAndInOrder(t *testing.T) {
	const writers, frames = 8, 400
	l, far := joined(t)
	out := newOutgoing(l, true)
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range frames {
				size := 10
				if i%50 == 0 {
					size = frameSize // now and then a large one, which fills the buffer
				}
				payload := append(make([]byte, 0, size), byte(w), byte(i>>8), byte(i))
				if err := out.write(opBinary, payload[:size]); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	go func() {
		wg.Wait()
		out.settled()
		_ = l.Close()
	}()
	r, next, total := bufio.NewReader(far), [writers]int{}, 0
	for ; ; total++ {
		h, err := readFrameHead(r)
		if errors.Is(err, io.EOF) {
			break
		}
		payload := make([]byte, h.length)
		if _, bad := io.ReadFull(r, payload); err != nil || bad != nil {
			t.Fatal(err, bad)
		}
		h.key.apply(payload)
		w, i := payload[0], int(payload[1])<<8|int(payload[2])
		if next[w] != i {
			t.Fatalf("of writer %d came %d, not %d", w, i, next[w])
		}
		next[w]++
	}
	if total != writers*frames {
		t.Errorf("%d frames arrived, not %d", total, writers*frames)
	}
}

func TestNothingIsSentBehindTheCloseFrame(t *testing.T) {
	l, far := joined(t)
	out := newOutgoing(l, false)
	for _, op := range []byte{opBinary, opClose, opBinary, opClose} {
		if err := out.write(op, []byte{op}); err != nil && !errors.Is(err, errSaid) {
			t.Fatal(err)
		}
	}
	out.settled()
	_ = l.Close()
	got, err := io.ReadAll(far)
	if want := []byte{0x82, 1, opBinary, 0x88, 1, opClose}; err != nil || !bytes.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
}

func TestAWriterThatWaitsForRoomLearnsThatTheLinkIsGone(t *testing.T) {
	l, far := joined(t)
	out := newOutgoing(l, false)
	failed := make(chan error, 3)
	for range cap(failed) {
		go func() {
			payload := make([]byte, frameSize)
			for {
				if err := out.write(opBinary, payload); err != nil {
					failed <- err
					return
				}
			}
		}()
	}
	if _, err := io.ReadFull(far, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	_ = l.Close() // while all of them wait, as nobody reads
	for range cap(failed) {
		if err := <-failed; !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	}
	out.settled()
	if err := out.write(opBinary, nil); !errors.Is(err, net.ErrClosed) {
		t.Error(fmt.Errorf("afterwards: %w", err))
	}
}

func TestWhoReadsNeverWritesAPongItselfNorWaitsForRoom(t *testing.T) {
	near, far := net.Pipe() // takes a byte only when it is read
	defer near.Close()
	defer far.Close()
	out := newOutgoing(newLink(near, 20*time.Second), false)
	say := func(text string) {
		t.Helper()
		if err := out.pong([]byte(text)); err != nil { // returns
			t.Fatal(err)
		}
	}
	say("1")
	var first [1]byte
	if _, err := io.ReadFull(far, first[:]); err != nil { // it is being written
		t.Fatal(err)
	}
	if err := out.write(opBinary, make([]byte, frameSize)); err != nil { // fills what may wait
		t.Fatal(err)
	}
	say("2")
	say("3")
	r := bufio.NewReader(io.MultiReader(bytes.NewReader(first[:]), far))
	var got []string
	for range 3 {
		h, err := readFrameHead(r)
		payload := make([]byte, h.length)
		if _, bad := io.ReadFull(r, payload); err != nil || bad != nil {
			t.Fatal(err, bad)
		}
		got = append(got, fmt.Sprintf("%x %.1q", h.op, payload))
	}
	if want := []string{`a "1"`, `2 "\x00"`, `a "3"`}; !slices.Equal(got, want) {
		t.Errorf("%q went out", got)
	}
	out.settled()
}
