package relay_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// settledTask stores a task that ended some seconds after the start of the test.
func (h *harness) settledTask(id, controller, target string, sec int, edits ...func(*store.Task)) {
	h.t.Helper()
	at := h.clock.Now().Add(-time.Hour + time.Duration(sec)*time.Second)
	t := store.Task{
		ID: id, Hash: id, Mode: "one-shot", Kind: api.TurnTask, Attempt: 1, Turn: 1, State: api.StateDone, Since: at, CreatedAt: at.Add(-time.Minute), EndedAt: at,
		Controller: api.Party{ID: h.ids[controller].ID, Name: controller}, Target: api.Party{ID: h.ids[target].ID, Name: target},
		Outcome: &api.Outcome{State: api.StateDone, Summary: "summary of " + id, Files: []api.Artifact{{Path: "out/" + id}}},
	}
	for _, edit := range edits {
		edit(&t)
	}
	if _, err := h.store.CreateTasks(context.Background(), []store.NewTask{{Task: t, Text: []byte("text of " + id)}}); err != nil {
		h.t.Fatal(err)
	}
}

// fed follows a feed to its end, and returns what it told and where it ended.
func fed(t *testing.T, h *harness, party, cursor string, limit int) (items []string, next string) {
	t.Helper()
	for range 1000 {
		page, err := h.relay.Memory(context.Background(), h.ids[party].ID, cursor, limit)
		if err != nil {
			t.Fatal(err)
		}
		for _, it := range page.Items {
			switch {
			case it.Result != nil:
				items = append(items, it.Result.Task)
			case it.Digest.Gone:
				items = append(items, fmt.Sprintf("gone %d", it.Digest.Digest.Generation))
			default:
				items = append(items, fmt.Sprintf("digest %d until %v", it.Digest.Digest.Generation, it.Digest.ValidTo.Unix()))
			}
		}
		if cursor = page.Next; !page.More {
			return items, cursor
		}
	}
	t.Fatal("the feed has no end")
	return nil, ""
}

func TestMemoryTellsANodeWhatItDispatchedAndWhatItWasGivenAndNothingElse(t *testing.T) {
	h := newHarness(t)
	h.settledTask("t1", "alice", "alpha", 1)
	h.settledTask("t3", "alpha", "beta", 3)
	h.settledTask("t2", "bob", "alpha", 2)
	h.settledTask("other", "bob", "beta", 4)
	for _, limit := range []int{1, 2, 100} {
		if got, _ := fed(t, h, "alpha", "", limit); !slices.Equal(got, []string{"t1", "t2", "t3"}) {
			t.Errorf("pages of %d: %v", limit, got)
		}
	}
	page, err := h.relay.Memory(context.Background(), h.ids["alpha"].ID, "t.0.0..0", 1)
	if err != nil {
		t.Fatal(err)
	}
	r := page.Items[0].Result
	if r.Text != "text of t1" || r.Summary != "summary of t1" || r.Controller.Name != "alice" || len(r.Artifacts) != 1 {
		t.Errorf("got %+v", r)
	}
}

func TestMemoryGoesOnFromItsCursorWhileTasksSettle(t *testing.T) {
	h := newHarness(t)
	h.settledTask("t1", "alice", "alpha", 1)
	h.settledTask("t2", "alice", "alpha", 3)
	page, err := h.relay.Memory(context.Background(), h.ids["alpha"].ID, "t.0.0..0", 1)
	if err != nil || !page.More || page.Items[0].Result.Task != "t1" {
		t.Fatalf("%+v, %v", page, err)
	}
	h.settledTask("t4", "alice", "alpha", 4)
	got, next := fed(t, h, "alpha", page.Next, 1)
	if !slices.Equal(got, []string{"t2", "t4"}) {
		t.Errorf("got %v", got)
	}
	if got, _ = fed(t, h, "alpha", next, 10); got != nil {
		t.Errorf("nothing is new, yet %v", got)
	}
	// What ended just before the end of the feed may be stored after it was read.
	h.settledTask("t5", "alice", "alpha", 3600)
	if got, next = fed(t, h, "alpha", next, 10); !slices.Equal(got, []string{"t5"}) {
		t.Errorf("got %v", got)
	}
	h.settledTask("t6", "alice", "alpha", 3590)
	if got, _ = fed(t, h, "alpha", next, 10); !slices.Contains(got, "t6") {
		t.Errorf("a task that was stored late was passed over: %v", got)
	}
}

func TestMemoryReadsNoMoreThanAPageMay(t *testing.T) {
	h := newHarness(t)
	for i := range 20 {
		h.settledTask(fmt.Sprintf("t%02d", i), "alice", "alpha", i, func(task *store.Task) { task.Outcome.Summary = strings.Repeat("s", 100) })
	}
	big := strings.Repeat("x", api.MaxReply)
	for i := range 20 {
		task, err := h.store.Task(context.Background(), fmt.Sprintf("t%02d", i))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := h.store.UpdateTask(context.Background(), task, store.Part{Key: store.PartKey{Kind: store.PartReply, Attempt: 1, Turn: 1}, Data: []byte(big)}); err != nil {
			t.Fatal(err)
		}
	}
	page, err := h.relay.Memory(context.Background(), h.ids["alpha"].ID, "t.0.0..0", 100)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(page.Items); n != api.MaxMemoryRead/api.MaxReply || !page.More {
		t.Errorf("%d items with 1 MiB each, more %v", n, page.More)
	}
	if n := len(page.Items[0].Result.Reply); n != api.MaxMemoryText {
		t.Errorf("a reply of %d bytes", n)
	}
	if got, _ := fed(t, h, "alpha", "", 100); len(got) != 20 {
		t.Errorf("%d items in all", len(got))
	}
}

func TestMemoryTellsDigestsUntilWhenTheyHoldAndWhichAreGone(t *testing.T) {
	h := newHarness(t)
	ctx, key := context.Background(), store.BindingKey{Controller: h.ids["alice"].ID, Target: h.ids["alpha"].ID}
	at := func(n int) time.Time { return time.Unix(int64(n), 0).UTC() }
	b := store.Binding{BindingKey: key, Generation: 9, Lane: 1, Context: 8, Digest: 4, CreatedAt: at(1)}
	former := func(gen uint64, why string, ended int) {
		b.Former = append(b.Former, store.FormerSession{FormerSession: api.FormerSession{Generation: gen, Why: why, EndedAt: at(ended)}})
	}
	former(1, api.EndedCompact, 10)
	former(2, api.EndedReset, 20)
	former(3, api.EndedClear, 30)
	former(8, api.EndedCompact, 40)
	b, err := h.store.PutBinding(ctx, b)
	if err != nil {
		t.Fatal(err)
	}
	for i, context := range []uint64{1, 1, 3, 8} {
		d := store.Digest{Digest: api.Digest{Generation: i + 1, Task: fmt.Sprint("c", i), At: at(5 + i), Facts: []string{"a fact"}}, Context: context}
		if err := h.store.PutDigest(ctx, key, d); err != nil {
			t.Fatal(err)
		}
	}
	h.settledTask("t1", "alice", "alpha", 1)
	want := []string{"digest 1 until 6", "digest 2 until 20", "gone 3", fmt.Sprintf("digest 4 until %d", time.Time{}.Unix())}
	for _, who := range []string{"alice", "alpha"} {
		got, _ := fed(t, h, who, "", 1)
		if !slices.Equal(got, append(slices.Clone(want), "t1")) {
			t.Errorf("%s: %v", who, got)
		}
	}
	if got, _ := fed(t, h, "beta", "", 1); got != nil {
		t.Errorf("beta: %v", got)
	}
	_, next := fed(t, h, "alpha", "", 10)
	h.settledTask("op", "alice", "alpha", 5, func(task *store.Task) { task.Op = api.OpCompact })
	if got, _ := fed(t, h, "alpha", next, 10); !slices.Equal(got, want) {
		t.Errorf("after a compaction: %v", got)
	}
}

func TestMemoryRefusesACursorThatIsNone(t *testing.T) {
	h := newHarness(t)
	for _, cursor := range []string{"x", "t.", "t.1", "t.1.1", "t.a.b..0", "t.1.1.run.x", "d.*", "q.1.2"} {
		if _, err := h.relay.Memory(context.Background(), h.ids["alpha"].ID, cursor, 1); api.ErrorCode(err) != api.CodeBadRequest {
			t.Errorf("%s: %v", cursor, err)
		}
	}
}

func TestMemoryTellsAtOnceWhatComesLongAfterItsEnd(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	h.submit("alice", "beta", id(1), "x")
	o := beta.next()
	h.await(id(1), api.StateAccepted)
	if _, err := h.relay.Abandon(context.Background(), id(1)); err != nil {
		t.Fatal(err)
	}
	h.clock.forward(2 * api.MemoryOverlap)
	got, next := fed(t, h, "beta", "", 10)
	if !slices.Equal(got, []string{id(1)}) {
		t.Fatalf("before the result: %v", got)
	}
	if got, next = fed(t, h, "beta", next, 10); got != nil {
		t.Fatalf("it is told again: %v", got)
	}
	if err := beta.settle(o, api.Outcome{State: api.StateDone, Summary: "late", Reply: "the late reply"}); err != nil {
		t.Fatal(err)
	}
	page, err := h.relay.Memory(context.Background(), h.ids["beta"].ID, next, 1)
	if err != nil || len(page.Items) != 1 || page.Items[0].Result.Reply != "the late reply" {
		t.Fatalf("after the result: %+v, %v", page, err)
	}
	if got, _ := fed(t, h, "alpha", next, 1); got != nil {
		t.Errorf("another node is told %v", got)
	}
	if got, _ = fed(t, h, "beta", page.Next, 1); got != nil {
		t.Errorf("it is told twice: %v", got)
	}
	if got, _ = fed(t, h, "beta", "t."+fmt.Sprint(h.clock.Now().UnixNano())+".0.another.77", 1); !slices.Equal(got, []string{id(1)}) {
		t.Errorf("with a place in another life of the hub: %v", got)
	}
}

func TestATaskWithANewSessionTellsUntilWhenTheFormerDigestsHeld(t *testing.T) {
	h := newHarness(t)
	ctx := context.Background()
	key := store.BindingKey{Controller: h.ids["alice"].ID, Target: h.ids["alpha"].ID}
	at := time.Unix(5, 0).UTC()
	b, err := h.store.PutBinding(ctx, store.Binding{BindingKey: key, Generation: 1, Lane: 1, Context: 1, Digest: 1, CreatedAt: at})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.store.PutDigest(ctx, key, store.Digest{Digest: api.Digest{Generation: 1, Task: "c1", At: at, Facts: []string{"a fact"}}, Context: 1}); err != nil {
		t.Fatal(err)
	}
	_, next := fed(t, h, "alpha", "", 10)
	b.Generation, b.Lane, b.Context = 2, 2, 2
	b.Former = []store.FormerSession{{FormerSession: api.FormerSession{Generation: 1, Why: api.EndedReset, EndedAt: at.Add(time.Second)}}}
	if _, err := h.store.PutBinding(ctx, b); err != nil {
		t.Fatal(err)
	}
	h.settledTask("t1", "alice", "alpha", 3600, func(task *store.Task) { task.New = true })
	if got, _ := fed(t, h, "alpha", next, 10); !slices.Equal(got, []string{"t1", "digest 1 until 6"}) {
		t.Errorf("got %v", got)
	}
}
