package tunnel_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"

	"opencode-mesh/tunnel"
)

// crumble sends a window of single bytes on each stream, and returns once all of it has
// come in. It returns what the other side sent meanwhile.
func crumble(t *testing.T, node net.Conn, streams []uint32) []byte {
	t.Helper()
	var got bytes.Buffer
	var reading sync.WaitGroup
	reading.Go(func() {
		pong := muxPong(7)
		b := make([]byte, 4<<10)
		for !bytes.Contains(got.Bytes()[max(0, got.Len()-2*len(b)):], pong) {
			n, err := node.Read(b)
			got.Write(b[:n])
			if err != nil {
				t.Errorf("before the flood was over: %v", err)
				return
			}
		}
	})
	for _, id := range streams {
		piece := bytes.Repeat(clientFrame(2, append(muxFrame(0, 0, id, 1), 'x')), 4096)
		for sent := 0; sent < tunnel.MinWindow; sent += 4096 {
			if _, err := node.Write(piece); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := node.Write(clientFrame(2, muxPing(7))); err != nil {
		t.Fatal(err)
	}
	reading.Wait()
	return got.Bytes()
}

func TestAWindowOfSingleBytesTakesNotMuchMoreThanAWindow(t *testing.T) {
	h := newHub(t, tunnel.Config{}, nil)
	node, hubSide := bareNode(t, h, nil)
	var ids []uint32
	var streams []net.Conn
	for i := range 2 {
		st, err := hubSide.Open(within(t), tunnel.Service("x"))
		if err != nil {
			t.Fatal(err)
		}
		streams, ids = append(streams, st), append(ids, uint32(2+2*i))
	}
	// The opener has said so once its stream is answered.
	for _, id := range ids {
		_, _ = node.Write(clientFrame(2, muxFrame(1, 2, id, 0)))
	}
	await(t, "the streams", func() bool { return tunnel.Counted(hubSide) == len(ids) })
	before := heap()
	got := crumble(t, node, ids)
	grown := heap() - before
	if most := int64(4 * tunnel.MinWindow * len(ids)); grown > most {
		t.Errorf("%d streams hold %d KiB, %.1f windows each", len(ids), grown>>10, float64(grown)/float64(tunnel.MinWindow*len(ids)))
	}
	for i, st := range streams {
		deadline(t, st)
		var reset *tunnel.ResetError
		if _, err := io.Copy(io.Discard, st); !errors.As(err, &reset) || reset.Code != tunnel.ResetFragments {
			t.Errorf("the reader's end: %v", err)
		}
		if !bytes.Contains(got, muxFrame(1, 8, ids[i], uint32(tunnel.ResetFragments))) {
			t.Error("the other side was not told")
		}
	}
	if err := hubSide.Err(); err != nil {
		t.Errorf("the session ended: %v", err)
	}
	if n := tunnel.Counted(hubSide); n != 0 {
		t.Errorf("%d streams are still counted", n)
	}
}

func TestDataForStreamsThatAreNotOpenIsDropped(t *testing.T) {
	h := newHub(t, tunnel.Config{}, nil)
	node, hubSide := bareNode(t, h, nil)
	before := heap()
	crumble(t, node, []uint32{2, 3})
	if grown := heap() - before; grown > 1<<20 {
		t.Errorf("%d KiB are held", grown>>10)
	}
	if err := hubSide.Err(); err != nil || tunnel.Counted(hubSide) != 0 {
		t.Errorf("the session: %v, %d streams", err, tunnel.Counted(hubSide))
	}
}

func TestSmallFramesThatAreReadInTheEndAreNoFlood(t *testing.T) {
	hubSide, nodeSide := pair(t, tunnel.Config{}, tunnel.Config{})
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := nodeSide.Accept()
		if err == nil {
			accepted <- c
		}
	}()
	w, err := hubSide.Open(within(t), tunnel.KindAPI)
	if err != nil {
		t.Fatal(err)
	}
	r := receive(t, accepted, "the stream")
	deadline(t, w)
	deadline(t, r)
	for round := range 4 {
		for range tunnel.SmallUnread { // a reader that stands still
			if _, err := w.Write([]byte{byte(round)}); err != nil {
				t.Fatal(err)
			}
		}
		got := make([]byte, 4<<10)
		for left := tunnel.SmallUnread; left > 0; {
			n, err := r.Read(got)
			if err != nil {
				t.Fatalf("round %d: %v with %d to come", round, err, left)
			}
			left -= n
		}
	}
}

func TestNothingIsCountedOfStreamsThatHaveEnded(t *testing.T) {
	hubSide, nodeSide := pair(t, tunnel.Config{}, tunnel.Config{ServiceDial: func(context.Context, string) (net.Conn, error) {
		a, b := net.Pipe()
		go func() { // ends with its pipe
			_, _ = io.Copy(b, b)
			_ = b.Close()
		}()
		return a, nil
	}})
	for i := range 50 {
		st, err := hubSide.Open(within(t), tunnel.Service("echo"))
		if err != nil {
			t.Fatal(err)
		}
		deadline(t, st)
		_, _ = st.Write([]byte("x"))
		if i%2 == 0 { // an end both ways, for a pipe that cannot be told one
			_, _ = io.ReadFull(st, make([]byte, 1))
			_ = st.(*tunnel.Stream).CloseWrite()
		}
		_ = st.Close()
	}
	unknown, err := tunnel.OpenAny(hubSide, "nobody/knows")
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, unknown)
	await(t, "both ends to have forgotten", func() bool { return tunnel.Counted(hubSide) == 0 && tunnel.Counted(nodeSide) == 0 })
}
