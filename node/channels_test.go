package node_test

import (
	"net/http"
	"slices"
	"testing"

	"opencode-mesh/node"
	"opencode-mesh/node/agent"
	"opencode-mesh/node/link/linktest"
	"opencode-mesh/node/opencomms"
	"opencode-mesh/node/opencomms/across"
	"opencode-mesh/node/opencomms/engine"
	"opencode-mesh/protocol/api"
	ocm "opencode-mesh/protocol/opencomms"
	"opencode-mesh/tunnel"
)

// channels makes channels in a directory.
func channels(t *testing.T, dir string, names ...string) {
	t.Helper()
	p, err := opencomms.Open(dir, opencomms.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		first := engine.NewMember{Session: "ses_" + name, Role: "A", RolePrompt: "Work.", Host: "test", Mode: ocm.ModePull}
		if _, err := p.Create(t.Context(), engine.CreateRequest{Channel: name, Member: &first}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTheHubSeesTheChannelsOfWorkspacesAndThoseThatAreLinked(t *testing.T) {
	hub := linktest.New(t, tunnel.Config{})
	work, elsewhere := t.TempDir(), t.TempDir()
	channels(t, work, "review")
	channels(t, elsewhere, "shared", "private")
	p := launch(t, hub, t.TempDir(), func(c *node.Config) {
		c.Workspaces = []agent.Workspace{{Name: "main", Dir: work}, {Name: "again", Dir: work}}
	})
	c := linktest.Await(t, hub.Conns, "the connection")
	seen := func() (names []string, all api.ChannelList) {
		t.Helper()
		if _, err := c.Call(http.MethodGet, "/v1/opencomms/channels", nil, &all); err != nil {
			t.Fatal(err)
		}
		for _, ch := range all.Channels {
			names = append(names, ch.Project+"/"+ch.Name)
		}
		return names, all
	}
	if names, _ := seen(); !slices.Equal(names, []string{"main/review"}) {
		t.Errorf("before there is a link: %v", names)
	}
	if _, err := p.node.Across().Link(t.Context(), across.LinkRequest{Project: elsewhere, Channel: "shared", Node: "beta"}); err != nil {
		t.Fatal(err)
	}
	names, all := seen()
	if len(names) != 2 || all.Channels[0].Name != "shared" || !slices.Equal(all.Channels[0].Linked, []string{"beta"}) || all.Channels[0].Project == elsewhere {
		t.Errorf("%v %+v", names, all)
	}
	closing, err := p.node.Across().Unlink(t.Context(), across.UnlinkRequest{Project: elsewhere, Channel: "shared", Node: "beta"})
	if err != nil {
		t.Fatal(err)
	}
	if names, _ := seen(); !slices.Equal(names, []string{"main/review"}) {
		t.Errorf("after the link was ended (%s): %v", closing.State, names)
	}
}

func TestANodeThatIsToldNotToShowsNoChannels(t *testing.T) {
	hub := linktest.New(t, tunnel.Config{})
	work := t.TempDir()
	channels(t, work, "review")
	launch(t, hub, t.TempDir(), func(c *node.Config) {
		c.Workspaces = []agent.Workspace{{Name: "main", Dir: work}}
		c.NoChannels = true
	})
	c := linktest.Await(t, hub.Conns, "the connection")
	if _, err := c.Call(http.MethodGet, "/v1/opencomms/channels", nil, nil); api.ErrorCode(err) != api.CodeRefused {
		t.Errorf("it says %v", err)
	}
}
