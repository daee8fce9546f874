package boltdb_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	bolt "go.etcd.io/bbolt"

	"opencode-mesh/store/boltdb"
)

func TestUpdateReturnsOnlyAfterItsCommit(t *testing.T) {
	g, cfg := newGate(), config(t)
	cfg.Faults = g
	db := open(t, cfg)
	done := update(t.Context(), db, set("a", "1"))
	<-g.entered
	select {
	case err := <-done:
		t.Fatalf("acknowledged before the commit: %v", err)
	default:
	}
	want(t, db, "a", "")
	g.verdict <- nil
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	want(t, db, "a", "1")
}

func TestViewWaitsUntilWhatItSeesIsSynced(t *testing.T) {
	db := open(t, config(t))
	put(t, db, "a", "1")
	synced := db.Unsync()
	var ran atomic.Bool
	done := make(chan error, 1)
	go func() {
		done <- db.View(func(*bolt.Tx) error { ran.Store(true); return nil })
	}()
	eventually(t, "the view waits", db.ViewWaits)
	if ran.Load() {
		t.Fatal("the view showed what a power cut may take back")
	}
	synced()
	if err := <-done; err != nil || !ran.Load() {
		t.Fatalf("view after the sync: %v", err)
	}
}

func TestAViewThatWaitsForAFailedSyncFails(t *testing.T) {
	f, cfg := &fault{}, config(t)
	cfg.Faults = f
	db := open(t, cfg)
	put(t, db, "a", "1")
	db.Unsync()
	done := make(chan error, 1)
	go func() {
		done <- db.View(func(*bolt.Tx) error { return errors.New("the view showed it") })
	}()
	eventually(t, "the view waits", db.ViewWaits)
	f.set(syscall.EIO)
	wantErr(t, db.Update(t.Context(), set("a", "2")), boltdb.ErrFailed)
	wantErr(t, <-done, boltdb.ErrFailed)
}

func TestUpdatesThatWaitShareACommit(t *testing.T) {
	for _, tc := range []struct{ requests, maxBatch, commits int }{
		{requests: 100, maxBatch: 0, commits: 1},
		{requests: 100, maxBatch: 30, commits: 4},
	} {
		t.Run(fmt.Sprintf("max batch %d", tc.maxBatch), func(t *testing.T) {
			g, cfg := newGate(), config(t)
			cfg.Faults, cfg.MaxBatch = g, tc.maxBatch
			db := open(t, cfg)
			first := update(t.Context(), db, set("first", "1"))
			<-g.entered
			var all []<-chan error
			for i := range tc.requests {
				all = append(all, update(t.Context(), db, set(fmt.Sprint("k", i), "1")))
			}
			queued(t, db, tc.requests)
			g.verdict <- nil
			g.pass(tc.commits)
			for _, done := range append(all, first) {
				if err := <-done; err != nil {
					t.Fatal(err)
				}
			}
			st := db.Status()
			if got := int(st.Commits); got != tc.commits+1 {
				t.Errorf("%d commits, want %d", got, tc.commits+1)
			}
			if limit := cmpOr(tc.maxBatch, tc.requests); st.MaxBatch != limit {
				t.Errorf("largest batch %d, want %d", st.MaxBatch, limit)
			}
			if int(st.Batched) != tc.requests+1 || st.CommitMean <= 0 || st.SyncMean <= 0 || st.SyncMean > st.CommitMean {
				t.Errorf("status: %+v", st)
			}
		})
	}
}

func cmpOr(a, b int) int {
	if a != 0 {
		return a
	}
	return b
}

func TestRequestsOfOneGoroutineKeepTheirOrder(t *testing.T) {
	db := open(t, config(t))
	for i := range 200 {
		fn := func(tx *bolt.Tx) error {
			b := tx.Bucket(bucket)
			if n, _ := b.NextSequence(); n != uint64(i+1) {
				return fmt.Errorf("request %d ran as number %d", i, n)
			}
			return nil
		}
		if i%10 == 9 {
			if err := db.Update(t.Context(), fn); err != nil {
				t.Fatal(err)
			}
		} else if err := db.Enqueue(fn); err != nil {
			t.Fatal(err)
		}
	}
	if st := db.Status(); st.Dropped != 0 {
		t.Fatalf("%d enqueued requests failed", st.Dropped)
	}
}

func TestAFailingFunctionLeavesNothingAndHarmsNoOther(t *testing.T) {
	g, cfg := newGate(), config(t)
	cfg.Faults = g
	db := open(t, cfg)
	first := update(t.Context(), db, set("first", "1"))
	<-g.entered
	const n = 64
	var runs [n]atomic.Int32
	var all [n]<-chan error
	for i := range n {
		all[i] = update(t.Context(), db, func(tx *bolt.Tx) error {
			runs[i].Add(1)
			if err := set(fmt.Sprint("k", i), "1")(tx); err != nil {
				return err
			}
			if i%4 == 1 {
				return fmt.Errorf("no to %d", i)
			}
			if i%4 == 3 {
				panic(fmt.Sprint("panic of ", i))
			}
			return nil
		})
		queued(t, db, i+1)
	}
	close(g.opened)
	g.verdict <- nil
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	for i, done := range all {
		err := <-done
		var text string
		switch i % 4 {
		case 1:
			text = fmt.Sprint("no to ", i)
		case 3:
			text = fmt.Sprint("panic in a transaction: panic of ", i)
		}
		if (err == nil) != (text == "") || err != nil && err.Error() != text {
			t.Errorf("outcome of %d: %v, want %q", i, err, text)
		}
		if p := (*boltdb.PanicError)(nil); i%4 == 3 && (!errors.As(err, &p) || len(p.Stack) == 0) {
			t.Errorf("outcome of %d is %T without stack", i, err)
		}
		if r := runs[i].Load(); r > boltdb.MaxReruns+2 {
			t.Errorf("function %d ran %d times", i, r)
		}
	}
	if st := db.Status(); st.Commits > 1+n/8 { // the first, and one for every fourth failure
		t.Errorf("%d commits for %d requests", st.Commits, n)
	}
	for i := range n {
		value := "1"
		if i%2 == 1 {
			value = ""
		}
		want(t, db, fmt.Sprint("k", i), value)
	}
}

func TestAnErrorThatRestsOnAnUncommittedWriteIsNotReported(t *testing.T) {
	g, cfg := newGate(), config(t)
	cfg.Faults, cfg.ProbeInterval = g, 1<<40
	db := open(t, cfg)
	first := update(t.Context(), db, set("first", "1"))
	<-g.entered
	create := func(tx *bolt.Tx) error {
		if tx.Bucket(bucket).Get([]byte("id")) != nil {
			return errors.New("exists already")
		}
		return set("id", "1")(tx)
	}
	one := update(t.Context(), db, create)
	queued(t, db, 1)
	two := update(t.Context(), db, create)
	queued(t, db, 2)
	g.verdict <- nil
	<-g.entered
	g.verdict <- boltdb.WriteFault(syscall.ENOSPC)
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	wantErr(t, <-one, boltdb.ErrFull)
	wantErr(t, <-two, boltdb.ErrFull)
	want(t, db, "id", "")
}

func TestAFullQueueRefusesEnqueueAndHoldsUpdate(t *testing.T) {
	g, cfg := newGate(), config(t)
	cfg.Faults, cfg.QueueSize = g, 2
	db := open(t, cfg)
	first := update(t.Context(), db, set("first", "1"))
	<-g.entered
	for range 2 {
		if err := db.Enqueue(set("second", "1")); err != nil {
			t.Fatal(err)
		}
	}
	wantErr(t, db.Enqueue(set("third", "1")), boltdb.ErrBusy)
	ctx, cancel := context.WithCancel(t.Context())
	held := update(ctx, db, set("held", "1"))
	cancel()
	wantErr(t, <-held, context.Canceled)
	if st := db.Status(); st.Queue != 2 || st.QueueCap != 2 {
		t.Fatalf("queue %d of %d", st.Queue, st.QueueCap)
	}
	g.verdict <- nil
	g.pass(1)
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	go g.pass(1)
	put(t, db, "later", "1")
	want(t, db, "second", "1")
	want(t, db, "third", "")
	want(t, db, "held", "")
}

func TestAnUpdateFollowsItsContextUntilItIsTaken(t *testing.T) {
	g, cfg := newGate(), config(t)
	cfg.Faults = g
	db := open(t, cfg)
	ctx, cancel := context.WithCancel(t.Context())
	taken := update(ctx, db, set("taken", "1"))
	<-g.entered
	waiting := update(ctx, db, set("waiting", "1"))
	queued(t, db, 1)
	cancel()
	wantErr(t, <-waiting, context.Canceled)
	for range 50 {
		wantErr(t, db.Update(ctx, set("late", "1")), context.Canceled)
	}
	if st := db.Status(); st.Queue > 1 { // the withdrawn one
		t.Errorf("%d requests in line", st.Queue)
	}
	select {
	case err := <-taken:
		t.Fatalf("a taken update did not wait for its outcome: %v", err)
	default:
	}
	g.verdict <- nil
	if err := <-taken; err != nil {
		t.Fatalf("a committed update reported %v", err)
	}
	go g.pass(1)
	put(t, db, "next", "1")
	want(t, db, "taken", "1")
	want(t, db, "waiting", "")
	want(t, db, "late", "")
}

func TestCloseFinishesTheQueueAndThenRefuses(t *testing.T) {
	g, cfg := newGate(), config(t)
	cfg.Faults = g
	db, err := boltdb.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	first := update(t.Context(), db, set("first", "1"))
	<-g.entered
	if err := db.Enqueue(set("enqueued", "1")); err != nil {
		t.Fatal(err)
	}
	second := update(t.Context(), db, set("second", "1"))
	queued(t, db, 2)
	closed := make(chan error, 2)
	for range 2 {
		go func() { closed <- db.Close() }()
	}
	eventually(t, "requests are refused", func() bool { return errors.Is(db.Enqueue(set("first", "1")), boltdb.ErrClosed) })
	select {
	case <-closed:
		t.Fatal("closed with work in the queue")
	default:
	}
	g.verdict <- nil
	g.pass(1)
	for _, done := range []<-chan error{first, second, closed, closed} {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	for range 50 {
		wantErr(t, db.Update(t.Context(), set("late", "1")), boltdb.ErrClosed)
		wantErr(t, db.Enqueue(set("late", "1")), boltdb.ErrClosed)
	}
	wantErr(t, db.View(func(*bolt.Tx) error { return nil }), boltdb.ErrClosed)
	if st := db.Status(); st.FileBytes == 0 || st.Commits != 2 {
		t.Errorf("status after close: %+v", st)
	}

	cfg.Faults = nil
	db = open(t, cfg)
	for _, key := range []string{"first", "enqueued", "second"} {
		want(t, db, key, "1")
	}
	want(t, db, "late", "")
}

func TestALostEnqueueIsCountedAndLogged(t *testing.T) {
	var log logBuffer
	cfg := config(t)
	cfg.Log = log.logger()
	db := open(t, cfg)
	if err := db.Enqueue(func(*bolt.Tx) error { return errors.New("cannot") }); err != nil {
		t.Fatal(err)
	}
	put(t, db, "a", "1")
	if st := db.Status(); st.Dropped != 1 {
		t.Errorf("dropped = %d", st.Dropped)
	}
	if text := log.String(); !strings.Contains(text, "enqueued write was lost") || !strings.Contains(text, "cannot") {
		t.Errorf("log: %s", text)
	}
}

func TestManyWritersAndReadersAtOnce(t *testing.T) {
	cfg := config(t)
	cfg.QueueSize, cfg.MaxBatch = 8, 4
	db := open(t, cfg)
	const writers, each = 16, 8
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				key := fmt.Sprintf("%d/%d", w, i)
				if err := db.Update(t.Context(), set(key, key)); err != nil {
					t.Errorf("update: %v", err)
				}
				want(t, db, key, key) // read your own write
			}
		})
	}
	wg.Wait()
	if st := db.Status(); st.Batched != writers*each || st.MaxBatch > 4 || st.Queue != 0 {
		t.Errorf("status: %+v", st)
	}
}

func TestLogBucketsFillTheirPages(t *testing.T) {
	size := func(logLike bool) int64 {
		cfg := config(t)
		if logLike {
			cfg.LogBuckets = cfg.Buckets
		}
		db := open(t, cfg)
		value := make([]byte, 1000)
		for i := range 4 {
			err := db.Update(t.Context(), func(tx *bolt.Tx) error {
				for j := range 250 {
					key := binary.BigEndian.AppendUint64(nil, uint64(250*i+j))
					if err := tx.Bucket(bucket).Put(key, value); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		st := db.Status()
		return st.DataBytes - st.FreeBytes
	}
	half, full := size(false), size(true)
	if full > half*3/4 {
		t.Errorf("log-like bucket takes %d bytes, an ordinary one %d", full, half)
	}
}
