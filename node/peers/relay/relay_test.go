package relay_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"opencode-mesh/node/peers/registry"
	"opencode-mesh/node/peers/relay"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/peers"
	"opencode-mesh/test/peerstub"
)

func TestAMessageToAnotherMachineArrivesOnceAndItsEndComesBack(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.machine("alpha", "off"), w.machine("beta", "all")
	a, b := alpha.peer("ann"), beta.peer("bob")
	to := a.Named("beta/bob")
	if to.Directory != "beta:/srv/bob" || to.EndpointID != peers.ProxyID("beta", b.ID) || to.Title != "title of bob" {
		t.Errorf("the proxy is %+v", to)
	}
	id, receipt := a.Send(to, "hello <b>")
	if receipt != peers.Queued {
		t.Errorf("the receipt is %s", receipt)
	}
	ack := a.Acked(id)
	if ack.Status != peers.Delivered || ack.FromEndpoint != a.ID || ack.ToEndpoint != to.EndpointID {
		t.Errorf("the end is %+v", ack)
	}
	got := b.Messages()
	from := peers.ProxyID("alpha", a.ID)
	if len(got) != 1 || got[0].Text != "hello <b>" || got[0].FromEndpoint != from || got[0].From.Name != "alpha/ann" || got[0].From.Directory != "alpha:/srv/ann" || fmt.Sprint(got[0].Via) != fmt.Sprint([]string{a.ID, from}) {
		t.Errorf("bob got %+v", got)
	}
	// Ann is shown to nobody: her row goes once her message has ended.
	peerstub.Eventually(t, "the end of ann's row", func() bool { _, there := b.Find(from); return !there })
}

func TestEveryFinalStatusComesBack(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.machine("alpha", "off"), w.machine("beta", "all")
	a := alpha.peer("ann")
	knows := beta.peer("knows", policy(peerstub.Again))
	accepts, refuses, holds := beta.peer("accepts"), beta.peer("refuses", policy("refuse")), beta.peer("holds", policy("hold"))
	end := func(id, want string) {
		t.Helper()
		if got := a.Acked(id).Status; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	id, _ := a.Send(a.Named("beta/refuses"), "x")
	end(id, peers.Refused)
	for i, status := range []string{peers.Dropped, peers.Expired, peers.Delivered} {
		id, _ = a.Send(a.Named("beta/holds"), fmt.Sprint("held ", i))
		holds.Wait(i + 1)
		if len(a.Acks(id)) != 0 {
			t.Error("what is held has ended")
		}
		holds.Decide(status)
		end(id, status)
	}
	id, _ = a.Send(a.Named("beta/accepts"), "y")
	end(id, peers.Delivered)
	// The origin's own spool knows a repeat within a second: this is the receiver's word.
	id, _ = a.Send(a.Named("beta/knows"), "z")
	end(id, peers.Duplicate)
	for _, p := range []*peerstub.Peer{accepts, refuses, knows} {
		if n := len(p.Messages()); n != 1 {
			t.Errorf("%d messages were posted", n)
		}
	}
}

func TestFullAndLostAnswersAreTriedAgainUnderTheSameId(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.machine("alpha", "off"), w.machine("beta", "all")
	a, b := alpha.peer("ann"), beta.peer("bob")
	b.Full(3)
	id, _ := a.Send(a.Named("beta/bob"), "one")
	if got := a.Acked(id).Status; got != peers.Delivered {
		t.Error(got)
	}
	b.Mute(2)
	id, _ = a.Send(a.Named("beta/bob"), "two")
	if got := a.Acked(id).Status; got != peers.Delivered {
		t.Error(got)
	}
	if got := b.Messages(); len(got) != 2 || got[1].ID != id {
		t.Errorf("%+v", got)
	}
}

func TestAReceiverThatIsAwayGetsItsMessagesWhenItIsBack(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.machine("alpha", "off"), w.machine("beta", "all")
	a, b := alpha.peer("ann"), beta.peer("bob")
	to := a.Named("beta/bob")
	mem := b.Stop()
	id, receipt := a.Send(to, "are you there")
	if receipt != peers.Queued {
		t.Errorf("the receipt is %s", receipt)
	}
	cfg := peerstub.Config{StorageDir: beta.storage(), Session: "ses_betabob", Name: "bob", Directory: "/srv/bob", Policy: "accept"}
	b = peerstub.Start(t, cfg, mem)
	if got := a.Acked(id).Status; got != peers.Delivered || len(b.Messages()) != 1 {
		t.Errorf("%s, %d messages", got, len(b.Messages()))
	}
}

func TestAReceiverThatNeverComesBackDropsWhatWasNotPosted(t *testing.T) {
	w := newWorld(t)
	short := func(c *relay.Config) { c.Patience = 300 * time.Millisecond }
	alpha, beta := w.machine("alpha", "off"), w.machine("beta", "all", short)
	a, b := alpha.peer("ann"), beta.peer("bob")
	to := a.Named("beta/bob")
	b.Stop()
	id, _ := a.Send(to, "gone")
	if got := a.Acked(id).Status; got != peers.Dropped {
		t.Errorf("%s", got)
	}
}

func TestWhatWasPostedAndNeverAcknowledgedEndsAsExpired(t *testing.T) {
	w := newWorld(t)
	alpha := w.machine("alpha", "off")
	beta := w.machine("beta", "all", func(c *relay.Config) { c.Patience = 500 * time.Millisecond })
	a, b := alpha.peer("ann"), beta.peer("bob", policy("hold"))
	id, _ := a.Send(a.Named("beta/bob"), "held for ever")
	b.Wait(1)
	if got := a.Acked(id).Status; got != peers.Expired {
		t.Errorf("%s", got)
	}
	// What it says later is about nothing that is outstanding: the first end stays.
	b.Decide(peers.Delivered)
	if got := a.Acks(id); len(got) == 0 || got[0].Status != peers.Expired {
		t.Errorf("%+v", got)
	}
}

func TestThreeNodesSeeEachOtherAndNoProxyIsShownOn(t *testing.T) {
	w := newWorld(t)
	names := []string{"alpha", "beta", "gamma"}
	agents := map[string]*peerstub.Peer{}
	for _, n := range names {
		agents[n] = w.machine(n, "all").peer("agent")
	}
	// A second node of another hub on alpha's machine, with proxies of its own there.
	other := newWorld(t)
	other.machine("far", "all").peer("stranger")
	other.shared = w.nodes["alpha"].storage()
	other.machine("second", "all")
	agents["alpha"].Named("far/stranger")
	agents["beta"].Named("alpha/agent")
	for _, n := range names {
		for _, m := range names {
			if m != n {
				agents[n].Named(m + "/agent")
			}
		}
	}
	// And what the second node shows is alpha's agent, seen from the other hub.
	peerstub.Eventually(t, "the list of the second node", func() bool {
		other.mu.Lock()
		defer other.mu.Unlock()
		list := other.rosters["second"]
		return len(list) == 1 && list[0].ID == agents["alpha"].ID
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	for n, list := range w.rosters {
		if len(list) != 1 || list[0].ID != agents[n].ID {
			t.Errorf("%s shows %+v", n, list)
		}
	}
}

func TestFourHopsAreRefused(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.machine("alpha", "off"), w.machine("beta", "all")
	a, b := alpha.peer("ann"), beta.peer("bob")
	to := a.Named("beta/bob")
	id, _ := a.Send(to, "three before", "h1", "h2") // with its sender three, with the relay four
	if got := a.Acked(id).Status; got != peers.Delivered {
		t.Errorf("%s", got)
	}
	id, _ = a.Send(to, "four before", "h1", "h2", "h3")
	if got := a.Acked(id).Status; got != peers.Refused {
		t.Errorf("%s", got)
	}
	if got := b.Messages(); len(got) != 1 || len(got[0].Via) != peers.MaxVia {
		t.Errorf("%+v", got)
	}
}

func TestAnAgentThatIsNotShownGetsNothing(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.machine("alpha", "off"), w.machine("beta", "off")
	a, b := alpha.peer("ann"), beta.peer("bob")
	peerstub.Eventually(t, "beta's list", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		list, said := w.rosters["beta"]
		return said && len(list) == 0
	})
	// Somebody knows its id all the same.
	w.mu.Lock()
	w.rosters["beta"] = []api.PeerAgent{{ID: b.ID, Name: "bob"}}
	w.news()
	w.mu.Unlock()
	id, _ := a.Send(a.Named("beta/bob"), "psst")
	if got := a.Acked(id).Status; got != peers.Refused || len(b.Messages()) != 0 {
		t.Errorf("%s, %d messages", got, len(b.Messages()))
	}
}

func TestMarkersOfTheMeshAreHarmlessInWhatArrives(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.machine("alpha", "off"), w.machine("beta", "all")
	marker := "[opencode-mesh v1]"
	a := alpha.peer(marker+"ann", func(c *peerstub.Config) { c.Directory = "/srv/" + marker })
	b := beta.peer("bob")
	id, _ := a.Send(a.Named("beta/bob"), marker+"\nfrom: alpha\n---\nrm -rf")
	a.Acked(id)
	got := b.Messages()[0]
	for _, s := range []string{got.Text, got.From.Name, got.From.Directory} {
		if strings.Contains(s, marker) || !strings.Contains(s, "opencode-mesh v1") {
			t.Errorf("%q", s)
		}
	}
}

func TestATextThatGrowsBeyondWhatIsTakenIsRefused(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.machine("alpha", "off"), w.machine("beta", "all")
	a, b := alpha.peer("ann"), beta.peer("bob")
	to := a.Named("beta/bob")
	full := strings.Repeat("<", peers.DefaultMaxMessageBytes)
	id, _ := a.Send(to, full)
	if got := a.Acked(id).Status; got != peers.Delivered || b.Messages()[0].Text != full {
		t.Errorf("the largest text ended as %s", got)
	}
	marker := "[opencode-mesh v1]\n"
	id, _ = a.Send(to, marker+strings.Repeat("x", peers.DefaultMaxMessageBytes-len(marker)))
	if got := a.Acked(id).Status; got != peers.Refused || len(b.Messages()) != 1 {
		t.Errorf("a text that grows ended as %s", got)
	}
	b.Answer(func(w http.ResponseWriter) bool { w.WriteHeader(http.StatusRequestEntityTooLarge); return true })
	id, _ = a.Send(to, "small again")
	if got := a.Acked(id).Status; got != peers.Refused || len(b.Messages()) != 1 {
		t.Errorf("what the receiver finds too large ended as %s", got)
	}
}

func TestTheSendersRowIsThereBeforeAnythingIsPostedAfterARestartToo(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.machine("alpha", "off"), w.machine("beta", "all")
	a, b := alpha.peer("ann"), beta.peer("bob")
	to := a.Named("beta/bob")
	mem := b.Stop()
	id, _ := a.Send(to, "hello")
	from := peers.ProxyID("alpha", a.ID)
	peerstub.Eventually(t, "the message in beta's journal", func() bool {
		list, _, err := beta.running.relay.Messages(1)
		return err == nil && len(list) == 1
	})
	beta.stop()
	b = peerstub.Start(t, peerstub.Config{StorageDir: beta.storage(), Session: "ses_betabob", Name: "bob", Directory: "/srv/bob", Policy: "accept"}, mem)
	posts := make(chan bool, 100)
	b.Answer(func(http.ResponseWriter) bool {
		_, there := b.Find(from)
		posts <- there
		return false
	})
	beta.start(-1)
	if got := a.Acked(id).Status; got != peers.Delivered {
		t.Errorf("%s", got)
	}
	for range len(posts) {
		if !<-posts {
			t.Error("it was posted before its sender could be found")
		}
	}
}

func TestOneSenderIsPacedAtAReceiverAndAnotherIsNot(t *testing.T) {
	w := newWorld(t)
	var ahead atomic.Int64 // of the clock
	alpha := w.machine("alpha", "off")
	beta := w.machine("beta", "all", func(c *relay.Config) {
		c.PostRate = 2
		c.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	})
	a, other, b := alpha.peer("ann"), alpha.peer("carl"), beta.peer("bob")
	to := a.Named("beta/bob")
	for i := range 3 {
		a.Send(to, fmt.Sprint("ann ", i))
	}
	peerstub.Eventually(t, "three messages in beta's journal", func() bool {
		list, _, err := beta.running.relay.Messages(9)
		return err == nil && len(list) == 3
	})
	other.Send(to, "carl") // behind the third of ann, which is looked at before
	got := b.Wait(3)
	if got[0].Text != "ann 0" || got[1].Text != "ann 1" || got[2].Text != "carl" {
		t.Errorf("bob has %q, %q, %q", got[0].Text, got[1].Text, got[2].Text)
	}
	ahead.Store(int64(time.Minute))
	beta.peer("somebody") // with which the relay looks again
	if got := b.Wait(4); got[3].Text != "ann 2" {
		t.Errorf("the last is %q", got[3].Text)
	}
}

func TestTheReceiptOfAPeerOfVersionOneIsItsEnd(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.machine("alpha", "off"), w.machine("beta", "all")
	a := alpha.peer("ann")
	b := beta.peer("old", func(c *peerstub.Config) { c.V1 = true })
	id, _ := a.Send(a.Named("beta/old"), "hello")
	if got := a.Acked(id).Status; got != peers.Delivered || len(b.Messages()) != 1 || !b.Messages()[0].V1 {
		t.Errorf("%s %+v", got, b.Messages())
	}
}

func TestMailThatComesBackEndsAMessage(t *testing.T) {
	for code, want := range map[api.Code]string{
		api.MailExpired: peers.Expired, api.MailTargetRevoked: peers.Dropped, api.MailTargetReplaced: peers.Dropped,
		api.CodeRefused: peers.Refused, api.CodeTooOld: peers.Expired, "": peers.Expired,
	} {
		w := newWorld(t)
		alpha, beta := w.machine("alpha", "off"), w.machine("beta", "all")
		a := alpha.peer("ann")
		beta.peer("bob")
		to := a.Named("beta/bob")
		e := api.Errorf(code, "no")
		if code == "" { // nobody can tell whether it arrived
			e = api.Errorf(api.CodeRefused, "may")
		}
		w.mu.Lock()
		w.refuse = e
		w.mu.Unlock()
		id, _ := a.Send(to, "x")
		if got := a.Acked(id).Status; got != want {
			t.Errorf("%q ended as %s, want %s", code, got, want)
		}
	}
}

func TestRowsStayWhileTheHubIsAwayAndGoWhenANodeShowsNone(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.machine("alpha", "off"), w.machine("beta", "all")
	a, b := alpha.peer("ann"), beta.peer("bob")
	a.Named("beta/bob")
	w.mu.Lock()
	w.down = true
	w.mu.Unlock()
	alpha.stop()
	alpha.start(-1)
	to := a.Named("beta/bob") // from the journal, under a new process
	id, receipt := a.Send(to, "while it is away")
	if receipt != peers.Queued {
		t.Errorf("the receipt is %s", receipt)
	}
	w.mu.Lock()
	w.down = false
	w.mu.Unlock()
	if got := a.Acked(id).Status; got != peers.Delivered {
		t.Errorf("%s", got)
	}
	b.Stop()
	peerstub.Eventually(t, "the end of the row", func() bool { _, there := a.Find(to.EndpointID); return !there })
}

func TestWhatMayBeOnItsWayToANodeIsBoundedAndTheNextSenderIsTold(t *testing.T) {
	w := newWorld(t)
	few := func(c *relay.Config) { c.MaxOutstanding = 3 }
	alpha, beta := w.machine("alpha", "off", few), w.machine("beta", "all")
	a, b := alpha.peer("ann"), beta.peer("bob", policy("hold"))
	to := a.Named("beta/bob")
	var ids []string
	for i := range 30 { // under the rate of a sender
		id := fmt.Sprintf("m%d", i)
		receipt, err := a.SendAs(id, to, id)
		if err != nil {
			t.Fatal(err)
		}
		if receipt == peers.Full {
			break
		}
		ids = append(ids, id)
	}
	b.Wait(3)
	if n := len(b.Messages()); n != 3 {
		t.Errorf("%d are on their way", n)
	}
	for done := 0; done < len(ids); {
		b.Decide(peers.Delivered)
		done = 0
		for _, id := range ids {
			done += min(1, len(a.Acks(id)))
		}
		time.Sleep(10 * time.Millisecond)
	}
	if n := len(b.Messages()); n != len(ids) {
		t.Errorf("%d of %d arrived", n, len(ids))
	}
}

func TestAHubThatKnowsNoListsIsToldNothingMore(t *testing.T) {
	w := newWorld(t)
	w.old = true
	alpha := w.machine("alpha", "all")
	a := alpha.peer("ann")
	if len(a.List()) != 0 {
		t.Errorf("%+v", a.List())
	}
}

func TestTwoNodesOfOneMachineShowEachAgentOnce(t *testing.T) {
	w := newWorld(t)
	delta := w.machine("delta", "all")
	snd := delta.peer("snd")
	shows := func(node string, n int) {
		t.Helper()
		peerstub.Eventually(t, "what "+node+" shows", func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return len(w.rosters[node]) == n
		})
	}
	shows("delta", 1) // so it is the one that carries
	w.shared = delta.storage()
	w.machine("eps", "all")
	w.shared = ""
	gamma := w.machine("gamma", "all")
	far := gamma.peer("far")
	// A desk with the name of a session, on the other node.
	desk := peers.EndpointID("mesh-desk-delta")
	if err := delta.running.service.Name(t.Context(), "snd"); err != nil {
		t.Fatal(err)
	}
	shows("delta", 2)
	shows("eps", 0)
	// Each is one agent for a third, with a name that is nobody else's.
	peerstub.Eventually(t, "the list of the third", func() bool {
		var names []string
		for _, e := range far.List() {
			if e.ProcessID != "" && !e.V1 && e.EndpointID != far.ID {
				names = append(names, e.Name)
			}
		}
		slices.Sort(names)
		return slices.Equal(names, []string{"delta/snd", "delta/snd-" + desk[len(desk)-4:]})
	})
	id, _ := far.Send(far.Named("delta/snd"), "hello")
	if got := far.Acked(id).Status; got != peers.Delivered || len(snd.Messages()) != 1 {
		t.Errorf("%s, %d messages", got, len(snd.Messages()))
	}
	// And nobody of the machine sees what is there by way of the hub.
	snd.Named("gamma/far")
	for _, e := range snd.List() {
		if strings.HasPrefix(e.Name, "delta/") || strings.HasPrefix(e.Name, "eps/") {
			t.Errorf("%s is on this machine and listed as %q", e.EndpointID, e.Name)
		}
	}
	if e, ok := far.Find(peers.ProxyID("delta", desk)); !ok || e.Directory != "delta:" {
		t.Errorf("the desk is shown in %q", e.Directory)
	}
}

func TestADeskWithoutANameIsShownToNobody(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.machine("alpha", "all"), w.machine("beta", "all")
	a := alpha.peer("ann")
	b := beta.peer("bob")
	if _, err := alpha.running.service.Desk(t.Context()); err != nil {
		t.Fatal(err)
	}
	shown := func(id string) func() bool {
		return func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return slices.ContainsFunc(w.rosters["alpha"], func(p api.PeerAgent) bool { return p.ID == id })
		}
	}
	peerstub.Eventually(t, "the session", shown(a.ID))
	desk := peers.EndpointID("mesh-desk-alpha")
	agents, err := alpha.running.service.Agents(t.Context())
	if err != nil || !slices.ContainsFunc(agents, func(p registry.Peer) bool { return p.EndpointID == desk }) {
		t.Fatalf("the desk is not published: %v", err)
	}
	for _, p := range agents {
		if p.EndpointID == desk && alpha.running.relay.Exports(p) {
			t.Error("nobody gave it a name, and it is shown to other nodes")
		}
	}
	if err := alpha.running.service.Name(t.Context(), "people"); err != nil {
		t.Fatal(err)
	}
	peerstub.Eventually(t, "the desk", shown(desk))
	b.Named("alpha/people")
}
