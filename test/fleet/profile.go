package fleet

import (
	"path/filepath"

	"opencode-mesh/auth"
)

// Profile is the controller's login, for programs other than meshctl.
func (c *Ctl) Profile() auth.Profile {
	c.f.TB.Helper()
	p, err := auth.LoadProfile(filepath.Join(c.dir, "default.json"))
	if err != nil {
		c.f.TB.Fatal(err)
	}
	return p
}
