package tasks_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"opencode-mesh/node/agent"
	"opencode-mesh/node/tasks"
	"opencode-mesh/protocol/api"
)

func TestDelivery(t *testing.T) {
	t.Run("waits for the hub and goes out at once when it is there", func(t *testing.T) {
		g := newRig(t, newAgent(true, done), func(c *tasks.Config) { c.RetryMin, c.RetryMax = time.Hour, time.Hour })
		g.r.Connect(nil)
		g.take("t1")
		eventually(t, "the result", func() bool { return g.r.Snapshot().Undelivered == 1 })
		none(t, g.hub.results, "delivery without a hub")
		g.r.Connect(g.hub)
		g.result()
		g.delivered()
	})

	t.Run("is tried again, for ever, after passing trouble", func(t *testing.T) {
		var n atomic.Int64
		trouble := []error{
			errors.New("stream reset"), context.DeadlineExceeded,
			api.Errorf(api.CodeInternal, "x"), api.Errorf(api.CodeDiskFull, "x"), api.Errorf(api.CodeReadOnly, "x"),
			api.Errorf(api.CodeShuttingDown, "x"), api.Errorf(api.CodeRateLimited, "x"), api.Errorf(api.CodeSuperseded, "x"),
			api.DecodeError(502, []byte("<html>")),
		}
		g := newRig(t, newAgent(true, done))
		g.hub.setAnswer(func(api.Result) error {
			if i := int(n.Add(1)) - 1; i < 2*len(trouble) {
				return trouble[i%len(trouble)]
			}
			return nil
		})
		g.take("t1")
		for range 2*len(trouble) + 1 {
			if res := g.result(); res.Outcome.State != api.StateDone || res.Recover != nil {
				t.Fatalf("result %+v", res)
			}
		}
		g.delivered()
	})

	t.Run("backs off between attempts and honours Retry-After", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, newAgent(true, done), func(c *tasks.Config) { c.RetryMin, c.RetryMax = time.Second, 8*time.Second })
			var at []time.Time
			g.hub.setAnswer(func(api.Result) error {
				at = append(at, time.Now())
				if len(at) == 6 {
					e := api.Errorf(api.CodeRateLimited, "later")
					e.RetryAfter = time.Minute
					return e
				}
				if len(at) < 7 {
					return api.Errorf(api.CodeInternal, "x")
				}
				return nil
			})
			g.take("t1")
			time.Sleep(5 * time.Minute)
			synctest.Wait()
			if len(at) != 7 {
				t.Fatalf("%d attempts", len(at))
			}
			for i, limit := range []time.Duration{1, 2, 4, 8, 8} {
				gap, limit := at[i+1].Sub(at[i]), limit*time.Second
				if gap < limit/2 || gap > limit {
					t.Errorf("wait %d was %v, want from %v to %v", i, gap, limit/2, limit)
				}
			}
			if gap := at[6].Sub(at[5]); gap != time.Minute {
				t.Errorf("asked to wait a minute, waited %v", gap)
			}
			g.stop()
		})
	})

	t.Run("after a reconnect does not wait for the back-off, and happens once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, newAgent(true, done), func(c *tasks.Config) { c.RetryMin, c.RetryMax = time.Hour, time.Hour })
			g.hub.setAnswer(func(api.Result) error { return errors.New("stream reset") })
			g.take("t1")
			g.result()
			synctest.Wait()
			g.hub.setAnswer(nil)
			g.r.Connect(nil)
			g.r.Connect(g.hub)
			synctest.Wait()
			g.result()
			time.Sleep(3 * time.Hour)
			synctest.Wait()
			none(t, g.hub.results, "further delivery")
			g.stop()
		})
	})

	t.Run("tells the whole task to a hub that does not know it", func(t *testing.T) {
		g := newRig(t, newAgent(true, done))
		g.hub.setAnswer(func(res api.Result) error {
			if res.Recover == nil {
				return api.Errorf(api.CodeUnknownTask, "never heard of it")
			}
			return nil
		})
		o := g.take("t1")
		g.result()
		want := api.Recover{Kind: o.Kind, Controller: o.Controller, Hash: o.Hash, Mode: o.Mode, CreatedMS: o.CreatedMS, Text: o.Text}
		if res := g.result(); res.Recover == nil || *res.Recover != want {
			t.Fatalf("recover %+v, want %+v", res.Recover, want)
		}
		g.delivered()
	})

	t.Run("of what the hub refuses for good ends with a minimal result_rejected", func(t *testing.T) {
		for _, code := range []api.Code{api.CodeResultConflict, api.CodeForbidden, api.CodeBadRequest, api.CodeTooLarge, api.CodeTaskForgotten} {
			g := newRig(t, newAgent(true, done))
			g.hub.setAnswer(func(res api.Result) error {
				if res.Outcome.Error == nil {
					return api.Errorf(code, "no")
				}
				return nil
			})
			g.take("t1")
			g.result()
			res := g.result()
			if res.Outcome.State != api.StateFailed || res.Outcome.Error.Code != api.TaskResultRejected || res.Outcome.Summary != "" {
				t.Fatalf("%s: %+v", code, res.Outcome)
			}
			g.delivered()
		}
	})

	t.Run("is given up only when even that is refused for good", func(t *testing.T) {
		g := newRig(t, newAgent(true, done))
		g.hub.setAnswer(func(api.Result) error { return api.Errorf(api.CodeForbidden, "no") })
		g.take("t1")
		g.result()
		g.result()
		g.delivered()
		none(t, g.hub.results, "third attempt")
	})

	t.Run("runs many at once, bounded, and one slow result does not hold up the others", func(t *testing.T) {
		var now, peak atomic.Int64
		release := make(chan struct{})
		g := newRig(t, newAgent(false, done), func(c *tasks.Config) { c.Deliveries, c.MaxParallel = 4, 64 })
		g.hub.setAnswer(func(res api.Result) error {
			peak.Store(max(peak.Load(), now.Add(1)))
			defer now.Add(-1)
			if res.Task == "t0" {
				<-release
			}
			return nil
		})
		for i := range 40 {
			g.take(fmt.Sprint("t", i))
		}
		for range 39 {
			g.result()
		}
		none(t, g.hub.results, "the slow result")
		close(release)
		g.result()
		g.delivered()
		if p := peak.Load(); p > 4 {
			t.Fatalf("%d deliveries at once", p)
		}
	})

	t.Run("tells how long ago the turn ended", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, newAgent(true, done))
			g.r.Connect(nil)
			g.take("t1")
			synctest.Wait()
			time.Sleep(90 * time.Second)
			g.r.Connect(g.hub)
			if res := g.result(); res.AgoMS != 90_000 {
				t.Fatalf("ago %d ms", res.AgoMS)
			}
			g.stop()
		})
	})
}

// TestResultBody holds the body that is sent to the type that the hub reads.
func TestResultBody(t *testing.T) {
	out := api.Outcome{
		State: api.StateDone, Summary: "s", Artifacts: []string{"a"}, Reply: "r", Question: &api.Asked{Kind: "question", Text: "q", Options: []string{"o"}},
		Session: "ses", NewSession: true, Tokens: &api.Tokens{Total: 1, Limit: 2}, Flags: []api.Flag{api.FlagResumed},
		Error: &api.TaskError{Code: "c", Message: "m"}, RanMS: 3,
	}
	want := api.Result{Triple: triple("t", 1, 2), JournalID: "j", Epoch: 4, Outcome: out, AgoMS: 5, Recover: &api.Recover{Hash: "h"}}
	wire, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	sent, err := tasks.EncodeResult(want)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(sent, wire) {
		t.Fatalf("sent %s\nwant %s", sent, wire)
	}
}

func TestFullDisk(t *testing.T) {
	t.Run("a result that cannot be journaled is delivered from memory, and the hub's commit counts", func(t *testing.T) {
		for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EROFS} {
			gate := newGated()
			g := newRig(t, newAgent(true, gate.run))
			o := g.take("t1")
			g.began()
			g.disk.fail(errno)
			gate.open("t1")
			if res := g.result(); res.Triple != o.Triple || res.Outcome.State != api.StateDone {
				t.Fatalf("result %+v", res)
			}
			status, rc, err := g.put(o)
			if err != nil || rc.State != api.StateDone || rc.Outcome == nil {
				t.Fatalf("repeat: %d %+v %v", status, rc, err)
			}
		}
	})

	t.Run("such a result is journaled once there is room, and offers are taken again without a restart", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			gate := newGated()
			g := newRig(t, newAgent(true, gate.run))
			o := g.take("t1")
			g.began()
			g.disk.fail(syscall.ENOSPC)
			gate.open("t1")
			g.result()
			if _, _, err := g.put(g.offer("t2")); err == nil || err.Code != api.CodeNodeFull {
				t.Fatalf("offer on a full disk: %v", err)
			}
			if s := g.r.Snapshot(); s.Unsaved != 1 || s.Disk == "" {
				t.Fatalf("in hand: %+v", s)
			}
			g.disk.fail(0)
			time.Sleep(2 * time.Minute)
			synctest.Wait()
			if s := g.r.Snapshot(); s.Unsaved != 0 || s.Undelivered != 0 || s.Disk != "" {
				t.Fatalf("in hand after it healed: %+v", s)
			}
			gate.open("t2")
			g.take("t2")
			g.result()
			g.stop()

			a := newAgent(true, done)
			h := openRig(t, g.cfg.Path, a, newHub())
			o.JournalID, o.Epoch = h.id, h.epoch
			if _, rc, err := h.put(o); err != nil || rc.State != api.StateDone {
				t.Fatalf("repeat after a restart: %+v %v", rc, err)
			}
			if len(a.starts()) != 0 {
				t.Fatalf("it ran again: %v", a.starts())
			}
			h.stop()
		})
	})

	t.Run("such a result is journaled although no hub has taken it, and delivered by the next process", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			gate := newGated()
			g := newRig(t, newAgent(true, gate.run))
			g.r.Connect(nil)
			g.take("t1")
			g.began()
			g.disk.fail(syscall.ENOSPC)
			gate.open("t1")
			synctest.Wait()
			if s := g.r.Snapshot(); s.Unsaved != 1 {
				t.Fatalf("in hand: %+v", s)
			}
			g.disk.fail(0)
			time.Sleep(2 * time.Minute)
			synctest.Wait()
			if s := g.r.Snapshot(); s.Unsaved != 0 || s.Undelivered != 1 {
				t.Fatalf("in hand after it healed: %+v", s)
			}
			path := g.crash()
			g.stop()
			a := newAgent(true, done)
			h := openRig(t, path, a, newHub())
			if res := h.result(); res.Task != "t1" || len(a.starts()) != 0 {
				t.Fatalf("result %+v, starts %v", res, a.starts())
			}
			h.stop()
		})
	})

	t.Run("a withdrawal that could not be journaled leaves no trace", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			gate := newGated()
			g := newRig(t, newAgent(true, gate.run))
			g.take("t1")
			g.began()
			o := g.take("t2")
			g.disk.fail(syscall.ENOSPC)
			if _, _, err := g.withdraw(o.Triple, api.WithdrawCancel); err == nil || err.Code != api.CodeNodeFull {
				t.Fatalf("withdrawal on a full disk: %v", err)
			}
			g.disk.fail(0)
			time.Sleep(2 * time.Minute)
			g.r.Connect(nil)
			gate.open("t1")
			gate.open("t2")
			time.Sleep(time.Second)
			g.stop()
			h := openRig(t, g.cfg.Path, newAgent(true, done), newHub())
			got := map[string]api.State{}
			for range 2 {
				res := h.result()
				got[res.Task] = res.Outcome.State
			}
			if got["t1"] != api.StateDone || got["t2"] != api.StateDone {
				t.Fatalf("delivered after the restart: %v", got)
			}
			h.stop()
		})
	})

	t.Run("a claim tells that its turn runs even when the running mark was lost", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			go1 := make(chan struct{})
			a := newAgent(true, func(ctx context.Context, turn agent.Turn, h agent.Host) (api.Outcome, error) {
				if turn.Task == "t2" {
					<-go1
					if err := h.Checkpoint(ctx, []byte("claimed")); err != nil {
						return api.Outcome{}, err
					}
				}
				return newGated().run(ctx, turn, h)
			})
			g := newRig(t, a, func(c *tasks.Config) { c.MaxParallel = 1 })
			o := g.take("t1")
			g.began()
			g.take("t2", from("beta"))
			g.disk.fail(syscall.ENOSPC)
			g.withdraw(o.Triple, api.WithdrawCancel) // t1 ends, t2 starts: nothing of it reaches the disk
			g.began()
			g.disk.fail(0)
			time.Sleep(10 * time.Second)
			close(go1)
			synctest.Wait()
			path := g.crash()
			g.stop()

			h := openRig(t, path, newAgent(true, newGated().run), newHub(), func(c *tasks.Config) { c.StartDelay = time.Hour })
			if got := h.reconcile(triple("t2", 1, 1)); got[0].State != api.StateRunning {
				t.Fatalf("after the crash it is %+v", got[0])
			}
			for {
				if turn := h.began(); turn.Task == "t2" {
					if !turn.Resumed || string(turn.Checkpoint) != "claimed" {
						t.Fatalf("turn %+v", turn)
					}
					break
				}
			}
			h.stop()
		})
	})

	t.Run("a failed sync is told at once", func(t *testing.T) {
		g := newRig(t, newAgent(true, done))
		g.disk.mu.Lock()
		g.disk.fault = errors.New("fdatasync: input/output error")
		g.disk.mu.Unlock()
		if status, _, err := g.put(g.offer("t1")); status != 503 || err.Code != api.CodeUnavailable {
			t.Fatalf("%d %v", status, err)
		}
		await(t, g.r.Failed(), "the runner to say that its journal failed")
	})
}

func TestLongReply(t *testing.T) {
	long := strings.Repeat("ü", api.MaxReply) // two bytes each
	a := newAgent(true, func(context.Context, agent.Turn, agent.Host) (api.Outcome, error) {
		return api.Outcome{State: api.StateDone, Summary: "short", Reply: long, Artifacts: []string{"out.txt", strings.Repeat("p", 5000)}}, nil
	})
	t.Run("is cut on a character, flagged, and kept whole as an artifact", func(t *testing.T) {
		g := newRig(t, a)
		g.take("t1")
		out := g.result().Outcome
		if len(out.Reply) != api.MaxReply || !strings.HasSuffix(out.Reply, "ü") {
			t.Fatalf("reply of %d bytes", len(out.Reply))
		}
		if !slices.Contains(out.Flags, api.FlagTruncated) {
			t.Fatalf("flags %v", out.Flags)
		}
		want := []string{".opencode-mesh/t1.1.1.reply.txt", "out.txt"}
		if !slices.Equal(out.Artifacts, want) {
			t.Fatalf("artifacts %v", out.Artifacts)
		}
		whole, err := os.ReadFile(filepath.Join(g.cfg.Workspaces[0].Dir, want[0]))
		if err != nil || string(whole) != long {
			t.Fatalf("the artifact has %d bytes, %v", len(whole), err)
		}
	})

	t.Run("is not written through a link that leads out of the workspace", func(t *testing.T) {
		outside := t.TempDir()
		g := newRig(t, newAgent(true, func(context.Context, agent.Turn, agent.Host) (api.Outcome, error) {
			return api.Outcome{State: api.StateDone, Reply: long[:api.MaxReply+2], Artifacts: []string{"out.txt"}}, nil
		}))
		if err := os.Symlink(outside, filepath.Join(g.cfg.Workspaces[0].Dir, ".opencode-mesh")); err != nil {
			t.Fatal(err)
		}
		g.take("t1")
		if out := g.result().Outcome; !slices.Equal(out.Artifacts, []string{"out.txt"}) || !slices.Contains(out.Flags, api.FlagTruncated) {
			t.Fatalf("artifacts %v, flags %v", out.Artifacts, out.Flags)
		}
		if left, _ := os.ReadDir(outside); len(left) != 0 {
			t.Fatalf("written outside: %v", left)
		}
	})

	t.Run("of control characters still fits into a request", func(t *testing.T) {
		nasty := strings.Repeat("\x01", api.MaxReply)
		b := newAgent(true, func(context.Context, agent.Turn, agent.Host) (api.Outcome, error) {
			return api.Outcome{State: api.StateDone, Summary: nasty, Reply: nasty}, nil
		})
		g := newRig(t, b)
		g.take("t1")
		data, err := json.Marshal(g.result())
		if err != nil || len(data) > api.MaxTunnelBody {
			t.Fatalf("a body of %d bytes, %v", len(data), err)
		}
	})
}
