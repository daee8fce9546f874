package memory

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"opencode-mesh/protocol/ocp"
)

const (
	// minSnippet is the least room for which an item is cut, in tokens.
	minSnippet = 48
	// timeLayout is the strict form of times.
	timeLayout = "2006-01-02T15:04:05.999Z"
)

// pack makes frames of the best hits that the budget takes. matched is how many items there
// were. The best one that does not fit is cut to the lines that have most of the words.
func pack(hits []hit, matched int, q ocp.Query, stems map[string]float64) ocp.Result {
	out := ocp.Result{Frames: []ocp.Frame{}}
	room := int(q.MaxTokens)
	cut := false
	for i := range hits {
		if len(out.Frames) >= int(q.MaxFrames) {
			break
		}
		f, cost := hits[i].frame(), int(ocp.TokenCost(hits[i].Content))
		if cost > room {
			if cut || room < minSnippet || !snip(&f, room, stems) {
				continue
			}
			cut = true
			cost = int(f.TokenCost)
		}
		room -= cost
		out.Frames = append(out.Frames, f)
	}
	if dropped := matched - len(out.Frames); dropped > 0 || cut {
		n := uint32(max(0, dropped))
		out.Truncated, out.DroppedEstimate = true, &n
	}
	return out
}

// frame is an item as it goes out.
func (h *hit) frame() ocp.Frame {
	f := ocp.Frame{
		ID: h.ID, Kind: h.Kind, Title: h.Title, Content: h.Content, URI: h.URI, Score: float32(h.score),
		TokenCost: ocp.TokenCost(h.Content), CitationLabel: h.Label,
		ValidFrom: stamp(h.ValidFrom), ValidTo: stamp(h.ValidTo), RecordedAt: stamp(h.At),
		Provenance: h.Provenance, Relations: h.Relations,
	}
	if f.Provenance == nil {
		f.Provenance = []ocp.Provenance{}
	}
	if f.Relations == nil {
		f.Relations = []ocp.Relation{}
	}
	return f
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(timeLayout)
}

// snip cuts a frame to the lines of it that have most of the words, within so many tokens,
// and says so in title, label, range and digest. False: nothing of it fits.
func snip(f *ocp.Frame, room int, stems map[string]float64) bool {
	lines := strings.SplitAfter(f.Content, "\n")
	if n := len(lines); lines[n-1] == "" {
		lines = lines[:n-1]
	}
	budget := room * 4
	from, to := bestLines(lines, budget, stems)
	var text, where string
	if from == to { // a line that is too long by itself: its beginning
		text = ocp.Cut(f.Content, budget)
		where = "the beginning"
	} else {
		text = strings.Join(lines[from:to], "")
		where = fmt.Sprintf("lines %d–%d of %d", from+1, to, len(lines))
	}
	if strings.TrimSpace(text) == "" {
		return false
	}
	f.Content, f.TokenCost = text, ocp.TokenCost(text)
	f.Title += " (" + where + ")"
	f.CitationLabel += " (" + where + ")"
	provenance := make([]ocp.Provenance, 0, len(f.Provenance))
	for _, p := range f.Provenance {
		if p.Type == "file" {
			if from == to {
				continue // no range of lines names it
			}
			first := firstLine(p.Range)
			p.Range = lineRange(first+from, first+to-1)
			p.Digest = ocp.Digest(text)
		}
		provenance = append(provenance, p)
	}
	f.Provenance = provenance
	return true
}

// bestLines is the run of whole lines within a number of bytes whose words count most.
func bestLines(lines []string, budget int, stems map[string]float64) (from, to int) {
	weights := make([]float64, len(lines))
	for i, l := range lines {
		seen := map[string]bool{}
		words(l, func(w string) {
			if r := stems[w]; r > 0 && !seen[w] {
				seen[w] = true
				weights[i] += r
			}
		})
	}
	best, sum, size, start := -1.0, 0.0, 0, 0
	for end := range lines {
		sum += weights[end]
		size += len(lines[end])
		for size > budget && start <= end {
			sum -= weights[start]
			size -= len(lines[start])
			start++
		}
		if start <= end && sum > best+1e-9 {
			best, from, to = sum, start, end+1
		}
	}
	for to > from && to < len(lines) { // room that is left goes to what follows
		n := 0
		for _, l := range lines[from : to+1] {
			n += len(l)
		}
		if n > budget {
			break
		}
		to++
	}
	return from, to
}

// lineRange is a range of lines, from 1 and both included.
func lineRange(from, to int) string {
	if from >= to {
		return "L" + strconv.Itoa(from)
	}
	return fmt.Sprintf("L%d-%d", from, to)
}

// firstLine is the first line of a range, 1 when there is none.
func firstLine(r string) int {
	first, _, _ := strings.Cut(strings.TrimPrefix(r, "L"), "-")
	n, err := strconv.Atoi(first)
	if err != nil || n < 1 {
		return 1
	}
	return n
}
