package across

import (
	"fmt"
	"slices"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"opencode-mesh/node/mail"
	"opencode-mesh/node/opencomms/engine"
	"opencode-mesh/protocol/api"
	ocm "opencode-mesh/protocol/opencomms"
)

// receive hands mail to a side that the other one's links would never write.
func (s *side) receive(from, kind string, bodies ...any) {
	s.t.Helper()
	err := s.box.Update(s.t.(*testing.T).Context(), func(tx *bolt.Tx) error {
		for _, body := range bodies {
			m := api.Mail{ID: mail.NewID(), Kind: kind, From: from, FromID: "id-" + from, To: s.name, Body: encode(body), SentMS: s.w.now.Load()}
			if err := s.across.Receive(tx, m); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		s.t.Fatalf("%v", err)
	}
}

// record is the record of a side's only link.
func (s *side) record() *link {
	s.t.Helper()
	all, err := s.across.links(func(*link) bool { return true })
	if err != nil || len(all) != 1 {
		s.t.Fatalf("%d links, %v", len(all), err)
	}
	return all[0]
}

func TestNobodyGetsTwoCopiesOfABroadcast(t *testing.T) {
	w, alpha, beta := pair(t)
	beta.join("review", "Tester")
	w.settle()
	l := beta.record()
	copyFor := func(to string) message {
		for _, e := range l.Exports {
			if e.Role == to {
				return message{
					Link: l.PeerLink, Channel: "review", FromChannel: "review", ID: ocm.NewID(ocm.PrefixMessage), Correlation: "cor_" + fmt.Sprintf("%032x", 1),
					Type: ocm.TypeManual, Content: "all", SentAt: 7, From: l.Remote[0].Alias, To: e.Alias,
				}
			}
		}
		t.Fatalf("nobody is %s", to)
		return message{}
	}
	flood := []any{copyFor("Reviewer"), copyFor("Tester")}
	for range 50 {
		flood = append(flood, copyFor("Reviewer"), copyFor("Tester"))
	}
	beta.receive("alpha", kindMessage, flood...)
	w.settle()
	want := []string{flood[0].(message).ID, flood[1].(message).ID}
	if got := slices.Collect(keys(beta.state())); !slices.Equal(got, want) {
		t.Fatalf("%d rows came of one broadcast", len(got))
	}
	if ch := engine.Find(beta.state(), "review"); ch.Rate.Count != 1 {
		t.Errorf("they count as %d", ch.Rate.Count)
	}
	// The file has forgotten all of it, the journal has not.
	beta.change(func(s *ocm.State) {
		for id := range s.Messages.All() {
			s.Messages.Delete(id)
			s.DeliveredTo.Delete(id)
		}
		for session := range s.Queues.All() {
			s.Queues.Set(session, nil)
		}
		engine.Find(s, "review").SeenContent = ocm.Ordered[int64]{}
	})
	w.pass(time.Hour)
	beta.crash()
	beta.receive("alpha", kindMessage, copyFor("Reviewer"), copyFor("Tester"))
	w.settle()
	if n := beta.state().Messages.Len(); n != 0 {
		t.Errorf("%d rows came again", n)
	}
	if n := alpha.underWay() + beta.underWay(); n != 0 {
		t.Errorf("%d are under way", n)
	}
}

func keys(s *ocm.State) func(func(string) bool) {
	return func(yield func(string) bool) {
		for id := range s.Messages.All() {
			if !yield(id) {
				return
			}
		}
	}
}

// A copy that was held up begins to grow old when it comes.
func TestALateCopyOfABroadcastIsAsYoungAsItsArrival(t *testing.T) {
	w, alpha, beta := pair(t)
	beta.join("review", "Tester")
	w.settle()
	ids, err := alpha.send(engine.SendRequest{Broadcast: true, Content: "all"}, "Builder")
	if err != nil || len(ids) != 2 {
		t.Fatal(ids, err)
	}
	if err := alpha.work(); err != nil {
		t.Fatal(err)
	}
	var late []api.Mail
	for len(late) == 0 { // the box sends on its own goroutine
		w.post.mu.Lock()
		if n := slices.IndexFunc(w.post.queue, func(m api.Mail) bool { return m.Kind == kindMessage }); n >= 0 && len(w.post.queue) > n+1 {
			late = slices.Clone(w.post.queue[n+1:])
			w.post.queue = w.post.queue[:n+1]
		}
		w.post.mu.Unlock()
		time.Sleep(time.Millisecond)
	}
	w.settle()
	w.pass(time.Hour)
	w.post.mu.Lock()
	w.post.queue = append(w.post.queue, late...)
	w.post.mu.Unlock()
	w.settle()
	first, second := beta.row(ids[0]), beta.row(ids[1])
	if first == nil || second == nil || second.Timestamp-first.Timestamp != time.Hour.Milliseconds() {
		t.Errorf("the copies are %+v and %+v", first, second)
	}
}

// roster is one of the other side, with new aliases.
func (l *link) roster(roles ...string) roster {
	r := roster{Link: l.PeerLink, Channel: l.Channel, FromChannel: l.PeerChannel, Members: []rosterMember{}}
	for _, role := range roles {
		r.Members = append(r.Members, rosterMember{Alias: newID(prefixAlias), Role: role})
	}
	return r
}

func TestALinkLeavesHalfOfTheChannelToOthers(t *testing.T) {
	w, alpha, beta := pair(t)
	var roles []string
	for i := range ocm.MaxMembers {
		roles = append(roles, "Crowd"+itoa(i))
	}
	alpha.receive("beta", kindRoster, alpha.record().roster(roles...))
	w.settle()
	if got := alpha.roles("review"); len(got) != 1+ocm.DefaultMembers/2 {
		t.Fatalf("the channel has %v", got)
	}
	full := 0
	for _, p := range alpha.status().Links[0].Proxies {
		if !p.InChannel && p.Code == codeLinkFull && p.PeerRole != "" {
			full++
		}
	}
	if full != ocm.MaxMembers-ocm.DefaultMembers/2 {
		t.Errorf("the status says of %d that there is no room", full)
	}
	// Who has no place is told so, and comes when one of the others goes.
	l := alpha.record()
	alpha.receive("beta", kindMessage, message{
		Link: l.PeerLink, Channel: "review", FromChannel: "review", ID: ocm.NewID(ocm.PrefixMessage), Correlation: ocm.NewID(ocm.PrefixCorrelation),
		Type: ocm.TypeManual, Content: "hello", From: l.Remote[ocm.MaxMembers-1].Alias, To: l.Exports[0].Alias,
	})
	less := l.roster()
	less.Members = l.Remote[1:]
	alpha.receive("beta", kindRoster, less)
	w.settle()
	if got := alpha.roles("review"); !slices.Equal(got, []string{"Builder", "Crowd1-beta", "Crowd2-beta", "Crowd3-beta", "Crowd4-beta"}) {
		t.Errorf("the channel has %v", got)
	}
	if n := alpha.state().Messages.Len() + beta.underWay() + alpha.underWay(); n != 0 {
		t.Errorf("%d messages of somebody without a place", n)
	}
}

func TestANewAliasDoesNotBringBackWhoWasRemoved(t *testing.T) {
	w, alpha, _ := pair(t)
	alpha.receive("beta", kindRoster, alpha.record().roster("Reviewer", "Tester"))
	w.settle()
	// A member whose alias changed was not removed by anybody.
	alpha.receive("beta", kindRoster, alpha.record().roster("Reviewer", "Tester"))
	w.settle()
	if got := alpha.roles("review"); !slices.Equal(got, []string{"Builder", "Reviewer-beta", "Tester-beta"}) {
		t.Fatalf("the channel has %v", got)
	}
	if _, err := alpha.project.Kick(t.Context(), engine.Caller{Operator: true}, engine.KickRequest{Channel: "review", TargetRole: "Reviewer-beta"}); err != nil {
		t.Fatal(err)
	}
	for range 3 { // at once, and after the journal was read again
		alpha.receive("beta", kindRoster, alpha.record().roster("REVIEWER", "Tester"))
		w.settle()
		if got := alpha.roles("review"); !slices.Equal(got, []string{"Builder", "Tester-beta"}) {
			t.Fatalf("the channel has %v", got)
		}
		alpha.crash()
	}
	alpha.receive("beta", kindRoster, roster{Link: alpha.record().PeerLink, Channel: "review", FromChannel: "review", Closed: true})
	w.settle()
	alpha.receive("beta", kindRoster, roster{Link: newID(prefixLink), Channel: "review", FromChannel: "review", Members: []rosterMember{{newID(prefixAlias), "reviewer"}}})
	w.settle()
	if got := alpha.roles("review"); !slices.Equal(got, []string{"Builder"}) {
		t.Fatalf("the channel has %v", got)
	}
	if p := alpha.status().Links[0].Proxies; len(p) != 1 || p[0].Code != codeRemoved || p[0].PeerRole != "reviewer" {
		t.Errorf("the status says %+v", p)
	}
	alpha.link("review", "beta")
	w.settle()
	if got := alpha.roles("review"); !slices.Equal(got, []string{"Builder", "reviewer-beta"}) {
		t.Errorf("the channel has %v", got)
	}
}

func TestNobodyElsewhereIsTheOperator(t *testing.T) {
	w, alpha, _ := pair(t)
	alpha.receive("beta", kindRoster, alpha.record().roster("Operator", "oPERATOR", "Operators"))
	w.settle()
	if got := alpha.roles("review"); !slices.Equal(got, []string{"Builder", "Operators-beta"}) {
		t.Fatalf("the channel has %v", got)
	}
	if p := alpha.status().Links[0].Proxies; len(p) != 3 || p[0].Code != codeReserved || p[1].Code != codeReserved {
		t.Errorf("the status says %+v", p)
	}
}

// Who leaves over there was not removed here, wherever a kill comes between.
func TestAKillWhileAMemberGoesDoesNotKeepItOut(t *testing.T) {
	w, alpha, _ := pair(t)
	for kill := range 6 {
		gone := alpha.record().roster("Tester")
		alpha.receive("beta", kindRoster, gone)
		alpha.disk.left.Store(int64(kill))
		_ = alpha.work()
		alpha.crash()
		w.settle()
		if got := alpha.roles("review"); !slices.Equal(got, []string{"Builder", "Tester-beta"}) {
			t.Fatalf("after %d commits the channel has %v", kill, got)
		}
		alpha.receive("beta", kindRoster, alpha.record().roster("Reviewer"))
		w.settle()
		if got := alpha.roles("review"); !slices.Equal(got, []string{"Builder", "Reviewer-beta"}) {
			t.Fatalf("after %d commits the channel has %v", kill, got)
		}
	}
}
