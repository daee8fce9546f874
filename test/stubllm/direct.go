package stubllm

import "slices"

// direction replaces the directives of some requests.
type direction struct {
	match      func(user string) bool
	directives string
}

// Direct answers requests for a turn whose newest user message satisfies match by
// these directives and not by those in its text, until stop is called. Of several
// that match the newest counts. match is called by the server, one call at a time,
// and must not use it.
func (s *Server) Direct(match func(user string) bool, directives string) (stop func()) {
	d := &direction{match, directives}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.directed = append(s.directed, d)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.directed = slices.DeleteFunc(s.directed, func(other *direction) bool { return other == d })
	}
}

// orders is where the directives for a user's text stand.
func (s *Server) orders(user string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range slices.Backward(s.directed) {
		if d.match(user) {
			return d.directives
		}
	}
	return user
}
