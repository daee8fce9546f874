package tunnel

import "context"

// Context ends when the session is over. It spares who waits for that a goroutine
// (context.AfterFunc).
func (s *Session) Context() context.Context { return s.ctx }
