package storetest

import (
	"slices"
	"testing"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// settledIDs pages through the settled tasks of a party.
func settledIDs(t *testing.T, s store.Store, party string, limit int) (ids []string) {
	t.Helper()
	for after := (store.SettledMark{}); ; {
		page, err := s.Settled(t.Context(), store.SettledQuery{Party: party, After: after, Limit: limit})
		ok(t, err)
		if len(page) > limit {
			t.Fatalf("a page of %d has %d tasks", limit, len(page))
		}
		for _, task := range page {
			if after.Compare(task.Mark()) >= 0 {
				t.Fatalf("%s does not come after what was before it", task.ID)
			}
			after = task.Mark()
			ids = append(ids, task.ID)
		}
		if len(page) < limit {
			return ids
		}
	}
}

var settledContracts = []contract{
	{"settled tasks of a party come in the order in which they ended", func(t *testing.T, s store.Store) {
		a, b, c, d := createOne(t, s, "a"), createOne(t, s, "b", to("other")), createOne(t, s, "c", by("other"), to("id-ctl")), createOne(t, s, "d", by("other"), to("other"))
		createOne(t, s, "open")
		update(t, s, b, ended(api.StateDone, after(3*time.Second)))
		update(t, s, a, ended(api.StateFailed, after(5*time.Second)))
		update(t, s, c, ended(api.StateDone, after(4*time.Second)))
		update(t, s, d, ended(api.StateDone, after(time.Second)))
		for _, limit := range []int{1, 2, 3, 10} {
			same(t, settledIDs(t, s, "id-ctl", limit), []string{"b", "c", "a"})
			same(t, settledIDs(t, s, "other", limit), []string{"d", "b", "c"})
			same(t, settledIDs(t, s, "nobody", limit), []string(nil))
		}
	}},
	{"settled tasks that ended at the same time are paged without gap or repeat", func(t *testing.T, s store.Store) {
		names := ids("t", 50)
		for _, id := range names {
			update(t, s, createOne(t, s, id), ended(api.StateDone, after(time.Second)))
		}
		for _, limit := range []int{1, 7, 50} {
			same(t, settledIDs(t, s, "id-node", limit), names)
		}
	}},
	{"a task that is tried again is settled when it ends the second time", func(t *testing.T, s store.Store) {
		a, b := createOne(t, s, "a"), createOne(t, s, "b")
		a = update(t, s, a, ended(api.StateFailed, after(time.Second)))
		b = update(t, s, b, ended(api.StateDone, after(2*time.Second)))
		a = update(t, s, a, func(t *store.Task) { t.State, t.EndedAt = api.StateRunning, time.Time{} })
		same(t, settledIDs(t, s, "id-node", 10), []string{"b"})
		update(t, s, a, ended(api.StateDone, after(3*time.Second)))
		page, err := s.Settled(t.Context(), store.SettledQuery{Party: "id-node", After: b.Mark(), Limit: 10})
		ok(t, err)
		if !slices.ContainsFunc(page, func(t store.Task) bool { return t.ID == "a" }) || len(page) != 1 {
			t.Fatalf("%d tasks come after the first that ended", len(page))
		}
	}},
}
