package federation_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"opencode-mesh/hub/federation"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/ocp"
	"opencode-mesh/store"
	"opencode-mesh/store/bolt"
)

// slowDisk is a store in which the first record of a query that is put waits.
type slowDisk struct {
	store.Store
	held    atomic.Bool
	waits   chan struct{} // closed once it waits
	release chan struct{}
}

func (s *slowDisk) PutSetting(ctx context.Context, key string, value []byte, rev store.Rev) (store.Rev, error) {
	if strings.HasPrefix(key, "context.query/") && s.held.CompareAndSwap(false, true) {
		close(s.waits)
		<-s.release
	}
	return s.Store.PutSetting(ctx, key, value, rev)
}

func TestARecordThatWaitsForTheDiskHoldsUpNoOther(t *testing.T) {
	below, err := bolt.Open(bolt.Config{Dir: t.TempDir(), BallastBytes: 1 << 12})
	if err != nil {
		t.Fatal(err)
	}
	defer below.Close()
	slow := &slowDisk{Store: below, waits: make(chan struct{}), release: make(chan struct{})}
	nodes := &fleet{list: []*machine{gives("alpha", leg("memory", frame("f", 1, 1)))}}
	r := &rig{t: t, fleet: nodes, Federation: federation.New(federation.Config{Store: slow, Nodes: nodes, Now: time.Now})}
	r.trusts(desk, "alpha")
	first := make(chan api.ContextResult)
	go func() { first <- r.query(desk, 10, 1) }()
	<-slow.waits
	second := r.query(desk, 10, 1)
	if err := r.Used(t.Context(), desk, second.ID, []string{"task_2"}); err != nil {
		t.Error(err)
	}
	log, err := r.Records(t.Context(), desk, 10)
	if err != nil || len(log.Queries) != 1 || log.Queries[0].ID != second.ID || !slices.Equal(log.Queries[0].Tasks, []string{"task_2"}) {
		t.Errorf("while the first waits: %+v, %v", log, err)
	}
	close(slow.release)
	one := <-first
	if log, err = r.Records(t.Context(), desk, 10); err != nil || len(log.Queries) != 2 || log.Queries[1].ID != one.ID {
		t.Errorf("once it is stored: %+v, %v", log, err)
	}
}

func TestManyQueriesAtOnceAreAllRemembered(t *testing.T) {
	r := newRig(t, gives("alpha", leg("memory", frame("f", 1, 1))))
	r.trusts(desk, "alpha")
	var work sync.WaitGroup
	for i := range federation.MaxQueries {
		work.Go(func() {
			out := r.query(desk, 10, 1)
			for n := range 3 { // each task beside the others
				work.Go(func() {
					if err := r.Used(t.Context(), desk, out.ID, []string{fmt.Sprint("task_", i, "_", n)}); err != nil {
						t.Error(err)
					}
				})
			}
		})
	}
	work.Wait()
	for when, fed := range map[string]*federation.Federation{"now": r.Federation, "after a restart": r.again()} {
		log, err := fed.Records(t.Context(), boss, 1000)
		if err != nil || len(log.Queries) != federation.MaxQueries {
			t.Fatalf("%s: %d records, %v", when, len(log.Queries), err)
		}
		for _, q := range log.Queries {
			if len(q.Tasks) != 3 {
				t.Errorf("%s: a query has the tasks %v", when, q.Tasks)
			}
		}
	}
}

func TestOnlySoManyQueriesAreUnderWayAtOnce(t *testing.T) {
	started, release := make(chan struct{}), make(chan struct{})
	slow := gives("alpha", leg("memory", frame("f", 1, 1)))
	slow.wait = func(context.Context) {
		started <- struct{}{}
		<-release
	}
	r := newRig(t, slow)
	r.trusts(desk, "alpha")
	var work sync.WaitGroup
	for range federation.MaxQueries {
		work.Go(func() { r.query(desk, 10, 1) })
		<-started
	}
	_, err := r.Query(t.Context(), boss, api.ContextQuery{Query: ocp.Query{Goal: "one more"}})
	var refused *api.Error
	if !errors.As(err, &refused) || refused.Code != api.CodeRateLimited || refused.RetryAfter <= 0 {
		t.Errorf("one more: %v", err)
	}
	close(release)
	work.Wait()
	slow.wait = nil
	r.query(desk, 10, 1)
}

func TestIDsOfQueriesHaveOneForm(t *testing.T) {
	r := newRig(t)
	if id := r.query(desk, 10, 1).ID; !federation.ValidID(id) {
		t.Errorf("%q", id)
	}
	hex := strings.Repeat("0f", 16)
	for _, id := range []string{"", "ctx_", hex, "ctx_" + hex + "0", "ctx_" + strings.ToUpper(hex), "ctx_" + hex + "\n", " ctx_" + hex} {
		if federation.ValidID(id) {
			t.Errorf("%q is none", id)
		}
	}
}
