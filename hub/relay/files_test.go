package relay_test

import (
	"context"
	"reflect"
	"strings"
	"testing"

	"opencode-mesh/protocol/api"
)

func TestWhatANodeSaysOfItsFilesIsBoundedAndCleaned(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	sum := strings.Repeat("Ab", 32)
	h.submit("alice", "beta", id(1), "x")
	err := beta.settle(beta.next(), api.Outcome{
		State: api.StateDone, Artifacts: []string{"a", "b", "hid\u200bden", "c", "untold"},
		Files: []api.Artifact{
			{Path: "c", Size: -1, SHA256: "../../etc/passwd"},
			{Path: "b", Problem: evil(4096)},
			{Path: "a", Size: 7, SHA256: sum},
			{Path: "a", Size: 8},
			{Path: "hid\u200bden", Size: 9, SHA256: sum},
			{Path: "not named", Size: 10},
			{Path: evil(1 << 20)},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	v, err := h.relay.Detail(context.Background(), h.await(id(1), api.StateDone))
	if err != nil {
		t.Fatal(err)
	}
	want := []api.Artifact{
		{Path: "a", Size: 7, SHA256: strings.ToLower(sum)}, {Path: "b", Problem: strings.Repeat("x", 128)},
		{Path: "hidden", Problem: "its name has characters that cannot be shown"}, {Path: "c"},
	}
	if !reflect.DeepEqual(v.Files, want) {
		t.Errorf("got %+v", v.Files)
	}
}

func TestFilesOfAnOldNodeAreNotMadeUp(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	h.submit("alice", "beta", id(1), "x")
	many := make([]api.Artifact, 100000)
	if err := beta.settle(beta.next(), api.Outcome{State: api.StateDone, Artifacts: []string{"a"}, Files: many}); err != nil {
		t.Fatal(err)
	}
	if got := h.await(id(1), api.StateDone); got.Outcome.Files != nil {
		t.Errorf("got %d files", len(got.Outcome.Files))
	}
}
