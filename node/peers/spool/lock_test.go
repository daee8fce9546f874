package spool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"opencode-mesh/node/peers/files"
	"opencode-mesh/protocol/peers"
)

const (
	token0 = "00000000000000000000000000000000"
	tokenF = "ffffffffffffffffffffffffffffffff"
)

// claims is the lock's directory of a spool that has one message.
func (w *world) claims() string {
	w.accept(message("m1"), Enqueue)
	return filepath.Join(w.Queue.dir, lockDir)
}

// Other programs' claims are put there as they make them.
func TestAChangeWaitsForThoseWhoChooseAndForLowerTickets(t *testing.T) {
	for name, file := range map[string]string{
		"choosing":     "choosing-" + tokenF + ".json",
		"lower ticket": "ticket-0000000000000007-" + tokenF + ".json",
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Config{})
			dir := w.claims()
			other := filepath.Join(dir, file)
			put(t, other, `{"kind":"ticket","ticket":7,"token":"x","pid":4711,"createdAt":1}`)
			done := make(chan error, 1)
			go func() { done <- w.Finish(context.Background(), key("m1"), peers.Delivered) }()
			// Our ticket is there, and its number is above the highest.
			ours := "ticket-0000000000000008-"
			if name == "choosing" {
				ours = "ticket-0000000000000001-"
			}
			for deadline := time.Now().Add(LockTimeout); ; time.Sleep(time.Millisecond) {
				list := tree(t, dir)
				if len(list) == 2 && strings.HasPrefix(list[1], ours) {
					break
				}
				if time.Now().After(deadline) {
					t.Fatal("no ticket was drawn:", list)
				}
			}
			// Two more looks, and it still waits.
			time.Sleep(3 * lockPoll)
			select {
			case err := <-done:
				t.Fatal("did not wait:", err)
			default:
			}
			want(t, w.states(), []string{"m1:queued"})
			w.must(os.Remove(other))
			w.must(<-done)
			want(t, w.states(), []string{"m1:delivered"})
			want(t, tree(t, dir), nil)
		})
	}
}

func TestOfTwoEqualTicketsTheFirstByNameComesFirst(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"ticket-0000000000000002-" + token0, "ticket-0000000000000001-" + tokenF, "ticket-0000000000000001-" + token0, "choosing-" + tokenF, "notes"} {
		put(t, filepath.Join(dir, name+".json"), "{}")
	}
	claims, err := readClaims(files.OS{}, dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range claims {
		got = append(got, fmt.Sprint(c.name[:len(c.name)-len(tokenF)-6], c.name[len(c.name)-6:len(c.name)-5]))
	}
	want(t, got, []string{"choosingf", "ticket-00000000000000010", "ticket-0000000000000001f", "ticket-00000000000000020"})
}

func TestAClaimOfThirtySecondsIsDroppedAndAYoungerOneNot(t *testing.T) {
	w := newWorld(t, Config{})
	dir := w.claims()
	for _, file := range []string{"choosing-" + tokenF + ".json", "ticket-0000000000000001-" + tokenF + ".json"} {
		other := filepath.Join(dir, file)
		put(t, other, "")
		age(t, other, LockStale-3*time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 5*lockPoll)
		err := w.Requeue(ctx, key("m1"))
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Error("a younger claim was not respected:", err)
		}
		want(t, tree(t, dir), []string{file}) // ours is gone
		age(t, other, LockStale+time.Second)
		w.must(w.Requeue(t.Context(), key("m1")))
		want(t, tree(t, dir), nil)
	}
}

func TestAHeldLockIsWaitedForLessThanSendersWaitAndItsHolderNamed(t *testing.T) {
	t.Parallel()
	if AcceptTimeout >= peers.SendTimeout {
		t.Error("senders are gone before they are told that nothing was kept")
	}
	w := newWorld(t, Config{})
	dir := w.claims()
	file := "ticket-0000000000000001-" + tokenF + ".json"
	put(t, filepath.Join(dir, file), `{"kind":"ticket","ticket":1,"token":"`+tokenF+`","pid":4711,"createdAt":1}`)
	began := time.Now()
	_, _, err := w.Accept(t.Context(), message("m2"), Enqueue)
	var locked *LockedError
	if !errors.As(err, &locked) || locked.PID != 4711 || filepath.Base(locked.Path) != file || !strings.Contains(err.Error(), "4711") {
		t.Fatal(err)
	}
	if waited := time.Since(began); waited < AcceptTimeout {
		t.Error("waited only", waited)
	}
	want(t, tree(t, dir), []string{file})
	want(t, w.states(), []string{"m1:queued"})
	// Nor does it wait for those before it, each for a time of its own: a change that has the
	// turn is longer at it.
	changing := make(chan error, 1)
	go func() { changing <- w.Finish(context.Background(), key("m1"), peers.Delivered) }()
	for len(w.Queue.turn) == 0 {
		time.Sleep(time.Millisecond)
	}
	accepted := make(chan error, 1)
	go func() {
		_, _, err := w.Accept(context.Background(), message("m2"), Enqueue)
		accepted <- err
	}()
	select {
	case err = <-accepted:
	case <-changing:
		t.Fatal("the message waited for as long as the change before it")
	}
	if !errors.As(err, &locked) || locked.Waited < AcceptTimeout || locked.Waited >= LockTimeout {
		t.Error(err)
	}
	if err := <-changing; !errors.As(err, &locked) {
		t.Error(err)
	}
	want(t, w.states(), []string{"m1:queued"})
}

func TestALockThatWasTakenAwayIsNoticedAndNothingIsLost(t *testing.T) {
	w := newWorld(t, Config{})
	w.claims()
	w.drain()
	err := w.change(t.Context(), func(v *view) error {
		r, err := v.find(key("m1"))
		w.must(err)
		r, err = v.whole(r)
		w.must(err)
		w.must(os.Remove(v.lock.ticket))
		return v.move(StateInflight, queued(r))
	})
	if !errors.Is(err, ErrLockLost) {
		t.Error(err)
	}
	want(t, w.states(), []string{"m1:inflight"})
}

func TestATicketThatIsDroppedWhileItWaitsIsDrawnAgain(t *testing.T) {
	w := newWorld(t, Config{})
	dir := w.claims()
	other := filepath.Join(dir, "ticket-0000000000000001-"+tokenF+".json")
	put(t, other, "")
	done := make(chan error, 1)
	go func() { done <- w.Finish(context.Background(), key("m1"), peers.Delivered) }()
	for dropped := false; !dropped; {
		for _, name := range tree(t, dir) {
			if strings.HasPrefix(name, "ticket-0000000000000002-") && len(tree(t, dir)) == 2 {
				w.must(os.Remove(filepath.Join(dir, name)))
				dropped = true
			}
		}
	}
	w.must(os.Remove(other))
	w.must(<-done)
	want(t, w.states(), []string{"m1:delivered"})
}

func TestTheClaimsOfAKilledProcessGoAtOnce(t *testing.T) {
	w := newWorld(t, Config{})
	dir := w.claims()
	// Killed while it chooses, with its number, and while it holds the lock.
	left := map[string]bool{}
	for at := 1; ; at++ {
		out := run(t, job{Dir: w.cfg().Dir, Op: "finish", Now: w.now().UnixMilli(), At: at, Lock: true})
		if out == "done" {
			break
		}
		for _, name := range tree(t, dir) {
			if readClaim(files.OS{}, filepath.Join(dir, name)).Process.Start != "" { // one that was killed before it said who it is has to age
				left[name[:6]] = true
			} else {
				w.must(os.Remove(filepath.Join(dir, name)))
			}
		}
		began := time.Now()
		_, _, err := w.Accept(t.Context(), message(fmt.Sprint("after", at)), Enqueue)
		if err != nil {
			t.Fatalf("step %d, after %v: %v", at, time.Since(began), err)
		}
		want(t, tree(t, dir), nil)
	}
	if !left["choosi"] || !left["ticket"] {
		t.Error("nothing was left behind:", left)
	}
}

func TestALivingProcessKeepsItsClaim(t *testing.T) {
	w := newWorld(t, Config{})
	dir := w.claims()
	l, err := takeLock(t.Context(), files.OS{}, w.Queue.dir)
	w.must(err)
	ctx, cancel := context.WithTimeout(t.Context(), 5*lockPoll)
	defer cancel()
	if err := w.Requeue(ctx, key("m1")); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	want(t, tree(t, dir), []string{filepath.Base(l.ticket)})
	w.must(l.release())
}
