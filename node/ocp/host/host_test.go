package host

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"opencode-mesh/node/ocp/memory"
	"opencode-mesh/node/ocp/ocptest"
	"opencode-mesh/node/ocp/transport"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/ocp"
)

func TestAProviderThatBreaksTheRulesHurtsNoOther(t *testing.T) {
	t.Parallel()
	want := []struct {
		b             ocptest.Behaviour
		outcome, text string
	}{
		{ocptest.Good, api.ContextFrames, ""},
		{ocptest.LyingCosts, api.ContextLiar, "broke the budget"},
		{ocptest.CrashOnQuery, api.ContextFailed, "crashed"},
		{ocptest.Floods, api.ContextFailed, "a line of more than 16777216 bytes"},
		{ocptest.Logs, api.ContextFailed, "wire: "},
		{ocptest.TooMany, api.ContextFlood, "9 frames of at most 8"},
		{ocptest.BadVersion, api.ContextFailed, `version mismatch: provider "test provider" speaks "ocp/2.0"`},
		{ocptest.BadScore, api.ContextFrames, "score is 1.5"},
		{ocptest.DuplicateIDs, api.ContextFrames, "was there before"},
		{ocptest.OnlyErrors, api.ContextFailed, "not today"},
		{ocptest.NullArrays, api.ContextFailed, "wire: "},
		{ocptest.BlankName, api.ContextFailed, "no name"},
	}
	var cfg Config
	var seen logs
	cfg.Log = seen.logger(t)
	for _, w := range want {
		cfg.Providers = append(cfg.Providers, Provider{Name: string(w.b), Command: ocptest.Args(w.b)})
	}
	cfg.Providers = append(cfg.Providers, goodSource(), Provider{Name: "absent", Command: []string{"/no/such/program"}})
	h := open(t, cfg)
	legs, err := h.Ask(t.Context(), ocp.Query{Goal: "g", MaxFrames: 8}, memory.Scope{All: true})
	if err != nil || len(legs) != len(cfg.Providers) {
		t.Fatalf("%d legs of %d, %v", len(legs), len(cfg.Providers), err)
	}
	for i, p := range cfg.Providers {
		if legs[i].Provider != p.Name {
			t.Errorf("leg %d is of %s", i, legs[i].Provider)
		}
	}
	for i, w := range want {
		wantOutcome(t, legs[i], w.outcome, w.text)
	}
	for i, frames := range map[int]int{0: 2, 7: 1, 8: 1, len(want): 1} {
		if len(legs[i].Result.Frames) != frames || legs[i].Used != frames {
			t.Errorf("%s: %d frames, want %d: %+v", legs[i].Provider, len(legs[i].Result.Frames), frames, legs[i])
		}
	}
	if legs[1].Claimed <= api.MaxContextTokens || legs[1].Found != 2 {
		t.Errorf("the lie: %+v", legs[1])
	}
	wantOutcome(t, legs[len(want)+1], api.ContextFailed, "spawn provider absent")
	for _, loud := range []string{"provider=lying-costs", "provider=too-many", "does not keep to the budget"} {
		if !strings.Contains(seen.text(), loud) {
			t.Errorf("nothing in the log of %s", loud)
		}
	}
}

func TestFramesOfAKindThatWasNotAskedForDoNotCount(t *testing.T) {
	t.Parallel()
	h := open(t, Config{Providers: []Provider{{Name: "p", Command: ocptest.Args(ocptest.WrongKind)}}})
	leg := askFor(t, t.Context(), h, ocp.Query{Goal: "g", Kinds: []ocp.FrameKind{ocp.KindFact}})["p"]
	wantOutcome(t, leg, api.ContextFrames, "kind is not one that was asked for")
	if leg.Found != 2 || leg.Used != 0 || len(leg.Result.Frames) != 0 {
		t.Errorf("%+v", leg)
	}
}

// tired is a program that says after its first answer that it is about to end.
type tired struct {
	asked int
	goals *[]string
}

func (p *tired) Exchange(_ context.Context, e ocp.Envelope) (ocp.Envelope, error) {
	if e.Handshake != nil {
		return ocp.Envelope{HandshakeAck: &ocp.HandshakeAck{ProtocolVersion: ocp.VersionContextgraph, Provider: ocp.ProviderInfo{Name: "tired", Version: "1"}}}, nil
	}
	p.asked++
	if p.asked > 1 {
		return ocp.Envelope{Error: &ocp.Error{Code: ocp.CodeShuttingDown, Message: "good night"}}, nil
	}
	*p.goals = append(*p.goals, e.Query.Goal)
	return ocp.Envelope{Frames: &ocp.Result{Frames: []ocp.Frame{frame(e.Query.Goal)}}}, nil
}

func (p *tired) Close() error { return nil }

func TestAProgramThatIsAboutToEndCostsNoQuery(t *testing.T) {
	t.Parallel()
	var goals []string
	starts := 0
	h := open(t, Config{
		Providers: []Provider{{Name: "p", Command: []string{"tired"}}},
		identify:  func([]string) (program, error) { return program{}, nil },
		spawn: func(transport.Command) (transport.Conn, error) {
			starts++
			return &tired{goals: &goals}, nil
		},
	})
	for _, goal := range []string{"one", "two", "three"} {
		wantOutcome(t, ask(t, h, goal)["p"], api.ContextFrames, "")
	}
	if !slices.Equal(goals, []string{"one", "two", "three"}) || starts != 3 || failures(h.members[0]) != 0 {
		t.Errorf("goals %q, %d starts, %d failures", goals, starts, failures(h.members[0]))
	}
}

func TestWhatHangsEndsInTimeAndTheOthersCount(t *testing.T) {
	t.Parallel()
	h := open(t, Config{Timeout: 50 * time.Millisecond, Providers: []Provider{
		{Name: "hangs", Command: ocptest.Args(ocptest.HangsAtOnce)}, goodSource(),
	}})
	for range 3 {
		legs := ask(t, h, "g")
		wantOutcome(t, legs["hangs"], api.ContextFailed, "hangs")
		wantOutcome(t, legs["memory"], api.ContextFrames, "")
	}
}

func TestAMemoryThatHangsAtItsDiskHoldsUpNeitherOthersNorTheEnd(t *testing.T) {
	t.Parallel()
	release, gone := make(chan struct{}), make(chan struct{}, maxWaiting)
	h := open(t, Config{Timeout: time.Second, Wait: time.Second, Providers: []Provider{
		{Name: "stuck", Source: source(func(ocp.Query, memory.Scope) (ocp.Result, error) {
			<-release
			gone <- struct{}{}
			return ocp.Result{}, nil
		})}, goodSource(),
	}})
	var work sync.WaitGroup
	for range maxWaiting {
		work.Go(func() {
			legs := ask(t, h, "g")
			wantOutcome(t, legs["stuck"], api.ContextFailed, "did not answer in time")
			wantOutcome(t, legs["memory"], api.ContextFrames, "")
		})
	}
	work.Wait()
	wantOutcome(t, ask(t, h, "one more")["stuck"], api.ContextFailed, "busy")
	h.Close()
	close(release)
	for range maxWaiting {
		<-gone
	}
}

func TestAnAnswerThatComesLateIsNotThatOfTheNextQuery(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := open(t, Config{Providers: []Provider{{Name: "slow", Command: childArgs(dir)}}})
	wantOutcome(t, ask(t, h, "warm up")["slow"], api.ContextFrames, "")
	ctx, cancel := context.WithCancel(t.Context())
	legs := make(chan map[string]api.ContextAnswerLeg, 1)
	go func() { legs <- askFor(t, ctx, h, ocp.Query{Goal: "late"}) }()
	await(t, "the query", func() bool { return strings.Contains(has(t, dir, fileGoals), "late") })
	cancel()
	wantOutcome(t, (<-legs)["slow"], api.ContextFailed, "")
	put(t, dir, fileGo, "")
	got := ask(t, h, "second")["slow"]
	wantOutcome(t, got, api.ContextFrames, "")
	if got.Result.Frames[0].Content != "second" {
		t.Errorf("asked for second, got %q", got.Result.Frames[0].Content)
	}
	if has(t, dir, fileStarts) != "s" {
		t.Errorf("starts: %q", has(t, dir, fileStarts))
	}
}

func TestAProgramThatCrashesIsStartedAnewWithBackOff(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	now := new(clock)
	h := open(t, Config{Now: now.Now, Providers: []Provider{{Name: "p", Command: childArgs(dir)}}})
	starts := func(n int) {
		t.Helper()
		if got := len(has(t, dir, fileStarts)); got != n {
			t.Errorf("%d starts, want %d", got, n)
		}
	}
	wantOutcome(t, ask(t, h, "crash")["p"], api.ContextFailed, "crashed")
	starts(1)
	wantOutcome(t, ask(t, h, "crash")["p"], api.ContextFailed, "crashed")
	starts(2) // the first time it may have been bad luck
	wantOutcome(t, ask(t, h, "crash")["p"], api.ContextFailed, "not started again for 1s")
	starts(2)
	now.forward(BackoffMin)
	wantOutcome(t, ask(t, h, "crash")["p"], api.ContextFailed, "crashed")
	starts(3)
	now.forward(BackoffMin)
	wantOutcome(t, ask(t, h, "fine")["p"], api.ContextFailed, "not started again for 1s") // of the two
	now.forward(BackoffMin)
	wantOutcome(t, ask(t, h, "fine")["p"], api.ContextFrames, "")
	wantOutcome(t, ask(t, h, "fine")["p"], api.ContextFrames, "")
	starts(4) // it is kept
	wantOutcome(t, ask(t, h, "crash")["p"], api.ContextFailed, "crashed")
	starts(5) // one that was kept may have ended before it was asked: it is asked once more
	if len(strings.Fields(has(t, dir, fileGoals))) != 7 {
		t.Errorf("goals: %q", has(t, dir, fileGoals))
	}
}

func TestAProgramThatNobodyAsksIsEnded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	now := new(clock)
	h := open(t, Config{Now: now.Now, Idle: time.Minute, Providers: []Provider{{Name: "p", Command: childArgs(dir)}}})
	wantOutcome(t, ask(t, h, "one")["p"], api.ContextFrames, "")
	h.members[0].retire()
	wantOutcome(t, ask(t, h, "two")["p"], api.ContextFrames, "")
	if has(t, dir, fileEnds) != "" {
		t.Error("it was ended too early")
	}
	now.forward(time.Minute)
	h.members[0].retire()
	if has(t, dir, fileEnds) != "e" {
		t.Error("it was not ended")
	}
	wantOutcome(t, ask(t, h, "three")["p"], api.ContextFrames, "")
	if has(t, dir, fileStarts) != "ss" {
		t.Errorf("starts: %q", has(t, dir, fileStarts))
	}
}

func TestRunEndsProgramsAndClosesTheHost(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := open(t, Config{Idle: time.Nanosecond, Providers: []Provider{{Name: "p", Command: childArgs(dir)}}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		h.Run(ctx)
	}()
	wantOutcome(t, ask(t, h, "one")["p"], api.ContextFrames, "")
	await(t, "the end of the program", func() bool { return has(t, dir, fileEnds) != "" })
	cancel()
	<-ended
	_, err := h.Ask(t.Context(), ocp.Query{Goal: "g"}, memory.Scope{All: true})
	var e *api.Error
	if !errors.As(err, &e) || e.Code != api.CodeShuttingDown {
		t.Errorf("%v", err)
	}
}

func TestCloseBreaksOffWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := open(t, Config{Providers: []Provider{{Name: "p", Command: childArgs(dir)}}})
	legs := make(chan map[string]api.ContextAnswerLeg, 1)
	go func() { legs <- ask(t, h, "late") }()
	await(t, "the query", func() bool { return has(t, dir, fileGoals) != "" })
	h.Close()
	wantOutcome(t, (<-legs)["p"], api.ContextFailed, "stopping")
}

func TestOnlyProvidersThatHaveTheKindsAreAsked(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var posts requests
	s := httptest.NewServer(&posts)
	t.Cleanup(s.Close)
	h := open(t, Config{Providers: []Provider{goodSource(), {Name: "docs", Command: childArgs(dir)}, {Name: "web", URL: s.URL}}})
	kinds := func(k ...ocp.FrameKind) string {
		var names []string
		for name := range askFor(t, t.Context(), h, ocp.Query{Goal: "g", Kinds: k}) {
			names = append(names, name)
		}
		slices.Sort(names)
		return strings.Join(names, " ")
	}
	for _, c := range []struct {
		want  string
		kinds []ocp.FrameKind
	}{
		{"docs memory web", nil},
		{"docs web", []ocp.FrameKind{ocp.KindDoc}},
		{"memory web", []ocp.FrameKind{ocp.KindFact}}, // who web is cannot be known without consent
		{"docs memory web", []ocp.FrameKind{ocp.KindFact, ocp.KindDoc}},
		{"web", []ocp.FrameKind{ocp.KindSymbol}},
	} {
		if got := kinds(c.kinds...); got != c.want {
			t.Errorf("%v: %s, want %s", c.kinds, got, c.want)
		}
	}
	if posts.count() != 0 {
		t.Error("something was sent to an address that nobody consented to")
	}
	if _, err := h.Providers(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := kinds(ocp.KindSymbol); got != "" { // now it is known
		t.Errorf("%s", got)
	}
}

// requests is a good provider over HTTP that keeps what it is sent.
type requests struct {
	mu     sync.Mutex // guards bodies
	bodies []string
}

func (r *requests) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	good := ocptest.Handler(ocptest.Good)
	body := new(strings.Builder)
	req.Body = &tee{req.Body, body}
	good.ServeHTTP(w, req)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bodies = append(r.bodies, body.String())
}

func (r *requests) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.bodies)
}

func (r *requests) has(text string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.bodies, func(b string) bool { return strings.Contains(b, text) })
}

func TestQueriesThatWaitForOneProviderAreBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := open(t, Config{Providers: []Provider{{Name: "p", Command: childArgs(dir)}}})
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() { askFor(t, ctx, h, ocp.Query{Goal: "late"}) })
	await(t, "the query", func() bool { return has(t, dir, fileGoals) != "" })
	for range maxWaiting {
		work.Go(func() { askFor(t, ctx, h, ocp.Query{Goal: "next"}) })
	}
	await(t, "the queue", func() bool { return h.members[0].waiting.Load() == maxWaiting })
	wantOutcome(t, ask(t, h, "one too many")["p"], api.ContextFailed, "busy: 32 queries wait")
	cancel()
	work.Wait()
}

func TestEachQueryHasTheProvidersFullTimeAfterItsWait(t *testing.T) {
	t.Parallel()
	const parallel = 5
	dir := t.TempDir()
	// Enough for each, and too little for all.
	h := open(t, Config{Timeout: parallel*slowBy - slowBy/2, Wait: time.Minute, Providers: []Provider{{Name: "p", Command: childArgs(dir)}}})
	var work sync.WaitGroup
	for range parallel {
		work.Go(func() { wantOutcome(t, ask(t, h, "slow")["p"], api.ContextFrames, "") })
	}
	work.Wait()
	if failures(h.members[0]) != 0 || has(t, dir, fileStarts) != "s" {
		t.Errorf("%d failures; starts: %q", failures(h.members[0]), has(t, dir, fileStarts))
	}
}

func TestAWaitThatRunsOutHarmsNeitherTheProviderNorWhoHasItsTurn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := open(t, Config{Timeout: time.Minute, Wait: 50 * time.Millisecond, Providers: []Provider{{Name: "p", Command: childArgs(dir)}}})
	legs := make(chan map[string]api.ContextAnswerLeg, 1)
	go func() { legs <- ask(t, h, "late") }()
	await(t, "the query", func() bool { return has(t, dir, fileGoals) != "" })
	var work sync.WaitGroup
	for range 4 {
		work.Go(func() {
			wantOutcome(t, ask(t, h, "waits")["p"], api.ContextFailed, "busy: for 50ms others waited before")
		})
	}
	work.Wait()
	put(t, dir, fileGo, "")
	wantOutcome(t, (<-legs)["p"], api.ContextFrames, "")
	wantOutcome(t, ask(t, h, "next")["p"], api.ContextFrames, "")
	if failures(h.members[0]) != 0 || has(t, dir, fileStarts) != "s" || has(t, dir, fileGoals) != "late\nnext\n" {
		t.Errorf("%d failures; starts: %q; goals: %q", failures(h.members[0]), has(t, dir, fileStarts), has(t, dir, fileGoals))
	}
}

func TestACallerWhoseTimeEndsLeavesTheProviderItsOwn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := open(t, Config{Timeout: time.Minute, Wait: time.Minute, Providers: []Provider{{Name: "p", Command: childArgs(dir)}}})
	wantOutcome(t, ask(t, h, "warm up")["p"], api.ContextFrames, "")
	ctx, cancel := context.WithTimeout(t.Context(), slowBy)
	defer cancel()
	wantOutcome(t, askFor(t, ctx, h, ocp.Query{Goal: "late"})["p"], api.ContextFailed, "not done when the query ended")
	put(t, dir, fileGo, "")
	got := ask(t, h, "second")["p"]
	wantOutcome(t, got, api.ContextFrames, "")
	if len(got.Result.Frames) != 1 || got.Result.Frames[0].Content != "second" {
		t.Errorf("asked for second, got %+v", got.Result.Frames)
	}
	if failures(h.members[0]) != 0 || has(t, dir, fileStarts) != "s" || has(t, dir, fileGoals) != "warm up\nlate\nsecond\n" {
		t.Errorf("%d failures; starts: %q; goals: %q", failures(h.members[0]), has(t, dir, fileStarts), has(t, dir, fileGoals))
	}
}

func TestAProgramThatHangsIsEndedAlthoughNobodyWaitsForItAnyMore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := open(t, Config{Timeout: 3 * slowBy, Wait: time.Minute, Providers: []Provider{{Name: "p", Command: childArgs(dir)}}})
	ctx, cancel := context.WithCancel(t.Context())
	legs := make(chan map[string]api.ContextAnswerLeg, 1)
	go func() { legs <- askFor(t, ctx, h, ocp.Query{Goal: "late"}) }()
	await(t, "the query", func() bool { return has(t, dir, fileGoals) != "" })
	cancel()
	wantOutcome(t, (<-legs)["p"], api.ContextFailed, "not done when the query ended")
	wantOutcome(t, ask(t, h, "next")["p"], api.ContextFrames, "")
	if has(t, dir, fileStarts) != "ss" {
		t.Errorf("starts: %q", has(t, dir, fileStarts))
	}
}

func TestAHostRefusesProvidersThatCannotBe(t *testing.T) {
	t.Parallel()
	for text, list := range map[string][]Provider{
		"its name is":           {{Name: "A b", Command: []string{"x"}}},
		"neither a command":     {{Name: "a"}},
		"several things":        {{Name: "a", Command: []string{"x"}, URL: "https://x.example"}},
		"names no program":      {{Name: "a", Command: []string{""}}},
		"token is for":          {{Name: "a", Command: []string{"x"}, Token: "t"}},
		"use https://":          {{Name: "a", URL: "http://x.example/secret"}},
		"two context providers": {{Name: "a", Command: []string{"x"}}, {Name: "a", Command: []string{"y"}}},
		"65 context providers":  make([]Provider, api.MaxContextProviders+1),
	} {
		_, err := New(Config{Path: Path(t.TempDir()), Providers: list})
		if err == nil || !strings.Contains(err.Error(), text) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%v; want %q", err, text)
		}
	}
}

func TestAQueryThatMakesNoSenseIsRefused(t *testing.T) {
	t.Parallel()
	h := open(t, Config{Providers: []Provider{goodSource()}})
	for _, q := range []ocp.Query{{}, {Goal: "g", MaxTokens: api.MaxContextTokens + 1}, {Goal: "g", Kinds: []ocp.FrameKind{"x"}}, {Goal: "g", AsOf: "yesterday"}} {
		_, err := h.Ask(t.Context(), q, memory.Scope{})
		var e *api.Error
		if !errors.As(err, &e) || e.Code != api.CodeBadRequest {
			t.Errorf("%+v: %v", q, err)
		}
	}
}

func TestASourceIsAskedWithTheScopeOfTheAsker(t *testing.T) {
	t.Parallel()
	var got memory.Scope
	h := open(t, Config{Providers: []Provider{{Name: "memory", Source: source(func(_ ocp.Query, s memory.Scope) (ocp.Result, error) {
		got = s
		return ocp.Result{}, nil
	})}}})
	if _, err := h.Ask(t.Context(), ocp.Query{Goal: "g"}, memory.Scope{Controller: "id-1"}); err != nil || got != (memory.Scope{Controller: "id-1"}) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestFramesBeyondTheRealBudgetAreLeftOut(t *testing.T) {
	t.Parallel()
	// It counts a token for everything, which ocp/1 leaves to it.
	frames := []ocp.Frame{}
	for i, f := range []struct {
		bytes int
		score float32
	}{{400, 0.2}, {400, 0.9}, {40, 0.1}} {
		fr := frame(strings.Repeat("x", f.bytes))
		fr.ID, fr.Score, fr.TokenCost = string(rune('a'+i)), f.score, 1
		frames = append(frames, fr)
	}
	h := open(t, Config{Providers: []Provider{{Name: "p", Source: source(func(ocp.Query, memory.Scope) (ocp.Result, error) {
		return ocp.Result{Frames: frames}, nil
	})}}})
	got := askFor(t, t.Context(), h, ocp.Query{Goal: "g", MaxTokens: 120})["p"]
	if len(got.Result.Frames) != 2 || got.Result.Frames[0].ID != "b" || got.Result.Frames[1].ID != "c" || got.Tokens != 110 || !got.Result.Truncated || got.Found != 3 {
		t.Errorf("%+v", got)
	}
}
