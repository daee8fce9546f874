package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"opencode-mesh/hub/client"
	"opencode-mesh/protocol/api"
)

// feed is a hub whose n-th event stream is text; after the last it hangs.
func feed(t *testing.T, texts ...string) *stub {
	return newStub(t, func(n int, w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		if n <= len(texts) {
			_, _ = io.WriteString(w, texts[n-1])
			return
		}
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
}

// collect follows the events until there are n of them.
func collect(t *testing.T, c *client.Client, n int, lost func(error)) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	enough := errors.New("enough")
	var got []string
	err := c.Events(ctx, func(e api.Event) error {
		got = append(got, fmt.Sprintf("%s %s %s", e.ID, e.Type, e.Data))
		if len(got) == n {
			return enough
		}
		return nil
	}, lost)
	if !errors.Is(err, enough) {
		t.Fatalf("got %v after %q", err, got)
	}
	return got
}

// resumes are the ids with which the streams were asked for.
func resumes(s *stub) []string {
	var ids []string
	for _, call := range s.seen() {
		ids = append(ids, call.header.Get("Last-Event-ID"))
	}
	return ids
}

func TestAStreamThatBreaksIsResumedAfterTheLastEvent(t *testing.T) {
	s := feed(t,
		"event: beat\ndata: {}\n\nid: g-1\nevent: task\ndata: {\"a\":1}\n\n",
		"event: beat\ndata: {}\n\n",
		"id: g-2\nevent: task\ndata: {\"a\":2}\n\nid: g-3\nevent: node\ndata: {}\n\nid: g-4\nevent: task\ndata: cut off")
	lost := 0
	got := collect(t, s.client(""), 5, func(error) { lost++ })
	want := []string{" beat {}", `g-1 task {"a":1}`, " beat {}", `g-2 task {"a":2}`, "g-3 node {}"}
	if !slices.Equal(got, want) || lost != 2 {
		t.Errorf("got %q, lost %d times", got, lost)
	}
	if ids := resumes(s); !slices.Equal(ids, []string{"", "g-1", "g-1"}) {
		t.Errorf("resumed with %q", ids)
	}
}

func TestAGapIsHandedOnAsResync(t *testing.T) {
	t.Run("when the hub says so, until something can be resumed again", func(t *testing.T) {
		s := feed(t, "id: old-1\nevent: task\ndata: {}\n\n", "event: resync\ndata: {}\n\n", "event: resync\ndata: {}\n\nid: new-1\nevent: task\ndata: {}\n\n", "event: beat\ndata: {}\n\n")
		got := collect(t, s.client(""), 5, nil)
		if want := []string{"old-1 task {}", " resync {}", " resync {}", "new-1 task {}", " beat {}"}; !slices.Equal(got, want) {
			t.Errorf("got %q", got)
		}
		if ids := resumes(s); !slices.Equal(ids, []string{"", "old-1", "old-1", "new-1"}) {
			t.Errorf("resumed with %q", ids)
		}
	})
	t.Run("when the first stream broke before an event had an id", func(t *testing.T) {
		s := feed(t, "event: beat\ndata: {}\n\n", "event: beat\ndata: {}\n\n")
		got := collect(t, s.client(""), 3, nil)
		if !strings.HasPrefix(got[1], " resync ") || got[2] != " beat {}" {
			t.Errorf("got %q", got)
		}
	})
}

func TestEventsAreReadAsTheStandardSays(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	s := feed(t, ": a comment\n\ndata: without a type\n\n"+
		"retry: 10\nunknown\nid:g-1\nevent:task\r\ndata: one\r\ndata:two\r\n\r\n"+
		"event: task\ndata: "+long+"\n\n")
	got := collect(t, s.client(""), 2, nil)
	if got[0] != "g-1 task one\ntwo" || got[1] != " task "+long {
		t.Errorf("got %q and %d bytes", got[0], len(got[1]))
	}
}

// roundTrip answers requests without a network.
type roundTrip func(r *http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestAStreamIsGivenUpWhenItIsSilentAndOnlyThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := client.New(profile(t, "http://127.0.0.1:1"), "")
		if err != nil {
			t.Fatal(err)
		}
		const beats = 20
		c.Via(roundTrip(func(r *http.Request) (*http.Response, error) {
			body, out := io.Pipe()
			go func() {
				for range beats {
					_, _ = io.WriteString(out, "event: beat\ndata: {}\n\n")
					time.Sleep(api.EventHeartbeat)
				}
				<-r.Context().Done() // the client hangs up
				_ = out.CloseWithError(r.Context().Err())
			}()
			return &http.Response{StatusCode: http.StatusOK, Body: body}, nil
		}))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		began, heard := time.Now(), 0
		var why error
		_ = c.Events(ctx, func(api.Event) error { heard++; return nil }, func(err error) {
			why = err
			cancel()
		})
		took := time.Since(began)
		if !errors.Is(why, client.ErrUnreachable) || heard != beats {
			t.Errorf("lost by %v after %d beats", why, heard)
		}
		if last := (beats - 1) * api.EventHeartbeat; took < last+2*api.EventHeartbeat || took > last+4*api.EventHeartbeat {
			t.Errorf("given up %s after the last beat", took-last)
		}
	})
}

func TestEventsEndWithARefusal(t *testing.T) {
	s := newStub(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n == 1 {
			_, _ = io.WriteString(w, "event: beat\ndata: {}\n\n")
			return
		}
		refuse(w, api.CodeRevoked)
	})
	err := s.client("").Events(context.Background(), func(api.Event) error { return nil }, nil)
	if api.ErrorCode(err) != api.CodeRevoked || len(s.seen()) != 2 {
		t.Errorf("got %v after %d calls", err, len(s.seen()))
	}
}

func TestEventsEndWithTheirContext(t *testing.T) {
	s := feed(t)
	ctx, cancel := context.WithCancelCause(context.Background())
	why := errors.New("seen enough")
	time.AfterFunc(20*time.Millisecond, func() { cancel(why) })
	if err := s.client("").Events(ctx, func(api.Event) error { return nil }, nil); !errors.Is(err, why) {
		t.Errorf("got %v", err)
	}
}

func TestWhyTheHubEndsAStreamIsToldAndTheStreamResumed(t *testing.T) {
	s := feed(t, "id: g-1\nevent: task\ndata: {}\n\nevent: cut\ndata: {\"reason\":\"too\\u001b[2J slow\"}\n\n", "id: g-2\nevent: task\ndata: {}\n\n")
	var lost []string
	got := collect(t, s.client(""), 2, func(err error) { lost = append(lost, err.Error()) })
	if !slices.Equal(got, []string{"g-1 task {}", "g-2 task {}"}) || len(lost) != 1 || !strings.HasSuffix(lost[0], "the hub ended the event stream: too slow") {
		t.Errorf("got %q, lost %q", got, lost)
	}
	if ids := resumes(s); !slices.Equal(ids, []string{"", "g-1"}) {
		t.Errorf("resumed with %q", ids)
	}
}
