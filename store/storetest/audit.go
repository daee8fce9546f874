package storetest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// entries reads the audit log page by page.
func entries(t *testing.T, s store.Store, q store.AuditQuery) (all []api.AuditEntry) {
	t.Helper()
	for {
		page, err := s.Audit(t.Context(), q)
		ok(t, err)
		if len(page.Entries) > q.Limit && q.Limit > 0 {
			t.Fatalf("a page of %d for a limit of %d", len(page.Entries), q.Limit)
		}
		all = append(all, page.Entries...)
		if page.Next == 0 {
			return all
		}
		if q.Newest {
			q.Before = page.Next
		} else {
			q.After = page.Next
		}
	}
}

// actions are what entries say was done.
func actions(list []api.AuditEntry) (out []string) {
	for _, e := range list {
		out = append(out, e.Action)
	}
	return out
}

// written waits until what was appended without waiting is there: the store works in
// order.
func written(t *testing.T, s store.Store) {
	t.Helper()
	_, rev, err := s.Setting(t.Context(), "written")
	if err != nil {
		rev = 0
	}
	_, err = s.PutSetting(t.Context(), "written", []byte("x"), rev)
	ok(t, err)
}

var auditContracts = []contract{
	{"the audit log is read in order and by pages", func(t *testing.T, s store.Store) {
		same(t, len(entries(t, s, store.AuditQuery{})), 0)
		same(t, len(entries(t, s, store.AuditQuery{Newest: true})), 0)
		var full api.AuditEntry
		fill(&full)
		ok(t, s.AppendAudit(t.Context(), full))
		want := []string{full.Action}
		for i := range 24 {
			e := api.AuditEntry{At: after(time.Duration(i)), Action: fmt.Sprint("act ", i)}
			if i%3 == 1 {
				ok(t, s.AppendActsLater(e))
			} else {
				ok(t, s.AppendAudit(t.Context(), e))
			}
			want = append(want, e.Action)
		}
		first, err := s.Audit(t.Context(), store.AuditQuery{Limit: 1})
		ok(t, err)
		full.Seq = first.Entries[0].Seq
		same(t, first.Entries, []api.AuditEntry{full})
		all := entries(t, s, store.AuditQuery{Limit: 7})
		same(t, actions(all), want)
		for i := range all[1:] {
			if all[i].Seq >= all[i+1].Seq {
				t.Fatalf("%d before %d", all[i].Seq, all[i+1].Seq)
			}
		}
		slices.Reverse(all)
		for limit := range 8 {
			same(t, entries(t, s, store.AuditQuery{Newest: true, Limit: limit}), all)
		}
		same(t, entries(t, s, store.AuditQuery{Newest: true, Before: all[4].Seq, Limit: 3}), all[5:])
		same(t, entries(t, s, store.AuditQuery{Newest: true, Before: all[0].Seq + 1000}), all)
		same(t, len(entries(t, s, store.AuditQuery{After: all[0].Seq})), 0)
	}},
	{"the audit log is searched for an action over many that are none", func(t *testing.T, s store.Store) {
		ok(t, s.AppendAudit(t.Context(), api.AuditEntry{Action: "rare", Object: "first"}))
		other := make([]api.AuditEntry, store.MaxAuditLook)
		for i := range other {
			other[i].Action = "usual"
		}
		ok(t, s.AppendActsLater(other...))
		ok(t, s.AppendAudit(t.Context(), api.AuditEntry{Action: "rare", Object: "last"}))
		for _, newest := range []bool{false, true} {
			page, err := s.Audit(t.Context(), store.AuditQuery{Action: "rare", Newest: newest, Limit: 2})
			ok(t, err)
			if len(page.Entries) != 1 || page.Next == 0 {
				t.Fatalf("newest first %v: %d entries, next %d: a page looks at %d", newest, len(page.Entries), page.Next, store.MaxAuditLook)
			}
			same(t, actions(entries(t, s, store.AuditQuery{Action: "rare", Newest: newest, Limit: 2})), []string{"rare", "rare"})
		}
	}},
	{"the audit log is searched for who acted and whom it was about", func(t *testing.T, s store.Store) {
		for _, e := range []api.AuditEntry{
			{Action: "join", Object: "alpha"},
			{Action: "dispatched", Actor: "alpha", Object: "beta"},
			{Action: "dispatched", Actor: "desk", Object: "beta, alpha and 3 more"},
			{Action: "session_reset", Actor: "desk", Object: "desk -> alpha"},
			{Action: "canceled", Actor: "desk", Object: "alpha-m5x2k9-7f3q"},
			{Action: "login", Object: "alpha2"},
		} {
			ok(t, s.AppendAudit(t.Context(), e))
		}
		for _, c := range []struct {
			q    store.AuditQuery
			want []string
		}{
			{store.AuditQuery{Name: "alpha"}, []string{"join", "dispatched", "dispatched", "session_reset"}},
			{store.AuditQuery{Name: "alpha", Action: "dispatched", Newest: true, Limit: 1}, []string{"dispatched", "dispatched"}},
			{store.AuditQuery{Name: "desk"}, []string{"dispatched", "session_reset", "canceled"}},
			{store.AuditQuery{Name: "alph"}, nil},
		} {
			same(t, actions(entries(t, s, c.q)), c.want)
		}
	}},
	{"the audit log keeps its newest entries", func(t *testing.T, s store.Store) {
		ok(t, s.PruneAudit(t.Context(), 3))
		together(29, func(int) {
			for range 10 {
				if err := s.AppendAudit(t.Context(), api.AuditEntry{Action: "early"}); err != nil {
					t.Error(err)
				}
			}
		})
		for i := range 10 {
			ok(t, s.AppendAudit(t.Context(), api.AuditEntry{Action: fmt.Sprint(i)}))
		}
		for _, keep := range []int{1000, 300, 5, 5, 0} {
			ok(t, s.PruneAudit(t.Context(), keep))
			left := entries(t, s, store.AuditQuery{})
			if len(left) != min(keep, 300) {
				t.Fatalf("%d entries are left of keep %d", len(left), keep)
			}
			if keep > 0 && left[len(left)-1].Action != "9" {
				t.Fatalf("the newest entry is %+v", left[len(left)-1])
			}
		}
		ok(t, s.AppendAudit(t.Context(), api.AuditEntry{Action: "next"}))
		same(t, len(entries(t, s, store.AuditQuery{After: 300})), 1)
	}},
	{"everyday acts push nothing else out of the audit log", func(t *testing.T, s store.Store) {
		ok(t, s.AppendAudit(t.Context(), api.AuditEntry{Action: "join"}))
		for range 400 {
			ok(t, s.AppendActsLater(api.AuditEntry{Action: "dispatched"}))
		}
		ok(t, s.AppendAudit(t.Context(), api.AuditEntry{Action: "login"}))
		ok(t, s.AppendActsLater(api.AuditEntry{Action: "answered"}))
		ok(t, s.AppendAudit(t.Context(), api.AuditEntry{Action: "revoked"}))
		for range 2 {
			ok(t, s.PruneAudit(t.Context(), 3))
			same(t, actions(entries(t, s, store.AuditQuery{})), []string{"join", "dispatched", "dispatched", "login", "answered", "revoked"})
		}
	}},
	{"the audit log says of tasks that they were made if, and only if, they were", func(t *testing.T, s store.Store) {
		_, err := s.CreateTasks(t.Context(), []store.NewTask{newTask("a"), newTask("b")}, api.AuditEntry{Action: "dispatched", Object: "both"})
		ok(t, err)
		_, err = s.CreateTasks(t.Context(), []store.NewTask{newTask("c"), newTask("b")}, api.AuditEntry{Action: "dispatched", Object: "again"})
		fails(t, err, store.ErrExists)
		written(t, s)
		all := entries(t, s, store.AuditQuery{})
		if len(all) != 1 || all[0].Object != "both" {
			t.Fatalf("%+v", all)
		}
	}},
}
