package storetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// fillAt is the n-th fill of a series.
func fillAt(n int) api.Fill {
	return api.Fill{At: after(time.Duration(n) * time.Second), Generation: 1, Tokens: api.Tokens{Total: int64(n), Limit: 200_000}}
}

// fillsFrom are n fills in order.
func fillsFrom(first, n int) (fills []api.Fill) {
	for i := range n {
		fills = append(fills, fillAt(first+i))
	}
	return fills
}

// putFills stores a binding with fills.
func putFills(t *testing.T, s store.Store, b store.Binding, fills ...api.Fill) store.Binding {
	t.Helper()
	got, err := s.PutBinding(t.Context(), b, fills...)
	if err != nil {
		t.Fatalf("put binding %+v with %d fills: %v", b.BindingKey, len(fills), err)
	}
	return got
}

// wantFills compares a binding's series.
func wantFills(t *testing.T, s store.Store, key store.BindingKey, want []api.Fill) {
	t.Helper()
	got, err := s.Fills(t.Context(), key)
	ok(t, err)
	if len(got) == 0 && len(want) == 0 {
		return
	}
	same(t, got, want)
}

// digest is one of a binding.
func digest(generation int, task string) store.Digest {
	return store.Digest{Context: 1, Digest: api.Digest{
		Generation: generation, Task: task, Session: "ses", At: start, Facts: []string{"of " + task}, Pending: "none", Refs: "none",
	}}
}

// wantDigests compares the generations of a binding.
func wantDigests(t *testing.T, s store.Store, key store.BindingKey, want ...store.Digest) {
	t.Helper()
	got, err := s.Digests(t.Context(), key)
	ok(t, err)
	if len(got) == 0 && len(want) == 0 {
		return
	}
	same(t, got, want)
}

// alike are keys of which one begins like another, and odd ones.
var alike = []store.BindingKey{
	{Controller: "c", Target: "n"},
	{Controller: "c", Target: "n", Workspace: "w"},
	{Controller: "c", Target: "n", Workspace: "w2"},
	{Controller: "c", Target: "n", Workspace: "w\x01\x02"},
	{Controller: "c", Target: "n", Workspace: "w \u2028\ufffd / é"},
	{Controller: "c", Target: "n2"},
	{Controller: "c2", Target: "n"},
}

var bindingContracts = []contract{
	{"the newest fills of many bindings are the ends of their series", func(t *testing.T, s store.Store) {
		var of []store.Binding
		for i, n := range []int{0, 1, 5, store.MaxFills, store.MaxFills + 7} {
			of = append(of, putFills(t, s, binding("c", "n", fmt.Sprint("w", i)), fillsFrom(1, n)...))
		}
		for _, n := range []int{-1, 0, 1, 3, store.MaxFills, store.MaxFills + 1} {
			got, err := s.NewestFills(t.Context(), of, n)
			ok(t, err)
			for i, b := range of {
				want, err := s.Fills(t.Context(), b.BindingKey)
				ok(t, err)
				want = want[len(want)-min(len(want), max(n, 0)):]
				if !slices.Equal(got[i], want) {
					t.Fatalf("newest %d of %d: %d, want %d", n, b.Fills, len(got[i]), len(want))
				}
			}
		}
		stale := of[4]
		stale.Fills -= 5 // read before the last ones came: they have taken slots
		got, err := s.NewestFills(t.Context(), []store.Binding{stale}, store.MaxFills)
		ok(t, err)
		same(t, len(got[0]), store.MaxFills-5)
	}},
	{"fills join the series of their binding in order", func(t *testing.T, s store.Store) {
		b := putFills(t, s, binding("c", "n", "w"), fillAt(1))
		same(t, b.Fills, uint64(1))
		wantFills(t, s, b.BindingKey, fillsFrom(1, 1))
		b.Session = "ses"
		b = putFills(t, s, b)
		b = putFills(t, s, b, fillAt(2), fillAt(3))
		wantFills(t, s, b.BindingKey, fillsFrom(1, 3))
		read, err := s.Binding(t.Context(), b.BindingKey)
		ok(t, err)
		same(t, read, b)
		same(t, b.Fills, uint64(3))
	}},
	{"every field of a fill comes back as it was stored", func(t *testing.T, s store.Store) {
		var full api.Fill
		fill(&full)
		b := putFills(t, s, binding("c", "n", "w"), full)
		wantFills(t, s, b.BindingKey, []api.Fill{full})
	}},
	{"a series keeps its newest fills", func(t *testing.T, s store.Store) {
		b := putFills(t, s, binding("c", "n", "w"), fillsFrom(0, store.MaxFills-1)...)
		wantFills(t, s, b.BindingKey, fillsFrom(0, store.MaxFills-1))
		for n := store.MaxFills - 1; n < store.MaxFills+2; n++ {
			b = putFills(t, s, b, fillAt(n))
			kept := min(n+1, store.MaxFills)
			wantFills(t, s, b.BindingKey, fillsFrom(n+1-kept, kept))
		}
		next := store.MaxFills + 2
		b = putFills(t, s, b, fillsFrom(next, 2*store.MaxFills+3)...)
		wantFills(t, s, b.BindingKey, fillsFrom(next+store.MaxFills+3, store.MaxFills))
	}},
	{"a binding that has moved on takes no fill", func(t *testing.T, s store.Store) {
		old := putFills(t, s, binding("c", "n", "w"), fillAt(1))
		now := putFills(t, s, old, fillAt(2))
		_, err := s.PutBinding(t.Context(), old, fillAt(9))
		fails(t, err, store.ErrConflict)
		_, err = s.PutBinding(t.Context(), binding("c", "n", "w"), fillAt(9))
		fails(t, err, store.ErrConflict)
		wantFills(t, s, now.BindingKey, fillsFrom(1, 2))
	}},
	{"no fill is lost to writers at once", func(t *testing.T, s store.Store) {
		key := put(t, s, binding("c", "n", "w")).BindingKey
		const writers = 8
		together(writers, func(i int) {
			for {
				b, err := s.Binding(t.Context(), key)
				if err == nil {
					_, err = s.PutBinding(t.Context(), b, fillAt(i))
				}
				if err == nil {
					return
				}
				if !errors.Is(err, store.ErrConflict) {
					t.Error(err)
					return
				}
			}
		})
		fills, err := s.Fills(t.Context(), key)
		ok(t, err)
		seen := map[int64]bool{}
		for _, f := range fills {
			seen[f.Total] = true
		}
		if len(fills) != writers || len(seen) != writers {
			t.Fatalf("%d fills, %d of them different, of %d", len(fills), len(seen), writers)
		}
	}},
	{"a digest stays as it was stored first", func(t *testing.T, s store.Store) {
		key := put(t, s, binding("c", "n", "w")).BindingKey
		ok(t, s.PutDigest(t.Context(), key, digest(1, "a")))
		again := digest(1, "a")
		again.Facts = []string{"other words"}
		ok(t, s.PutDigest(t.Context(), key, again))
		fails(t, s.PutDigest(t.Context(), key, digest(1, "b")), store.ErrExists)
		wantDigests(t, s, key, digest(1, "a"))
	}},
	{"digests are listed by generation", func(t *testing.T, s store.Store) {
		key := put(t, s, binding("c", "n", "w")).BindingKey
		wantDigests(t, s, key)
		var want []store.Digest
		for _, generation := range []int{300, 2, 1, 256, 255} {
			ok(t, s.PutDigest(t.Context(), key, digest(generation, "a")))
		}
		for _, generation := range []int{1, 2, 255, 256, 300} {
			want = append(want, digest(generation, "a"))
		}
		wantDigests(t, s, key, want...)
	}},
	{"every field of a digest comes back as it was stored", func(t *testing.T, s store.Store) {
		key := put(t, s, binding("c", "n", "w")).BindingKey
		var full store.Digest
		fill(&full)
		ok(t, s.PutDigest(t.Context(), key, full))
		wantDigests(t, s, key, full)
	}},
	{"a digest may be as large as one can be", func(t *testing.T, s store.Store) {
		key := put(t, s, binding("c", "n", "w")).BindingKey
		large := digest(1, "a")
		large.Pending = strings.Repeat("é", api.MaxDigest/2)
		ok(t, s.PutDigest(t.Context(), key, large))
		wantDigests(t, s, key, large)
	}},
	{"a digest needs its binding and a generation", func(t *testing.T, s store.Store) {
		key := store.BindingKey{Controller: "c", Target: "n", Workspace: "w"}
		fails(t, s.PutDigest(t.Context(), key, digest(1, "a")), store.ErrNotFound)
		put(t, s, binding("c", "n", "w"))
		for _, generation := range []int{0, -1} {
			if err := s.PutDigest(t.Context(), key, digest(generation, "a")); err == nil {
				t.Errorf("generation %d was stored", generation)
			}
		}
		wantDigests(t, s, key)
	}},
	{"a binding's series and digests are its own, however alike the keys are", func(t *testing.T, s store.Store) {
		for i, key := range alike {
			putFills(t, s, binding(key.Controller, key.Target, key.Workspace), fillAt(i))
			ok(t, s.PutDigest(t.Context(), key, digest(i+1, "a")))
		}
		for i, key := range alike {
			read, err := s.Binding(t.Context(), key)
			ok(t, err)
			same(t, read.BindingKey, key)
			wantFills(t, s, key, fillsFrom(i, 1))
			wantDigests(t, s, key, digest(i+1, "a"))
		}
	}},
	{"a workspace that could not be read back is refused", func(t *testing.T, s store.Store) {
		for _, workspace := range []string{"w\x00x", "w\xffx"} {
			b := binding("c", "n", workspace)
			_, errPut := s.PutBinding(t.Context(), b)
			_, errGet := s.Binding(t.Context(), b.BindingKey)
			_, errFills := s.Fills(t.Context(), b.BindingKey)
			errDigest := s.PutDigest(t.Context(), b.BindingKey, digest(1, "a"))
			_, errDigests := s.Digests(t.Context(), b.BindingKey)
			for _, err := range []error{errPut, errGet, errFills, errDigest, errDigests} {
				if err == nil || !strings.Contains(err.Error(), "workspace") {
					t.Errorf("%q: got error %v, want one that names the workspace", workspace, err)
				}
			}
		}
	}},
	{"what is not there has no series and no digests", func(t *testing.T, s store.Store) {
		key := store.BindingKey{Controller: "c", Target: "n", Workspace: "w"}
		wantFills(t, s, key, nil)
		wantDigests(t, s, key)
	}},
}
