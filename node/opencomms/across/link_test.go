package across

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"opencode-mesh/node/opencomms/engine"
	"opencode-mesh/protocol/api"
	ocm "opencode-mesh/protocol/opencomms"
)

func TestOnlyALinkOnBothSidesCarriesAnything(t *testing.T) {
	w := newWorld(t, t.TempDir(), "alpha", "beta")
	t.Cleanup(w.close)
	alpha, beta := w.sides["alpha"], w.sides["beta"]
	alpha.create("review", engine.CreateRequest{}, "Builder")
	beta.create("checks", engine.CreateRequest{}, "Reviewer")
	if _, err := alpha.across.Link(t.Context(), LinkRequest{Project: alpha.dir, Channel: "Review", Node: "beta", As: "Checks"}); err != nil {
		t.Fatal(err)
	}
	w.settle()
	if got := alpha.roles("review"); !slices.Equal(got, []string{"Builder"}) {
		t.Errorf("alpha's channel has %v", got)
	}
	if l := alpha.status().Links[0]; l.State != LinkWaiting {
		t.Errorf("the link is %s", l.State)
	}
	offers := beta.status().Offers
	if len(offers) != 1 || offers[0].Node != "alpha" || offers[0].Channel != "checks" || offers[0].PeerChannel != "review" || !slices.Equal(offers[0].Roles, []string{"Builder"}) {
		t.Fatalf("beta has the offers %+v", offers)
	}
	if _, err := beta.across.Link(t.Context(), LinkRequest{Project: beta.dir, Channel: "checks", Node: "alpha", As: "review"}); err != nil {
		t.Fatal(err)
	}
	w.settle()
	if a, b := alpha.roles("review"), beta.roles("checks"); !slices.Equal(a, []string{"Builder", "Reviewer-beta"}) || !slices.Equal(b, []string{"Reviewer", "Builder-alpha"}) {
		t.Errorf("the channels have %v and %v", a, b)
	}
	if got := beta.status(); len(got.Offers) != 0 || got.Links[0].State != LinkOpen {
		t.Errorf("beta's status is %+v", got)
	}
	// Nothing of the host's sessions crosses.
	w.post.mu.Lock()
	defer w.post.mu.Unlock()
	for _, m := range w.post.known {
		if strings.Contains(string(m.Body), "sess_") {
			t.Errorf("a session id travels in %s", m.Body)
		}
	}
}

func TestAProxyIsMadeOfNothingThatTheOtherSideWrote(t *testing.T) {
	_, alpha, _ := pair(t)
	m := engine.Find(alpha.state(), "review").Members[1]
	if m.RolePrompt != proxyPrompt || m.Host != Host || m.Surface != ocm.SurfaceAPI || m.Mode != ocm.ModePull || m.Policy.Mode != ocm.StaleNone || m.HostSessionID != "" {
		t.Errorf("the proxy is %+v", m)
	}
	digits, ok := strings.CutPrefix(m.SessionID, "sess_")
	if !ok || len(digits) != 24 || strings.Trim(digits, "0123456789abcdef") != "" {
		t.Errorf("its id is %s", m.SessionID)
	}
}

func TestRolesOfProxiesFitAndAreTheirOwn(t *testing.T) {
	ch := &ocm.Channel{}
	take := func(role, node, want string) {
		t.Helper()
		got := proxyRole(ch, role, node)
		if normal, err := ocm.NormalRole(got); err != nil || normal != got || got != want {
			t.Errorf("the role for %q of %s is %q (%v), not %q", role, node, got, err, want)
		}
		ch.Members = append(ch.Members, &ocm.Member{Role: got})
	}
	take("Reviewer", "beta", "Reviewer-beta")
	take("reviewer", "beta", "reviewer-beta-2")
	take("A role of thirty two characters", "beta", "A role of thirty two charac-beta")
	take("A role of thirty two characters", "beta", "A role of thirty two char-beta-2")
	take("A role of thirty two characters", "sixteen-letters1", "A role of thirt-sixteen-letters1")
	// What begins alike does not look alike.
	take("Tester", "build-server-frankfurt-1", "Tester-build-ser-"+digest("build-server-frankfurt-1"))
	take("Tester", "build-server-frankfurt-2", "Tester-build-ser-"+digest("build-server-frankfurt-2"))
	take("A role of thirty two characters", strings.Repeat("n", 63), "A role of thirt-nnnnnnnnn-"+digest(strings.Repeat("n", 63)))
}

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:3])
}

func TestRostersFollowTheChannels(t *testing.T) {
	w, alpha, beta := pair(t)
	beta.join("review", "Tester")
	w.settle()
	if got := alpha.roles("review"); !slices.Equal(got, []string{"Builder", "Reviewer-beta", "Tester-beta"}) {
		t.Fatalf("alpha's channel has %v", got)
	}
	alpha.change(func(s *ocm.State) { engine.Find(s, "review").Paused = true })
	id := alpha.say2("Builder", "Tester-beta", "hello")
	if _, err := beta.project.Disconnect(t.Context(), engine.Caller{Session: beta.session("Tester")}, "review"); err != nil {
		t.Fatal(err)
	}
	w.settle()
	if got := alpha.roles("review"); !slices.Equal(got, []string{"Builder", "Reviewer-beta"}) {
		t.Errorf("alpha's channel has %v", got)
	}
	told(t, alpha, "Builder", id, stateDropped, "left the channel")
}

// say2 sends although the channel is paused.
func (s *side) say2(from, to, content string) (id string) {
	s.change(func(st *ocm.State) { engine.Find(st, "review").Paused = false })
	id = s.say(from, to, content)
	s.change(func(st *ocm.State) { engine.Find(st, "review").Paused = true })
	return id
}

func TestAMemberThatCannotComeInIsShownAndComesLater(t *testing.T) {
	w := newWorld(t, t.TempDir(), "alpha", "beta")
	t.Cleanup(w.close)
	alpha, beta := w.sides["alpha"], w.sides["beta"]
	alpha.create("review", engine.CreateRequest{}, "Builder")
	beta.create("review", engine.CreateRequest{MaxMembers: 2}, "Reviewer", "Tester")
	alpha.link("review", "beta")
	beta.link("review", "alpha")
	w.settle()
	p := beta.status().Links[0].Proxies
	if len(p) != 1 || p[0].InChannel || p[0].Code != string(engine.ChannelFull) || !strings.Contains(Absence(p[0].Code), "full") {
		t.Fatalf("the status says %+v", p)
	}
	id := alpha.say("Builder", "Reviewer-beta", "hello")
	w.settle()
	told(t, alpha, "Builder", id, stateRefused, "is full")
	if _, err := beta.project.Disconnect(t.Context(), engine.Caller{Session: beta.session("Tester")}, "review"); err != nil {
		t.Fatal(err)
	}
	w.settle()
	if got := beta.roles("review"); !slices.Equal(got, []string{"Reviewer", "Builder-alpha"}) {
		t.Errorf("beta's channel has %v", got)
	}
}

func TestAnEmptyChannelIsGivenToNoProxy(t *testing.T) {
	w := newWorld(t, t.TempDir(), "alpha", "beta")
	t.Cleanup(w.close)
	alpha, beta := w.sides["alpha"], w.sides["beta"]
	alpha.create("review", engine.CreateRequest{})
	beta.create("review", engine.CreateRequest{}, "Reviewer")
	alpha.link("review", "beta")
	beta.link("review", "alpha")
	w.settle()
	if got := alpha.roles("review"); len(got) != 0 {
		t.Fatalf("alpha's channel has %v", got)
	}
	alpha.join("review", "Builder")
	w.settle()
	if got := alpha.roles("review"); !slices.Equal(got, []string{"Builder", "Reviewer-beta"}) {
		t.Errorf("alpha's channel has %v", got)
	}
}

func TestWhoWasRemovedStaysOutUntilTheChannelIsLinkedAgain(t *testing.T) {
	w, alpha, _ := pair(t)
	if _, err := alpha.project.Kick(t.Context(), engine.Caller{Session: alpha.session("Builder")}, engine.KickRequest{Channel: "review", TargetRole: "Reviewer-beta"}); err != nil {
		t.Fatal(err)
	}
	w.settle()
	alpha.crash()
	w.settle()
	if got := alpha.roles("review"); !slices.Equal(got, []string{"Builder"}) {
		t.Fatalf("alpha's channel has %v", got)
	}
	if p := alpha.status().Links[0].Proxies; len(p) != 1 || p[0].Code != codeRemoved {
		t.Errorf("the status says %+v", p)
	}
	alpha.link("review", "beta")
	w.settle()
	if got := alpha.roles("review"); !slices.Equal(got, []string{"Builder", "Reviewer-beta"}) {
		t.Errorf("alpha's channel has %v", got)
	}
}

func TestUnlinkingLeavesNothingBehind(t *testing.T) {
	for _, who := range []string{"alpha", "beta"} {
		t.Run(who, func(t *testing.T) {
			w, alpha, beta := pair(t)
			arrived := alpha.say("Builder", "Reviewer-beta", "one")
			w.settle()
			beta.disconnect()
			onItsWay := alpha.say("Builder", "Reviewer-beta", "two")
			w.settle()
			waits := alpha.say("Builder", "Reviewer-beta", "three")
			other := map[string]string{"alpha": "beta", "beta": "alpha"}[who]
			w.sides[who].unlink("review", other)
			w.settle()
			beta.connect()
			w.settle()
			if a, b := alpha.roles("review"), beta.roles("review"); len(a) != 1 || len(b) != 1 {
				t.Errorf("the channels have %v and %v", a, b)
			}
			for _, id := range []string{onItsWay, waits} {
				if beta.row(id) == nil {
					told(t, alpha, "Builder", id, "", "not delivered")
				} else if texts := strings.Join(alpha.notices("Builder"), ""); strings.Contains(texts, id) {
					t.Errorf("%s arrived, and its sender was told that it did not", id)
				}
			}
			if beta.row(arrived) == nil {
				t.Error("what had arrived is gone")
			}
			if n := len(w.sides[who].status().Links); n != 0 {
				t.Errorf("there are %d links", n)
			}
			if l := w.sides[other].status().Links; len(l) != 1 || l[0].State != LinkWaiting {
				t.Errorf("the other side has %+v", l)
			}
			// It can be linked again at once.
			w.sides[who].link("review", other)
			w.settle()
			id := alpha.say("Builder", "Reviewer-beta", "four")
			w.settle()
			if beta.row(id) == nil {
				t.Errorf("linked again, it is %+v", alpha.sent(id))
			}
		})
	}
}

func TestAChannelThatEndsHereIsEmptyForTheOtherSide(t *testing.T) {
	for name, end := range map[string]func(s *side) error{
		"deleted": func(s *side) error {
			_, err := s.project.DeleteSession(context.Background(), engine.Caller{Operator: true}, "review", true)
			return err
		},
		"saved": func(s *side) error {
			_, err := s.project.SaveSession(context.Background(), engine.Caller{Operator: true}, engine.SaveRequest{Channel: "review"})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, alpha, beta := pair(t)
			alpha.change(func(s *ocm.State) { engine.Find(s, "review").Paused = true })
			id := alpha.say2("Builder", "Reviewer-beta", "hello")
			if err := alpha.work(); err != nil {
				t.Fatal(err)
			}
			if err := end(alpha); err != nil {
				t.Fatal(err)
			}
			w.settle()
			if got := beta.roles("review"); !slices.Equal(got, []string{"Reviewer"}) {
				t.Errorf("beta's channel has %v", got)
			}
			if l := alpha.status().Links[0]; !strings.Contains(l.Trouble, "gone") {
				t.Errorf("the status says %+v", l)
			}
			if got := alpha.sent(id); got.State != stateDropped {
				t.Errorf("what waited is %+v", got)
			}
			// Another channel of the name is not linked.
			alpha.create("review", engine.CreateRequest{}, "Builder")
			w.settle()
			if got := alpha.roles("review"); !slices.Equal(got, []string{"Builder"}) {
				t.Errorf("the new channel has %v", got)
			}
			alpha.unlink("review", "beta")
			alpha.link("review", "beta")
			w.settle()
			if got := alpha.roles("review"); !slices.Equal(got, []string{"Builder", "Reviewer-beta"}) {
				t.Errorf("the channel that was linked again has %v", got)
			}
		})
	}
}

func TestANodeThatDoesNotExistIsAskedAgain(t *testing.T) {
	w := newWorld(t, t.TempDir(), "alpha")
	t.Cleanup(w.close)
	alpha := w.sides["alpha"]
	alpha.create("review", engine.CreateRequest{}, "Builder")
	alpha.link("review", "beta")
	w.settle()
	if l := alpha.status().Links[0]; !strings.Contains(l.Trouble, "knows no node of that name") {
		t.Fatalf("the status says %+v", l)
	}
	beta := w.add(t.TempDir(), "beta")
	w.settle()
	if n := len(beta.status().Offers); n != 0 {
		t.Fatalf("%d offers before the time", n)
	}
	w.pass(rosterRetry + time.Second)
	w.settle()
	if n := len(beta.status().Offers); n != 1 {
		t.Errorf("beta has %d offers", n)
	}
	if l := alpha.status().Links[0]; l.Trouble != "" {
		t.Errorf("the status says %+v", l)
	}
}

func TestAnotherMachineUnderTheSameNameGetsNothing(t *testing.T) {
	w, alpha, beta := pair(t)
	w.post.ids["beta"] = "id-of-another"
	beta.join("review", "Tester") // its roster comes from another identity
	w.settle()
	if l := alpha.status().Links[0]; !strings.Contains(l.Trouble, "another machine") {
		t.Errorf("the status says %+v", l)
	}
	id := alpha.say("Builder", "Reviewer-beta", "secret")
	w.settle()
	if row := alpha.row(id); row.Status != ocm.StatusPending || beta.row(id) != nil {
		t.Errorf("it is %s here", row.Status)
	}
	forged := beta.say("Reviewer", "Builder-alpha", "hello")
	w.settle()
	if alpha.row(forged) != nil {
		t.Error("another machine wrote into the channel")
	}
	// Whoever is here says that it is right.
	alpha.unlink("review", "beta")
	w.settle()
	alpha.link("review", "beta")
	w.settle()
	if got := alpha.roles("review"); !slices.Contains(got, "Tester-beta") {
		t.Errorf("linked again, alpha's channel has %v", got)
	}
}

func TestWhatIsSentAfterAnotherTookTheNameComesBack(t *testing.T) {
	w, alpha, beta := pair(t)
	w.post.ids["beta"] = "id-of-another"
	id := alpha.say("Builder", "Reviewer-beta", "secret")
	w.settle()
	if beta.row(id) != nil || beta.underWay() != 0 {
		t.Error("another machine got the message")
	}
	told(t, alpha, "Builder", id, stateReturned, "another machine has the name")
	if l := alpha.status().Links[0]; !strings.Contains(l.Trouble, "another machine") {
		t.Errorf("the status says %+v", l)
	}
	before := len(w.post.known)
	alpha.join("review", "Tester")
	alpha.say("Builder", "Reviewer-beta", "more")
	w.settle()
	if n := len(w.post.known); n != before {
		t.Errorf("%d more mails were sent", n-before)
	}
}

func TestAMessageOfAnotherUnderTheNameShowsThatItIsAnother(t *testing.T) {
	w, alpha, beta := pair(t)
	w.post.ids["beta"] = "id-of-another"
	forged := beta.say("Reviewer", "Builder-alpha", "hello")
	w.settle()
	if l := alpha.status().Links[0]; alpha.row(forged) != nil || !strings.Contains(l.Trouble, "another machine") {
		t.Errorf("the status says %+v", l)
	}
}

func TestThreeMachinesPairwise(t *testing.T) {
	w, alpha, beta := pair(t)
	gamma := w.add(t.TempDir(), "gamma")
	gamma.create("review", engine.CreateRequest{}, "Tester")
	for _, s := range []*side{alpha, beta} {
		s.link("review", "gamma")
		gamma.link("review", s.name)
	}
	w.settle()
	for s, want := range map[*side][]string{
		alpha: {"Builder", "Reviewer-beta", "Tester-gamma"},
		beta:  {"Builder-alpha", "Reviewer", "Tester-gamma"},
		gamma: {"Builder-alpha", "Reviewer-beta", "Tester"},
	} {
		got := s.roles("review")
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s has %v", s.name, got)
		}
	}
	if _, err := alpha.send(engine.SendRequest{Broadcast: true, Content: "all"}, "Builder"); err != nil {
		t.Fatal(err)
	}
	w.settle()
	for _, s := range []*side{beta, gamma} {
		if n := s.state().Messages.Len(); n != 1 {
			t.Errorf("%s has %d messages", s.name, n)
		}
	}
}

func TestLinksThatCannotBeAreRefused(t *testing.T) {
	w, alpha, _ := pair(t)
	alpha.create("other", engine.CreateRequest{}, "Builder")
	for name, c := range map[string]struct {
		r    LinkRequest
		code api.Code
	}{
		"itself":         {LinkRequest{Project: alpha.dir, Channel: "review", Node: "alpha"}, api.CodeBadRequest},
		"no node":        {LinkRequest{Project: alpha.dir, Channel: "review", Node: "Beta!"}, api.CodeBadRequest},
		"no channel":     {LinkRequest{Project: alpha.dir, Channel: "nothing", Node: "beta"}, api.CodeNotFound},
		"a name":         {LinkRequest{Project: alpha.dir, Channel: "review", Node: "beta", As: "a b"}, api.CodeBadRequest},
		"a role":         {LinkRequest{Project: alpha.dir, Channel: "review", Node: "beta", Members: []string{"1"}}, api.CodeBadRequest},
		"a path":         {LinkRequest{Project: "here", Channel: "review", Node: "beta"}, api.CodeBadRequest},
		"no project":     {LinkRequest{Project: alpha.dir + "x", Channel: "review", Node: "beta"}, api.CodeNotFound},
		"a second there": {LinkRequest{Project: alpha.dir, Channel: "other", Node: "beta", As: "review"}, api.CodeConflict},
		"a second here":  {LinkRequest{Project: alpha.dir, Channel: "review", Node: "beta", As: "other"}, api.CodeConflict},
	} {
		_, err := alpha.across.Link(t.Context(), c.r)
		var refusal *api.Error
		if !errors.As(err, &refusal) || refusal.Code != c.code {
			t.Errorf("%s: %v", name, err)
		}
	}
	var refusal *api.Error
	if _, err := alpha.across.Unlink(t.Context(), UnlinkRequest{Project: alpha.dir, Channel: "other", Node: "beta"}); !errors.As(err, &refusal) || refusal.Code != api.CodeNotFound {
		t.Errorf("unlinking nothing: %v", err)
	}
	w.settle()
}

// The goroutines of a node: a project is worked on while it has links, and not after.
func TestRunWorksOnLinkedProjectsUntilItEnds(t *testing.T) {
	w := newWorld(t, t.TempDir(), "alpha", "beta")
	t.Cleanup(w.close)
	alpha, beta := w.sides["alpha"], w.sides["beta"]
	alpha.create("review", engine.CreateRequest{}, "Builder")
	beta.create("review", engine.CreateRequest{}, "Reviewer")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	for _, s := range w.sides {
		clear(s.across.workers)
		go func() { ended <- s.across.Run(ctx) }()
	}
	until := func(what string, is func() bool) {
		t.Helper()
		for deadline := time.Now().Add(60 * time.Second); !is(); {
			if time.Now().After(deadline) {
				t.Fatalf("waited in vain for %s", what)
			}
			w.post.pump(w.sides)
			time.Sleep(time.Millisecond)
		}
	}
	running := func(s *side) int {
		s.across.mu.Lock()
		defer s.across.mu.Unlock()
		return len(s.across.workers)
	}
	until("the start", func() bool {
		alpha.across.mu.Lock()
		defer alpha.across.mu.Unlock()
		beta.across.mu.Lock()
		defer beta.across.mu.Unlock()
		return alpha.across.ctx != nil && beta.across.ctx != nil
	})
	alpha.link("review", "beta")
	beta.link("review", "alpha")
	until("the proxies", func() bool { return len(alpha.roles("review")) == 2 && len(beta.roles("review")) == 2 })
	id := alpha.say("Builder", "Reviewer-beta", "hello")
	until("the message", func() bool { return beta.row(id) != nil })
	beta.pull("Reviewer")
	until("its end", func() bool { return alpha.sent(id).State == ocm.StatusDelivered })
	alpha.unlink("review", "beta")
	until("the end of the work", func() bool { return running(alpha) == 0 })
	cancel()
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

func TestAProcessThatLostItsNameLeavesTheFilesAlone(t *testing.T) {
	_, alpha, _ := pair(t)
	clear(alpha.across.workers)
	ended := make(chan error, 1)
	go func() { ended <- alpha.across.Run(t.Context()) }()
	alpha.across.Park()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	id := alpha.say("Builder", "Reviewer-beta", "hello")
	alpha.link("review", "beta") // wakes nobody
	if row := alpha.row(id); row.Status != ocm.StatusPending {
		t.Errorf("it is %s", row.Status)
	}
	if err := alpha.across.Run(t.Context()); err != nil {
		t.Error(err)
	}
}
