package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"os"
	"slices"
	"sync"
	"time"
)

// maxInformational is how many 1xx answers may come before the real one.
const maxInformational = 16

// RoundTrip implements http.RoundTripper. Requests that can be sent at once and
// repeated, which most are, are exchanged on the caller's own goroutine: that saves
// http.Transport's hops between three, a fifth of what a small request costs the hub.
// All others go through the Transport, which knows how to send a body while the answer
// comes.
func (n *Node) RoundTrip(req *http.Request) (*http.Response, error) {
	if !simple(req) {
		return n.transport.RoundTrip(req)
	}
	service := req.URL.Hostname()
	for s := n.idle.take(service); s != nil; s = n.idle.take(service) {
		if !s.silent() {
			_ = s.Close()
			continue
		}
		res, err := n.exchange(s, req)
		if err == nil || req.Context().Err() != nil || s.heard() {
			return res, err // what has begun to answer has had the request
		}
		break // the service closed it just now, most likely
	}
	conn, err := n.dial(req.Context(), service)
	if err != nil {
		return nil, err
	}
	s := &stream{Conn: conn, service: service}
	s.in = bufio.NewReader(s)
	return n.exchange(s, req)
}

// simple reports whether a request has no body, expects nothing but an answer, and
// may be sent twice.
func simple(req *http.Request) bool {
	if req.Body != nil && req.Body != http.NoBody || req.Header["Upgrade"] != nil || req.Header["Expect"] != nil || req.Trailer != nil {
		return false
	}
	return slices.Contains([]string{http.MethodGet, http.MethodHead, http.MethodOptions}, req.Method)
}

// stream is a connection to a service that is used for one request after the other.
type stream struct {
	net.Conn
	service string
	in      *bufio.Reader
	left    int64     // how much of a header may still come; negative: no limit
	since   time.Time // idle since
}

// What an answer may have wrong that is HTTP.
var (
	errHeader        = fmt.Errorf("the header of the answer is larger than %d bytes", maxAnswerHeader)
	errInformational = errors.New("too many informational answers")
	errUnasked       = errors.New("an upgrade that nobody asked for")
)

// heard reports whether anything of the answer came that is waited for.
func (s *stream) heard() bool { return s.left < maxAnswerHeader }

// Read implements io.Reader for in.
func (s *stream) Read(p []byte) (int, error) {
	if s.left == 0 {
		return 0, errHeader
	}
	if s.left > 0 {
		p = p[:min(int64(len(p)), s.left)]
	}
	n, err := s.Conn.Read(p)
	if s.left > 0 {
		s.left -= int64(n)
	}
	return n, err
}

var requestBufs = sync.Pool{New: func() any { return bufio.NewWriter(nil) }}

// silent reports whether nothing came on an idle stream: a service that answers HEAD
// with a body, or says more than the length it gave, must not answer the next request
// with it. It also tells the streams that their service has closed.
func (s *stream) silent() bool {
	_ = s.SetReadDeadline(time.Unix(1, 0)) // has passed: a look, not a wait
	_, err := s.Conn.Read(nil)
	_ = s.SetReadDeadline(time.Time{})
	return errors.Is(err, os.ErrDeadlineExceeded)
}

// send writes a request at once.
func (s *stream) send(req *http.Request) error {
	w := requestBufs.Get().(*bufio.Writer)
	defer requestBufs.Put(w)
	w.Reset(s.Conn)
	defer w.Reset(nil)
	if err := req.Write(w); err != nil {
		return err
	}
	return w.Flush()
}

// exchange sends a request and reads the answer up to its body. The stream is the
// body's then.
func (n *Node) exchange(s *stream, req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	s.left = maxAnswerHeader
	b := &body{node: n, stream: s}
	b.stop = context.AfterFunc(ctx, func() { _ = s.Close() }) // a reset
	res, err := s.ask(req)
	if err != nil {
		b.stop()
		_ = s.Close()
		if cause := ctx.Err(); cause != nil {
			err = cause
		}
		return nil, err
	}
	s.left = -1
	b.ReadCloser, b.keep = res.Body, !res.Close
	b.whole = res.ContentLength >= 0 && res.ContentLength <= int64(s.in.Buffered())
	if res.Body == http.NoBody {
		b.end(true)
		return res, nil
	}
	res.Body = b
	return res, nil
}

// ask sends a request and reads the header of its answer.
func (s *stream) ask(req *http.Request) (*http.Response, error) {
	if err := s.send(req); err != nil {
		return nil, err
	}
	for range maxInformational {
		res, err := http.ReadResponse(s.in, req)
		switch {
		case err != nil:
			return nil, err
		case res.StatusCode == http.StatusSwitchingProtocols:
			return nil, errUnasked
		case res.StatusCode >= 200, res.StatusCode < 100:
			return res, nil
		}
		if t := httptrace.ContextClientTrace(req.Context()); t != nil && t.Got1xxResponse != nil {
			if err := t.Got1xxResponse(res.StatusCode, textproto.MIMEHeader(res.Header)); err != nil {
				return nil, err
			}
		}
	}
	return nil, errInformational
}

// body is the body of an answer. Its stream is used again once it was read to the end.
type body struct {
	io.ReadCloser
	node   *Node
	stream *stream // nil once the body let go of it
	stop   func() bool
	keep   bool
	whole  bool // it is here to its end
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.end(errors.Is(err, io.EOF))
	}
	return n, err
}

// Close implements io.Closer.
func (b *body) Close() error {
	b.end(false)
	return nil
}

// end lets go of the stream, whole if the body was read to its end.
func (b *body) end(whole bool) {
	s := b.stream
	if s == nil {
		return
	}
	b.stream = nil
	if b.stop() && whole && b.keep && s.in.Buffered() == 0 {
		b.node.idle.put(s)
		return
	}
	_ = s.Close()
}

// idlers are the streams that wait for their next request. Safe for concurrent use.
type idlers struct {
	mu     sync.Mutex           // guards the following fields
	free   map[string][]*stream // by service, the one used last at the end
	timer  *time.Timer          // looks for old ones; nil when there are none
	closed bool
}

// take gives the stream that was used last, or nil.
func (i *idlers) take(service string) *stream {
	i.mu.Lock()
	defer i.mu.Unlock()
	list := i.free[service]
	if len(list) == 0 {
		return nil
	}
	s := list[len(list)-1]
	i.free[service] = list[:len(list)-1]
	return s
}

// put keeps a stream for the next request, if there is room.
func (i *idlers) put(s *stream) {
	i.mu.Lock()
	list := i.free[s.service]
	keep := !i.closed && len(list) < maxIdleStreams
	if keep {
		s.since = time.Now()
		if i.free == nil {
			i.free = map[string][]*stream{}
		}
		i.free[s.service] = append(list, s)
		if i.timer == nil {
			i.timer = time.AfterFunc(idleStreamLimit, i.expire)
		}
	}
	i.mu.Unlock()
	if !keep {
		_ = s.Close()
	}
}

// expire closes what has been idle for too long.
func (i *idlers) expire() {
	var old []*stream
	i.mu.Lock()
	i.timer = nil
	left := false
	for service, list := range i.free {
		k := 0 // the oldest are at the front
		for k < len(list) && time.Since(list[k].since) >= idleStreamLimit {
			k++
		}
		old = append(old, list[:k]...)
		i.free[service] = slices.Clone(list[k:])
		left = left || k < len(list)
	}
	if left && !i.closed {
		i.timer = time.AfterFunc(idleStreamLimit, i.expire)
	}
	i.mu.Unlock()
	for _, s := range old {
		_ = s.Close()
	}
}

// close closes all of them.
func (i *idlers) close() {
	i.mu.Lock()
	i.closed = true
	if i.timer != nil {
		i.timer.Stop()
	}
	free := i.free
	i.free = nil
	i.mu.Unlock()
	for _, list := range free {
		for _, s := range list {
			_ = s.Close()
		}
	}
}
