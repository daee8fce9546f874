//go:build unix

package proc_test

import (
	"os"
	"testing"
	"time"

	"opencode-mesh/node/internal/proc"
)

func TestAMarkedProcessIsGoneOnceItsPidIsNobodysOrAnothersAndNeverWhereNothingIsKnown(t *testing.T) {
	self := proc.Self()
	if self.PID != os.Getpid() || self.Start == "" || self.Space == "" || self.Gone() {
		t.Fatalf("%+v", self)
	}
	cmd := child(t)
	id, err := proc.Identify(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	living := proc.Mark{ID: id, Space: self.Space}
	successor, abroad, bare := living, living, living
	successor.Start, abroad.Space, bare.Start = living.Start+"0", "elsewhere", ""
	for name, c := range map[string]struct {
		mark proc.Mark
		gone bool
	}{"living": {living, false}, "another with its pid": {successor, true}, "abroad": {abroad, false}, "bare": {bare, false}, "none": {proc.Mark{}, false}} {
		if c.mark.Gone() != c.gone {
			t.Errorf("%s: %v", name, !c.gone)
		}
	}
	_ = cmd.Process.Kill()
	for end := time.Now().Add(patience); !living.Gone(); time.Sleep(interval) { // before it is collected
		if time.Now().After(end) {
			t.Fatal("a killed process counts as living until its parent collects it")
		}
	}
	_ = cmd.Wait()
	abroad = living
	abroad.Space = "elsewhere"
	bare = living
	bare.Start = ""
	if !living.Gone() || abroad.Gone() || bare.Gone() {
		t.Error("of a dead one:", living.Gone(), abroad.Gone(), bare.Gone())
	}
}
