package main

import "opencode-mesh/protocol/mesh"

// What became of a line.
const (
	kept    = ' '
	removed = '-'
	added   = '+'
)

// diffLine is a line of a comparison.
type diffLine struct {
	mark rune
	text string
}

func (l diffLine) colour() string {
	switch l.mark {
	case removed:
		return red
	case added:
		return green
	}
	return ""
}

// maxDiff is how many pairs of lines are compared, those of two digests with all the
// facts that they may have.
const maxDiff = mesh.MaxFacts * mesh.MaxFacts

// diffLines compares two lists by a longest common subsequence. Where more than
// maxDiff pairs differ, everything old is removed and everything new added.
func diffLines(a, b []string) []diffLine {
	head := 0
	for head < len(a) && head < len(b) && a[head] == b[head] {
		head++
	}
	tail := 0
	for tail < len(a)-head && tail < len(b)-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	out := make([]diffLine, 0, len(a)+len(b))
	for _, l := range a[:head] {
		out = append(out, diffLine{kept, l})
	}
	out = append(out, diffMiddle(a[head:len(a)-tail], b[head:len(b)-tail])...)
	for _, l := range a[len(a)-tail:] {
		out = append(out, diffLine{kept, l})
	}
	return out
}

// diffMiddle compares what is left of two lists without their common ends.
func diffMiddle(a, b []string) (out []diffLine) {
	if len(a)*len(b) > maxDiff {
		for _, l := range a {
			out = append(out, diffLine{removed, l})
		}
		for _, l := range b {
			out = append(out, diffLine{added, l})
		}
		return out
	}
	// common[i*width+j] is how many lines a[i:] and b[j:] have in common.
	width := len(b) + 1
	common := make([]int32, (len(a)+1)*width)
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				common[i*width+j] = common[(i+1)*width+j+1] + 1
			} else {
				common[i*width+j] = max(common[(i+1)*width+j], common[i*width+j+1])
			}
		}
	}
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			out = append(out, diffLine{kept, a[i]})
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && common[(i+1)*width+j] >= common[i*width+j+1]:
			out = append(out, diffLine{removed, a[i]})
			i++
		default:
			out = append(out, diffLine{added, b[j]})
			j++
		}
	}
	return out
}
