// Command meshctl hands tasks to the nodes of an opencode mesh and shows what
// becomes of them.
package main

import (
	"context"
	"os"

	"opencode-mesh/cmd/internal/cli"
)

func main() { os.Exit(NewMain(cli.System("MESHCTL")).Run(context.Background(), os.Args[1:])) }
