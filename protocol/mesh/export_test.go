package mesh

// WithFreshSpace detaches g and the others given from the ids that the process
// minted before, so that a test sees the clock it injected.
func WithFreshSpace(gs ...*IDGenerator) {
	space := new(idSpace)
	for _, g := range gs {
		g.space = space
	}
}
