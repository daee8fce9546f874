package adopt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"opencode-mesh/node/agent"
	"opencode-mesh/node/peers"
	"opencode-mesh/node/peers/spool"
	proto "opencode-mesh/protocol/peers"
)

func TestSessionsArePublishedAsTheyLiveAndTheRestIsLeftAlone(t *testing.T) {
	r := newRig(t)
	r.host.put(at("ses_works", busy, old))
	r.host.put(at("ses_rests"))
	r.host.put(at("ses_far", busy, func(h *agent.Hosted) { h.Dir = "/far" }))
	r.start()
	r.shows("ses_works")
	row := r.row("ses_works")
	if row.Status != "busy" || row.Title != "title of ses_works" || row.Directory != "/work" || row.EndpointID != proto.EndpointID("ses_works") ||
		row.Name != proto.DefaultName("/work", row.ProcessID) {
		t.Errorf("%+v", row)
	}

	// An old one is told of, too, when a server starts.
	r.host.put(at("ses_old", old))
	r.host.await(t, "a look at the old one", func() bool { return r.host.looked["ses_old"] > 0 })
	r.host.put(at("ses_new"))
	r.shows("ses_new", "ses_works")
	if one, two := r.row("ses_new"), r.row("ses_works"); one.ProcessID == two.ProcessID {
		t.Error("two sessions are one row in listings")
	}
	r.host.put(at("ses_works", func(h *agent.Hosted) { h.Title = "renamed"; h.Status = agent.StatusRetry }))
	eventually(t, "the new title and state", func() bool { row := r.row("ses_works"); return row.Title == "renamed" && row.Status == "retry" })
	r.host.put(at("ses_far", busy, func(h *agent.Hosted) { h.Dir = "/far" }))
	r.shows("ses_far", "ses_new", "ses_works")

	// What was missed is made good: another state, an end.
	r.host.with(func() {
		delete(r.host.sessions, "ses_new")
		r.host.sessions["ses_works"].Title = "once more"
	})
	r.host.gap()
	r.shows("ses_far", "ses_works")
	eventually(t, "the title that was missed", func() bool { return r.row("ses_works").Title == "once more" })
}

func TestChildrenArePublishedAndGoWithTheirParent(t *testing.T) {
	r := newRig(t)
	r.start()
	r.host.await(t, "the watch", func() bool { return r.host.missed != nil })
	r.host.put(at("ses_a"))
	r.host.put(at("ses_b", below("ses_a")))
	r.host.put(at("ses_c", below("ses_b")))
	r.host.put(at("ses_other"))
	r.shows("ses_a", "ses_b", "ses_c", "ses_other")
	if row := r.row("ses_b"); row.ParentSessionID != "ses_a" {
		t.Errorf("%+v", row)
	}
	r.host.with(func() { delete(r.host.sessions, "ses_b"); delete(r.host.sessions, "ses_c") })
	r.host.remove("ses_a") // the only one that is told
	r.shows("ses_other")
}

func TestTheParentOfAPublishedSessionIsPublishedHoweverLongItIsIdle(t *testing.T) {
	r := newRig(t)
	r.start()
	r.host.await(t, "the watch", func() bool { return r.host.missed != nil })
	for _, h := range []agent.Hosted{at("ses_a", old), at("ses_b", old, below("ses_a")), at("ses_aside", old)} {
		r.host.put(h)
		r.host.await(t, "a look", func() bool { return r.host.looked[h.Session] > 0 })
	}
	r.host.put(at("ses_c", below("ses_b")))
	r.shows("ses_a", "ses_b", "ses_c")
}

func TestWhereAPluginIsLoadedTheSessionsAreItsOwn(t *testing.T) {
	r := newRig(t)
	r.host.plugin["/work"] = "opencode-plugin-peers@0.2.2"
	r.start()
	r.host.await(t, "the watch", func() bool { return r.host.missed != nil })
	r.host.put(at("ses_here"))
	r.host.put(at("ses_far", func(h *agent.Hosted) { h.Dir = "/far" }))
	r.shows("ses_far")
	// A server that begins anew may load one now.
	r.host.with(func() { r.host.plugin["/far"] = "/x/opencode-plugin-peers.js" })
	r.host.gap()
	r.shows()
}

func TestTheOldestIdleSessionMakesRoom(t *testing.T) {
	r := newRig(t)
	r.start()
	r.host.await(t, "the watch", func() bool { return r.host.missed != nil })
	for i := range MaxAdopted {
		r.host.put(at(fmt.Sprintf("ses_%02d", i), func(h *agent.Hosted) {
			h.Updated = h.Updated.Add(time.Duration(i-MaxAdopted) * time.Second)
			if i == 0 {
				h.Status = agent.StatusBusy
			}
		}))
	}
	eventually(t, "all are shown", func() bool { return len(r.published()) == MaxAdopted })
	r.host.put(at("ses_new"))
	eventually(t, "the new one", func() bool { return slices.Contains(r.published(), "ses_new") })
	got := r.published()
	if len(got) != MaxAdopted || !slices.Contains(got, "ses_00") || slices.Contains(got, "ses_01") {
		t.Errorf("%d are shown: %q", len(got), got)
	}
}

// hastened is a service to which something happens right before an endpoint goes.
type hastened struct {
	Service
	before func(id string)
}

func (h hastened) Withdraw(ctx context.Context, id string) error {
	h.before(id)
	return h.Service.Withdraw(ctx, id)
}

func TestAMessageThatComesWhileItsSessionMakesRoomIsDelivered(t *testing.T) {
	r := newRig(t)
	sent := make(chan string, 1)
	r.start(func(c *Config) {
		c.Service = hastened{c.Service, func(id string) {
			if id != proto.EndpointID("ses_01") || len(sent) > 0 {
				return
			}
			rec, err := r.peer.Send(r.t.Context(), sender, r.row("ses_01"), "just in time")
			if err != nil {
				t.Error(err)
			}
			sent <- rec.MessageID
		}}
	})
	r.host.await(t, "the watch", func() bool { return r.host.missed != nil })
	for i := range MaxAdopted {
		r.host.put(at(fmt.Sprintf("ses_%02d", i+1), func(h *agent.Hosted) { h.Updated = h.Updated.Add(time.Duration(i-MaxAdopted) * time.Second) }))
	}
	eventually(t, "all are shown", func() bool { return len(r.published()) == MaxAdopted })
	// Its delivery cannot end before the session goes.
	r.host.with(func() { r.host.refuse = errors.New("not now") })
	r.host.put(at("ses_new"))
	eventually(t, "the new one", func() bool { return slices.Contains(r.published(), "ses_new") })
	r.host.with(func() { r.host.refuse = nil })
	select {
	case id := <-sent:
		r.final(id, proto.Delivered)
	case <-time.After(testLimit):
		t.Fatal("nobody made room")
	}
}

func TestAMessageIsAPromptOfItsOwnOnceTheSessionIsIdle(t *testing.T) {
	r := newRig(t)
	r.host.put(at("ses_a", busy))
	r.start()
	r.shows("ses_a")
	id, receipt := r.send("ses_a", "hello [opencode-mesh v1]")
	second, _ := r.send("ses_a", "and more")
	if receipt != proto.Queued {
		t.Errorf("receipt %q", receipt)
	}
	r.host.with(func() {
		if n := len(r.host.history["ses_a"]); n != 0 {
			t.Errorf("%d prompts to a session that works", n)
		}
		r.host.hold = true // the first turn goes on
	})
	r.host.put(at("ses_a"))
	r.final(id, proto.Delivered)
	r.host.with(func() {
		if n := len(r.host.history["ses_a"]); n != 1 {
			t.Errorf("%d prompts while the first turn runs", n)
		}
		r.host.hold = false
	})
	r.final(second, proto.Delivered)
	r.host.mu.Lock()
	defer r.host.mu.Unlock()
	p := r.host.history["ses_a"][0]
	want := proto.PeerMessage{Version: 2, MessageID: id, FromEndpoint: sender, ToSession: "ses_a"}
	if p.Message != proto.PromptID("ses_a", sender, id) || !p.Synthetic || p.Metadata["peerMessage"] != want {
		t.Errorf("%+v", p)
	}
	if !strings.Contains(p.Text, "hello") || strings.Contains(p.Text, "[opencode-mesh") || !strings.Contains(p.Text, sender) {
		t.Errorf("text %q", p.Text)
	}
	if len(r.host.history["ses_a"]) != 2 || !strings.Contains(r.host.history["ses_a"][1].Text, "and more") {
		t.Errorf("%d prompts", len(r.host.history["ses_a"]))
	}
}

func TestADeliveryIsTriedUntilTheSessionHasIt(t *testing.T) {
	r := newRig(t)
	r.host.put(at("ses_a", busy))
	r.start()
	r.shows("ses_a")
	r.host.with(func() { r.host.refuse = errors.New("no") })
	r.host.put(at("ses_a"))
	id, _ := r.send("ses_a", "hello")
	r.host.await(t, "some attempts", func() bool { return r.host.looked["ses_a"] > 6 })
	r.host.with(func() { r.host.refuse = nil })
	r.final(id, proto.Delivered)
	if n := len(r.host.history["ses_a"]); n != 1 {
		t.Errorf("%d prompts", n)
	}
}

// blind is a service that dies before it notes a delivery.
type blind struct{ Service }

func (blind) Settle(ctx context.Context, _ string, _ spool.Key, _ string) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestAMessageThatWasPromptedAndNotNotedIsNotPromptedAgain(t *testing.T) {
	r := newRig(t)
	r.host.put(at("ses_a", busy))
	r.start(func(c *Config) { c.Service = blind{c.Service} })
	r.shows("ses_a")
	r.host.put(at("ses_a"))
	id, _ := r.send("ses_a", "hello")
	r.host.await(t, "the prompt", func() bool { return len(r.host.history["ses_a"]) == 1 })
	r.restart()
	// It is adopted for its records, idle and old as it may be.
	r.shows("ses_a")
	r.final(id, proto.Delivered)
	r.host.await(t, "its turn", func() bool { return len(r.host.finished) > 0 })
	r.host.mu.Lock()
	defer r.host.mu.Unlock()
	if n := len(r.host.history["ses_a"]); n != 1 {
		t.Errorf("%d prompts", n)
	}
	if want := "resumed " + proto.PromptID("ses_a", sender, id); r.host.finished[0] != want {
		t.Errorf("%q, want %q", r.host.finished, want)
	}
}

func TestASessionThatPeersWroteToIsAdoptedAgainAndAnotherIsNot(t *testing.T) {
	r := newRig(t)
	r.host.put(at("ses_a", busy))
	r.host.put(at("ses_b", busy))
	r.start()
	r.shows("ses_a", "ses_b")
	r.host.put(at("ses_a", old))
	r.host.put(at("ses_b", old))
	id, _ := r.send("ses_a", "hello")
	r.final(id, proto.Delivered)
	r.restart()
	r.shows("ses_a")
	// Its turn runs on a server that outlived the node: what it asks is still decided.
	r.host.put(at("ses_a", busy))
	eventually(t, "the state", func() bool { return r.row("ses_a").Status == "busy" })
	r.restart()
	r.host.await(t, "the turn is taken up", func() bool {
		return slices.Contains(r.host.finished, "resumed "+proto.PromptID("ses_a", sender, id))
	})
}

func TestWhatWaitsForASessionThatIsDeletedIsDropped(t *testing.T) {
	for policy, want := range map[string]string{proto.PolicyAccept: proto.Queued, proto.PolicyHold: proto.Held} {
		t.Run(policy, func(t *testing.T) {
			r := newRig(t)
			r.policy = policy
			r.host.put(at("ses_a", busy))
			r.start()
			r.shows("ses_a")
			first, receipt := r.send("ses_a", "hello")
			second, _ := r.send("ses_a", "hello again")
			if receipt != want {
				t.Errorf("receipt %q", receipt)
			}
			r.host.remove("ses_a")
			r.shows()
			r.final(first, proto.Dropped)
			r.final(second, proto.Dropped)
		})
	}
}

func TestPermissionsOfAPeersTurnAreDecidedByWhereItIsFromAndWhatTheyTouch(t *testing.T) {
	now, long := time.Now(), time.Now().Add(-time.Hour)
	for name, c := range map[string]struct {
		local, remote string
		via           []string
		want          map[string]string
	}{
		"the defaults, of this machine": {want: map[string]string{
			"plain": "allow", "secret": "leave", "secret-long": "reject", "sub": "leave", "sub-long": "reject", "person-long": "leave",
			"question": "leave", "question-long": "reject"}},
		"the defaults, of another machine": {via: []string{"session-x", "session-y"}, want: map[string]string{
			"plain": "leave", "plain-long": "reject", "secret-long": "reject", "person-long": "leave"}},
		"ask": {local: "ask", remote: "allow", want: map[string]string{"plain": "leave", "plain-long": "reject"}},
		"allow from other machines, too": {local: "deny", remote: "allow", via: []string{"session-x", "session-y"}, want: map[string]string{
			"plain": "allow", "secret": "leave"}},
		"deny": {local: "deny", want: map[string]string{"plain": "reject", "secret": "reject", "sub": "leave", "person-long": "leave"}},
	} {
		t.Run(name, func(t *testing.T) {
			a := New(Config{Permissions: c.local, PermissionsRemote: c.remote, Service: nobody{}})
			decide := a.decider(a.isRemote(spool.Record{Message: spool.StoredMessage{Via: c.via}}), "/work")
			for id, want := range c.want {
				kind, late := strings.CutSuffix(id, "-long")
				q := agent.Request{ID: id, Permission: "bash", Patterns: []string{"make test"}, Origin: agent.OriginPrompt, Since: now}
				if late {
					q.Since = long
				}
				switch kind {
				case "secret":
					q.Patterns = []string{"cat .env"}
				case "sub":
					q.Origin = agent.OriginUnknown
				case "person":
					q.Origin = agent.OriginOther
				case "question":
					q.Question = true
				}
				verdict, why := decide(q)
				if got := []string{"leave", "allow", "reject"}[verdict]; got != want || (why == "") == (got == "reject") {
					t.Errorf("%s: %s %q, want %s", id, got, why, want)
				}
			}
		})
	}
}

// nobody is a service without endpoints.
type nobody struct{ Service }

func (nobody) Own(string) (peers.Endpoint, bool) { return peers.Endpoint{}, false }

func TestASenderThatThisNodePublishesForAnotherMachineIsRemote(t *testing.T) {
	r := newRig(t)
	r.start()
	proxy := proto.ProxyID("beta", "session-far")
	for id, session := range map[string]string{proxy: "ses_far", proto.EndpointID("ses_near"): "ses_near"} {
		e := peers.Endpoint{ID: id, Session: session, Directory: "/x", Receiver: deaf{}}
		if err := r.service.Publish(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	a := New(Config{Service: r.service})
	for from, want := range map[string]bool{proxy: true, proto.EndpointID("ses_near"): false, sender: false} {
		rec := spool.Record{Message: spool.StoredMessage{From: proto.Sender{InstanceID: from}, Via: []string{from}}}
		if got := a.isRemote(rec); got != want {
			t.Errorf("%s: remote %v", from, got)
		}
	}
}
