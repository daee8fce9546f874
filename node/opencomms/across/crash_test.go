package across

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"opencode-mesh/node/opencomms/engine"
	"opencode-mesh/node/opencomms/statefile"
	ocm "opencode-mesh/protocol/opencomms"
)

// Each side in turn dies after its n-th commit, for every n that question and answer
// need; what is in the file by then stays.
func TestAKillAfterAnyCommitLosesNothingAndDoublesNothing(t *testing.T) {
	for _, name := range []string{"alpha", "beta"} {
		killed, alive := 0, false
		for commits := range int64(100) {
			if !t.Run(fmt.Sprint(name, " after ", commits), func(t *testing.T) {
				w, alpha, beta := pair(t)
				w.sides[name].disk.left.Store(commits)
				one, two := alpha.say("Builder", "Reviewer-beta", "one"), alpha.say("Builder", "Reviewer-beta", "two")
				w.settle()
				if got := beta.pull("Reviewer"); !slices.Equal(got, []string{one, two}) {
					t.Fatalf("pulled %v, not %s and %s", got, one, two)
				}
				a := beta.say("Reviewer", "Builder-alpha", "answer", two)
				refused := beta.say("Reviewer", "Builder-alpha", "late", two)
				alpha.change(func(s *ocm.State) { // the second answer is refused
					for _, m := range engine.Find(s, "review").Members {
						if m.Host == Host {
							engine.Find(s, "review").SeenContent.Set(ocm.SeenKey(m.SessionID, "late"), w.now.Load())
						}
					}
				})
				w.settle()
				if got := alpha.pull("Builder"); !slices.Equal(got, []string{a}) {
					t.Fatalf("pulled %v, not %s", got, a)
				}
				w.settle()
				told(t, beta, "Reviewer", refused, stateRefused, "the same was sent")
				for id, s := range map[string]*side{one: alpha, two: alpha, a: beta} {
					if got := s.sent(id).State; got != ocm.StatusDelivered {
						t.Errorf("%s ended as %q", id, got)
					}
				}
				if n, m := alpha.state().Messages.Len(), beta.state().Messages.Len(); n != 3 || m != 5 {
					t.Errorf("%d messages at alpha, %d at beta", n, m)
				}
				alive = w.sides[name].life == 0
			}) {
				return
			}
			if alive {
				break // it does not need as many
			}
			killed++
		}
		if killed < 10 {
			t.Errorf("%s was killed %d times only", name, killed)
		}
	}
}

// A file that cannot be written for a while holds its own side up and loses nothing.
func TestAFileThatCannotBeUsedHoldsUpWhatNeedsIt(t *testing.T) {
	for _, name := range []string{"alpha", "beta"} {
		t.Run(name, func(t *testing.T) {
			w, alpha, beta := pair(t)
			id := alpha.say("Builder", "Reviewer-beta", "one")
			mend := w.sides[name].spoil()
			w.settle()
			if err := w.sides[name].work(); err == nil {
				t.Error("a file that is not valid was worked on")
			}
			w.sides[name].crash()
			w.settle()
			mend()
			w.settle()
			if row := beta.row(id); row == nil || row.Status != ocm.StatusPending {
				t.Errorf("beta has %+v, alpha says %+v", row, alpha.sent(id))
			}
		})
	}
}

// A file that is not there says nothing of the channel: nothing ends until one does.
func TestAMomentWithoutTheFileEndsNothing(t *testing.T) {
	for _, name := range []string{"alpha", "beta"} {
		t.Run(name, func(t *testing.T) {
			w, alpha, beta := pair(t)
			beta.change(func(s *ocm.State) { engine.Find(s, "review").Paused = true })
			waits := alpha.say("Builder", "Reviewer-beta", "one")
			w.settle()
			last := alpha.say("Builder", "Reviewer-beta", "two")
			side := w.sides[name]
			path := filepath.Join(side.dir, statefile.Dir, "state.json")
			if err := os.Rename(path, path+".away"); err != nil {
				t.Fatal(err)
			}
			w.settle()
			err := side.work()
			if side.worker.fail(t.Context(), err); !strings.Contains(side.status().Links[0].Trouble, "not there") {
				t.Errorf("the status says %+v", side.status().Links[0])
			}
			if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("a file was made: %v", err)
			}
			if err := os.Rename(path+".away", path); err != nil {
				t.Fatal(err)
			}
			beta.change(func(s *ocm.State) { engine.Find(s, "review").Paused = false })
			w.settle()
			for _, id := range []string{waits, last} {
				if row := beta.row(id); row == nil || row.Status != ocm.StatusPending {
					t.Errorf("beta has %+v, alpha says %+v", row, alpha.sent(id))
				}
			}
			if got := append(alpha.roles("review"), beta.roles("review")...); len(got) != 4 {
				t.Errorf("the channels have %v", got)
			}
		})
	}
}

func TestALinkOfAFileThatIsGoneForGoodCanBeEnded(t *testing.T) {
	w, alpha, _ := pair(t)
	if err := os.RemoveAll(filepath.Join(alpha.dir, statefile.Dir)); err != nil {
		t.Fatal(err)
	}
	w.settle()
	alpha.unlink("review", "beta")
	w.settle()
	if left := alpha.status().Links; len(left) != 0 {
		t.Errorf("there is still %+v", left)
	}
}

// The context of a pass ends anywhere, as at a stop of the node.
func TestAStopInTheMiddleIsNoLoss(t *testing.T) {
	w, alpha, beta := pair(t)
	id := alpha.say("Builder", "Reviewer-beta", "one")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, s := range w.sides {
		if _, err := s.worker.pass(ctx); err == nil {
			t.Error("a pass without a context did something")
		}
	}
	w.settle()
	if beta.row(id) == nil {
		t.Error("it did not arrive")
	}
}
