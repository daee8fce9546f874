package storetest

import (
	"testing"

	"opencode-mesh/store"
)

// put stores a binding.
func put(t *testing.T, s store.Store, b store.Binding) store.Binding {
	t.Helper()
	got, err := s.PutBinding(t.Context(), b)
	if err != nil {
		t.Fatalf("put binding %+v: %v", b, err)
	}
	return got
}

// binding is a new binding of a key.
func binding(controller, target, workspace string) store.Binding {
	return store.Binding{
		BindingKey: store.BindingKey{Controller: controller, Target: target, Workspace: workspace},
		Generation: 1, Title: "mesh", CreatedAt: start, LastUsed: start,
	}
}

var recordContracts = []contract{
	{"the store knows its hub and its generation", func(t *testing.T, s store.Store) {
		info := s.Info()
		if info.HubID == "" || info.Generation == "" || info.HubID == info.Generation || info.CreatedAt.IsZero() || !info.RestoredAt.IsZero() {
			t.Fatalf("%+v", info)
		}
		same(t, s.Info(), info)
	}},
	{"a setting that is not set is not found", func(t *testing.T, s store.Store) {
		_, _, err := s.Setting(t.Context(), "password")
		fails(t, err, store.ErrNotFound)
	}},
	{"a setting changes from its revision only", func(t *testing.T, s store.Store) {
		rev1, err := s.PutSetting(t.Context(), "password", []byte("one"), 0)
		ok(t, err)
		_, err = s.PutSetting(t.Context(), "password", []byte("other"), 0)
		fails(t, err, store.ErrConflict)
		rev2, err := s.PutSetting(t.Context(), "password", []byte("two"), rev1)
		ok(t, err)
		if rev1 == 0 || rev2 <= rev1 {
			t.Fatalf("revisions %d, %d", rev1, rev2)
		}
		_, err = s.PutSetting(t.Context(), "password", []byte("late"), rev1)
		fails(t, err, store.ErrConflict)
		_, err = s.PutSetting(t.Context(), "unset", []byte("x"), rev2)
		fails(t, err, store.ErrConflict)
		value, rev, err := s.Setting(t.Context(), "password")
		ok(t, err)
		if string(value) != "two" || rev != rev2 {
			t.Fatalf("%q at %d", value, rev)
		}
		_, _, err = s.Setting(t.Context(), "unset")
		fails(t, err, store.ErrNotFound)
	}},
	{"a setting may be empty or binary", func(t *testing.T, s store.Store) {
		for key, want := range map[string]string{"empty": "", "binary": "\x00\xff"} {
			_, err := s.PutSetting(t.Context(), key, []byte(want), 0)
			ok(t, err)
			got, _, err := s.Setting(t.Context(), key)
			ok(t, err)
			same(t, string(got), want)
		}
	}},
	{"every field of a binding comes back as it was stored", func(t *testing.T, s store.Store) {
		var full store.Binding
		fill(&full)
		full.Rev, full.Fills = 0, 0
		got := putFills(t, s, full, fillAt(1))
		if got.Rev == 0 {
			t.Fatal("no revision")
		}
		full.Rev, full.Fills = got.Rev, 1
		same(t, got, full)
		read, err := s.Binding(t.Context(), full.BindingKey)
		ok(t, err)
		same(t, read, full)
	}},
	{"a binding changes from its revision only", func(t *testing.T, s store.Store) {
		first := put(t, s, binding("c", "n", "w"))
		_, err := s.PutBinding(t.Context(), binding("c", "n", "w"))
		fails(t, err, store.ErrConflict)
		second := first
		second.Generation = 2
		second = put(t, s, second)
		first.Session = "late"
		_, err = s.PutBinding(t.Context(), first)
		fails(t, err, store.ErrConflict)
		got, err := s.Binding(t.Context(), second.BindingKey)
		ok(t, err)
		same(t, got, second)
	}},
	{"bindings are listed by controller and target", func(t *testing.T, s store.Store) {
		for _, key := range [][3]string{{"c1", "n1", ""}, {"c1", "n1", "/w"}, {"c1", "n2", ""}, {"c10", "n1", ""}, {"c2", "n1", "a b"}} {
			put(t, s, binding(key[0], key[1], key[2]))
		}
		for _, tc := range []struct {
			controller, target string
			want               []string
		}{
			{"", "", []string{"c1 n1 ", "c1 n1 /w", "c1 n2 ", "c10 n1 ", "c2 n1 a b"}},
			{"c1", "", []string{"c1 n1 ", "c1 n1 /w", "c1 n2 "}},
			{"c1", "n1", []string{"c1 n1 ", "c1 n1 /w"}},
			{"", "n2", []string{"c1 n2 "}},
			{"c", "", nil},
		} {
			all, err := s.Bindings(t.Context(), tc.controller, tc.target)
			ok(t, err)
			got := map[string]bool{}
			for _, b := range all {
				got[b.Controller+" "+b.Target+" "+b.Workspace] = true
			}
			want := map[string]bool{}
			for _, key := range tc.want {
				want[key] = true
			}
			same(t, got, want)
		}
	}},
	{"every field of a node's record comes back as it was stored", func(t *testing.T, s store.Store) {
		var full store.NodeRecord
		fill(&full)
		full.Rev = 0
		got, err := s.PutNodeRecord(t.Context(), full)
		ok(t, err)
		full.Rev = got.Rev
		same(t, got, full)
		read, err := s.NodeRecord(t.Context(), full.IdentityID)
		ok(t, err)
		same(t, read, full)
	}},
	{"a node's record changes from its revision only", func(t *testing.T, s store.Store) {
		_, err := s.NodeRecord(t.Context(), "id-1")
		fails(t, err, store.ErrNotFound)
		first, err := s.PutNodeRecord(t.Context(), store.NodeRecord{IdentityID: "id-1", Epoch: 1})
		ok(t, err)
		_, err = s.PutNodeRecord(t.Context(), store.NodeRecord{IdentityID: "id-1", Epoch: 9})
		fails(t, err, store.ErrConflict)
		second := first
		second.Epoch = 2
		second, err = s.PutNodeRecord(t.Context(), second)
		ok(t, err)
		_, err = s.PutNodeRecord(t.Context(), first)
		fails(t, err, store.ErrConflict)
		other, err := s.PutNodeRecord(t.Context(), store.NodeRecord{IdentityID: "id-2"})
		ok(t, err)
		all, err := s.NodeRecords(t.Context())
		ok(t, err)
		got := map[string]store.NodeRecord{}
		for _, n := range all {
			got[n.IdentityID] = n
		}
		same(t, got, map[string]store.NodeRecord{"id-1": second, "id-2": other})
	}},
}
