package peers

import (
	"fmt"
	"slices"
	"testing"

	"opencode-mesh/protocol/peers"
	"opencode-mesh/test/peerstub"
)

func TestKillsOfHubAndNodesOfThreeMachinesAndAReceiverThatIsAwayLoseAndDoubleNothing(t *testing.T) {
	m := newMesh(t)
	alpha, beta, gamma := m.machine("alpha", "all"), m.machine("beta", "all"), m.machine("gamma", "off")
	bob := beta.agent("bob")
	senders := []*peerstub.Peer{alpha.agent("a0"), alpha.agent("a1"), gamma.agent("c2")}
	type sent struct {
		by *peerstub.Peer
		id string
	}
	var all []sent
	var want []string
	say := func(when string) {
		t.Helper()
		for i, p := range senders {
			text := fmt.Sprintf("%s, from the sender %d", when, i)
			all, want = append(all, sent{p, send(t, p, "beta/bob", text)}), append(want, text)
		}
	}
	say("at first")
	m.Hub.Kill()
	say("without the hub")
	m.Hub.Start()
	say("with the hub again")
	alpha.Kill()
	alpha.Start()
	say("after the kill of a sender's node")
	gamma.Kill()
	m.Hub.Kill()
	gamma.Start()
	m.Hub.Start()
	say("after the kill of the other one's and of the hub")
	beta.Kill()
	say("without the receiver's node")
	beta.Start()
	say("with it again")
	mem := bob.Stop()
	say("without the receiver")
	bob = beta.again("bob", mem)
	say("at last")
	for _, s := range all {
		ends(t, s.by, s.id, peers.Delivered)
	}
	got := texts(t, bob)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("bob has %d messages, want %d:\n%q\n%q", len(got), len(want), got, want)
	}
}
