package peers

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/peers"
	"opencode-mesh/test/peerstub"
)

// names are those of an agent's list, in order.
func names(p *peerstub.Peer) (list []string) {
	for _, e := range p.List() {
		list = append(list, e.Name)
	}
	slices.Sort(list)
	return list
}

func TestAgentsOfThreeMachinesSeeAndReachEachOther(t *testing.T) {
	m := newMesh(t)
	alpha, beta, gamma := m.machine("alpha", "all"), m.machine("beta", "all"), m.machine("gamma", "off")
	ann, bob, cleo := alpha.agent("ann"), beta.agent("bob"), gamma.agent("cleo")
	for _, want := range []struct {
		p     *peerstub.Peer
		names []string
	}{{ann, []string{"beta/bob"}}, {bob, []string{"alpha/ann"}}, {cleo, []string{"alpha/ann", "beta/bob"}}} {
		await(t, fmt.Sprint(want.names), func() bool { return slices.Equal(names(want.p), want.names) })
	}
	if e := sees(t, ann, "beta/bob"); e.Directory != "beta:/srv/bob" || e.EndpointID != peers.ProxyID("beta", bob.ID) {
		t.Errorf("%+v", e)
	}

	t.Run("a machine that shows nothing may write", func(t *testing.T) {
		id := send(t, cleo, "beta/bob", "from afar")
		ends(t, cleo, id, peers.Delivered)
		got := bob.Messages()
		if len(got) != 1 || got[0].From.Name != "gamma/cleo" || got[0].From.Directory != "gamma:/srv/cleo" || got[0].FromEndpoint != peers.ProxyID("gamma", cleo.ID) {
			t.Errorf("%+v", got)
		}
		if want := []string{cleo.ID, peers.ProxyID("gamma", cleo.ID)}; !slices.Equal(got[0].Via, want) {
			t.Errorf("it came by %v, want %v", got[0].Via, want)
		}
	})
	t.Run("nothing is shown on, and off shows nothing", func(t *testing.T) {
		var f api.PeerFleet
		await(t, "the sender's row to be gone", func() bool { return slices.Equal(names(bob), []string{"alpha/ann"}) })
		m.boss.Get("/v1/peers", &f)
		var list []string
		for _, n := range f.Nodes {
			for _, a := range n.Agents {
				list = append(list, n.Node+": "+a.Name)
			}
		}
		if !slices.Equal(list, []string{"alpha: ann", "beta: bob"}) {
			t.Errorf("the hub has %q", list)
		}
		if got := names(ann); !slices.Equal(got, []string{"beta/bob"}) {
			t.Errorf("ann sees %q", got)
		}
	})
	t.Run("people write with wait", func(t *testing.T) {
		out := alpha.Run("peers", "send", "beta/bob", "from people", "--wait", "60s")
		if out.Code != 0 || !strings.Contains(out.Stdout, "delivered") {
			t.Errorf("%+v", out)
		}
		if out := alpha.Run("peers", "list"); out.Code != 0 || !strings.Contains(out.Stdout, "beta/bob") || !strings.Contains(out.Stdout, "ann") {
			t.Errorf("%+v", out)
		}
	})
	t.Run("agents with the MCP server exchange with agents of another machine", func(t *testing.T) {
		helper := alpha.tools("helper")
		helper.says("list_agents", map[string]any{}, "beta/bob")
		said := helper.call("send_message", map[string]any{"to": "beta/bob", "message": "from a tool"})
		id := regexp.MustCompile(`Tracking ID: ([0-9a-f]{16})\.$`).FindStringSubmatch(said)
		if id == nil {
			t.Fatal(said)
		}
		helper.says("peer_message_status", map[string]any{"message_id": id[1]}, "receipt: queued; final: delivered.")
		back := send(t, bob, "alpha/helper", "and back")
		if len(bob.Acks(back)) != 0 {
			t.Error("it is acknowledged before it was read")
		}
		helper.says("read_messages", map[string]any{}, "and back")
		ends(t, bob, back, peers.Delivered)
	})
	if got, want := texts(t, bob), []string{"from afar", "from people", "from a tool"}; !slices.Equal(got, want) {
		t.Errorf("bob has %q, want %q", got, want)
	}
	t.Run("operators see who is visible where and what became of messages", func(t *testing.T) {
		b := alpha.board()
		var seen []string
		for _, a := range b.Agents {
			seen = append(seen, fmt.Sprintf("%s|%s|%v", a.Name, a.Node, a.Visible))
		}
		for _, want := range []string{"ann||true", "beta/bob|beta|false"} {
			if !slices.Contains(seen, want) {
				t.Errorf("%s is missing in %q", want, seen)
			}
		}
		states := map[string]string{}
		for _, x := range b.Messages {
			states[x.Way+" "+x.Text+" "+x.Node] = x.Receipt + "/" + x.Final
		}
		for _, want := range []string{"sent from people beta", "sent from a tool beta"} {
			if states[want] != "queued/delivered" {
				t.Errorf("%q is %q in %v", want, states[want], states)
			}
		}
		if got := states["brought and back beta"]; !strings.HasSuffix(got, "/delivered") {
			t.Errorf("what came is %q in %v", got, states)
		}
	})
}

func TestEachFinalStatusReachesTheSenderOnAnotherMachine(t *testing.T) {
	m := newMesh(t)
	alpha, beta := m.machine("alpha", "all"), m.machine("beta", "all")
	ann := alpha.agent("ann")
	policy := func(p string) func(*peerstub.Config) { return func(c *peerstub.Config) { c.Policy = p } }
	for _, c := range []struct{ policy, status string }{
		{peers.PolicyAccept, peers.Delivered}, {peers.PolicyRefuse, peers.Refused}, {peerstub.Again, peers.Duplicate},
		{peers.PolicyHold, peers.Expired}, {peers.PolicyHold, peers.Dropped},
	} {
		p := beta.agent("to be "+c.status, policy(c.policy))
		id := send(t, ann, "beta/to be "+c.status, "hello "+c.status)
		await(t, "the message", func() bool { return len(p.Messages()) == 1 })
		if c.policy == peers.PolicyHold {
			if len(ann.Acks(id)) != 0 {
				t.Errorf("what is held is acknowledged: %v", ann.Acks(id))
			}
			p.Decide(c.status)
		}
		ends(t, ann, id, c.status)
		if got := texts(t, p); !slices.Equal(got, []string{"hello " + c.status}) {
			t.Errorf("it has %q", got)
		}
	}
	open := beta.agent("open")
	far := send(t, ann, "beta/open", "too far", "session-1", "session-2", "session-3")
	ends(t, ann, far, peers.Refused)
	near := send(t, ann, "beta/open", "near", "session-1", "session-2")
	ends(t, ann, near, peers.Delivered)
	// As long as a text may be, of what JSON likes to write as six bytes each.
	signs := strings.Repeat("<", peers.DefaultMaxMessageBytes)
	ends(t, ann, send(t, ann, "beta/open", signs), peers.Delivered)
	if got := texts(t, open); !slices.Equal(got, []string{"near", signs}) {
		t.Errorf("it has %q", got)
	}
}
