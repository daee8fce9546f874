package access_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"opencode-mesh/hub/access"
	"opencode-mesh/store"
)

// written waits for what was appended without waiting.
func (g *gate) written() {
	g.t.Helper()
	_, rev, _ := g.store.Setting(ctx, "written")
	if _, err := g.store.PutSetting(ctx, "written", nil, rev); err != nil {
		g.t.Fatal(err)
	}
}

func TestActsOfOneIdentityAreSummedUpWhenTheyAreMany(t *testing.T) {
	g := newGate(t)
	mallory := access.Principal{Identity: store.Identity{ID: "id_m", Name: "mallory"}}
	alice := access.Principal{Identity: store.Identity{ID: "id_a", Name: "alice"}}
	const many = 1000
	for i := range many {
		if i%2 == 0 {
			g.Act(mallory, peer, "canceled", fmt.Sprint("t", i), "")
			continue
		}
		e := g.Acting(mallory, peer, "dispatched", "beta", "x")
		if e != nil {
			if err := g.store.AppendActsLater(*e); err != nil {
				t.Fatal(err)
			}
		}
		g.Acted(mallory, "dispatched", e)
	}
	g.Act(alice, peer, "canceled", "t1", "")
	g.written()
	one := g.count("dispatched")
	if n := g.count("canceled") + one; n < 10 || n > 100 {
		t.Errorf("%d entries of %d acts", n, many)
	}
	if n := strings.Count(fmt.Sprint(g.audit()), "alice"); n != 1 {
		t.Errorf("%d entries of alice", n)
	}
	for range 2 { // the second has nothing to add
		if err := g.Flush(); err != nil {
			t.Fatal(err)
		}
		g.written()
		sums := 0
		for _, e := range g.audit() {
			if e.Action == "dispatched" && e.Detail == fmt.Sprintf("%d more within a minute", many/2-one) && e.Actor == "mallory" {
				sums++
			}
		}
		if n := g.count("dispatched"); sums != 1 || n != one+1 {
			t.Errorf("%d sums, %d entries after %d", sums, n, one)
		}
	}
	g.Act(mallory, peer, "dispatched", "beta", "") // a minute later
	g.written()
	if n := g.count("dispatched"); n != one+2 {
		t.Errorf("%d entries, then %d", one+1, n)
	}
}

func TestAnActIsBoundedAndCleaned(t *testing.T) {
	g := newGate(t)
	evil := "\x1b[2J" + strings.Repeat("x", 1<<20)
	e := g.Acting(access.Principal{Identity: store.Identity{Name: evil}}, netip.Addr{}, "tested", evil, evil)
	if s := fmt.Sprint(*e); len(s) > 1024 || strings.Contains(s, "\x1b") || e.Peer != "" || e.At.IsZero() {
		t.Errorf("%d bytes: %.100q", len(s), s)
	}
}
