package proxy

// Under is how many requests are under way.
func (n *Node) Under() int64 { return n.under.Load() }

// Spoke reports whether something came on the idle stream to a service that would be
// used next.
func (n *Node) Spoke(service string) bool {
	s := n.idle.take(service)
	if s == nil {
		return false
	}
	defer n.idle.put(s)
	return !s.silent()
}
