//go:build browser

package dashboard

import (
	"testing"

	"opencode-mesh/test/fleet"
)

func TestTheFleetIsShownAfterLoginAndChangesWithoutReload(t *testing.T) {
	f := fleet.New(t)
	alpha := f.Node("alpha", f.Demo())
	p := newPage(t, f)
	p.login("/")
	p.shows("alpha")
	p.until(`document.querySelector('[data-item="alpha"] .state.ok')`)

	f.Node("beta", f.Demo())
	p.until(`document.querySelector('[data-item="beta"] .state.ok')`)
	alpha.Kill()
	p.until(`document.querySelector('[data-item="alpha"]').innerText.includes("offline")`)
}
