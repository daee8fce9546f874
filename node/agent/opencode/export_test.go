package opencode

// ReadEvent reports whether an event of a stream is taken.
func ReadEvent(data []byte, ours func(session string) bool) bool {
	_, ok := readEvent(data, ours)
	return ok
}
