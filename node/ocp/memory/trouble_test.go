package memory

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	index "github.com/blevesearch/bleve_index_api"

	"opencode-mesh/protocol/ocp"
)

// badDisk is an engine whose commits fail, or wait for ever.
type badDisk struct {
	index.Index
	fail error
	wait chan struct{} // nil: no waiting
}

func (d *badDisk) Batch(*index.Batch) error {
	if d.wait != nil {
		<-d.wait
	}
	return d.fail
}

// breakDisk makes the next commits of an index go wrong, until it is opened anew.
func breakDisk(x *Index, fail error, wait chan struct{}) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.now.Index = &badDisk{x.now.Index, fail, wait}
}

func TestAFullDiskFailsThePutAndTheMemoryCanBeAskedAndGoesOn(t *testing.T) {
	x := newIndex(t, Config{})
	put(t, x, item("one", "walrus"))
	breakDisk(x, syscall.ENOSPC, nil)
	if err := x.Put(context.Background(), []Item{item("two", "walrus")}); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("got %v", err)
	}
	if got := ids(ask(t, x, ocp.Query{Goal: "walrus"}, Scope{All: true})); !slices.Equal(got, []string{"one"}) {
		t.Errorf("meanwhile: %v", got)
	}
	put(t, x, item("three", "walrus"))
	if n := x.Count(); n != 2 {
		t.Errorf("%d items, want 2", n)
	}
	if err := x.Delete(context.Background(), "one"); err != nil {
		t.Error(err)
	}
}

func TestADiskThatDoesNotAnswerIsNotWaitedForWithoutEnd(t *testing.T) {
	wait := make(chan struct{})
	defer close(wait)
	x := newIndex(t, Config{commitLimit: time.Millisecond})
	breakDisk(x, nil, wait)
	if err := x.Put(context.Background(), []Item{item("one", "walrus")}); !errors.Is(err, errStuck) {
		t.Fatalf("got %v", err)
	}
	x.cfg.commitLimit = commitLimit
	put(t, x, item("two", "walrus"))
	if got := ids(ask(t, x, ocp.Query{Goal: "walrus"}, Scope{All: true})); !slices.Equal(got, []string{"two"}) {
		t.Errorf("afterwards: %v", got)
	}
}

func TestClosingDoesNotHangOnACommitThatDoes(t *testing.T) {
	wait := make(chan struct{})
	defer close(wait)
	x := newIndex(t, Config{closeLimit: time.Millisecond})
	begun := make(chan struct{})
	breakDisk(x, nil, wait)
	put := make(chan error, 1)
	go func() {
		close(begun)
		put <- x.Put(context.Background(), []Item{item("one", "walrus")})
	}()
	<-begun
	closed := make(chan error, 1)
	go func() { closed <- x.Close() }()
	for range 2 {
		select {
		case err := <-put:
			if err == nil {
				t.Error("the item is said to be kept")
			}
		case err := <-closed:
			if err != nil && !strings.Contains(err.Error(), errStuck.Error()) {
				t.Error(err)
			}
		case <-time.After(time.Minute):
			t.Fatal("it hangs")
		}
	}
}

// stuckDisk is an engine that cannot be read before it is told to.
type stuckDisk struct {
	badDisk
	asked, release chan struct{}
}

func (d *stuckDisk) Reader() (index.IndexReader, error) {
	d.asked <- struct{}{}
	<-d.release
	return d.Index.Reader()
}

func TestAQueryThatHangsAtTheDiskHoldsUpNeitherOthersNorTheEnd(t *testing.T) {
	x := newIndex(t, Config{closeLimit: time.Millisecond})
	put(t, x, item("one", "walrus"))
	d := &stuckDisk{badDisk{x.now.Index, syscall.EIO, nil}, make(chan struct{}), make(chan struct{})}
	x.mu.Lock()
	x.now.Index = d
	x.mu.Unlock()
	query := func() error {
		_, err := x.Query(context.Background(), ocp.Query{Goal: "walrus", MaxFrames: 1, MaxTokens: 100}, Scope{All: true})
		return err
	}
	hangs := make(chan error, 1)
	go func() { hangs <- query() }()
	<-d.asked
	// A commit fails meanwhile, and the engine is taken away from under the query.
	done, err := x.change(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	x.suspend(syscall.EIO)
	done()
	if err := query(); !errors.Is(err, errAway) {
		t.Errorf("another query: %v", err)
	}
	if err := x.Close(); err != nil {
		t.Errorf("what was closed was none: %v", err)
	}
	if err := query(); !errors.Is(err, ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
	close(d.release)
	if err := <-hangs; err != nil {
		t.Errorf("the first query: %v", err)
	}
	if err := d.Index.Close(); err != nil { // nobody else does any more
		t.Error(err)
	}
}

func TestClosingSaysSoWhenAQueryHangs(t *testing.T) {
	x := newIndex(t, Config{closeLimit: time.Millisecond})
	d := &stuckDisk{badDisk{x.now.Index, nil, nil}, make(chan struct{}), make(chan struct{})}
	x.mu.Lock()
	x.now.Index = d
	x.mu.Unlock()
	counted := make(chan int)
	go func() { counted <- x.Count() }()
	<-d.asked
	if err := x.Close(); !errors.Is(err, errStuck) {
		t.Errorf("%v", err)
	}
	close(d.release)
	if n := <-counted; n != 0 {
		t.Errorf("%d items", n)
	}
	if err := d.Index.Close(); err != nil {
		t.Error(err)
	}
}

func TestWhoWaitsToPutSomethingWaitsNoLongerThanItWants(t *testing.T) {
	x := newIndex(t, Config{})
	done, err := x.change(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	put := make(chan error, 1)
	go func() { put <- x.Put(ctx, []Item{item("one", "walrus")}) }()
	cancel()
	if err := <-put; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	done()
}

func TestWhatFillsAMemoryEndsWhenItIsClosedThoughTheDiskHangs(t *testing.T) {
	wait := make(chan struct{})
	defer close(wait)
	x := newIndex(t, Config{closeLimit: time.Millisecond})
	hub := newLoud(result("t1", "one"))
	begun := make(chan struct{})
	breakDisk(x, nil, wait)
	x.mu.Lock()
	x.now.Index = &toldDisk{x.now.Index, begun}
	x.mu.Unlock()
	s := NewSyncer(SyncConfig{Index: x})
	s.Attach(hub, "idB")
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Run(ctx)
	}()
	<-begun
	cancel()
	_ = x.Close() // says that the disk does not answer, or not
	<-ended
}

// toldDisk tells of the first commit.
type toldDisk struct {
	index.Index
	begun chan struct{}
}

func (d *toldDisk) Batch(b *index.Batch) error {
	close(d.begun)
	return d.Index.Batch(b)
}

func TestARoundThatCouldNotKeepWhatItReadReadsItAgain(t *testing.T) {
	x := newIndex(t, Config{})
	hub := newLoud(result("t1", "one"))
	s := NewSyncer(SyncConfig{Index: x})
	s.Attach(hub, "idB")
	round(t, s)
	hub.add(result("t2", "two"))
	breakDisk(x, syscall.ENOSPC, nil)
	s.round(context.Background())
	if !strings.Contains(s.problem, syscall.ENOSPC.Error()) {
		t.Errorf("the problem is %q", s.problem)
	}
	round(t, s)
	if n := x.Count(); n != 2 {
		t.Errorf("%d items, want 2", n)
	}
}

func TestAnIndexThatSomebodyHoldsIsNotMadeAnew(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "memory")
	x := newIndex(t, Config{Path: dir})
	put(t, x, item("one", "walrus"))
	if y, err := Open(Config{Path: dir}); err == nil {
		_ = y.Close()
		t.Fatal("it was opened twice")
	}
	put(t, x, item("two", "walrus"))
	if n := x.Count(); n != 2 {
		t.Errorf("%d items, want 2", n)
	}
}
