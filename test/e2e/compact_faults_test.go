//go:build faults

package e2e

import "testing"

// TestEveryKillInTheMiddleOfACompactionLeavesOneLivingSession is every kill of hub, node
// or both at either turn, which ends before or after the start.
func TestEveryKillInTheMiddleOfACompactionLeavesOneLivingSession(t *testing.T) {
	var kills []compactionKill
	for _, who := range []string{"hub", "node", "both"} {
		for _, turn := range []string{"digest", "resume"} {
			for _, before := range []bool{true, false} {
				kills = append(kills, compactionKill{who, turn, before})
			}
		}
	}
	survivesKills(t, kills)
}
