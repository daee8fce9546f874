package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"opencode-mesh/protocol/api"
	"opencode-mesh/test/fleet"
	"opencode-mesh/test/stubllm"
)

// compactionKill is a kill while the model is at a turn of a compaction.
type compactionKill struct {
	who    string // "hub", "node" or "both"
	turn   string // "digest" or "resume"
	before bool   // the turn ends while the killed are down
}

func (k compactionKill) String() string {
	if k.before {
		return fmt.Sprintf("%s, %s turn ends while it is down", k.who, k.turn)
	}
	return fmt.Sprintf("%s, %s turn ends after the start", k.who, k.turn)
}

// TestAKillInTheMiddleOfACompactionLeavesOneLivingSession kills hub, node and both, and
// meets each turn, before and after the start. A kill at every step is the matter of
// hub/relay's tests, and every kill of this kind of the fault tests.
func TestAKillInTheMiddleOfACompactionLeavesOneLivingSession(t *testing.T) {
	t.Parallel()
	survivesKills(t, []compactionKill{{"hub", "digest", true}, {"node", "resume", true}, {"both", "resume", false}})
}

// survivesKills does the kills one after the other, with an opencode that outlives them.
func survivesKills(t *testing.T, kills []compactionKill) {
	llm := stubllm.Start(t)
	server := served(t, llm)
	f := fleet.New(t)
	alpha := f.Node("alpha", using(server))
	f.Ctl("watcher").Healthy("alpha")
	kill := map[string]func(){
		"hub":  func() { f.Hub.Kill(); f.Hub.Start() },
		"node": func() { alpha.Kill(); alpha.Start() },
		"both": func() { f.Hub.Kill(); alpha.Kill(); f.Hub.Start(); alpha.Start() },
	}
	for _, k := range kills {
		t.Run(k.String(), func(t *testing.T) {
			key := fmt.Sprintf("%s-%s-%v", k.who, k.turn, k.before)
			ctl := f.In(t).Ctl(key)
			first := do(t, ctl, api.StateDone, "alpha", "--", "one USAGE:124000,0")
			gate := "GATE:" + key + " "
			digest, resume, match := "FACTS:from "+key, acknowledged, condenses
			if k.turn == "digest" {
				digest = gate + digest
			} else {
				resume, match = gate+resume, resumes
			}
			defer llm.Direct(condenses(""), digest)()
			defer llm.Direct(resumes(""), resume)()
			id := key + "-op"
			if status, answer := ctl.API("POST", "/v1/bindings/-/alpha/compact", api.Operate{ID: id}); status != 201 {
				t.Fatalf("%d %s", status, answer)
			}
			asked(t, llm, match(id))
			after := detached(t, ctl, "alpha", "--", "after it")
			if k.before {
				// The model answers in the very moment.
				llm.Open(key)
			}
			kill[k.who]()
			llm.Open(key)
			op := waited(t, ctl, id)
			if op.State != api.StateDone {
				t.Errorf("%+v", op)
			}
			task := waited(t, ctl, after)
			now := sessionOf(t, ctl, "alpha")
			if task.State != api.StateDone || *task.Session != now || now == *first.Session || !there(t, server, now) || !there(t, server, *first.Session) {
				t.Errorf("bound %s: %+v", now, task)
			}
			if got := digests(ctl, "alpha"); len(got) != 1 || !slices.Equal(got[0].Facts, []string{"from " + key}) {
				t.Errorf("digests %+v", got)
			}
			texts := said(t, server, now)
			if len(texts) != 4 || !strings.Contains(texts[0], "from "+key) || !strings.Contains(texts[2], "after it") {
				t.Errorf("the new session holds %q", texts)
			}
		})
	}
	// Every session in opencode is one that was bound: no kill left another behind.
	if all := sessionsIn(t, server, alpha.Work); len(all) != 2*len(kills) {
		t.Errorf("%d sessions after %d compactions", len(all), len(kills))
	}
}

// TestAKilledNodeTakesItsCompactionUpAgainWithAServerOfItsOwn is the same with an
// opencode that the node started, and that a kill may take along.
func TestAKilledNodeTakesItsCompactionUpAgainWithAServerOfItsOwn(t *testing.T) {
	t.Parallel()
	llm := stubllm.Start(t)
	f := fleet.New(t)
	alpha := f.Node("alpha", opencode(t, llm))
	f.Ctl("watcher").Healthy("alpha")
	for _, turn := range []string{"digest", "resume"} {
		t.Run(turn, func(t *testing.T) {
			ctl := f.In(t).Ctl("own-" + turn)
			first := do(t, ctl, api.StateDone, "alpha", "--", "one USAGE:124000,0")
			gate, match := "GATE:own-"+turn+" ", condenses
			digest, resume := "FACTS:kept", acknowledged
			if turn == "digest" {
				digest = gate + digest
			} else {
				resume, match = gate+resume, resumes
			}
			defer llm.Direct(condenses(""), digest)()
			defer llm.Direct(resumes(""), resume)()
			id := "own-" + turn + "-op"
			if status, answer := ctl.API("POST", "/v1/bindings/-/alpha/compact", api.Operate{ID: id}); status != 201 {
				t.Fatalf("%d %s", status, answer)
			}
			asked(t, llm, match(id))
			alpha.Kill()
			llm.Open("own-" + turn)
			alpha.Start()
			op := waited(t, ctl, id)
			want := *first.Session
			if op.State == api.StateDone {
				want = *op.Session
			}
			next := do(t, ctl, api.StateDone, "alpha", "--", "after it")
			if *next.Session != want || next.NewSession || slices.Contains(next.Flags, api.FlagSessionReplaced) || sessionOf(t, ctl, "alpha") != want {
				t.Errorf("%s with %+v: the next task was in %s, %v", op.State, op.Error, *next.Session, next.Flags)
			}
			if op.State != api.StateDone || *op.Session == *first.Session {
				t.Errorf("%+v", op)
			}
			if got := digests(ctl, "alpha"); len(got) != 1 || !slices.Equal(got[0].Facts, []string{"kept"}) {
				t.Errorf("digests %+v", got)
			}
		})
	}
}
