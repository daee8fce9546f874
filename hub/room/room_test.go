package room_test

import (
	"context"
	"errors"
	"testing"

	"go.uber.org/goleak"

	"opencode-mesh/hub/room"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var over = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// take takes room that must be there.
func take(t *testing.T, r *room.Room, owner string, bytes int64) (release func()) {
	t.Helper()
	release, err := r.Take(over, owner, bytes)
	if err != nil {
		t.Fatalf("no room for %d bytes of %s", bytes, owner)
	}
	return release
}

// full demands that there is no room.
func full(t *testing.T, r *room.Room, owner string, bytes int64) {
	t.Helper()
	if _, err := r.Take(over, owner, bytes); !errors.Is(err, context.Canceled) {
		t.Errorf("%s got room for %d bytes: %v", owner, bytes, err)
	}
}

func TestAnOwnerGetsItsShareAndAllGetWhatThereIs(t *testing.T) {
	r := room.New(100, 40)
	a := take(t, r, "a", 30)
	full(t, r, "a", 11)
	take(t, r, "a", 10)
	take(t, r, "b", 1000) // its share
	full(t, r, "c", 21)
	c := take(t, r, "c", 20)
	full(t, r, "d", 1)
	a()
	take(t, r, "d", 30)
	c()
	full(t, r, "b", 1)
	take(t, r, "a", 20)
}

// waits is a Take that has its place in the queue, and what becomes of it.
func waits(t *testing.T, r *room.Room, ctx context.Context, owner string, bytes int64) (done chan func()) {
	t.Helper()
	done = make(chan func())
	before := room.Waiting(r)
	go func() {
		release, _ := r.Take(ctx, owner, bytes)
		done <- release
	}()
	for room.Waiting(r) == before {
		select {
		case <-done:
			t.Fatal("it did not have to wait")
		default:
		}
	}
	return done
}

func TestWhoWaitsIsServedInOrderAndAFullOwnerHoldsUpNobody(t *testing.T) {
	r := room.New(100, 50)
	a, b := take(t, r, "a", 50), take(t, r, "b", 40)
	more := waits(t, r, context.Background(), "a", 10) // a has its share
	big := waits(t, r, context.Background(), "c", 50)
	small := waits(t, r, context.Background(), "d", 10) // fits, but c was first
	b()
	cRelease := <-big
	a()
	aRelease, dRelease := <-more, <-small
	cRelease()
	aRelease()
	dRelease()
	take(t, r, "x", 50)
	take(t, r, "y", 50)
}

func TestWhoGivesUpMakesWayForTheNext(t *testing.T) {
	r := room.New(100, 100)
	a := take(t, r, "a", 60)
	ctx, cancel := context.WithCancel(context.Background())
	big := waits(t, r, ctx, "b", 50)
	small := waits(t, r, context.Background(), "c", 40)
	cancel()
	if <-big != nil {
		t.Error("it got room although it gave up")
	}
	(<-small)()
	a()
	take(t, r, "d", 100)
}
