package tunnel

import (
	"errors"
	"runtime"
	"sync"
	"time"
)

const (
	// smallFrame is the largest frame that waits for others to be written with it,
	// in bytes of payload.
	smallFrame = 4 << 10
	// burstGap: a small frame that comes within this time after the last write, which
	// was one of small frames too, is one of many that are on their way. One between
	// the large ones of a bulk transfer is not, and must not wait.
	burstGap = 5 * time.Microsecond
)

// outgoing writes frames to a link, in order and each at once: with one write for
// all that came while the last one was under way. Safe for concurrent use.
//
// The mux writes from a single goroutine, which would make a write of every small
// frame. So in a burst another goroutine writes, while the mux hands over what it
// has; a frame that comes alone, or a large one, is written by who brings it, which
// is sooner.
type outgoing struct {
	link  *link
	masks bool // this side is the WebSocket's client

	mu      sync.Mutex // guards the following fields
	changed sync.Cond  // on writing or err
	pending *[]byte    // frames to be written; nil: none
	owed    []byte     // payload of the pong that goes out next; nil: none
	writing bool       // somebody is in drain
	said    bool       // the close frame was the last
	err     error      // of the link; nothing is written any more
	idle    time.Time  // when the last drain ended
	small   bool       // the last frame was a small one
}

var errSaid = errors.New("the close frame was sent")

func newOutgoing(l *link, masks bool) *outgoing {
	o := &outgoing{link: l, masks: masks}
	o.changed.L = &o.mu
	return o
}

// frameBufs holds buffers for one full frame.
var frameBufs = sync.Pool{New: func() any {
	b := make([]byte, 0, frameSize+wsHeaderMax)
	return &b
}}

// write sends a message. It may return before that is on the link; an error then
// shows with the next one. Nothing is sent after a close frame.
func (o *outgoing) write(op byte, payload []byte) error {
	o.mu.Lock()
	for o.pending != nil && len(*o.pending)+len(payload)+wsHeaderMax > cap(*o.pending) && o.err == nil {
		o.changed.Wait()
	}
	if o.err == nil && o.said {
		o.mu.Unlock()
		return errSaid
	}
	if err := o.err; err != nil {
		o.mu.Unlock()
		return err
	}
	if o.pending == nil {
		o.pending = frameBufs.Get().(*[]byte)
	}
	*o.pending = appendFrame(*o.pending, op, payload, o.masks)
	o.said = op == opClose
	mine, small := !o.writing, len(payload) <= smallFrame
	burst := small && o.small && time.Since(o.idle) < burstGap
	o.small = small
	o.writing = true
	o.mu.Unlock()
	switch {
	case !mine:
		return nil
	case burst:
		go func() { // close waits for it, in settled
			runtime.Gosched() // whoever can run may have a frame to add first
			_ = o.drain()
		}()
		return nil
	}
	return o.drain()
}

// pong has the answer to a ping written soon, by somebody else: who reads must neither
// wait for a place here nor become the writer of all that the mux adds meanwhile. Of
// several pings that wait for their answer only the last is answered, as RFC 6455 lets.
func (o *outgoing) pong(payload []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil || o.said {
		return o.err // that the close frame was sent is no error of the reader's
	}
	o.owed = append(make([]byte, 0, len(payload)), payload...)
	if !o.writing {
		o.writing = true
		go func() { _ = o.drain() }() // close waits for it, in settled
	}
	return nil
}

// settleOwed adds the pong that is owed to what is written next, if there is room.
func (o *outgoing) settleOwed() {
	if o.owed == nil || o.pending != nil && len(*o.pending)+maxControl+wsHeaderMax > cap(*o.pending) {
		return
	}
	if o.pending == nil {
		o.pending = frameBufs.Get().(*[]byte)
	}
	*o.pending = appendFrame(*o.pending, opPong, o.owed, o.masks)
	o.owed = nil
}

// drain writes until nothing is left.
func (o *outgoing) drain() error {
	var err error
	for {
		o.mu.Lock()
		if !o.said { // nothing is sent after a close frame
			o.settleOwed()
		}
		b := o.pending
		o.pending = nil
		if err != nil {
			o.err = err
		}
		if o.err != nil || b == nil {
			err = o.err
			o.writing, o.idle = false, time.Now()
			o.changed.Broadcast()
			o.mu.Unlock()
			return err
		}
		o.changed.Broadcast()
		o.mu.Unlock()
		_, err = o.link.Write(*b)
		*b = (*b)[:0]
		frameBufs.Put(b)
	}
}

// settled waits until nothing is being written.
func (o *outgoing) settled() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.writing {
		o.changed.Wait()
	}
}
