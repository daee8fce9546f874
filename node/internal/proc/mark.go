package proc

import (
	"os"
	"sync"
)

// Mark names a process for other processes that may not see it: Space is where its pid
// means something, "" if that is not known.
type Mark struct {
	ID
	Space string `json:"space,omitempty"`
}

// Self is the mark of this process.
var Self = sync.OnceValue(func() Mark {
	id, err := Identify(os.Getpid())
	if err != nil {
		return Mark{ID: ID{PID: os.Getpid()}}
	}
	return Mark{ID: id, Space: space()}
})

// Gone says that the marked process has certainly ended, collected by its parent or not. It is false for one that lives,
// and for one of which nothing can be known from here: of another machine, another boot or
// another container, or without a full mark.
func (m Mark) Gone() bool {
	if m.PID <= 0 || m.Start == "" || m.Space == "" || m.Space != Self().Space {
		return false
	}
	return ended(m.ID)
}
