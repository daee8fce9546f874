package room

// Waiting is how many wait.
func Waiting(r *Room) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.waiting)
}
