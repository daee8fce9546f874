package memory

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	index "github.com/blevesearch/bleve_index_api"

	"opencode-mesh/protocol/ocp"
)

// Bounds of the work of one query.
const (
	// maxQueryBytes is how much of goal and query text is read, each, in bytes.
	maxQueryBytes = 8 << 10
	// maxQueryWords is how many different words are looked for, the first ones.
	maxQueryWords = 128
	// maxAnchors is how many anchors are looked for, the first ones.
	maxAnchors = 64
	// maxPostings is how many occurrences of words are looked at: the rarest words first,
	// and at least one of them. What is left out is so common that it tells little apart.
	maxPostings = 20_000
	// maxFetched is how many items are read to make frames of.
	maxFetched = 256
	// minFetched is how many are read at least, so that equals can be told apart.
	minFetched = 32
	// lookAhead is how many candidates for each item that is wanted are looked at first for
	// their kinds and times; then twice as many each time, while there are too few.
	lookAhead = 8
)

// How much what counts; an item that has all words in the best way scores 1.
const (
	titleWeight   = 0.45
	contentWeight = 0.55
	// saturation and lengthShare are k1 and b of BM25, usualLength the length of content in
	// words at which it counts neither for nor against.
	saturation  = 1.2
	lengthShare = 0.75
	usualLength = 120
	// anchorRaise is the part of what lacks to 1 that a named file adds.
	anchorRaise = 0.5
	// tailAnchor is what it counts when only the end of the path is the same, and
	// baseAnchor when that is the name of the file alone.
	tailAnchor = 0.8
	baseAnchor = 0.4
	// overWeight is what an item counts that does not hold any more.
	overWeight = 0.5
)

// candidate is an item that matches.
type candidate struct {
	doc       uint64
	relevance float64 // of the words, 0 to 1
	anchor    float64 // 0 to 1
	total     float64 // score, once all that counts is known
}

func (c candidate) score() float64 {
	return c.relevance + (1-c.relevance)*anchorRaise*c.anchor
}

// Query answers within the budget of q and with nothing that is outside of scope. Frames
// come best first; scores are from 0 to 1. What was left out is counted, or, where kinds or
// a time are asked for, estimated. q is as api.CheckContextQuery leaves it.
func (x *Index) Query(ctx context.Context, q ocp.Query, scope Scope) (ocp.Result, error) {
	empty := ocp.Result{Frames: []ocp.Frame{}}
	var asOf time.Time
	if q.AsOf != "" {
		var err error
		if asOf, err = time.Parse(time.RFC3339Nano, q.AsOf); err != nil {
			return empty, fmt.Errorf("memory: as_of: %w", err)
		}
	}
	prefix := scope.prefix()
	if prefix == "" {
		return empty, ctx.Err()
	}
	var packed ocp.Result
	err := x.look(ctx, func(r index.IndexReader) error {
		s := &search{ctx: ctx, reader: r, prefix: prefix, at: map[uint64]int{}}
		if err := s.words(q); err != nil {
			return err
		}
		if err := s.anchors(q.Anchors); err != nil {
			return err
		}
		wanted := min(maxFetched, max(minFetched, 2*int(min(q.MaxFrames, maxFetched))))
		list, matched, err := s.best(wanted, q.Kinds, asOf)
		if err != nil {
			return err
		}
		hits, err := s.fetch(list, scope, asOf)
		if err != nil {
			return err
		}
		packed = pack(hits, matched, q, s.stems())
		return nil
	})
	if err != nil {
		return empty, fmt.Errorf("memory: %w", err)
	}
	return packed, nil
}

// search is one query under way.
type search struct {
	ctx    context.Context
	reader index.IndexReader
	prefix string
	terms  []*term
	found  []candidate
	at     map[uint64]int // by document, where it is in found
}

// term is a word that is looked for.
type term struct {
	word string
	// rarity is how much it tells apart, after what the scope sees.
	rarity   float64
	postings uint64
}

// stems are the words that are looked for.
func (s *search) stems() map[string]float64 {
	m := make(map[string]float64, len(s.terms))
	for _, t := range s.terms {
		m[t.word] = t.rarity
	}
	return m
}

// words looks for those of goal and query text.
func (s *search) words(q ocp.Query) error {
	seen := map[string]bool{}
	for _, text := range []string{q.QueryText, q.Goal} {
		words(ocp.Cut(ocp.Clean(text), maxQueryBytes), func(w string) {
			if !seen[w] && !fillers[w] && len(seen) < maxQueryWords {
				seen[w] = true
				s.terms = append(s.terms, &term{word: w})
			}
		})
	}
	if len(s.terms) == 0 {
		return nil
	}
	total, err := s.count(fieldContent, "")
	if err != nil || total == 0 {
		return err
	}
	var sum float64
	for _, t := range s.terms {
		inContent, err := s.count(fieldContent, t.word)
		if err != nil {
			return err
		}
		inTitle, err := s.count(fieldTitle, t.word)
		if err != nil {
			return err
		}
		t.postings = inContent + inTitle
		df := float64(min(total, max(inContent, inTitle)))
		t.rarity = math.Log(1 + (float64(total)-df+0.5)/(df+0.5))
		sum += t.rarity
	}
	order := slices.Clone(s.terms)
	slices.SortStableFunc(order, func(a, b *term) int { return cmp.Compare(a.postings, b.postings) })
	var looked uint64
	for _, t := range order {
		if looked > 0 && looked+t.postings > maxPostings {
			break
		}
		looked += t.postings
		if err := s.add(t, sum); err != nil {
			return err
		}
	}
	return nil
}

// fillers are words that say nothing of what is looked for.
var fillers = func() map[string]bool {
	m := map[string]bool{}
	for word := range strings.FieldsSeq("a an and are as at be been but by can could do does for from had has have how i if in into is it " +
		"its me my no not of on or our should so some than that the their them then there these they this those to us was " +
		"we were what when where which who why will with would you your") {
		m[stem(word)] = true
	}
	return m
}()

// count is how many items of the scope have a term.
func (s *search) count(field, word string) (uint64, error) {
	list, err := s.reader.TermFieldReader(s.ctx, []byte(s.prefix+word), field, false, false, false)
	if err != nil {
		return 0, err
	}
	n := list.Count()
	return n, list.Close()
}

// add adds what a word says for the items that have it.
func (s *search) add(t *term, sum float64) error {
	weight := t.rarity / sum
	err := s.each(fieldContent, t.word, true, func(doc uint64, freq uint64, norm float64) {
		length := usualLength
		if norm > 0 {
			length = int(1 / (norm * norm))
		}
		tf := float64(freq)
		tf /= tf + saturation*(1-lengthShare+lengthShare*float64(length)/usualLength)
		s.candidate(doc).relevance += weight * contentWeight * tf
	})
	if err != nil {
		return err
	}
	return s.each(fieldTitle, t.word, false, func(doc uint64, _ uint64, _ float64) {
		s.candidate(doc).relevance += weight * titleWeight
	})
}

// candidate is the one of a document. It is good until the next call.
func (s *search) candidate(doc uint64) *candidate {
	at, ok := s.at[doc]
	if !ok {
		at = len(s.found)
		s.at[doc] = at
		s.found = append(s.found, candidate{doc: doc})
	}
	return &s.found[at]
}

// each calls fn for every item of the scope that has a term.
func (s *search) each(field, word string, weigh bool, fn func(doc, freq uint64, norm float64)) error {
	list, err := s.reader.TermFieldReader(s.ctx, []byte(s.prefix+word), field, weigh, weigh, false)
	if err != nil {
		return err
	}
	defer list.Close()
	var hit index.TermFieldDoc
	for n := 0; ; n++ {
		next, err := list.Next(hit.Reset())
		if err != nil || next == nil {
			return err
		}
		if n%1024 == 0 && s.ctx.Err() != nil {
			return s.ctx.Err()
		}
		fn(next.ID.Value(), next.Freq, next.Norm)
	}
}

// anchors raises what names the files and symbols that the asker is at: by the whole of the
// name, or less by the end of it.
func (s *search) anchors(list []string) error {
	for _, a := range list[:min(len(list), maxAnchors)] {
		name := cleanName(a)
		if name == "" {
			continue
		}
		for i, end := range ends(name) {
			weight := 1.0
			switch {
			case i > 0 && strings.Contains(end, "/"):
				weight = tailAnchor
			case i > 0:
				weight = baseAnchor
			}
			n, err := s.count(fieldNames, end)
			if err != nil {
				return err
			}
			if n > maxPostings {
				continue
			}
			err = s.each(fieldNames, end, false, func(doc, _ uint64, _ float64) {
				c := s.candidate(doc)
				c.anchor = max(c.anchor, weight)
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// best are the best candidates that the query's kinds and time leave, at most wanted of
// them, the best first; matched is how many there are in all. Kinds and times are read for
// the best only, as far as is needed: to read them for all costs more than to find them.
func (s *search) best(wanted int, kinds []ocp.FrameKind, asOf time.Time) (list []candidate, matched int, err error) {
	for i := range s.found {
		s.found[i].total = s.found[i].score()
	}
	byScore := func(a, b candidate) int {
		return cmp.Or(cmp.Compare(b.total, a.total), cmp.Compare(b.doc, a.doc))
	}
	slices.SortFunc(s.found, byScore)
	if len(kinds) == 0 && asOf.IsZero() {
		return s.found[:min(len(s.found), wanted)], len(s.found), nil
	}
	read, err := newTimesReader(s.reader)
	if err != nil {
		return nil, 0, err
	}
	looked := 0
	for n := lookAhead * wanted; looked < len(s.found) && len(list) < wanted; n *= 2 {
		part := slices.Clone(s.found[looked:min(len(s.found), looked+n)])
		looked += len(part)
		slices.SortFunc(part, func(a, b candidate) int { return cmp.Compare(a.doc, b.doc) })
		kept := part[:0]
		for i, c := range part {
			if i%1024 == 0 && s.ctx.Err() != nil {
				return nil, 0, s.ctx.Err()
			}
			t, err := read(index.NewIndexInternalID(nil, c.doc))
			if err != nil {
				return nil, 0, err
			}
			if (len(kinds) == 0 || slices.Contains(kinds, t.kind)) && (asOf.IsZero() || t.holds(asOf)) {
				kept = append(kept, c)
			}
		}
		slices.SortFunc(kept, byScore)
		list = append(list, kept...)
	}
	if looked > 0 {
		matched = len(list) * len(s.found) / looked // the others are like them, as far as one knows
	}
	return list[:min(len(list), wanted)], matched, nil
}

// hit is a candidate with its item.
type hit struct {
	Item
	score float64
}

// fetch reads items, best first; among equals the newest.
func (s *search) fetch(list []candidate, scope Scope, asOf time.Time) ([]hit, error) {
	hits := make([]hit, 0, len(list))
	for _, c := range list {
		if err := s.ctx.Err(); err != nil {
			return nil, err
		}
		id, err := s.reader.ExternalID(index.NewIndexInternalID(nil, c.doc))
		if err != nil {
			return nil, err
		}
		raw, err := stored(s.reader, id)
		if err != nil {
			return nil, err
		}
		it, err := decodeItem(raw)
		if err != nil {
			return nil, fmt.Errorf("%w: item %s: %w", errDamaged, id, err)
		}
		if !scope.sees(&it) {
			continue // no list that was read has such
		}
		h := hit{Item: it, score: min(1, c.total)}
		if asOf.IsZero() && !it.ValidTo.IsZero() && !it.ValidTo.After(time.Now()) {
			h.score *= overWeight
		}
		hits = append(hits, h)
	}
	slices.SortFunc(hits, func(a, b hit) int {
		return cmp.Or(cmp.Compare(b.score, a.score), b.At.Compare(a.At), cmp.Compare(a.ID, b.ID))
	})
	return hits, nil
}
