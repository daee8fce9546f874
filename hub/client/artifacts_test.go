package client_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"opencode-mesh/hub/client"
	"opencode-mesh/protocol/api"
)

// content is a file whose every part is different.
func content(n int) []byte {
	var b bytes.Buffer
	for i := 0; b.Len() < n; i++ {
		b.WriteString(strings.Repeat(string(rune('a'+i%26)), 1+i%7))
	}
	return b.Bytes()[:n]
}

// serve answers with a file, and breaks the connection after some bytes of the answer;
// -1 gives all.
func serve(w http.ResponseWriter, r *http.Request, file []byte, etag string, breakAfter int) {
	w.Header().Set("Etag", etag)
	if breakAfter >= 0 {
		w = &breaking{w, breakAfter}
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(file))
}

type breaking struct {
	http.ResponseWriter
	left int
}

func (b *breaking) Write(p []byte) (int, error) {
	if len(p) <= b.left {
		b.left -= len(p)
		return b.ResponseWriter.Write(p)
	}
	_, _ = b.ResponseWriter.Write(p[:b.left])
	_ = http.NewResponseController(b.ResponseWriter).Flush()
	panic(http.ErrAbortHandler)
}

func TestAnArtifactIsReadOnWhereItBrokeOff(t *testing.T) {
	file := content(300 << 10)
	s := newStub(t, func(n int, w http.ResponseWriter, r *http.Request) {
		switch {
		case n == 1:
			refuse(w, api.CodeUnavailable)
		case n == 3:
			refuse(w, api.CodeNodeOffline)
		case n == 4:
			hangUp(w)
		case n < 12: // more breaks than tries, but each brings some
			serve(w, r, file, `"v1"`, 20<<10)
		default:
			serve(w, r, file, `"v1"`, -1)
		}
	})
	a, err := s.client("").Artifact(context.Background(), "t 1", "out/a&b.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	got, err := io.ReadAll(a)
	if err != nil || !bytes.Equal(got, file) || a.Size() != int64(len(file)) {
		t.Fatalf("%d bytes, size %d, %v", len(got), a.Size(), err)
	}
	calls := s.seen()
	if calls[0].path != "/v1/tasks/t%201/artifacts/file?path=out%2Fa%26b.txt" || calls[1].header.Get("Range") != "" {
		t.Errorf("first %+v", calls[1])
	}
	for _, c := range calls[2:] {
		if r := c.header.Get("Range"); !strings.HasPrefix(r, "bytes=") || r == "bytes=0-" || c.header.Get("If-Range") != `"v1"` {
			t.Errorf("Range %q, If-Range %q", r, c.header.Get("If-Range"))
		}
	}
}

func TestAFileThatChangedIsNeverMixed(t *testing.T) {
	for name, second := range map[string]func(w http.ResponseWriter, r *http.Request){
		"another version": func(w http.ResponseWriter, r *http.Request) { serve(w, r, content(100 << 10)[50:], `"v2"`, -1) },
		"a part of another version": func(w http.ResponseWriter, r *http.Request) {
			r.Header.Del("If-Range")
			serve(w, r, content(100<<10), `"v2"`, -1)
		},
		"another part": func(w http.ResponseWriter, r *http.Request) {
			r.Header.Set("Range", "bytes=5-")
			serve(w, r, content(100<<10), `"v1"`, -1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStub(t, func(n int, w http.ResponseWriter, r *http.Request) {
				if n == 1 {
					serve(w, r, content(100<<10), `"v1"`, 10<<10)
					return
				}
				second(w, r)
			})
			a, err := s.client("").Artifact(context.Background(), "t1", "a")
			if err != nil {
				t.Fatal(err)
			}
			defer a.Close()
			if got, err := io.ReadAll(a); !errors.Is(err, client.ErrChanged) || len(got) > 10<<10 {
				t.Errorf("%d bytes, %v", len(got), err)
			}
		})
	}
}

func TestAnArtifactThatDoesNotComeIsGivenUp(t *testing.T) {
	t.Run("refused", func(t *testing.T) {
		for _, code := range []api.Code{api.CodeNotFound, api.CodeNodeOffline, api.CodeRevoked} {
			s := newStub(t, func(_ int, w http.ResponseWriter, _ *http.Request) { refuse(w, code) })
			if _, err := s.client("").Artifact(context.Background(), "t1", "a"); api.ErrorCode(err) != code || len(s.seen()) != 1 {
				t.Errorf("%v after %d calls", err, len(s.seen()))
			}
		}
	})
	t.Run("always broken", func(t *testing.T) {
		s := newStub(t, func(n int, w http.ResponseWriter, r *http.Request) {
			if n > 1 {
				hangUp(w)
			}
			serve(w, r, content(100<<10), `"v1"`, 10<<10)
		})
		a, err := s.client("").Artifact(context.Background(), "t1", "a")
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		if _, err := io.ReadAll(a); !errors.Is(err, client.ErrUnreachable) || len(s.seen()) != client.Tries {
			t.Errorf("%v after %d calls", err, len(s.seen()))
		}
	})
	t.Run("silent", func(t *testing.T) {
		s := newStub(t, func(n int, w http.ResponseWriter, r *http.Request) {
			if n == 1 {
				w.Header().Set("Content-Length", "100")
				_, _ = w.Write(content(10))
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
				return
			}
			refuse(w, api.CodeNotFound)
		})
		c := s.client("")
		c.Hasten(50 * time.Millisecond)
		a, err := c.Artifact(context.Background(), "t1", "a")
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		if got, err := io.ReadAll(a); api.ErrorCode(err) != api.CodeNotFound || len(got) != 10 {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	})
	t.Run("no longer wanted", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		s := newStub(t, func(_ int, w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write(content(10))
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		})
		a, err := s.client("").Artifact(ctx, "t1", "a")
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		if _, err := io.ReadFull(a, make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
		cancel()
		if _, err := io.ReadAll(a); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	})
}
