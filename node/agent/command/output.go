package command

import (
	"io"
	"os"
)

// spool writes a program's output to a file, up to a cap. It never fails towards
// the program: what does not fit is dropped and noted. Used by one goroutine; the
// results are read after it ended.
type spool struct {
	f    *os.File
	left int64
	// full is called once, when the cap is passed.
	full func()
	err  error
}

func (s *spool) Write(p []byte) (int, error) {
	take := p
	if int64(len(take)) > s.left {
		take = take[:s.left]
		if s.full != nil {
			s.full()
			s.full = nil
		}
	}
	s.left -= int64(len(take))
	if s.err == nil && len(take) > 0 {
		_, s.err = s.f.Write(take)
	}
	return len(p), nil
}

// finish makes the output durable and returns the first error that lost some.
func (s *spool) finish() error {
	if err := s.f.Sync(); s.err == nil {
		s.err = err
	}
	return s.err
}

// tail keeps the end of a program's error output in a file of at most twice its
// size, which is there also when the shim is not any more. Errors are not worth
// stopping for: this is for people.
type tail struct {
	f    *os.File
	size int
	// recent is what the file holds, at most 2*size bytes.
	recent []byte
}

func (t *tail) Write(p []byte) (int, error) {
	if len(t.recent)+len(p) <= 2*t.size {
		t.recent = append(t.recent, p...)
		_, _ = t.f.Write(p)
		return len(p), nil
	}
	end := make([]byte, 0, 2*t.size)
	if keep := t.size - len(p); keep > 0 {
		end = append(end, t.recent[len(t.recent)-keep:]...)
	}
	t.recent = append(end, p[max(len(p)-t.size, 0):]...)
	if err := t.f.Truncate(0); err == nil {
		if _, err = t.f.Seek(0, io.SeekStart); err == nil {
			_, _ = t.f.Write(t.recent)
		}
	}
	return len(p), nil
}
