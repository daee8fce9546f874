package services

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// endless gives n bytes without holding them.
type endless struct{ left int64 }

var block = bytes.Repeat([]byte("0123456789abcdef"), 4<<10)

func (e *endless) Read(p []byte) (int, error) {
	if e.left == 0 {
		return 0, io.EOF
	}
	n := copy(p, block)
	n = int(min(int64(n), e.left))
	e.left -= int64(n)
	return n, nil
}

// transfers sends what the query asks for, and counts what it gets.
func transfers(w http.ResponseWriter, r *http.Request) {
	size, _ := strconv.ParseInt(r.URL.Query().Get("size"), 10, 64)
	n, err := io.Copy(io.Discard, r.Body)
	if err != nil {
		return
	}
	if r.Method == http.MethodPost {
		fmt.Fprint(w, n)
		return
	}
	w.Header().Set("Content-Length", fmt.Sprint(size))
	_, _ = io.Copy(w, &endless{size})
}

// TestAGigabyteGoesUpAndDownInBoundedMemory has hub, node, service and client in one
// heap, so the bound for hub and node each holds for them together.
func TestAGigabyteGoesUpAndDownInBoundedMemory(t *testing.T) {
	const size, bound = int64(large), 32 << 20
	m := newMesh(t, transfers)
	transfer := func(name string, f func() int64) {
		runtime.GC()
		before, stop, start := heap(), peak(), time.Now()
		n := f()
		growth := stop() - before
		t.Logf("%s: %d MiB in %s, the heap grew by %d KiB", name, n>>20, time.Since(start).Round(time.Millisecond), growth>>10)
		if n != size {
			t.Errorf("%s: %d bytes arrived", name, n)
		}
		if growth > bound {
			t.Errorf("%s: the heap grew by %d MiB", name, growth>>20)
		}
	}
	transfer("down", func() int64 {
		n, err := io.Copy(io.Discard, m.do(m.request(http.MethodGet, fmt.Sprintf("?size=%d", size), nil)).Body)
		if err != nil {
			t.Error(err)
		}
		return n
	})
	transfer("up", func() int64 {
		req := m.request(http.MethodPost, "", &endless{size})
		req.ContentLength = size
		answer, err := io.ReadAll(m.do(req).Body)
		if err != nil {
			t.Error(err)
		}
		n, _ := strconv.ParseInt(string(answer), 10, 64)
		return n
	})
}

// TestABulkTransferAndSmallRequestsShareATunnel: neither keeps the other from its end.
func TestABulkTransferAndSmallRequestsShareATunnel(t *testing.T) {
	const small = 64
	stop := make(chan struct{})
	m := newMesh(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/bulk" {
			fmt.Fprint(w, "small")
			return
		}
		for { // until the client has seen the small ones through
			if _, err := w.Write(block); err != nil {
				return
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	bulk := m.do(m.request(http.MethodGet, "bulk", nil))
	moved := make(chan int64, 1)
	begun := make(chan struct{})
	go func() {
		first, _ := io.CopyN(io.Discard, bulk.Body, 1<<20)
		close(begun)
		n, err := io.Copy(io.Discard, bulk.Body)
		if err != nil {
			t.Error(err)
		}
		moved <- first + n
	}()
	<-begun
	took := make(chan time.Duration, small)
	for range small {
		go func() {
			start := time.Now()
			resp, err := m.hc.Do(m.request(http.MethodGet, "", nil))
			if err != nil {
				t.Error(err)
			} else {
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
			took <- time.Since(start)
		}()
	}
	var all []time.Duration
	for range small {
		all = append(all, <-took)
	}
	close(stop)
	slices.Sort(all)
	n := <-moved
	t.Logf("beside a transfer of %d MiB: %d requests, median %s, most %s", n>>20, small, all[small/2], all[small-1])
	if n <= 1<<20 {
		t.Error("the transfer stood still")
	}
}

// TestANodeThatStopsEndsWhatIsUnderWayWithAnAnswer is the loss of a whole node: what
// has no answer yet gets one that names it.
func TestANodeThatStopsEndsWhatIsUnderWayWithAnAnswer(t *testing.T) {
	arrived := make(chan struct{}, 1)
	m := newMesh(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/wait" {
			arrived <- struct{}{}
			<-r.Context().Done()
		}
	})
	answer := make(chan string, 1)
	go func() {
		resp, err := m.hc.Do(m.request(http.MethodGet, "wait", nil))
		if err != nil {
			answer <- err.Error()
			return
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		answer <- fmt.Sprint(resp.StatusCode, " ", string(body))
	}()
	<-arrived
	m.stop()
	if got := <-answer; !strings.HasPrefix(got, "502 ") || !strings.Contains(got, "node_offline") || !strings.Contains(got, "alpha") {
		t.Errorf("got %s", got)
	}
}
