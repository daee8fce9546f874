package provider_test

import (
	"context"
	"os"
	"testing"

	"go.uber.org/goleak"

	"opencode-mesh/node/ocp/memory"
	"opencode-mesh/node/ocp/provider"
)

// word is the first argument of a child that serves the memory of a directory on stdio.
const word = "provider-under-test"

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == word {
		os.Exit(child(os.Args[2]))
	}
	goleak.VerifyTestMain(m)
}

func child(dir string) int {
	x, err := memory.Open(memory.Config{Path: dir})
	if err != nil {
		return 3
	}
	defer func() { _ = x.Close() }()
	if err := remembering(x).Serve(context.Background(), os.Stdin, os.Stdout); err != nil {
		return 4
	}
	return 0
}

// remembering serves all that is in an index.
func remembering(x *memory.Index) *provider.Provider {
	return provider.New(provider.Config{Name: "memory", Version: "1", Kinds: memory.Kinds(), Source: all{x}})
}
