package federation

import (
	"opencode-mesh/protocol/ocp"
)

// merge takes frames of all legs until a budget is full, and counts in the legs what was
// taken. Scores of different providers say nothing about each other, so the legs take
// turns, each with its best frame that is left; what is there already takes nobody's
// turn. A frame that does not fit is passed over for smaller ones.
func merge(legs []leg, maxTokens, maxFrames uint32) (frames []ocp.Cited, truncated bool) {
	frames = []ocp.Cited{}
	next := make([]int, len(legs))
	var seen ocp.Seen
	left := uint64(maxTokens)
	for more := true; more; {
		more = false
		for i := range legs {
			l := &legs[i]
			truncated = truncated || l.truncated
			for next[i] < len(l.frames) {
				c := ocp.Cited{Node: l.Node, Provider: l.Provider, Frame: l.frames[next[i]]}
				next[i]++
				if seen.Has(&c) {
					continue
				}
				cost := c.Frame.Weight()
				if cost > left || uint32(len(frames)) == maxFrames {
					truncated = true
					continue
				}
				seen.Add(&c) // one that does not fit keeps no smaller copy out
				left -= cost
				l.Used++
				l.Tokens += cost
				frames = append(frames, c)
				more = true
				break
			}
		}
	}
	return frames, truncated
}
