package boltdb_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.uber.org/goleak"

	"opencode-mesh/store/boltdb"
)

// childEnv names the role that this test binary plays when a test runs it again.
const childEnv = "BOLTDB_TEST_CHILD"

func TestMain(m *testing.M) {
	if role := os.Getenv(childEnv); role != "" {
		os.Exit(child(role, os.Getenv(childEnv+"_PATH")))
	}
	goleak.VerifyTestMain(m)
}

var bucket = []byte("records")

// config is a small database in a directory of its own, without ballast.
func config(t testing.TB) boltdb.Config {
	t.Helper()
	return childConfig(filepath.Join(t.TempDir(), "data", "test.db"))
}

func childConfig(path string) boltdb.Config {
	return boltdb.Config{
		Path: path, Schema: 1, Kind: "test store", Buckets: []string{"records"},
		LockTimeout: 200 * time.Millisecond, ProbeInterval: time.Millisecond, BallastBytes: -1,
	}
}

func open(t testing.TB, cfg boltdb.Config) *boltdb.DB {
	t.Helper()
	db, err := boltdb.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return db
}

// set stores one record.
func set(key, value string) func(*bolt.Tx) error {
	return func(tx *bolt.Tx) error { return tx.Bucket(bucket).Put([]byte(key), []byte(value)) }
}

// put is an Update of one record that must work.
func put(t testing.TB, db *boltdb.DB, key, value string) {
	t.Helper()
	if err := db.Update(context.Background(), set(key, value)); err != nil {
		t.Fatalf("update %s: %v", key, err)
	}
}

// get returns a record, or "" for none.
func get(t testing.TB, db *boltdb.DB, key string) (value string) {
	t.Helper()
	err := db.View(func(tx *bolt.Tx) error {
		value = string(tx.Bucket(bucket).Get([]byte(key)))
		return nil
	})
	if err != nil {
		t.Fatalf("view %s: %v", key, err)
	}
	return value
}

// want compares a record.
func want(t testing.TB, db *boltdb.DB, key, value string) {
	t.Helper()
	if got := get(t, db, key); got != value {
		t.Fatalf("%s = %q, want %q", key, got, value)
	}
}

// wantErr checks an error by errors.Is.
func wantErr(t testing.TB, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("error = %v, want %v", err, target)
	}
}

// eventually waits until cond holds.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for tick := time.NewTicker(time.Millisecond); !cond(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

// gate is a FaultInjector that holds commits back.
type gate struct {
	entered chan boltdb.CommitOp // a commit stands at the gate
	verdict chan error           // lets it pass, or fail
	opened  chan struct{}        // closed: from now on all pass
}

func newGate() *gate {
	return &gate{entered: make(chan boltdb.CommitOp), verdict: make(chan error), opened: make(chan struct{})}
}

func (g *gate) BeforeCommit(op boltdb.CommitOp) error {
	select {
	case g.entered <- op:
		return <-g.verdict
	case <-g.opened:
		return nil
	}
}

// pass lets n commits through.
func (g *gate) pass(n int) {
	for range n {
		<-g.entered
		g.verdict <- nil
	}
}

// update starts an Update and returns the channel of its outcome.
func update(ctx context.Context, db *boltdb.DB, fn func(*bolt.Tx) error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- db.Update(ctx, fn) }()
	return done
}

// queued waits until n requests are in line.
func queued(t testing.TB, db *boltdb.DB, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d requests in line", n), func() bool { return db.Status().Queue == n })
}
