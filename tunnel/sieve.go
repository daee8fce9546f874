package tunnel

import (
	"encoding/binary"
	"io"
	"sync"
	"sync/atomic"
)

const (
	// smallSegment is the size of a data frame, in bytes of payload, below which what the
	// mux notes of it counts for more than what is in it.
	smallSegment = 64
	// maxSmallUnread is how many such frames of a stream may be unread. The mux keeps
	// each apart, and each costs it some 50 bytes: without a bound a window of single
	// bytes would take 47 times its size.
	maxSmallUnread = 8192
)

// The mux's frames, as far as the sieve knows them.
const (
	muxHeader = 12 // bytes: version, type, flags (2), stream (4), length (4)

	muxData   = 0
	muxWindow = 1 // also what carries a flag without data

	muxSYN = 1
	muxFIN = 4
	muxRST = 8
)

// sieve reads the mux's frames before the mux does. It resets a stream that has too many
// small frames unread, and drops data for streams that are not open, which the mux would
// drop too, or keep uncounted if it is about to open them. Reading belongs to one
// goroutine, all else is safe for concurrent use.
type sieve struct {
	in io.Reader // of bytes of frames
	// flooded is told of a stream that was reset, to tell the other side.
	flooded func(stream uint32)

	head   [muxHeader]byte
	shown  []byte // of head: what is still to be read
	body   uint32 // bytes of the frame that are to be passed on then
	scraps uint32 // bytes of the frame that are to be dropped

	mu   sync.Mutex         // guards the following field
	open map[uint32]*unread // the streams that the mux has
}

// unread is what a stream has not read yet.
type unread struct {
	small atomic.Int32 // frames, perhaps too few: see took
	ended byte         // directions; guarded by sieve.mu
}

const (
	endedHere = 1 << iota
	endedThere
)

// Read implements io.Reader.
func (s *sieve) Read(p []byte) (int, error) {
	for {
		switch {
		case len(s.shown) > 0:
			n := copy(p, s.shown)
			s.shown = s.shown[n:]
			return n, nil
		case s.body > 0:
			n, err := s.in.Read(p[:min(uint64(len(p)), uint64(s.body))])
			s.body -= uint32(n)
			return n, err
		case s.scraps > 0:
			n, err := io.CopyN(io.Discard, s.in, int64(s.scraps))
			s.scraps -= uint32(n)
			if err != nil {
				return 0, err
			}
		default:
			if _, err := io.ReadFull(s.in, s.head[:]); err != nil {
				return 0, err
			}
			s.sift()
		}
	}
}

// sift decides what becomes of the frame whose header was read.
func (s *sieve) sift() {
	s.shown = s.head[:]
	typ, stream, length := s.head[1], binary.BigEndian.Uint32(s.head[4:]), binary.BigEndian.Uint32(s.head[8:])
	if s.head[0] != 0 || typ != muxData && typ != muxWindow {
		return // without a payload, or wrong, which the mux will say
	}
	u := s.note(s.head[:], endedThere)
	if typ != muxData || length == 0 {
		return
	}
	switch {
	case u == nil:
		binary.BigEndian.PutUint32(s.head[8:], 0)
		s.scraps = length
	case length < smallSegment && u.small.Add(1) > maxSmallUnread:
		copy(s.head[:], resetFrame(stream, ResetFragments)) // as if it came from there
		s.note(s.head[:], endedThere)
		s.scraps = length
		s.flooded(stream)
	default:
		s.body = length
	}
}

// note follows a frame's flags, of either direction, as the mux does, and returns what
// is unread of its stream, or nil.
func (s *sieve) note(frame []byte, end byte) *unread {
	flags, stream := binary.BigEndian.Uint16(frame[2:]), binary.BigEndian.Uint32(frame[4:])
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.open[stream]
	if flags&muxSYN != 0 && u == nil {
		u = &unread{}
		s.open[stream] = u
	}
	if u != nil && flags&muxFIN != 0 {
		u.ended |= end
	}
	if flags&muxRST != 0 || u != nil && u.ended == endedHere|endedThere {
		delete(s.open, stream)
	}
	return u
}

// wrote follows a frame that the mux sends.
func (s *sieve) wrote(frame []byte) {
	if len(frame) >= muxHeader && frame[1] <= muxWindow && binary.BigEndian.Uint16(frame[2:])&(muxSYN|muxFIN|muxRST) != 0 {
		s.note(frame, endedHere)
	}
}

// of finds what is unread of a stream, nil if nothing more can come.
func (s *sieve) of(stream uint32) *unread {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open[stream]
}

// took notes that a read gave n bytes, which is one frame or a part of one. The end of a
// large frame may pass for a small one: there are few of those.
func (u *unread) took(n int) {
	if n > 0 && n < smallSegment && u.small.Add(-1) < 0 {
		u.small.Store(0)
	}
}

// resetFrame is the mux's reset of a stream.
func resetFrame(stream uint32, code ResetCode) []byte {
	b := make([]byte, 4, muxHeader)
	b[1], b[3] = muxWindow, muxRST
	b = binary.BigEndian.AppendUint32(b, stream)
	return binary.BigEndian.AppendUint32(b, uint32(code))
}
