package mail_test

import (
	"fmt"
	"slices"
	"syscall"
	"testing"
)

// TestACrashAfterAnyCommitOfTheReceiverTakesEachMailOnce delivers with a disk that dies
// after one more commit each time; the hub repeats what was not acknowledged.
func TestACrashAfterAnyCommitOfTheReceiverTakesEachMailOnce(t *testing.T) {
	const mails = 4
	for survives := 0; ; survives++ {
		g := newRig(t)
		g.disk.set(survives, syscall.EROFS)
		crashed := false
		for n := 1; n <= mails; n++ {
			if _, err := g.deliver(inbound(n, fmt.Sprint(n))); err != nil {
				crashed = true
				g = g.crash()
				g.mustDeliver(inbound(n, fmt.Sprint(n)))
			}
			g.mustDeliver(inbound(n, fmt.Sprint(n))) // the acknowledgement was lost
		}
		if got := g.all("test.got"); !slices.Equal(got, []string{`"1"`, `"2"`, `"3"`, `"4"`}) {
			t.Fatalf("after %d commits: got %v", survives, got)
		}
		if !crashed {
			if survives != mails {
				t.Errorf("%d mails took %d commits", mails, survives)
			}
			return
		}
	}
}

// TestACrashAfterAnyCommitOfTheSenderLosesNoMailAndSettlesEachOnce lets the sender's
// disk die after one more commit each time: while the application sends, while the
// time of the offer is noted, and while receipts come.
func TestACrashAfterAnyCommitOfTheSenderLosesNoMailAndSettlesEachOnce(t *testing.T) {
	const mails = 3
	for survives := 0; ; survives++ {
		g := newRig(t)
		g.disk.set(survives, syscall.EROFS)
		crashed := false
		again := func() {
			crashed = true
			g = g.crash()
			g.box.Attach(g.hub)
		}
		var sent []string
		for n := range mails {
			m := text("beta", "", fmt.Sprint(n))
			if n == 1 {
				g.box.Attach(g.hub) // the first is stamped by the session, the others by Send
			}
			if err := g.send(m); err != nil {
				again()
				if slices.Contains(g.all("test.sent"), m.ID) {
					t.Fatal("a commit that failed left something")
				}
				g.mustSend(m)
			}
			sent = append(sent, m.ID)
		}
		hasAll := func() bool { g.hub.mu.Lock(); defer g.hub.mu.Unlock(); return len(g.hub.has) == mails }
		eventually(t, "the hub to have all, or the disk to die", func() bool {
			return hasAll() || g.disk.dead()
		})
		if !hasAll() {
			again()
			eventually(t, "the hub to have all", hasAll)
		}
		for _, id := range sent {
			if ids, err := g.receipts(delivered(id)); err != nil || len(ids) != 1 {
				again()
				if ids, err := g.receipts(delivered(id)); err != nil || len(ids) != 1 {
					t.Fatalf("after %d commits: receipt: %v %v", survives, ids, err)
				}
			}
			g.receipts(delivered(id)) // the acknowledgement was lost
		}
		want := []string{`"0" delivered  false`, `"1" delivered  false`, `"2" delivered  false`}
		if got := g.all("test.settled"); !slices.Equal(got, want) {
			t.Fatalf("after %d commits: settled %v", survives, got)
		}
		if got := slices.Compact(g.hub.got()); !slices.Equal(got, []string{`beta"0"`, `beta"1"`, `beta"2"`}) {
			t.Fatalf("after %d commits: the hub got %v", survives, got)
		}
		if s := g.box.Snapshot(); s.Waiting != 0 {
			t.Fatalf("after %d commits: %+v", survives, s)
		}
		if !crashed {
			return
		}
	}
}
