package roster_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"opencode-mesh/hub/roster"
	"opencode-mesh/protocol/api"
)

var start = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func owner(node string) roster.Owner {
	return roster.Owner{NodeID: "id-" + node, Node: node, Since: start}
}

func agent(id string) api.PeerAgent { return api.PeerAgent{ID: id, Name: "n-" + id} }

func decode(t *testing.T, f roster.Fleet) api.PeerFleet {
	t.Helper()
	var b bytes.Buffer
	n, err := f.WriteTo(&b)
	var out api.PeerFleet
	if err != nil || n != int64(b.Len()) || json.Unmarshal(b.Bytes(), &out) != nil {
		t.Fatalf("%d %v %s", n, err, b.Bytes())
	}
	return out
}

// names are the nodes and agents of a fleet.
func names(f api.PeerFleet) string {
	var words []string
	for _, n := range f.Nodes {
		for _, a := range n.Agents {
			words = append(words, n.Node+"/"+a.ID)
		}
		if len(n.Agents) == 0 {
			words = append(words, n.Node)
		}
	}
	return strings.Join(words, " ")
}

func put(t *testing.T, r *roster.Roster, o roster.Owner, ids ...string) {
	t.Helper()
	var list []api.PeerAgent
	for _, id := range ids {
		list = append(list, agent(id))
	}
	if err := r.Put(o, list); err != nil {
		t.Fatal(err)
	}
}

func TestANodeSeesTheListsOfAllOthersAndNotItsOwn(t *testing.T) {
	r := roster.New()
	put(t, r, owner("beta"), "b2", "b1")
	put(t, r, owner("alpha"), "a")
	put(t, r, owner("gamma"))
	ctx := context.Background()
	for node, want := range map[string]string{"alpha": "beta/b1 beta/b2 gamma", "beta": "alpha/a gamma", "gamma": "alpha/a beta/b1 beta/b2"} {
		if got := names(decode(t, r.Others(ctx, "id-"+node, ""))); got != want {
			t.Errorf("%s sees %s, want %s", node, got, want)
		}
	}
	if got := names(decode(t, r.All())); got != "alpha/a beta/b1 beta/b2" {
		t.Errorf("an operator sees %s", got)
	}
}

func TestAQuestionWaitsForNewsOfOthersOnly(t *testing.T) {
	r := roster.New()
	put(t, r, owner("alpha"), "a")
	put(t, r, owner("beta"), "b")
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	first := decode(t, r.Others(ctx, "id-alpha", ""))
	over, end := context.WithCancel(ctx)
	end()
	put(t, r, owner("alpha"), "a", "a2")
	put(t, r, owner("beta"), "b") // says the same again
	if again := decode(t, r.Others(over, "id-alpha", first.Revision)); again.Revision != first.Revision {
		t.Errorf("its own change and a repeat are news: %s after %s", again.Revision, first.Revision)
	}
	for what, change := range map[string]func(){
		"a change":   func() { put(t, r, owner("beta"), "b", "b2") },
		"the end":    func() { r.Leave(owner("beta")) },
		"a newcomer": func() { put(t, r, owner("gamma")) },
	} {
		put(t, r, owner("beta"), "b")
		known := decode(t, r.Others(over, "id-alpha", "")).Revision
		got := make(chan api.PeerFleet, 1)
		go func() { got <- decode(t, r.Others(ctx, "id-alpha", known)) }()
		change()
		if f := <-got; f.Revision == known || ctx.Err() != nil {
			t.Errorf("%s is no news", what)
		}
	}
	if f := decode(t, roster.New().Others(over, "id-alpha", first.Revision)); f.Revision == first.Revision {
		t.Error("another process of the hub has the same revisions")
	}
}

func TestAListIsGoneWithTheConnectionThatSaidItAndOnlyWithThat(t *testing.T) {
	r := roster.New()
	older, newer := owner("beta"), owner("beta")
	newer.Since = start.Add(time.Second)
	put(t, r, older, "old")
	put(t, r, newer, "new")
	if err := r.Put(older, []api.PeerAgent{agent("old")}); api.ErrorCode(err) != api.CodeSuperseded {
		t.Errorf("an older connection said a list: %v", err)
	}
	r.Leave(older)
	if got := names(decode(t, r.All())); got != "beta/new" {
		t.Errorf("the end of an older connection left %s", got)
	}
	r.Leave(newer)
	if got := names(decode(t, r.All())); got != "" {
		t.Errorf("%s is there after its end", got)
	}
}

func TestAListThatIsSaidAgainByANewConnectionStaysWhenTheOldOneEnds(t *testing.T) {
	r := roster.New()
	older, newer := owner("beta"), owner("beta")
	newer.Since = start.Add(time.Second)
	put(t, r, older, "same")
	put(t, r, newer, "same")
	r.Leave(older)
	if got := names(decode(t, r.All())); got != "beta/same" {
		t.Errorf("left is %q", got)
	}
}

func TestListsAreKeptAsLongAsThereIsRoom(t *testing.T) {
	r := roster.New()
	big := func(node string) error {
		var list []api.PeerAgent
		for i := range api.MaxPeerAgents {
			list = append(list, api.PeerAgent{ID: fmt.Sprint(i), Directory: strings.Repeat("d", 4*api.MaxPeerText)})
		}
		return r.Put(owner(node), list)
	}
	kept := 0
	var err error
	for err == nil && kept < 100 {
		if err = big(fmt.Sprintf("n%d", kept)); err == nil {
			kept++
		}
	}
	var refused *api.Error
	if !errors.As(err, &refused) || refused.Code != api.CodeQueueFull || kept < 10 {
		t.Fatalf("%d large lists were kept, then %v", kept, err)
	}
	if err := big("n0"); err != nil {
		t.Errorf("what is kept cannot be said again: %v", err)
	}
	put(t, r, owner("n0"), "small")
	if err := big("late"); err != nil {
		t.Errorf("the room of a list that went is not used: %v", err)
	}
}
