package spool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"opencode-mesh/node/peers/files/filestest"
	"opencode-mesh/protocol/peers"
)

// Any sequence of changes, some of which end anywhere, as if the process had been killed
// there: from that step on nothing reaches the disk.
func TestEveryMessageIsInOneStateWhateverHappens(t *testing.T) {
	const maxQueue, maxHeld = 3, 2
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp(t.TempDir(), "")
		if err != nil {
			rt.Fatal(err)
		}
		defer os.RemoveAll(dir)
		w := newWorld(t, Config{Dir: dir, MaxQueue: maxQueue, MaxHeld: maxHeld}).fast()
		is := map[string]string{} // what is known: id → where
		ctx := context.Background()
		id := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f", "g"})
		for range rapid.IntRange(1, 25).Draw(rt, "changes") {
			k := key(id.Draw(rt, "id"))
			d := Decision(rapid.IntRange(0, 2).Draw(rt, "decision"))
			m := message(k.ID)
			m.Text = rapid.SampledFrom([]string{"x", m.ID}).Draw(rt, "text")
			end := peers.Delivered
			change := rapid.SampledFrom([]string{"accept", "accept", "accept", "drain", "finish", "requeue", "release", "drop", "expire", "acknowledge", "load"}).Draw(rt, "change")
			breaks := rapid.IntRange(0, 40).Draw(rt, "breaks off at")
			if breaks > 0 && breaks <= 30 {
				w.Queue.sys = &filestest.Faults{FS: w.Spool.sys, At: breaks, Err: syscall.EIO, Stays: true}
			}
			status := ""
			switch change {
			case "accept":
				status, _, err = w.Accept(ctx, m, d)
			case "drain":
				_, err = w.Drain(ctx)
			case "finish":
				err = w.Finish(ctx, k, end)
			case "requeue":
				err = w.Requeue(ctx, k)
			case "release":
				err = w.Release(ctx, k)
			case "drop":
				err = w.Drop(ctx, k)
			case "expire":
				w.pass(peers.DefaultHeldExpiry)
				_, err = w.Expire(ctx)
			case "acknowledge":
				err = w.AckSent(ctx, k)
			case "load":
				err = w.Load(ctx)
			}
			var state *StateError
			crashed := err != nil && !errors.Is(err, ErrUnknown) && !errors.Is(err, ErrFull) && !errors.As(err, &state)
			if crashed && !errors.Is(err, syscall.EIO) {
				rt.Fatal(change, err)
			}
			if breaks > 0 && breaks <= 30 {
				w.reopen()
				w.ageClaims()
				if err := w.Load(ctx); err != nil {
					rt.Fatal(err)
				}
			}
			w.pass(300 * time.Millisecond)

			records, err := w.Records()
			if err != nil {
				rt.Fatal(err)
			}
			now := map[string]string{}
			count := map[State]int{}
			for i, r := range records {
				if now[r.Message.ID] != "" {
					rt.Fatal(r.Message.ID, "is in two states")
				}
				if i > 0 && r.Sequence <= records[i-1].Sequence {
					rt.Fatal("two have one number, or the order is another")
				}
				now[r.Message.ID] = where(r)
				count[r.State]++
			}
			if count[StateQueued]+count[StateInflight] > maxQueue || count[StateHeld] > maxHeld {
				rt.Fatal("there are more than there may be:", now)
			}
			for id, before := range is {
				if !follows(before, now[id]) {
					rt.Fatalf("%s: %s was %s and is %q", change, id, before, now[id])
				}
			}
			if change == "accept" && !crashed && status != peers.Full {
				if got := now[k.ID]; got == "" || status != got && got != "inflight" {
					rt.Fatalf("accepted as %s, it is %q", status, got)
				}
			}
			for id := range now {
				if is[id] == "" && (change != "accept" || id != k.ID) {
					rt.Fatal(change, "made", id)
				}
			}
			// Each has one file.
			var names []string
			for _, path := range tree(t, w.Queue.dir) {
				if i := strings.LastIndexByte(path, '/'); recordName.MatchString(path[i+1:]) {
					names = append(names, path[i+1:])
				}
			}
			slices.Sort(names)
			if len(slices.Compact(names)) != len(records) {
				rt.Fatal(fmt.Sprint(len(names), " files of ", len(records), " messages"))
			}
			is = now
		}
	})
}

// follows says whether a message may be there now, after it was there before.
func follows(before, now string) bool {
	switch before {
	case "held":
		return slices.Contains([]string{"held", "queued", peers.Dropped, peers.Expired}, now)
	case "queued", "inflight":
		return slices.Contains([]string{"queued", "inflight", peers.Delivered}, now)
	default:
		return now == before
	}
}
