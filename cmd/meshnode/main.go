// Command meshnode runs one machine's part in an opencode mesh: it joins a hub,
// keeps a tunnel to it open and lets a local agent work on what arrives.
//
// The node's agents re-execute this program as `meshnode shim`, `guard` and
// `demo-agent`. Those take no settings and are left out of the help.
package main

import (
	"context"
	"os"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/node/agent/command"
	"opencode-mesh/node/agent/demo"
	"opencode-mesh/node/agent/opencode"
)

func main() {
	if run, ok := helper(os.Args[1:]); ok {
		os.Exit(run())
	}
	os.Exit(NewMain(cli.System("MESHNODE")).Run(context.Background(), os.Args[1:]))
}

// helper picks what the agents start this program for. It comes before anything
// else so that nothing of the person's settings can get in its way.
func helper(args []string) (run func() int, ok bool) {
	if len(args) == 0 {
		return nil, false
	}
	switch args[0] {
	case "shim":
		return func() int { return command.ShimMain(args[1:]) }, true
	case "guard":
		return func() int { return opencode.GuardMain(os.Stdin, os.Stdout) }, true
	case "demo-agent":
		return func() int { return demo.Main(os.Stdin, os.Stdout, os.Stderr) }, true
	}
	return nil, false
}
