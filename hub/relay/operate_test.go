package relay_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// talk makes a pair with a session in which n tasks were done.
func talk(t *testing.T, n int) (*harness, *living) {
	t.Helper()
	h := newHarness(t)
	beta := h.living("beta")
	beta.attach()
	t.Cleanup(beta.leave)
	for i := range n {
		h.submit("alice", "beta", id(i), "x")
		beta.settled(id(i))
	}
	return h, beta
}

func TestACompactionHandsTheSessionOver(t *testing.T) {
	h, beta := talk(t, 3)
	old := h.bindingOf("alice", "beta")
	h.operate("alice", "beta", api.OpCompact, "c1")
	h.submit("alice", "beta", "behind", "x")
	got := beta.settled("c1")
	if got.State != api.StateDone || !strings.HasPrefix(got.Outcome.Summary, "30% -> 10%, digest 1, session ses_") || !got.Outcome.NewSession {
		t.Errorf("outcome %+v, %+v", got.Outcome, got.Outcome.Error)
	}
	if after := beta.settled("behind"); after.Outcome.Session != got.Outcome.Session || after.Generation != 2 {
		t.Errorf("what comes behind ran in %s, generation %d", after.Outcome.Session, after.Generation)
	}
	b := beta.sound(t, "alice")
	if b.Generation != 2 || b.Lane != old.Generation || b.Session != got.Outcome.Session || b.Digest != 1 {
		t.Errorf("binding %+v", b)
	}
	if f := b.Former[0]; f.Session != old.Session || f.Why != api.EndedCompact || f.Generation != 1 {
		t.Errorf("former %+v", f)
	}

	var digest, resume api.Offer
	for _, k := range beta.order {
		switch k.offer.Kind {
		case api.TurnDigest:
			digest = k.offer
		case api.TurnResume:
			resume = k.offer
		}
	}
	if digest.Mode != "session" || digest.Binding.Session != old.Session || !strings.Contains(digest.Text, "\ntask: c1\ngen: 1\n") {
		t.Errorf("digest request %+v", digest)
	}
	if resume.Mode != "resume" || resume.Binding.Session != "" || resume.Binding.Compaction != "c1" || resume.Binding.Generation != 2 {
		t.Errorf("hand-over %+v", resume)
	}
	for _, want := range []string{"mode: resume\n", "- fact of c1\n", "task: " + id(1), "task: " + id(2), "<<<MESH_DATA "} {
		if !strings.Contains(resume.Text, want) {
			t.Errorf("the hand-over lacks %q:\n%s", want, resume.Text)
		}
	}
	if strings.Contains(resume.Text, "task: "+id(0)) {
		t.Error("more than the last two results are handed over")
	}
}

func TestTheNextDigestMergesTheLastOneOfTheContext(t *testing.T) {
	h, beta := talk(t, 1)
	request := func(op string) string {
		t.Helper()
		h.operate("alice", "beta", api.OpCompact, op)
		if got := beta.settled(op); got.State != api.StateDone {
			t.Fatalf("%+v %+v", got.Outcome, got.Outcome.Error)
		}
		beta.mu.Lock()
		defer beta.mu.Unlock()
		return beta.turns[api.Triple{Task: op, Attempt: 1, Turn: 1}].offer.Text
	}
	if text := request("c1"); strings.Contains(text, "MESH_DATA") {
		t.Errorf("there was nothing to merge:\n%s", text)
	}
	if text := request("c2"); !strings.Contains(text, "gen: 2\n") || !strings.Contains(text, "- fact of c1\n") {
		t.Errorf("the last digest is not merged:\n%s", text)
	}
	h.operate("alice", "beta", api.OpReset, "r1")
	beta.settled("r1")
	h.submit("alice", "beta", "anew", "x")
	beta.settled("anew")
	if text := request("c3"); !strings.Contains(text, "gen: 3\n") || strings.Contains(text, "MESH_DATA") {
		t.Errorf("a digest of another context is merged:\n%s", text)
	}
	beta.sound(t, "alice")
}

func TestAResetDropsTheBindingAndWhatComesBehindItHasAnotherSession(t *testing.T) {
	h, beta := talk(t, 1)
	old := h.bindingOf("alice", "beta").Session
	beta.leave()
	h.submit("alice", "beta", "before", "x")
	h.operate("alice", "beta", api.OpReset, "r1")
	h.submit("alice", "beta", "behind", "x")
	if got := h.state("r1"); got != api.StateQueued {
		t.Errorf("it is %s before its turn", got)
	}
	beta.attach()
	if got := beta.settled("before"); got.Outcome.Session != old {
		t.Errorf("what came before it ran in %s", got.Outcome.Session)
	}
	beta.settled("r1")
	after := beta.settled("behind")
	if after.Outcome.Session == old {
		t.Error("what came behind it ran in the session that was dropped")
	}
	b := beta.sound(t, "alice")
	if b.Session != after.Outcome.Session || b.Former[0].Why != api.EndedReset || b.Former[0].Session != old {
		t.Errorf("binding %+v", b)
	}
	if !slices.Contains(beta.alive("id_alice"), old) {
		t.Error("a reset deleted the session")
	}
}

func TestAResetNeedsNoNode(t *testing.T) {
	h := newHarness(t)
	key := store.BindingKey{Controller: h.ids["alice"].ID, Target: h.ids["beta"].ID}
	if _, err := h.store.PutBinding(context.Background(), store.Binding{BindingKey: key, Generation: 1, Session: "ses_1"}); err != nil {
		t.Fatal(err)
	}
	h.operate("alice", "beta", api.OpReset, "r1")
	h.await("r1", api.StateDone)
	if b := h.bindingOf("alice", "beta"); b.Generation != 2 || b.Session != "" {
		t.Errorf("binding %+v", b)
	}
}

func TestAClearDeletesTheSession(t *testing.T) {
	h, beta := talk(t, 1)
	old := h.bindingOf("alice", "beta").Session
	h.operate("alice", "beta", api.OpClear, "k1")
	h.submit("alice", "beta", "behind", "x")
	if got := beta.settled("k1"); got.State != api.StateDone {
		t.Errorf("%+v %+v", got.Outcome, got.Outcome.Error)
	}
	if got := beta.settled("behind"); got.Outcome.Session == old || len(got.Flags) > 0 {
		t.Errorf("what comes behind ran in %s, flags %v", got.Outcome.Session, got.Flags)
	}
	b := beta.sound(t, "alice")
	if alive := beta.alive("id_alice"); slices.Contains(alive, old) || len(alive) != 1 {
		t.Errorf("%v live", alive)
	}
	if b.Former[0].Why != api.EndedClear {
		t.Errorf("former %+v", b.Former)
	}
}

func TestAClearWaitsForNoAnswer(t *testing.T) {
	h, beta := talk(t, 1)
	h.submit("alice", "beta", "asks", "ASK")
	beta.until("it asks", func() bool { return h.state("asks") == api.StateQuestion })
	_, err := h.relay.Operate(context.Background(), h.ids["alice"], h.ids["alice"], "beta", api.OpClear, api.Operate{ID: "k1"})
	wantCode(t, err, api.CodeConflict)

	// A question that comes up while the clear waits.
	beta.leave()
	if _, err := h.relay.Answer(context.Background(), "asks", "", "that"); err != nil {
		t.Fatal(err)
	}
	beta.attach()
	beta.settled("asks")
	h.submit("alice", "beta", "asks2", "ASK")
	h.operate("alice", "beta", api.OpClear, "k2")
	got := beta.settled("k2")
	if got.State != api.StateFailed || got.Outcome.Error.Code != api.TaskSessionInUse || !strings.Contains(got.Outcome.Error.Message, "asks2") {
		t.Errorf("%+v %+v", got.Outcome, got.Outcome.Error)
	}
	if _, err := h.relay.Answer(context.Background(), "asks2", "", "that"); err != nil {
		t.Fatal(err)
	}
	if got := beta.settled("asks2"); len(got.Flags) > 0 {
		t.Errorf("flags %v", got.Flags)
	}
	beta.sound(t, "alice")
}

func TestAnAnswerGoesToTheSessionThatAskedAlsoAfterACompaction(t *testing.T) {
	h, beta := talk(t, 1)
	h.submit("alice", "beta", "asks", "ASK")
	beta.until("it asks", func() bool { return h.state("asks") == api.StateQuestion })
	asked := h.bindingOf("alice", "beta").Session
	h.operate("alice", "beta", api.OpCompact, "c1")
	beta.settled("c1")
	if _, err := h.relay.Answer(context.Background(), "asks", "", "that"); err != nil {
		t.Fatal(err)
	}
	if got := beta.settled("asks"); got.Outcome.Session != asked || len(got.Flags) > 0 {
		t.Errorf("the answer went to %s, not %s; flags %v", got.Outcome.Session, asked, got.Flags)
	}
	if b := beta.sound(t, "alice"); b.Session == asked {
		t.Error("the answer turned the binding back")
	}
}

func TestWhatComesBehindAnOperationWaitsForItsEnd(t *testing.T) {
	h, beta := talk(t, 1)
	h.operate("alice", "beta", api.OpCompact, "c1")
	h.submit("alice", "beta", "behind", "x")
	h.await("c1", api.StateAccepted)
	if got := h.agree("behind"); got.State != api.StateQueued || got.Journal != "" || got.Generation != 0 {
		t.Errorf("it is %s in generation %d", got.State, got.Generation)
	}
	h.submit("bob", "beta", "other", "x") // another controller does not wait
	beta.until("the other is done", func() bool { return h.state("other") == api.StateDone })
	beta.settled("behind")
	beta.sound(t, "alice")
	beta.sound(t, "bob")
}

func TestACompactionBeginsAfterWhatComesBeforeItHasEnded(t *testing.T) {
	h := newHarness(t)
	beta := h.living("beta")
	beta.attach()
	t.Cleanup(beta.leave)
	h.submit("alice", "beta", id(1), "x")
	h.await(id(1), api.StateAccepted)
	h.operate("alice", "beta", api.OpCompact, "c1") // no session is bound yet, but one is coming
	h.submit("bob", "beta", id(2), "x")             // would be offered after it
	h.await(id(2), api.StateAccepted)
	if got := h.state("c1"); got != api.StateQueued {
		t.Errorf("it is %s already", got)
	}
	got := beta.settled("c1")
	if got.State != api.StateDone || !strings.HasPrefix(got.Outcome.Summary, "10% -> 10%, digest 1") {
		t.Errorf("%+v %+v", got.Outcome, got.Outcome.Error)
	}
	beta.sound(t, "alice")
}

func TestAnOperationWaitsUntilTheBindingKnowsWhatCameBeforeIt(t *testing.T) {
	h := newHarness(t)
	beta := h.living("beta")
	beta.attach()
	t.Cleanup(beta.leave)
	h.submit("alice", "beta", id(1), "x")
	h.operate("alice", "beta", api.OpCompact, "c1")
	reached, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	h.gate.bound = func(before bool) {
		if before {
			once.Do(func() { close(reached); <-goOn })
		}
	}
	worked := make(chan struct{})
	h.await(id(1), api.StateAccepted)
	go func() { beta.work(); close(worked) }()
	<-reached
	h.await(id(1), api.StateDone)
	h.submit("bob", "beta", id(2), "x") // would be offered after it
	h.await(id(2), api.StateAccepted)
	if got := h.state("c1"); got != api.StateQueued {
		t.Errorf("it is %s before the session is bound", got)
	}
	close(goOn)
	<-worked
	if got := beta.settled("c1"); got.State != api.StateDone {
		t.Errorf("%+v %+v", got.Outcome, got.Outcome.Error)
	}
}

func TestASessionOverItsContextIsHandedOverFromTheRecord(t *testing.T) {
	h, beta := talk(t, 2)
	h.submit("alice", "beta", "full", "FULL")
	beta.settled("full")
	h.operate("alice", "beta", api.OpCompact, "c1")
	got := beta.settled("c1")
	if got.State != api.StateDone || !slices.Contains(got.Flags, api.FlagDigestFromRecord) || !strings.Contains(got.Outcome.Summary, "no digest") || got.Turn != 1 {
		t.Errorf("%+v, flags %v, turn %d", got.Outcome, got.Flags, got.Turn)
	}
	if text := beta.turns[api.Triple{Task: "c1", Attempt: 1, Turn: 1}].offer.Text; !strings.Contains(text, "task: full") || !strings.Contains(text, "mode: resume") {
		t.Errorf("hand-over:\n%s", text)
	}
	beta.sound(t, "alice")
}

func TestASessionFoundFullByTheDigestIsHandedOverFromTheRecord(t *testing.T) {
	h, beta := talk(t, 1)
	h.operate("alice", "beta", api.OpCompact, "c1")
	beta.settled("c1")
	beta.script = func(o api.Offer) *api.Outcome {
		if o.Kind != api.TurnDigest {
			return nil
		}
		return &api.Outcome{State: api.StateFailed, Summary: "too long", Flags: []api.Flag{api.FlagContextFull}, Session: o.Binding.Session}
	}
	h.operate("alice", "beta", api.OpCompact, "c2")
	got := beta.settled("c2")
	if got.State != api.StateDone || !slices.Contains(got.Flags, api.FlagDigestFromRecord) || !strings.Contains(got.Outcome.Summary, "digest 1,") {
		t.Errorf("%+v %+v, flags %v", got.Outcome, got.Outcome.Error, got.Flags)
	}
	if text := beta.turns[api.Triple{Task: "c2", Attempt: 1, Turn: 2}].offer.Text; !strings.Contains(text, "- fact of c1") {
		t.Errorf("hand-over:\n%s", text)
	}
	if b := beta.sound(t, "alice"); b.Generation != 3 {
		t.Errorf("binding %+v", b)
	}
}

func TestOperationsAreCheckedAtOnce(t *testing.T) {
	h, beta := talk(t, 1)
	ctx := context.Background()
	try := func(controller, target, op string, o api.Operate) error {
		_, err := h.relay.Operate(ctx, h.ids[controller], h.ids[controller], target, op, o)
		return err
	}
	wantCode(t, try("alice", "beta", "explode", api.Operate{ID: "a"}), api.CodeBadRequest)
	wantCode(t, try("alice", "beta", api.OpReset, api.Operate{ID: "not an id"}), api.CodeBadRequest)
	wantCode(t, try("alice", "beta", api.OpReset, api.Operate{ID: "a", Workspace: "a\nb"}), api.CodeBadRequest)
	wantCode(t, try("alice", "gamma", api.OpReset, api.Operate{ID: "a"}), api.CodeUnknownTarget)
	wantCode(t, try("bob", "beta", api.OpCompact, api.Operate{ID: "a"}), api.CodeConflict)
	wantCode(t, try("bob", "beta", api.OpClear, api.Operate{ID: "a"}), api.CodeConflict)
	wantCode(t, try("bob", "beta", api.OpReset, api.Operate{ID: "a"}), api.CodeConflict) // it would leave a binding of nothing
	wantCode(t, try("alice", "beta", api.OpReset, api.Operate{ID: id(0)}), api.CodeTaskConflict)

	h.operate("alice", "beta", api.OpCompact, "c1")
	again := h.operate("alice", "beta", api.OpCompact, "c1")
	wantCode(t, try("alice", "beta", api.OpClear, api.Operate{ID: "c1"}), api.CodeTaskConflict)
	wantCode(t, try("bob", "beta", api.OpCompact, api.Operate{ID: "c1"}), api.CodeTaskConflict)
	beta.settled("c1")
	if got := h.operate("alice", "beta", api.OpCompact, "c1"); got.State != api.StateDone || got.Seq != again.Seq {
		t.Errorf("the repeat is another: %+v", got)
	}
	_, err := h.relay.Retry(ctx, "c1")
	wantCode(t, err, api.CodeConflict)
	_, err = h.relay.Answer(ctx, "c1", "", "yes")
	wantCode(t, err, api.CodeQuestionGone)

	_, _ = h.store.PutNodeRecord(ctx, store.NodeRecord{IdentityID: "id_alpha", Hello: api.Hello{JournalID: "j", Sessions: false}})
	wantCode(t, try("alice", "alpha", api.OpReset, api.Operate{ID: "b"}), api.CodeNotSupported)
}

func TestAnOperationBehindNewFindsAnotherSessionBound(t *testing.T) {
	h, beta := talk(t, 1)
	old := h.bindingOf("alice", "beta").Session
	beta.leave()
	for _, op := range []string{api.OpCompact, api.OpClear, api.OpReset} {
		h.submit("alice", "beta", "before-"+op, "x")
		h.operate("alice", "beta", op, "op-"+op)
		h.submit("alice", "beta", "new-"+op, "x", asNew)
	}
	beta.attach()
	for op, want := range map[string]api.State{api.OpCompact: api.StateFailed, api.OpClear: api.StateFailed, api.OpReset: api.StateDone} {
		if got := beta.settled("op-" + op); got.State != want || want == api.StateFailed && got.Outcome.Error.Code != api.TaskBindingChanged {
			t.Errorf("%s: %+v %+v", op, got.Outcome, got.Outcome.Error)
		}
		beta.settled("before-" + op)
		beta.settled("new-" + op)
	}
	if !slices.Contains(beta.alive("id_alice"), old) {
		t.Error("the session was deleted")
	}
	if b := beta.sound(t, "alice"); b.Generation != 4 {
		t.Errorf("binding %+v", b)
	}
}

func TestAutoCompactComesBeforeTheTaskThatFindsTheSessionFull(t *testing.T) {
	h, beta := talk(t, 3) // 30 %
	auto := func(d *api.Dispatch) { d.AutoCompact = 40 }
	compactions := func() (list []store.Task) {
		page, err := h.store.Tasks(context.Background(), store.TaskQuery{Limit: 100})
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range page.Tasks {
			if x.Op == api.OpCompact {
				list = append(list, x)
			}
		}
		return list
	}
	h.submit("alice", "beta", "a1", "x", auto)
	beta.settled("a1")
	if n := len(compactions()); n != 0 {
		t.Fatalf("%d compactions at 30%%", n)
	}
	h.submit("alice", "beta", "a2", "x", auto) // finds 40 %
	h.submit("alice", "beta", "a3", "x", auto)
	h.submit("alice", "beta", "a2", "x", auto) // a repeat
	beta.settled("a3")
	list := compactions()
	if len(list) != 1 || list[0].State != api.StateDone || list[0].Controller.ID != "id_alice" {
		t.Fatalf("compactions %+v", list)
	}
	a2, err := h.relay.Task(context.Background(), "a2")
	if err != nil || a2.Seq != list[0].Seq+1 || a2.Generation != 2 {
		t.Errorf("task %+v, %v", a2, err)
	}

	// One that fails stops no task.
	for i := range 3 {
		h.submit("alice", "beta", id(10+i), "x")
		beta.settled(id(10 + i))
	}
	beta.script = func(o api.Offer) *api.Outcome {
		if o.Kind == api.TurnDigest {
			return &api.Outcome{State: api.StateFailed, Summary: "no"}
		}
		return nil
	}
	h.submit("alice", "beta", "a4", "x", auto)
	if got := beta.settled("a4"); got.State != api.StateDone || got.Generation != 2 {
		t.Errorf("task %+v", got)
	}
	if list = compactions(); len(list) != 2 || list[0].State != api.StateFailed {
		t.Errorf("compactions %+v", list)
	}
	_, err = h.trySubmit("alice", "beta", "a5", "x", func(d *api.Dispatch) { d.AutoCompact = 101 })
	wantCode(t, err, api.CodeBadRequest)
	beta.sound(t, "alice")
}

func TestARetryEntersTheSessionThatIsBoundNow(t *testing.T) {
	h, beta := talk(t, 1)
	h.submit("alice", "beta", "n1", "x", asNew)
	beta.settled("n1")
	if _, err := h.relay.Retry(context.Background(), id(0)); err != nil {
		t.Fatal(err)
	}
	b := h.bindingOf("alice", "beta")
	if got := beta.settled(id(0)); got.Outcome.Session != b.Session || got.Lane != b.Lane {
		t.Errorf("it ran in %s", got.Outcome.Session)
	}
	beta.sound(t, "alice")
}

func TestAnUnnamedWorkspaceGetsTheNameOfTheDefaultOne(t *testing.T) {
	h := newHarness(t)
	h.submit("alice", "beta", id(0), "x")
	if _, err := h.store.PutNodeRecord(context.Background(), store.NodeRecord{IdentityID: "id_beta", Hello: api.Hello{JournalID: "j1", Sessions: true, Workspaces: []string{"main", "other"}}}); err != nil {
		t.Fatal(err)
	}
	for i, named := range []string{"", "main", "other"} {
		got := h.submit("alice", "beta", id(i+1), "x", func(d *api.Dispatch) { d.Workspace = named })
		if want := []string{"main", "main", "other"}[i]; got.Workspace != want {
			t.Errorf("%q became %q", named, got.Workspace)
		}
	}
	// The same dispatch again is the same, whatever the node said meanwhile.
	if got := h.submit("alice", "beta", id(0), "x"); got.Workspace != "" {
		t.Errorf("workspace %q", got.Workspace)
	}
	_, err := h.trySubmit("alice", "beta", id(1), "x", func(d *api.Dispatch) { d.Workspace = "main" })
	wantCode(t, err, api.CodeTaskConflict)
}

func TestTheAuditEntryOfADispatchIsMadeInItsOneCommit(t *testing.T) {
	h, beta := talk(t, 1)
	beta.mu.Lock() // the offer does not get further, so nothing else is written
	before := h.disk.commits.Load()
	by := h.by("alice")
	by.Entry = &api.AuditEntry{Action: "dispatched", Object: "beta"}
	d := api.Dispatch{Targets: []api.DispatchTarget{{Name: "beta", ID: "t1"}}, Text: "x"}
	for range 2 { // a repeat is no second act
		if _, err := h.relay.Submit(context.Background(), by, d); err != nil {
			t.Fatal(err)
		}
	}
	if got := h.disk.commits.Load() - before; got != 2 { // the repeat's is empty
		t.Errorf("a dispatch and its repeat take %d commits", got)
	}
	log, err := h.store.Audit(context.Background(), store.AuditQuery{Action: "dispatched"})
	if err != nil || len(log.Entries) != 1 || log.Entries[0].Object != "beta" {
		t.Errorf("%+v, %v", log.Entries, err)
	}
	beta.mu.Unlock()
	beta.settled("t1")
}

func TestAnOperationCostsADispatchNothingWhenThereIsNone(t *testing.T) {
	h, beta := talk(t, 1)
	beta.mu.Lock() // the offer does not get further, so nothing else is written
	before := h.disk.commits.Load()
	h.submit("alice", "beta", "t1", "x")
	if got := h.disk.commits.Load() - before; got != 1 {
		t.Errorf("a dispatch to a connected node takes %d commits", got)
	}
	if got, err := h.store.Task(context.Background(), "t1"); err != nil || got.Generation != 1 || got.Journal != "j1" {
		t.Errorf("it is made with generation %d for journal %q", got.Generation, got.Journal)
	}
	beta.mu.Unlock()
	beta.settled("t1")
}

func TestTheLifeOfAnOperationIsBounded(t *testing.T) {
	h := newHarness(t)
	beta := h.living("beta")
	beta.attach()
	h.submit("alice", "beta", id(0), "x")
	beta.settled(id(0))
	beta.leave()
	h.operate("alice", "beta", api.OpCompact, "c1")
	h.operate("alice", "beta", api.OpClear, "k1")
	h.sweep(api.DefaultTTL + time.Minute)
	for _, op := range []string{"c1", "k1"} {
		h.await(op, api.StateExpired)
	}
	if b := beta.sound(t, "alice"); b.Generation != 1 || b.Session == "" {
		t.Errorf("binding %+v", b)
	}
}
