package hub

import (
	"time"

	"opencode-mesh/store/boltdb"
)

// WithDisk gives a hub a disk that fails on demand and is looked at again every
// probe.
func WithDisk(c Config, faults boltdb.FaultInjector, probe time.Duration) Config {
	c.faults, c.probe = faults, probe
	return c
}
