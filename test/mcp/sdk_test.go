package mcp_test

import (
	"os/exec"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"opencode-mesh/test/fleet"
)

func TestTheSDKsOwnClientSpeaksTheNewestProtocolWithIt(t *testing.T) {
	dir := project(t, "sess_a")
	cmd := exec.Command(fleet.Bin(t, "meshnode"), "mcp", "--project", dir)
	cmd.Env = environ(t, "sess_a")
	client := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil)
	session, err := client.Connect(t.Context(), &sdk.CommandTransport{Command: cmd}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	if got := session.InitializeResult().ProtocolVersion; got != sdk.SupportedProtocolVersions()[0] {
		t.Errorf("they speak %s", got)
	}
	tools, err := session.ListTools(t.Context(), nil)
	if err != nil || len(tools.Tools) != len(allTools)-1 {
		t.Fatalf("%+v, %v", tools, err)
	}
	res, err := session.CallTool(t.Context(), &sdk.CallToolParams{
		Name: "opencomms_create", Arguments: args{"channel": "c", "role": "A", "role_prompt": "x"},
	})
	if err != nil || res.IsError || len(res.Content) != 1 || !strings.Contains(res.Content[0].(*sdk.TextContent).Text, `"ok":true`) {
		t.Fatalf("%+v, %v", res, err)
	}
	if _, err := session.CallTool(t.Context(), &sdk.CallToolParams{Name: "opencomms_join"}); err == nil || !strings.Contains(err.Error(), "missing required argument: channel") {
		t.Error(err)
	}
}
