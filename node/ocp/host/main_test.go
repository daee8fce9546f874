package host

import (
	"testing"

	"go.uber.org/goleak"

	"opencode-mesh/node/ocp/ocptest"
)

func TestMain(m *testing.M) {
	ocptest.Main()
	goleak.VerifyTestMain(m)
}
