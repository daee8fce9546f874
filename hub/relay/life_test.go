package relay_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"opencode-mesh/hub/relay"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
	"opencode-mesh/store"
)

func TestATaskGoesToItsNodeAndItsResultComesBack(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	made := h.submit("alice", "beta", id(1), "run the tests")
	o := beta.next()
	if o.Task != id(1) || o.Attempt != 1 || o.Turn != 1 || o.JournalID != "j1" || o.Seq != made.Seq {
		t.Errorf("offer %+v", o)
	}
	env, err := mesh.ParseEnvelope(o.Text)
	if err != nil {
		t.Fatal(err)
	}
	if env.From != "alice" || env.Task != id(1) || env.Body != "run the tests" {
		t.Errorf("envelope %+v", env)
	}
	h.await(id(1), api.StateAccepted)
	if err := beta.settle(o, api.Outcome{State: api.StateDone, Summary: "214 pass", Session: "ses_1", NewSession: true, RanMS: 1200, Tokens: &api.Tokens{Total: 21340, Limit: 200000}}); err != nil {
		t.Fatal(err)
	}
	v := relay.View(h.await(id(1), api.StateDone))
	if v.Summary != "214 pass" || *v.Session != "ses_1" || *v.CtxPercent != 11 || *v.DurationMS != 1200 || !v.NewSession {
		t.Errorf("view %+v", v)
	}
	b, err := h.store.Binding(context.Background(), store.BindingKey{Controller: "id_alice", Target: "id_beta"})
	if err != nil || b.Session != "ses_1" || b.Generation != 1 {
		t.Errorf("binding %+v, %v", b, err)
	}
	h.submit("alice", "beta", id(2), "and again")
	if o := beta.next(); o.Binding.Session != "ses_1" {
		t.Errorf("the second dispatch enters %q, want the bound session", o.Binding.Session)
	}
}

func TestAnOfflineNodesTasksWaitAndStartInOrder(t *testing.T) {
	h := newHarness(t)
	for i := range 20 {
		h.submit("alice", "beta", id(i), "do it")
	}
	if s := h.state(id(0)); s != api.StateQueued {
		t.Fatalf("state %s, want queued", s)
	}
	beta := h.node("beta", "j1")
	beta.attach()
	for i := range 20 {
		if o := beta.next(); o.Task != id(i) {
			t.Fatalf("offer %d is of %s", i, o.Task)
		}
	}
}

func TestTheNextOfALaneIsOfferedAfterTheReceipt(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	release := make(chan struct{})
	var open, most int
	var mu sync.Mutex
	beta.onOffer = func(o api.Offer) (api.Receipt, error) {
		mu.Lock()
		open++
		most = max(most, open)
		mu.Unlock()
		<-release
		mu.Lock()
		open--
		mu.Unlock()
		return api.Receipt{Triple: o.Triple, State: api.StateAccepted}, nil
	}
	beta.attach()
	for i := range 5 {
		h.submit("alice", "beta", id(i), "do it")
	}
	close(release)
	for range 5 {
		beta.next()
	}
	if most != 1 {
		t.Errorf("%d offers of one lane were under way at once", most)
	}
}

func TestConcurrentDispatchesOfOnePairStartInCommitOrder(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() { h.submit("alice", "beta", id(i), "do it") })
	}
	wg.Wait()
	var last uint64
	for range 64 {
		o := beta.next()
		if o.Seq <= last {
			t.Fatalf("sequence %d was offered after %d", o.Seq, last)
		}
		last = o.Seq
	}
}

func TestDifferentLanesDoNotWaitForEachOther(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	release := make(chan struct{})
	defer close(release)
	beta.onOffer = func(o api.Offer) (api.Receipt, error) {
		if o.Controller.Name == "alice" {
			<-release
		}
		return api.Receipt{Triple: o.Triple, State: api.StateAccepted}, nil
	}
	beta.attach()
	h.submit("alice", "beta", id(1), "slow")
	h.submit("bob", "beta", id(2), "quick")
	if o := beta.next(); o.Task != id(2) {
		t.Fatalf("got %s first", o.Task)
	}
}

func TestTheSameIDAgainIsARetryOfDeliveryAndNeverASecondRun(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	h.submit("alice", "beta", id(1), "text")
	o := beta.next()
	again := h.submit("alice", "beta", id(1), "text")
	if again.ID != id(1) {
		t.Fatalf("got %+v", again)
	}
	if err := beta.settle(o, done("ok")); err != nil {
		t.Fatal(err)
	}
	h.await(id(1), api.StateDone)
	if got := h.submit("alice", "beta", id(1), "text"); got.State != api.StateDone {
		t.Errorf("a repeat after the end gives %s", got.State)
	}
	h.crash()
	if got := h.submit("alice", "beta", id(1), "text"); got.State != api.StateDone {
		t.Errorf("a repeat after a restart gives %s", got.State)
	}
	if n := beta.count(id(1)); n != 1 {
		t.Errorf("it was offered %d times", n)
	}
}

func TestTheSameIDWithOtherContentIsAConflict(t *testing.T) {
	h := newHarness(t)
	h.submit("alice", "beta", id(1), "text")
	for name, try := range map[string]func() error{
		"other text":       func() error { _, err := h.trySubmit("alice", "beta", id(1), "other"); return err },
		"other target":     func() error { _, err := h.trySubmit("alice", "alpha", id(1), "text"); return err },
		"other controller": func() error { _, err := h.trySubmit("bob", "beta", id(1), "text"); return err },
		"new session":      func() error { _, err := h.trySubmit("alice", "beta", id(1), "text", asNew); return err },
		"other mode": func() error {
			_, err := h.trySubmit("alice", "beta", id(1), "text", func(d *api.Dispatch) { d.Mode = "one-shot" })
			return err
		},
	} {
		t.Run(name, func(t *testing.T) { wantCode(t, try(), api.CodeTaskConflict) })
	}
}

func TestADispatchWithOneBadTargetCreatesNothing(t *testing.T) {
	h := newHarness(t)
	_, err := h.relay.Submit(context.Background(), h.by("alice"), api.Dispatch{Text: "x", Targets: []api.DispatchTarget{{Name: "beta", ID: id(1)}, {Name: "gamma", ID: id(2)}}})
	wantCode(t, err, api.CodeUnknownTarget)
	if !strings.Contains(err.Error(), "alpha, beta") {
		t.Errorf("the error does not name the known nodes: %v", err)
	}
	if _, err := h.relay.Task(context.Background(), id(1)); err == nil {
		t.Error("a task was created")
	}
	if h.relay.Open() != 0 {
		t.Error("something is open")
	}
}

func TestBadInputIsRefusedWithAReason(t *testing.T) {
	h := newHarness(t)
	for name, d := range map[string]api.Dispatch{
		"no target":       {Text: "x"},
		"no text":         {Text: " \n", Targets: []api.DispatchTarget{{Name: "beta", ID: id(1)}}},
		"bad id":          {Text: "x", Targets: []api.DispatchTarget{{Name: "beta", ID: "a b"}}},
		"id used twice":   {Text: "x", Targets: []api.DispatchTarget{{Name: "beta", ID: id(1)}, {Name: "alpha", ID: id(1)}}},
		"target twice":    {Text: "x", Targets: []api.DispatchTarget{{Name: "beta", ID: id(1)}, {Name: "beta", ID: id(2)}}},
		"mode":            {Text: "x", Mode: "resume", Targets: []api.DispatchTarget{{Name: "beta", ID: id(1)}}},
		"negative ttl":    {Text: "x", TTLMS: -1, Targets: []api.DispatchTarget{{Name: "beta", ID: id(1)}}},
		"endless ttl":     {Text: "x", TTLMS: 1 << 60, Targets: []api.DispatchTarget{{Name: "beta", ID: id(1)}}},
		"long workspace":  {Text: "x", Workspace: strings.Repeat("w", 40), Targets: []api.DispatchTarget{{Name: "beta", ID: id(1)}}},
		"endless targets": {Text: "x", Targets: make([]api.DispatchTarget, api.MaxTargets+1)},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := h.relay.Submit(context.Background(), h.by("alice"), d)
			wantCode(t, err, api.CodeBadRequest)
		})
	}
	t.Run("too large a text", func(t *testing.T) {
		_, err := h.trySubmit("alice", "beta", id(1), strings.Repeat("x", api.MaxText+1))
		wantCode(t, err, api.CodeTooLarge)
	})
}

func TestNewOpensANewLaneAtOnceAndOlderTasksStayOnTheirs(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	h.submit("alice", "beta", id(1), "old")
	h.submit("alice", "beta", id(2), "new", asNew)
	h.submit("alice", "beta", id(3), "after")
	beta.attach()
	gen := map[string]uint64{}
	for range 3 {
		o := beta.next()
		gen[o.Task] = o.Binding.Generation
	}
	if gen[id(1)] != 1 || gen[id(2)] != 2 || gen[id(3)] != 2 {
		t.Errorf("generations %v", gen)
	}
	// A repeat of the dispatch with --new must not rebind again.
	h.submit("alice", "beta", id(2), "new", asNew)
	b, err := h.store.Binding(context.Background(), store.BindingKey{Controller: "id_alice", Target: "id_beta"})
	if err != nil || b.Generation != 2 {
		t.Errorf("binding %+v, %v", b, err)
	}
}

func TestTwoControllersNeverShareASession(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	h.submit("alice", "beta", id(1), "x")
	o := beta.next()
	if err := beta.settle(o, api.Outcome{State: api.StateDone, Session: "ses_alice"}); err != nil {
		t.Fatal(err)
	}
	h.submit("bob", "beta", id(2), "x")
	if o := beta.next(); o.Binding.Session != "" {
		t.Errorf("bob got session %s", o.Binding.Session)
	}
}

func TestAResultOfAnOlderGenerationDoesNotRebind(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	h.submit("alice", "beta", id(1), "old")
	old := beta.next()
	h.submit("alice", "beta", id(2), "new", asNew)
	beta.next()
	if err := beta.settle(old, api.Outcome{State: api.StateDone, Session: "ses_old"}); err != nil {
		t.Fatal(err)
	}
	b, err := h.store.Binding(context.Background(), store.BindingKey{Controller: "id_alice", Target: "id_beta"})
	if err != nil || b.Session != "" || b.Generation != 2 {
		t.Errorf("binding %+v, %v", b, err)
	}
}

func TestResultsAreTakenOncePerTriple(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	h.submit("alice", "beta", id(1), "x")
	o := beta.next()
	if err := beta.settle(o, done("first")); err != nil {
		t.Fatal(err)
	}
	if err := beta.settle(o, done("first")); err != nil {
		t.Errorf("an equal repeat: %v", err)
	}
	wantCode(t, beta.settle(o, done("second")), api.CodeResultConflict)
	if got := h.await(id(1), api.StateDone); got.Outcome.Summary != "first" {
		t.Errorf("summary %q", got.Outcome.Summary)
	}
}

func TestResultsAreTakenFromTheTargetAndItsJournalOnly(t *testing.T) {
	h := newHarness(t)
	beta, alpha := h.node("beta", "j1"), h.node("alpha", "ja")
	beta.attach()
	h.submit("alice", "beta", id(1), "x")
	o := beta.next()
	wantCode(t, alpha.settle(o, done("forged")), api.CodeForbidden)
	copied := h.node("beta", "j2")
	wantCode(t, copied.settle(o, done("from a copy")), api.CodeForbidden)
	if s := h.state(id(1)); s.Settled() {
		t.Errorf("state %s", s)
	}
}

func TestRubbishResultsAreRefused(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	h.submit("alice", "beta", id(1), "x")
	o := beta.next()
	wantCode(t, beta.settle(o, api.Outcome{State: "running"}), api.CodeBadRequest)
	wantCode(t, beta.settle(o, api.Outcome{State: api.StateQuestion}), api.CodeBadRequest)
	wantCode(t, beta.settle(o, api.Outcome{State: api.StateDone, Reply: strings.Repeat("x", api.MaxReply+1)}), api.CodeTooLarge)
}

func TestAQuestionWaitsAndTheFirstAnswerWins(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	h.submit("alice", "beta", id(1), "migrate")
	o := beta.next()
	if err := beta.settle(o, api.Outcome{State: api.StateQuestion, Session: "ses_1", Question: &api.Asked{Kind: api.QuestionText, Text: "which database?", Options: []string{"staging", "production"}}}); err != nil {
		t.Fatal(err)
	}
	q := h.await(id(1), api.StateQuestion).Question
	if q.Text != "which database?" || q.ExpiresAt.Sub(q.AskedAt) != api.DefaultQuestionTimeout {
		t.Errorf("question %+v", q)
	}
	_, err := h.relay.Answer(context.Background(), id(1), "another", "2")
	wantCode(t, err, api.CodeQuestionGone)
	if _, err := h.relay.Answer(context.Background(), id(1), q.ID, "2"); err != nil {
		t.Fatal(err)
	}
	_, err = h.relay.Answer(context.Background(), id(1), q.ID, "1")
	wantCode(t, err, api.CodeAlreadyAnswered)
	o = beta.next()
	if o.Turn != 2 || o.Attempt != 1 || o.Kind != api.TurnAnswer || !strings.Contains(o.Text, "production") || o.Binding.Session != "ses_1" {
		t.Errorf("offer %+v", o)
	}
	if err := beta.settle(o, done("migrated")); err != nil {
		t.Fatal(err)
	}
	h.await(id(1), api.StateDone)
}

func TestAnUnansweredQuestionGoesOnByAssumptionOnce(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	ask := api.Outcome{State: api.StateQuestion, Question: &api.Asked{Kind: api.QuestionText, Text: "which?"}}
	h.submit("alice", "beta", id(1), "x", func(d *api.Dispatch) { d.QuestionTimeoutMS = 60_000 })
	if err := beta.settle(beta.next(), ask); err != nil {
		t.Fatal(err)
	}
	h.clock.forward(61 * time.Second)
	h.relay.Sweep(context.Background())
	o := beta.next()
	if o.Kind != api.TurnAssume || o.Turn != 2 {
		t.Fatalf("offer %+v", o)
	}
	if err := beta.settle(o, ask); err != nil {
		t.Fatal(err)
	}
	got := h.await(id(1), api.StatePartial)
	if !slices.Contains(got.Flags, api.FlagAssumed) {
		t.Errorf("flags %v", got.Flags)
	}
}

func TestARetryIsANewAttemptOfASettledTaskOnly(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	h.submit("alice", "beta", id(1), "the text")
	o := beta.next()
	_, err := h.relay.Retry(context.Background(), id(1))
	wantCode(t, err, api.CodeNotSettled)
	if err := beta.settle(o, api.Outcome{State: api.StateFailed, Summary: "no"}); err != nil {
		t.Fatal(err)
	}
	h.await(id(1), api.StateFailed)
	if _, err := h.relay.Retry(context.Background(), id(1)); err != nil {
		t.Fatal(err)
	}
	o = beta.next()
	if o.Attempt != 2 || o.Turn != 1 || !strings.Contains(o.Text, "the text") {
		t.Errorf("offer %+v", o)
	}
	if err := beta.settle(o, done("yes")); err != nil {
		t.Fatal(err)
	}
	if got := h.await(id(1), api.StateDone); got.Attempt != 2 || got.Outcome.Summary != "yes" {
		t.Errorf("task %+v", got)
	}
}

func TestALateResultIsKeptAndCountedAndChangesNothing(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	h.submit("alice", "beta", id(1), "x")
	o := beta.next()
	h.await(id(1), api.StateAccepted)
	if _, err := h.relay.Abandon(context.Background(), id(1)); err != nil {
		t.Fatal(err)
	}
	if err := beta.settle(o, api.Outcome{State: api.StateDone, Summary: "late", Reply: "the late reply"}); err != nil {
		t.Fatal(err)
	}
	got, err := h.relay.Task(context.Background(), id(1))
	if err != nil || got.State != api.StateFailed || got.Late == nil || got.Late.Summary != "late" {
		t.Fatalf("task %+v, %v", got, err)
	}
	v, err := h.relay.Detail(context.Background(), got)
	if err != nil || !v.LateResult || v.Reply != "the late reply" {
		t.Errorf("detail %+v, %v", v, err)
	}
	if len(h.seen.late) != 1 {
		t.Errorf("late results counted: %v", h.seen.late)
	}
}

func TestAControllerThatDispatchesInALoopIsSlowedDown(t *testing.T) {
	h := newHarness(t)
	dispatch := func(prefix string, n int) error {
		for i := range n {
			if _, err := h.trySubmit("alice", "beta", fmt.Sprintf("%s-%d", prefix, i), "again and again"); err != nil {
				return err
			}
		}
		return nil
	}
	h.relay.Spend("id_alice", 2*api.MaxTargets-3)
	if err := dispatch("first", 3); err != nil {
		t.Fatal(err)
	}
	err := dispatch("more", 1)
	wantCode(t, err, api.CodeRateLimited)
	if _, err := h.trySubmit("bob", "beta", "bob-1", "not in a loop"); err != nil {
		t.Errorf("another controller pays for it: %v", err)
	}
	h.clock.forward(time.Second)
	if err := dispatch("later", 1); err != nil {
		t.Error(err)
	}
}

func TestALargestTextFitsItsEnvelopeWithEveryHeader(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	h.submit("alice", "beta", strings.Repeat("i", 64), strings.Repeat("x", api.MaxText))
	if o := beta.next(); len(o.Text) <= api.MaxText {
		t.Errorf("%d bytes were offered", len(o.Text))
	}
}

func TestAStoryTooLongForAnEnvelopeFailsAndFreesItsLane(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.sessions = false
	beta.attach()
	h.submit("alice", "beta", id(1), strings.Repeat("x", api.MaxText))
	if err := beta.settle(beta.next(), api.Outcome{State: api.StateQuestion, Question: &api.Asked{Kind: api.QuestionText, Text: "which?"}}); err != nil {
		t.Fatal(err)
	}
	h.await(id(1), api.StateQuestion)
	if _, err := h.relay.Answer(context.Background(), id(1), "", strings.Repeat("y", api.MaxAnswer)); err != nil {
		t.Fatal(err)
	}
	if got := h.await(id(1), api.StateFailed); got.Outcome.Error.Code != api.TaskNotStarted {
		t.Errorf("outcome %+v", got.Outcome)
	}
	h.submit("alice", "beta", id(2), "next")
	if o := beta.next(); o.Task != id(2) {
		t.Errorf("offered %s", o.Task)
	}
}
