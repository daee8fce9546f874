package federation_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"opencode-mesh/hub/federation"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/ocp"
)

func TestOneLegThatFailsHurtsNoOther(t *testing.T) {
	liar := leg("liar", frame("l1", 1, 90), frame("l2", 1, 20))
	flood := leg("flood", frame("f1", 1, 1), frame("f2", 1, 1), frame("f3", 1, 1), frame("f4", 1, 1), frame("f5", 1, 1))
	bad := leg("bad", frame("good", 0.5, 3), ocp.Frame{ID: "blank", Kind: ocp.KindDoc, Score: 0.9})
	failing := api.ContextAnswerLeg{ContextLeg: api.ContextLeg{Provider: "failing", Outcome: api.ContextFailed, Error: "it\x07 crashed"}}
	strange := api.ContextAnswerLeg{ContextLeg: api.ContextLeg{Provider: "strange", Outcome: "perfect"}, Result: ocp.Result{Frames: []ocp.Frame{frame("s", 1, 1)}}}
	broken := gives("broken")
	broken.answer = func(api.ContextAsk) (api.ContextAnswer, error) { return api.ContextAnswer{}, errors.New("it hung up") }
	r := newRig(t, gives("alpha", liar, flood, bad, failing, strange), broken, gives("beta", leg("memory", frame("fact", 0.1, 5))))
	r.trusts(desk, "alpha", "broken", "beta")

	out := r.query(desk, 100, 4, "alpha", "broken", "beta", "away")
	if got := ids(out.Frames); !slices.Equal(got, []string{"alpha/bad/good", "beta/memory/fact"}) {
		t.Errorf("frames: %v", got)
	}
	want := []string{
		"alpha liar budget_lie", "alpha flood flood", "alpha bad frames", "alpha failing failed", "alpha strange failed",
		"away  failed", "beta memory frames", "broken  failed",
	}
	var got []string
	for _, l := range out.Legs {
		got = append(got, fmt.Sprintf("%s %s %s", l.Node, l.Provider, l.Outcome))
		if strings.ContainsAny(l.Error, "\x07") {
			t.Errorf("a control character in %q", l.Error)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("legs: %q", got)
	}
	if out.Legs[0].Claimed != 110 || out.Tokens != 8 || !strings.Contains(out.Text, "fact") || len(out.Usage.Frames) != 2 {
		t.Errorf("%+v", out)
	}
}

func TestProvidersTakeTurnsWhateverScoresTheyGiveThemselves(t *testing.T) {
	loud := leg("loud", frame("a1", 0.99, 10), frame("a2", 0.98, 10), frame("a3", 0.97, 10))
	quiet := leg("quiet", frame("b1", 0.02, 10), frame("b2", 0.03, 10))
	same := leg("same", frame("a1", 0.5, 10), frame("c1", 0.1, 35), frame("c2", 0.01, 5))
	r := newRig(t, gives("alpha", loud, quiet, same))
	r.trusts(desk, "alpha")
	out := r.query(desk, 50, 10)
	// a1 is there when its turn comes at the third; c1 does not fit any more.
	want := []string{"alpha/loud/a1", "alpha/quiet/b2", "alpha/same/c2", "alpha/loud/a2", "alpha/quiet/b1"}
	if got := ids(out.Frames); !slices.Equal(got, want) || !out.Truncated || out.Tokens != 45 {
		t.Errorf("%v, %d tokens, truncated %v", got, out.Tokens, out.Truncated)
	}
}

func TestFramesOfAKindThatWasNotAskedForDoNotCount(t *testing.T) {
	other := frame("doc", 1, 1)
	other.Kind = ocp.KindDoc
	r := newRig(t, gives("alpha", leg("memory", other, frame("fact", 0.5, 1))))
	r.trusts(desk, "alpha")
	out, err := r.Query(t.Context(), desk, api.ContextQuery{Query: ocp.Query{Goal: "g", Kinds: []ocp.FrameKind{ocp.KindFact, ocp.KindEpisode}}})
	if err != nil || !slices.Equal(ids(out.Frames), []string{"alpha/memory/fact"}) || !strings.Contains(out.Legs[0].Error, "kind is not one") {
		t.Errorf("%+v, %v", out, err)
	}
}

func TestNoMergeGoesOverItsBudgetOrDoublesAFrame(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var legs []api.ContextAnswerLeg
		for i := range rapid.IntRange(1, 4).Draw(rt, "providers") {
			var frames []ocp.Frame
			for range rapid.IntRange(0, 6).Draw(rt, "frames") {
				f := frame(fmt.Sprint("f", rapid.IntRange(0, 9).Draw(rt, "id")), rapid.Float32Range(0, 1).Draw(rt, "score"), rapid.IntRange(1, 30).Draw(rt, "tokens"))
				f.TokenCost = rapid.Uint32Range(0, 40).Draw(rt, "claim") // what it says may be a lie
				frames = append(frames, f)
			}
			legs = append(legs, leg(fmt.Sprint("p", i), frames...))
		}
		r := newRig(t, gives("alpha", legs...))
		defer r.close()
		r.trusts(desk, "alpha")
		tokens, most := rapid.Uint32Range(1, 120).Draw(rt, "max tokens"), rapid.Uint32Range(1, 8).Draw(rt, "max frames")
		out := r.query(desk, tokens, most)
		var sum, byLegs uint64
		contents := map[string]bool{}
		for _, c := range out.Frames {
			sum += c.Frame.Weight()
			if contents[c.Frame.Content] {
				rt.Fatalf("%s is there twice", c.Frame.ID)
			}
			contents[c.Frame.Content] = true
		}
		used := 0
		for _, l := range out.Legs {
			used += l.Used
			byLegs += l.Tokens
		}
		if sum > uint64(tokens) || len(out.Frames) > int(most) || out.Tokens != sum || byLegs != sum || used != len(out.Frames) {
			rt.Fatalf("%d tokens (%d told, %d by legs) of %d, %d frames (%d by legs) of %d", sum, out.Tokens, byLegs, tokens, len(out.Frames), used, most)
		}
	})
}

func TestAQueryThatMakesNoSenseAsksNobody(t *testing.T) {
	m := gives("alpha")
	r := newRig(t, m)
	r.trusts(desk, "alpha")
	long := strings.Repeat("x", api.MaxContextGoal+1)
	for what, q := range map[string]api.ContextQuery{
		"no goal":         {Query: ocp.Query{Goal: " \n"}},
		"long goal":       {Query: ocp.Query{Goal: long}},
		"long text":       {Query: ocp.Query{Goal: "g", QueryText: long}},
		"many tokens":     {Query: ocp.Query{Goal: "g", MaxTokens: api.MaxContextTokens + 1}},
		"many frames":     {Query: ocp.Query{Goal: "g", MaxFrames: api.MaxContextFrames + 1}},
		"unknown kind":    {Query: ocp.Query{Goal: "g", Kinds: []ocp.FrameKind{"secret"}}},
		"no time":         {Query: ocp.Query{Goal: "g", AsOf: "yesterday"}},
		"many anchors":    {Query: ocp.Query{Goal: "g", Anchors: make([]string, api.MaxContextAnchors+1)}},
		"long anchor":     {Query: ocp.Query{Goal: "g", Anchors: []string{long}}},
		"many nodes":      {Query: ocp.Query{Goal: "g"}, Nodes: make([]string, api.MaxContextNodes+1)},
		"an embedding":    {Query: ocp.Query{Goal: "g", Embedding: []float32{1}}},
		"nobody's a node": {Query: ocp.Query{Goal: "g"}, Nodes: []string{"nobody"}},
	} {
		_, err := r.Query(t.Context(), desk, q)
		var refusal *api.Error
		if !errors.As(err, &refusal) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if m.times() > 0 {
		t.Errorf("alpha was asked %d times", m.times())
	}
	if _, err := r.Query(t.Context(), desk, api.ContextQuery{Query: ocp.Query{Goal: "g", AsOf: "2026-01-31T13:00:00+01:00"}}); err != nil {
		t.Fatal(err)
	}
	if q := m.asked[0].Query; q.AsOf != "2026-01-31T12:00:00Z" || q.MaxTokens != api.DefaultContextTokens || q.MaxFrames != api.DefaultContextFrames {
		t.Errorf("%+v", q)
	}
}

func TestQueriesAreRememberedAsLongAsThereIsRoomAndOverARestart(t *testing.T) {
	r := newRig(t, gives("alpha", leg("memory", frame("f", 1, 1))))
	r.trusts(desk, "alpha")
	r.trusts(boss, "alpha")
	first := r.query(boss, 10, 1)
	var last api.ContextResult
	for i := range api.MaxContextQueries {
		if i == api.MaxContextQueries/2 {
			r.Federation = r.again()
		}
		last = r.query(desk, 10, 1)
	}
	if err := r.Used(t.Context(), desk, last.ID, []string{"task_1", "task_2"}); err != nil {
		t.Fatal(err)
	}
	var refusal *api.Error
	for what, id := range map[string]string{"another's": last.ID, "a forgotten one": first.ID} {
		if err := r.Used(t.Context(), boss, id, []string{"task_3"}); !errors.As(err, &refusal) || refusal.Code != api.CodeNotFound {
			t.Errorf("%s: %v", what, err)
		}
	}
	records := func(a federation.Asker, limit int) api.ContextRecords {
		t.Helper()
		out, err := r.again().Records(t.Context(), a, limit)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	all := records(boss, 1000)
	if len(all.Queries) != api.MaxContextQueries || all.More {
		t.Fatalf("%d records", len(all.Queries))
	}
	newest := all.Queries[0]
	if newest.ID != last.ID || !slices.Equal(newest.Tasks, []string{"task_1", "task_2"}) || newest.Frames[0].Label != "f" || newest.Tokens != 1 || newest.Asker != desk.Party {
		t.Errorf("%+v", newest)
	}
	if page := records(desk, 2); len(page.Queries) != 2 || !page.More {
		t.Errorf("%d records, more %v", len(page.Queries), page.More)
	}
	other := federation.Asker{Party: api.Party{ID: "id_other", Name: "other"}}
	if page := records(other, 10); len(page.Queries) != 0 || page.More {
		t.Errorf("somebody else sees %+v", page)
	}
}

func TestAProviderThatClaimsTooMuchLeavesOthersTheirShare(t *testing.T) {
	greedy := frame("greedy", 1, 1)
	greedy.TokenCost = 100
	dear := frame("same", 1, 99)
	cheap := frame("same", 1, 99)
	cheap.TokenCost = 1
	r := newRig(t, gives("alpha", leg("a", greedy), leg("b", frame("mine", 0.5, 5))))
	r.trusts(desk, "alpha")
	if got := ids(r.query(desk, 100, 10).Frames); !slices.Equal(got, []string{"alpha/a/greedy", "alpha/b/mine"}) {
		t.Errorf("%v", got)
	}
	// What does not fit keeps no other copy out.
	dear.TokenCost = 200
	r = newRig(t, gives("alpha", leg("a", frame("first", 1, 50)), leg("b", dear), leg("c", cheap)))
	r.trusts(desk, "alpha")
	if got := ids(r.query(desk, 200, 10).Frames); !slices.Equal(got, []string{"alpha/a/first", "alpha/c/same"}) {
		t.Errorf("%v", got)
	}
}

func TestARevokedConsentBreaksOffTheQueryThatUsesIt(t *testing.T) {
	slow, started := gives("slow"), make(chan struct{})
	slow.wait = func(ctx context.Context) {
		close(started)
		<-ctx.Done()
	}
	r := newRig(t, slow, gives("beta", leg("memory", frame("fact", 1, 1))))
	r.trusts(desk, "slow", "beta")
	out := make(chan api.ContextResult)
	go func() { out <- r.query(desk, 10, 10, "slow", "beta") }()
	<-started
	if err := r.Revoke(t.Context(), desk, "slow"); err != nil {
		t.Fatal(err)
	}
	got := <-out
	if len(got.Frames) != 1 || got.Legs[0].Outcome != api.ContextFrames || got.Legs[1].Outcome != api.ContextAsks {
		t.Errorf("%+v", got)
	}
}
