package memory

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"opencode-mesh/protocol/ocp"
)

var someWords = strings.Fields("walrus penguin otter release importer parser node/main.go Flush() the of build test")

func drawText(t *rapid.T, label string, most int) string {
	return strings.Join(rapid.SliceOfN(rapid.SampledFrom(someWords), 1, most).Draw(t, label), " ")
}

func drawItems(t *rapid.T) []Item {
	items := make([]Item, rapid.IntRange(0, 12).Draw(t, "items"))
	for i := range items {
		it := item(fmt.Sprint("item", i), drawText(t, "content", 200))
		it.Kind = rapid.SampledFrom(Kinds()).Draw(t, "kind")
		it.Title = drawText(t, "title", 4)
		it.Controller = rapid.SampledFrom([]string{"", "idA", "idB", "idC"}).Draw(t, "controller")
		it.At = day(rapid.IntRange(1, 28).Draw(t, "day"))
		if rapid.Bool().Draw(t, "ended") {
			it.ValidTo = it.At.AddDate(0, 0, rapid.IntRange(1, 9).Draw(t, "days"))
		}
		items[i] = it
	}
	return items
}

func drawQuery(t *rapid.T) ocp.Query {
	q := ocp.Query{
		Goal:      drawText(t, "goal", 6),
		MaxFrames: rapid.Uint32Range(0, 8).Draw(t, "frames"),
		MaxTokens: rapid.Uint32Range(0, 1200).Draw(t, "tokens"),
	}
	if rapid.Bool().Draw(t, "anchored") {
		q.Anchors = []string{rapid.SampledFrom([]string{"main.go", "node/main.go", "/x/node/main.go", "flush"}).Draw(t, "anchor")}
	}
	if rapid.Bool().Draw(t, "of a kind") {
		q.Kinds = []ocp.FrameKind{rapid.SampledFrom(Kinds()).Draw(t, "wanted")}
	}
	if rapid.Bool().Draw(t, "back then") {
		q.AsOf = stamp(day(rapid.IntRange(1, 28).Draw(t, "as of")))
	}
	return q
}

// allowed is what an asker may see, after what the item says of itself: an operator all,
// others what they dispatched, and nobody what was dispatched by none.
func allowed(operator bool, asker, dispatcher string) bool {
	switch {
	case operator:
		return true
	case asker == "", dispatcher == "":
		return false
	}
	return asker == dispatcher
}

// What an asker gets is, in every byte, what it would get if what it may not see were not
// there; it is all allowed, valid, and within the budget.
func TestNothingThatIsHiddenShowsInAnAnswer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		items, q := drawItems(t), drawQuery(t)
		scope := Scope{All: rapid.Bool().Draw(t, "all"), Controller: rapid.SampledFrom([]string{"", "idA", "idB", "idD"}).Draw(t, "asker")}
		var seen []Item
		byID := map[string]Item{}
		for _, it := range items {
			byID[it.ID] = it
			may := allowed(scope.All, scope.Controller, it.Controller)
			if may {
				seen = append(seen, it)
			}
			if scope.sees(&it) != may {
				t.Fatalf("%+v sees the item of %q: %v", scope, it.Controller, !may)
			}
		}
		got, want := answer(t, items, q, scope), answer(t, seen, q, scope)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("what is hidden shows (-without, +with):\n%s", diff)
		}
		unique := map[string]bool{}
		for i := range got.Frames {
			f := &got.Frames[i]
			it := byID[f.ID]
			if !allowed(scope.All, scope.Controller, it.Controller) || unique[f.ID] {
				t.Fatalf("frame %s is hidden, or there twice", f.ID)
			}
			unique[f.ID] = true
			if err := errors.Join(f.Check(), f.CheckExact()); err != nil {
				t.Fatal(err)
			}
			if i > 0 && f.Score > got.Frames[i-1].Score {
				t.Fatalf("frame %d has a higher score than the one before", i)
			}
			if len(q.Kinds) > 0 && f.Kind != q.Kinds[0] {
				t.Fatalf("frame %s is of kind %s", f.ID, f.Kind)
			}
		}
		if err := got.Audit(q); err != nil {
			t.Fatal(err)
		}
		if got.Truncated != (got.DroppedEstimate != nil) {
			t.Fatalf("truncated %v with estimate %v", got.Truncated, got.DroppedEstimate)
		}
	})
}

// answer asks an index of its own.
func answer(t *rapid.T, items []Item, q ocp.Query, scope Scope) ocp.Result {
	dir, err := os.MkdirTemp("", "memory")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	x, err := Open(Config{Path: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	if err := x.Put(context.Background(), items); err != nil {
		t.Fatal(err)
	}
	res, err := x.Query(context.Background(), q, scope)
	if err != nil {
		t.Fatal(err)
	}
	return res
}
