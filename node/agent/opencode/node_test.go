package opencode_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"opencode-mesh/node/agent"
	"opencode-mesh/node/agent/opencode"
	"opencode-mesh/protocol/api"
)

// nodeFile describes a node of its own process, which a test can kill.
type nodeFile struct {
	Bin       string
	Guard     []string
	DataDir   string
	Env       []string
	Workspace agent.Workspace
	Turn      agent.Turn
	// Journal is where the host of that process keeps the checkpoint.
	Journal string
	Session string // where it keeps the session's id
}

// fileHost is a Host whose records outlive the process.
type fileHost struct{ n nodeFile }

func (h fileHost) Checkpoint(_ context.Context, data []byte) error {
	if err := os.WriteFile(h.n.Journal, data, 0o600); err != nil {
		return err
	}
	if strings.Contains(string(data), `"seen":true`) {
		fmt.Println("seen")
	}
	return nil
}

func (h fileHost) SessionMade(_ context.Context, id string) error {
	return os.WriteFile(h.n.Session, []byte(id), 0o600)
}

func (h fileHost) Progress(api.Activity) {}

func (h fileHost) Ask(context.Context, string, api.Asked) (string, error) {
	return "", agent.ErrNoAnswer
}

// nodeMain runs one turn as a process of its own; it is made to be killed.
func nodeMain(args []string) int {
	raw, err := os.ReadFile(args[0])
	var n nodeFile
	if err == nil {
		err = json.Unmarshal(raw, &n)
	}
	if err != nil {
		fmt.Println(err)
		return 2
	}
	a, err := opencode.New(opencode.Config{Bin: n.Bin, GuardCommand: n.Guard, DataDir: n.DataDir, Env: n.Env,
		Workspaces: []agent.Workspace{n.Workspace}, PollInterval: 50 * time.Millisecond})
	if err == nil {
		err = a.Start(context.Background())
	}
	if err != nil {
		fmt.Println(err)
		return 2
	}
	out, err := a.Run(context.Background(), n.Turn, fileHost{n})
	fmt.Println("ended", out.State, err)
	return 1
}
