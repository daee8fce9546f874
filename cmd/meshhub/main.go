// Command meshhub runs the hub of an opencode mesh and looks after its data.
package main

import (
	"context"
	"os"

	"opencode-mesh/cmd/internal/cli"
)

func main() { os.Exit(NewMain(cli.System("MESHHUB")).Run(context.Background(), os.Args[1:])) }
