package main

import (
	"encoding/json"
	"strings"
	"testing"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/cmd/internal/clitest"
	"opencode-mesh/node/opencomms"
	"opencode-mesh/node/opencomms/engine"
	"opencode-mesh/protocol/api"
	ocm "opencode-mesh/protocol/opencomms"
)

func TestAnOperatorReadsTheChannelsOfANode(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.login("boss", "--operator", "--profile", "boss")
	beta := w.hub.StartNode("beta", clitest.Agent(obey))
	p, err := opencomms.Open(beta.Workspace, opencomms.Options{})
	if err != nil {
		t.Fatal(err)
	}
	first := engine.NewMember{Session: "ses_a", Role: "Builder", RolePrompt: "Build.", Host: "test", Mode: ocm.ModePull}
	if _, err := p.Create(t.Context(), engine.CreateRequest{Channel: "review", Member: &first}); err != nil {
		t.Fatal(err)
	}
	second := engine.NewMember{Session: "ses_b", Role: "Reviewer", RolePrompt: "Review.", Host: "test", Mode: ocm.ModePull}
	if _, err := p.Join(t.Context(), engine.JoinRequest{Channel: "review", Member: second}); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"first\nof two lines", "second \x1b[31mred"} {
		if _, err := p.Send(t.Context(), engine.Caller{Session: "ses_a"}, engine.SendRequest{Channel: "review", Content: text}); err != nil {
			t.Fatal(err)
		}
	}
	wantText(t, w.Want(0, []string{"channel", "list", "beta", "--profile", "boss"}).Out, "main", "review", "Builder, Reviewer")
	var ch api.Channel
	if err := json.Unmarshal([]byte(w.Want(0, []string{"channel", "list", "beta", "--json", "--profile", "boss"}).Out), &ch); err != nil || ch.Messages != 2 || ch.Waiting != 2 {
		t.Fatalf("%+v, %v", ch, err)
	}
	out := w.Want(0, []string{"channel", "show", "beta", ch.ID, "--profile", "boss"}).Out
	wantText(t, out, "Builder -> Reviewer", "  | first\n  | of two lines\n", "  | second red\n", "pending")
	if strings.Index(out, "second") < strings.Index(out, "first") || strings.Contains(out, "\x1b") {
		t.Errorf("%q", out)
	}
	if list := jsonLines(t, w.Want(0, []string{"channel", "show", "beta", ch.ID, "--limit", "1", "--json", "--profile", "boss"}).Out); len(list) != 1 || list[0]["content"] != "second red" {
		t.Errorf("%v", list)
	}
	w.Want(cli.ExitNoAccess, []string{"channel", "list", "beta"}) // laptop is no operator
	w.Want(cli.ExitUsage, []string{"channel", "list", "No Body", "--profile", "boss"})
	w.Want(cli.ExitUsage, []string{"channel", "show", "beta", "--profile", "boss"})
	w.Want(cli.ExitUsage, []string{"channel", "show", "beta", ch.ID, "--limit", "0", "--profile", "boss"})
}

func TestTasksAreSearchedAndTheEndOfTheAuditLogShown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "beta")
	w.login("boss", "--operator", "--profile", "boss")
	one := w.dispatched("beta", "done with the Needle")
	w.dispatched("beta", "done with hay")
	list := jsonLines(t, w.Want(0, []string{"task", "list", "--search", "needle", "--json"}).Out)
	if len(list) != 1 || list[0]["task"] != one {
		t.Errorf("found %v", list)
	}
	entries := jsonLines(t, w.Want(0, []string{"audit", "--last", "1", "--json", "--profile", "boss"}).Out)
	if len(entries) != 1 || entries[0]["action"] != "dispatched" || entries[0]["actor"] != "laptop" || entries[0]["object"] != "beta" {
		t.Errorf("the last entry is %v", entries)
	}
	if entries := jsonLines(t, w.Want(0, []string{"audit", "--action", "dispatched", "--json", "--profile", "boss"}).Out); len(entries) != 2 || !strings.Contains(entries[0]["detail"].(string), one) {
		t.Errorf("the dispatches are %v", entries)
	}
	w.Want(cli.ExitUsage, []string{"audit", "--last", "-1", "--profile", "boss"})
}
