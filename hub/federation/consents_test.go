package federation_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"opencode-mesh/hub/federation"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/ocp"
)

func TestNoOrderOfCallsGetsAroundConsent(t *testing.T) {
	askers := []federation.Asker{desk, boss, {Party: api.Party{ID: "id_alpha", Name: "alpha"}}}
	names := []string{"alpha", "beta"}
	rapid.Check(t, func(rt *rapid.T) {
		r := newRig(t, gives("alpha", leg("m", frame("a", 1, 1))), gives("beta", leg("m", frame("b", 1, 1))))
		defer r.close()
		allowed := map[string]string{} // asker and node → the identity that was consented to
		pick := func() (federation.Asker, *machine) {
			m := r.fleet.list[rapid.IntRange(0, 1).Draw(rt, "node")]
			return rapid.SampledFrom(askers).Draw(rt, "asker"), m
		}
		rt.Repeat(map[string]func(*rapid.T){
			"consent": func(*rapid.T) {
				a, m := pick()
				if err := r.Consent(t.Context(), a, m.party.Name, api.ContextConsent{Scope: "goals"}); err != nil {
					rt.Fatal(err)
				}
				allowed[a.ID+m.party.Name] = m.party.ID
			},
			"revoke": func(*rapid.T) {
				a, m := pick()
				_, had := allowed[a.ID+m.party.Name]
				if err := r.Revoke(t.Context(), a, m.party.Name); (err == nil) != had {
					rt.Fatalf("revoked with %v, had consent: %v", err, had)
				}
				delete(allowed, a.ID+m.party.Name)
			},
			"another machine takes the name": func(*rapid.T) {
				_, m := pick()
				m.party.ID += "'"
			},
			"the hub is started anew": func(*rapid.T) { r.Federation = r.again() },
			"query": func(*rapid.T) {
				a := rapid.SampledFrom(askers).Draw(rt, "asker")
				var to []string
				if rapid.Bool().Draw(rt, "named") {
					to = names
				}
				before := []int{r.fleet.list[0].times(), r.fleet.list[1].times()}
				out := r.query(a, 10, 10, to...)
				for i, m := range r.fleet.list {
					own := m.party.ID == a.ID
					may := own || allowed[a.ID+m.party.Name] == m.party.ID
					if asked := m.times() > before[i]; asked != may {
						rt.Fatalf("%s's goal reached %s: %v, it may: %v", a.Name, m.party.Name, asked, may)
					}
					told := slices.ContainsFunc(out.Legs, func(l api.ContextLeg) bool {
						return l.Node == m.party.Name && l.Outcome == api.ContextAsks
					})
					if told != (!may && len(to) > 0) {
						rt.Fatalf("%s is told to need consent: %v", m.party.Name, told)
					}
				}
			},
		})
	})
}

func TestAConsentIsToTheMachineThatWasShown(t *testing.T) {
	r := newRig(t, gives("alpha"))
	out, err := r.Providers(t.Context(), desk)
	if err != nil || out.Providers[0].Shown == "" {
		t.Fatalf("%+v %v", out, err)
	}
	c := api.ContextConsent{Scope: "goals", Shown: out.Providers[0].Shown}
	r.fleet.list[0].party.ID = "id_other"
	var refusal *api.Error
	if err := r.Consent(t.Context(), desk, "alpha", c); !errors.As(err, &refusal) || refusal.Code != api.CodeConflict {
		t.Errorf("another machine under the name: %v", err)
	}
	r.fleet.list[0].party.ID = "id_alpha"
	if err := r.Consent(t.Context(), desk, "alpha", c); err != nil {
		t.Error(err)
	}
}

func TestWhatAProviderSendsFurtherIsDecidedByOperators(t *testing.T) {
	alpha := gives("alpha")
	r := newRig(t, alpha)
	var refusal *api.Error
	scope := api.ContextConsent{Scope: " issue titles go to example.com "}
	if err := r.Consent(t.Context(), desk, "alpha/issues", scope); !errors.As(err, &refusal) || refusal.Code != api.CodeForbidden {
		t.Errorf("a controller: %v", err)
	}
	if err := r.Revoke(t.Context(), desk, "alpha/issues"); !errors.As(err, &refusal) || refusal.Code != api.CodeForbidden {
		t.Errorf("a controller revokes: %v", err)
	}
	if len(alpha.consents) > 0 {
		t.Fatalf("alpha was told %v", alpha.consents)
	}
	if err := r.Consent(t.Context(), boss, "alpha/issues", scope); err != nil {
		t.Fatal(err)
	}
	if c := alpha.consents["issues"]; c == nil || c.Scope != "issue titles go to example.com" || c.GrantedBy != "boss" || c.GrantedAt.IsZero() {
		t.Errorf("%+v", c)
	}
	if err := r.Revoke(t.Context(), boss, "alpha/issues"); err != nil || alpha.consents["issues"] != nil {
		t.Errorf("%v %v", err, alpha.consents)
	}
	for _, words := range []string{"", " ", "a\nb", strings.Repeat("x", api.MaxContextScope+1)} {
		if err := r.Consent(t.Context(), boss, "alpha", api.ContextConsent{Scope: words}); !errors.As(err, &refusal) {
			t.Errorf("%q: %v", words, err)
		}
	}
}

func TestProvidersAreListedWithWhatTheyNeed(t *testing.T) {
	r := newRig(t, gives("alpha"), gives("beta"))
	r.trusts(desk, "alpha", "beta")
	r.fleet.list[1].party.ID = "id_new"
	gone := gives("gone")
	r.fleet.list = append(r.fleet.list, gone)
	r.trusts(desk, "gone")
	r.fleet.list = r.fleet.list[:2]
	out, err := r.Providers(t.Context(), desk)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range out.Providers {
		got = append(got, p.ID)
	}
	if !slices.Equal(got, []string{"alpha", "alpha/memory", "beta", "gone"}) {
		t.Fatalf("%v", got)
	}
	alpha, memory, beta, lost := out.Providers[0], out.Providers[1], out.Providers[2], out.Providers[3]
	if alpha.NeedsConsent || alpha.Consent == nil || !alpha.DataFlow.Egress {
		t.Errorf("%+v", alpha)
	}
	if strings.ContainsRune(memory.Name, '\x1b') || memory.Node != "alpha" || memory.Shown != (ocp.Subject{}).Digest() {
		t.Errorf("%+v", memory)
	}
	if !beta.NeedsConsent || !slices.Equal(beta.Changed, []string{"address or program"}) {
		t.Errorf("%+v", beta)
	}
	if lost.Error == "" || lost.Consent == nil {
		t.Errorf("%+v", lost)
	}
	own, err := r.Providers(t.Context(), federation.Asker{Party: api.Party{ID: "id_alpha", Name: "alpha"}})
	if err != nil || own.Providers[0].NeedsConsent || own.Providers[0].DataFlow.Egress {
		t.Errorf("%v %+v", err, own.Providers)
	}
}

func TestPlacesThatAreNotShownAreToldOf(t *testing.T) {
	alpha := gives("alpha")
	for i := range 40 {
		alpha.scopes = append(alpha.scopes, fmt.Sprint("vendor:", i))
	}
	r := newRig(t, alpha)
	r.trusts(desk, "alpha")
	list := func() api.ContextProvider {
		t.Helper()
		out, err := r.Providers(t.Context(), desk)
		if err != nil || len(out.Providers) != 2 {
			t.Fatalf("%+v %v", out, err)
		}
		return out.Providers[1]
	}
	if p := list(); len(p.DataFlow.EgressScopes) != 32 || !strings.Contains(p.Error, "40 places") {
		t.Errorf("%+v", p)
	}
	alpha.scopes = alpha.scopes[:32]
	if p := list(); len(p.DataFlow.EgressScopes) != 32 || p.Error != "" {
		t.Errorf("%+v", p)
	}
}
