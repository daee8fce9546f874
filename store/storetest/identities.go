package storetest

import (
	"testing"
	"time"

	"opencode-mesh/store"
)

var identityContracts = []contract{
	{"an identity is found by its id and by its name", func(t *testing.T, s store.Store) {
		var full store.Identity
		fill(&full)
		full.ID, full.Name, full.RetiredAt, full.ReplacedBy = "id-1", "alpha", time.Time{}, ""
		ok(t, s.CreateIdentity(t.Context(), full, credential("cred-1", full)))
		got := byID(t, s, "id-1")
		if got.Rev == 0 {
			t.Fatal("no revision")
		}
		full.Rev = got.Rev
		same(t, got, full)
		named, err := s.IdentityByName(t.Context(), "alpha")
		ok(t, err)
		same(t, named, full)
	}},
	{"what is unknown is not found", func(t *testing.T, s store.Store) {
		join(t, s, "alpha", "id-1", "cred-1")
		_, err := s.Identity(t.Context(), "id-2")
		fails(t, err, store.ErrNotFound)
		_, err = s.IdentityByName(t.Context(), "alp")
		fails(t, err, store.ErrNotFound)
		fails(t, s.RetireIdentity(t.Context(), identity("beta", "id-2"), start), store.ErrNotFound)
		fails(t, s.ReplaceIdentity(t.Context(), identity("beta", "id-2"), identity("beta", "id-3"), credential("cred-3", identity("beta", "id-3"))), store.ErrNotFound)
	}},
	{"a name is taken while its identity lives", func(t *testing.T, s store.Store) {
		join(t, s, "alpha", "id-1", "cred-1")
		other := identity("alpha", "id-2")
		fails(t, s.CreateIdentity(t.Context(), other, credential("cred-2", other)), store.ErrNameTaken)
		_, err := s.Identity(t.Context(), "id-2")
		fails(t, err, store.ErrNotFound)
		_, err = s.CredentialByHash(t.Context(), hash("cred-2"))
		fails(t, err, store.ErrNotFound)
	}},
	{"an id, a credential's id or a hash that is in use is refused", func(t *testing.T, s store.Store) {
		join(t, s, "alpha", "id-1", "cred-1")
		again := identity("beta", "id-1")
		fails(t, s.CreateIdentity(t.Context(), again, credential("cred-2", again)), store.ErrExists)
		beta := identity("beta", "id-2")
		fails(t, s.CreateIdentity(t.Context(), beta, credential("cred-1", beta)), store.ErrExists)
		hashed := credential("cred-2", beta)
		hashed.Hash = hash("cred-1")
		fails(t, s.CreateIdentity(t.Context(), beta, hashed), store.ErrExists)
		_, err := s.IdentityByName(t.Context(), "beta")
		fails(t, err, store.ErrNotFound)
		all, err := s.Credentials(t.Context())
		ok(t, err)
		if len(all) != 1 {
			t.Fatalf("%d credentials", len(all))
		}
	}},
	{"an identity whose first credential is another's is refused", func(t *testing.T, s store.Store) {
		if err := s.CreateIdentity(t.Context(), identity("alpha", "id-1"), credential("cred-1", identity("beta", "id-2"))); err == nil {
			t.Fatal("taken")
		}
	}},
	{"a retired identity stays known, its name is free and its credentials are revoked", func(t *testing.T, s store.Store) {
		old := join(t, s, "alpha", "id-1", "cred-1")
		ok(t, s.AddCredential(t.Context(), credential("cred-2", old)))
		join(t, s, "beta", "id-9", "cred-9")
		ok(t, s.RetireIdentity(t.Context(), old, after(time.Hour)))

		got := byID(t, s, "id-1")
		if got.Live() || !got.RetiredAt.Equal(after(time.Hour)) || got.ReplacedBy != "" || got.Rev <= old.Rev {
			t.Fatalf("retired: %+v", got)
		}
		for _, cred := range []string{"cred-1", "cred-2"} {
			if c := byHash(t, s, cred); !c.RevokedAt.Equal(after(time.Hour)) {
				t.Fatalf("%s is revoked at %v", cred, c.RevokedAt)
			}
		}
		if c := byHash(t, s, "cred-9"); !c.RevokedAt.IsZero() {
			t.Fatal("another identity's credential was revoked")
		}
		_, err := s.IdentityByName(t.Context(), "alpha")
		fails(t, err, store.ErrNotFound)
		join(t, s, "alpha", "id-2", "cred-3")
		all, err := s.Identities(t.Context())
		ok(t, err)
		if len(all) != 3 {
			t.Fatalf("%d identities are known, want 3", len(all))
		}
	}},
	{"retiring from an old revision conflicts, also when it is retired already", func(t *testing.T, s store.Store) {
		id := join(t, s, "alpha", "id-1", "cred-1")
		stale := id
		stale.Rev++
		fails(t, s.RetireIdentity(t.Context(), stale, start), store.ErrConflict)
		if !byID(t, s, "id-1").Live() || !byHash(t, s, "cred-1").RevokedAt.IsZero() {
			t.Fatal("retired all the same")
		}
		ok(t, s.RetireIdentity(t.Context(), id, start))
		fails(t, s.RetireIdentity(t.Context(), id, after(1)), store.ErrConflict)
		fails(t, s.RetireIdentity(t.Context(), byID(t, s, "id-1"), after(1)), store.ErrConflict)
	}},
	{"a replaced identity hands its name over and its credentials are revoked", func(t *testing.T, s store.Store) {
		old := join(t, s, "alpha", "id-1", "cred-1")
		next := identity("alpha", "id-2")
		next.CreatedAt = after(time.Hour)
		ok(t, s.ReplaceIdentity(t.Context(), old, next, credential("cred-2", next)))

		got := byID(t, s, "id-1")
		if got.Live() || got.ReplacedBy != "id-2" || !got.RetiredAt.Equal(after(time.Hour)) {
			t.Fatalf("replaced: %+v", got)
		}
		named, err := s.IdentityByName(t.Context(), "alpha")
		ok(t, err)
		if named.ID != "id-2" || !named.Live() {
			t.Fatalf("the name stands for %+v", named)
		}
		if byHash(t, s, "cred-1").RevokedAt.IsZero() || !byHash(t, s, "cred-2").RevokedAt.IsZero() {
			t.Fatal("the wrong credential is valid")
		}
	}},
	{"replacing from an old revision conflicts and changes nothing", func(t *testing.T, s store.Store) {
		old := join(t, s, "alpha", "id-1", "cred-1")
		stale := old
		stale.Rev++
		next := identity("alpha", "id-2")
		fails(t, s.ReplaceIdentity(t.Context(), stale, next, credential("cred-2", next)), store.ErrConflict)
		same(t, byID(t, s, "id-1"), old)
		_, err := s.Identity(t.Context(), "id-2")
		fails(t, err, store.ErrNotFound)

		ok(t, s.RetireIdentity(t.Context(), old, start))
		fails(t, s.ReplaceIdentity(t.Context(), byID(t, s, "id-1"), next, credential("cred-2", next)), store.ErrConflict)
	}},
	{"a replacement whose id or credential is in use is refused and changes nothing", func(t *testing.T, s store.Store) {
		old := join(t, s, "alpha", "id-1", "cred-1")
		join(t, s, "beta", "id-2", "cred-2")
		used, fresh := identity("alpha", "id-2"), identity("alpha", "id-3")
		fails(t, s.ReplaceIdentity(t.Context(), old, used, credential("cred-3", used)), store.ErrExists)
		fails(t, s.ReplaceIdentity(t.Context(), old, fresh, credential("cred-2", fresh)), store.ErrExists)
		same(t, byID(t, s, "id-1"), old)
		if !byHash(t, s, "cred-1").RevokedAt.IsZero() {
			t.Fatal("the credential was revoked")
		}
	}},
	{"a replacement must be another identity of the same name", func(t *testing.T, s store.Store) {
		old := join(t, s, "alpha", "id-1", "cred-1")
		for _, next := range []store.Identity{identity("beta", "id-2"), identity("alpha", "id-1")} {
			if err := s.ReplaceIdentity(t.Context(), old, next, credential("cred-2", next)); err == nil {
				t.Errorf("replaced by %+v", next)
			}
		}
		same(t, byID(t, s, "id-1"), old)
	}},
}

var credentialContracts = []contract{
	{"a credential is found by the hash of its secret", func(t *testing.T, s store.Store) {
		owner := join(t, s, "alpha", "id-1", "cred-1")
		var full store.Credential
		fill(&full)
		full.ID, full.IdentityID = "cred-2", owner.ID
		ok(t, s.AddCredential(t.Context(), full))
		got, err := s.CredentialByHash(t.Context(), full.Hash)
		ok(t, err)
		if got.Rev == 0 {
			t.Fatal("no revision")
		}
		full.Rev = got.Rev
		same(t, got, full)
		_, err = s.CredentialByHash(t.Context(), hash("nothing"))
		fails(t, err, store.ErrNotFound)
	}},
	{"a credential needs a live identity", func(t *testing.T, s store.Store) {
		fails(t, s.AddCredential(t.Context(), credential("cred-1", identity("alpha", "id-1"))), store.ErrNotFound)
		id := join(t, s, "alpha", "id-1", "cred-1")
		ok(t, s.RetireIdentity(t.Context(), id, start))
		fails(t, s.AddCredential(t.Context(), credential("cred-2", id)), store.ErrConflict)
		_, err := s.CredentialByHash(t.Context(), hash("cred-2"))
		fails(t, err, store.ErrNotFound)
	}},
	{"a credential's id and hash are used once", func(t *testing.T, s store.Store) {
		id := join(t, s, "alpha", "id-1", "cred-1")
		fails(t, s.AddCredential(t.Context(), credential("cred-1", id)), store.ErrExists)
		hashed := credential("cred-2", id)
		hashed.Hash = hash("cred-1")
		fails(t, s.AddCredential(t.Context(), hashed), store.ErrExists)
	}},
	{"all credentials are listed, revoked ones included", func(t *testing.T, s store.Store) {
		alpha := join(t, s, "alpha", "id-1", "cred-1")
		join(t, s, "beta", "id-2", "cred-2")
		ok(t, s.AddCredential(t.Context(), credential("cred-3", alpha)))
		ok(t, s.RevokeCredential(t.Context(), "cred-2", start))
		all, err := s.Credentials(t.Context())
		ok(t, err)
		got := map[string]store.Credential{}
		for _, c := range all {
			got[c.ID] = c
		}
		want := map[string]store.Credential{}
		for _, id := range []string{"cred-1", "cred-2", "cred-3"} {
			want[id] = byHash(t, s, id)
		}
		same(t, got, want)
	}},
	{"a revocation keeps its first time, and the other credentials stay valid", func(t *testing.T, s store.Store) {
		id := join(t, s, "alpha", "id-1", "cred-1")
		ok(t, s.AddCredential(t.Context(), credential("cred-2", id)))
		ok(t, s.RevokeCredential(t.Context(), "cred-1", after(time.Minute)))
		ok(t, s.RevokeCredential(t.Context(), "cred-1", after(time.Hour)))
		if got := byHash(t, s, "cred-1"); !got.RevokedAt.Equal(after(time.Minute)) {
			t.Fatalf("revoked at %v", got.RevokedAt)
		}
		if got := byHash(t, s, "cred-2"); !got.RevokedAt.IsZero() || !byID(t, s, "id-1").Live() {
			t.Fatal("the other one, or the identity, went too")
		}
		fails(t, s.RevokeCredential(t.Context(), "cred-9", start), store.ErrNotFound)
	}},
	{"the newest use is remembered", func(t *testing.T, s store.Store) {
		id := join(t, s, "alpha", "id-1", "cred-1")
		ok(t, s.AddCredential(t.Context(), credential("cred-2", id)))
		uses := map[string]time.Time{"cred-1": after(time.Hour), "cred-2": after(time.Minute), "unknown": start}
		ok(t, s.TouchCredentialsLater(uses))
		clear(uses) // the map is the caller's again
		ok(t, s.TouchCredentialsLater(map[string]time.Time{"cred-1": after(time.Second), "cred-2": after(2 * time.Hour)}))
		ok(t, s.RevokeCredential(t.Context(), "cred-2", start)) // queued behind the others
		for cred, want := range map[string]time.Time{"cred-1": after(time.Hour), "cred-2": after(2 * time.Hour)} {
			if got := byHash(t, s, cred); !got.LastUsed.Equal(want) {
				t.Errorf("%s was used last at %v, want %v", cred, got.LastUsed, want)
			}
		}
		if byHash(t, s, "cred-2").RevokedAt.IsZero() {
			t.Error("the revocation was lost")
		}
	}},
	{"browsers' credentials go when they are revoked, over or unused, others stay", func(t *testing.T, s store.Store) {
		id := join(t, s, "alpha", "id-1", "cred-1")
		ok(t, s.AddCredential(t.Context(), credential("cred-2", id)))
		ok(t, s.RevokeCredential(t.Context(), "cred-2", start))
		late := after(24 * time.Hour)
		for _, c := range []string{"revoked", "unused", "used"} {
			ok(t, s.AddCredential(t.Context(), browser(c, id, late)))
		}
		ok(t, s.AddCredential(t.Context(), browser("over", id, after(time.Hour))))
		fresh := browser("fresh", id, late)
		fresh.CreatedAt = after(time.Hour)
		ok(t, s.AddCredential(t.Context(), fresh))
		ok(t, s.RevokeCredential(t.Context(), "revoked", start))
		ok(t, s.TouchCredentialsLater(map[string]time.Time{"used": after(time.Hour), "over": after(time.Hour)}))
		ok(t, s.RevokeCredential(t.Context(), "cred-2", start)) // queued behind the uses

		n, err := s.PruneBrowsers(t.Context(), after(time.Hour), after(time.Minute))
		ok(t, err)
		same(t, n, 3)
		all, err := s.Credentials(t.Context())
		ok(t, err)
		var left []string
		for _, c := range all {
			left = append(left, c.ID)
		}
		same(t, left, []string{"cred-1", "cred-2", "fresh", "used"})
		_, err = s.CredentialByHash(t.Context(), hash("over"))
		fails(t, err, store.ErrNotFound)
		ok(t, s.AddCredential(t.Context(), browser("over", id, late))) // its id and hash are free
		n, err = s.PruneBrowsers(t.Context(), after(time.Hour), after(time.Minute))
		ok(t, err)
		same(t, n, 1) // made at start, never used

		ok(t, s.RetireIdentity(t.Context(), byID(t, s, "id-1"), start)) // what is gone is not missed
	}},
	{"many uses are remembered at once", func(t *testing.T, s store.Store) {
		id := join(t, s, "alpha", "id-1", "cred-0")
		uses := map[string]time.Time{}
		for i, cred := range ids("cred", 600) {
			uses[cred] = after(time.Minute)
			if i%20 == 7 { // the others are unknown
				ok(t, s.AddCredential(t.Context(), credential(cred, id)))
			}
		}
		ok(t, s.TouchCredentialsLater(uses))
		ok(t, s.RevokeCredential(t.Context(), "cred-0", start))
		all, err := s.Credentials(t.Context())
		ok(t, err)
		for _, c := range all {
			if c.ID != "cred-0" && !c.LastUsed.Equal(after(time.Minute)) {
				t.Fatalf("%s was used last at %v", c.ID, c.LastUsed)
			}
		}
	}},
}
