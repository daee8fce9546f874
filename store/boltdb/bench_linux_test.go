package boltdb_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"opencode-mesh/store/boltdb"
)

// benchValue is the size of a message in bytes.
const benchValue = 2 << 10

// BenchmarkStore measures durable messages per second and their ratio to the floor:
// one append and one fdatasync per message, measured in rounds between those of the
// store. x-floor is the median of the rounds' ratios, because others use the disk
// too. Targets are in docs/performance.md.
func BenchmarkStore(b *testing.B) {
	for _, producers := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("producers=%d", producers), func(b *testing.B) {
			benchStore(b, producers)
		})
	}
}

func benchStore(b *testing.B, producers int) {
	dir := b.TempDir()
	db, err := boltdb.Open(boltdb.Config{
		Path: filepath.Join(dir, "bench.db"), Schema: 1, Kind: "bench",
		Buckets: []string{"records"}, LogBuckets: []string{"records"}, BallastBytes: -1,
	})
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	log, err := os.Create(filepath.Join(dir, "floor"))
	if err != nil {
		b.Fatal(err)
	}
	defer log.Close()

	const rounds = 25
	value := make([]byte, benchValue)
	var seq atomic.Uint64
	var inStore time.Duration
	ratios := make([]float64, rounds)
	floor := max(b.N/rounds/producers, 20)
	for round := range rounds {
		start := time.Now()
		for range floor {
			if _, err := log.Write(value); err != nil {
				b.Fatal(err)
			}
			if err := unix.Fdatasync(int(log.Fd())); err != nil {
				b.Fatal(err)
			}
		}
		perFloor := time.Since(start) / time.Duration(floor)

		n := b.N*(round+1)/rounds - b.N*round/rounds
		var left atomic.Int64
		left.Store(int64(n))
		start = time.Now()
		var wg sync.WaitGroup
		for range producers {
			wg.Go(func() {
				for left.Add(-1) >= 0 {
					key := binary.BigEndian.AppendUint64(nil, seq.Add(1))
					err := db.Update(context.Background(), func(tx *bolt.Tx) error {
						return tx.Bucket(bucket).Put(key, value)
					})
					if err != nil {
						b.Error(err)
					}
				}
			})
		}
		wg.Wait()
		took := time.Since(start)
		inStore += took
		ratios[round] = perFloor.Seconds() * float64(n) / took.Seconds()
	}
	slices.Sort(ratios)
	b.ReportMetric(float64(b.N)/inStore.Seconds(), "msgs/s")
	b.ReportMetric(ratios[rounds/2], "x-floor")
	b.ReportMetric(db.Status().MeanBatch, "msgs/commit")
}
