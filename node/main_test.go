package node_test

import (
	"testing"

	"opencode-mesh/test/fleet"
)

func TestMain(m *testing.M) { fleet.Verify(m) }
