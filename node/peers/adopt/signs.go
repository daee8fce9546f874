package adopt

import "sync"

// signs are the sessions that something became of since they were looked at.
type signs struct {
	wake chan struct{} // cap 1

	mu     sync.Mutex // guards the following fields
	ids    map[string]bool
	missed bool // some signs, so all that are known have to be looked at
}

func newSigns() *signs { return &signs{wake: make(chan struct{}, 1), ids: map[string]bool{}} }

// add notes a session. Any number of its signs are one.
func (s *signs) add(id string) {
	s.mu.Lock()
	if len(s.ids) < MaxSigns {
		s.ids[id] = true
	} else if !s.ids[id] {
		s.missed = true
	}
	s.mu.Unlock()
	s.rouse()
}

// gap notes that signs may have been missed.
func (s *signs) gap() {
	s.mu.Lock()
	s.missed = true
	s.mu.Unlock()
	s.rouse()
}

func (s *signs) rouse() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// take returns the sessions to look at, those that are known among them if signs were
// missed.
func (s *signs) take(known func() []string) []string {
	s.mu.Lock()
	ids, missed := s.ids, s.missed
	s.ids, s.missed = map[string]bool{}, false
	s.mu.Unlock()
	if missed {
		for _, id := range known() {
			ids[id] = true
		}
	}
	list := make([]string, 0, len(ids))
	for id := range ids {
		list = append(list, id)
	}
	return list
}
