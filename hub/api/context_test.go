package api_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"opencode-mesh/hub/federation"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/ocp"
)

func TestAContextQueryReachesTheNodesThatWereConsentedTo(t *testing.T) {
	s := newShop(t)
	alice, bob, boss := s.enroll(login("alice", false)), s.enroll(login("bob", false)), s.enroll(login("boss", true))
	beta := s.enroll(join("beta"))
	asked := make(chan string, 9)
	var ask api.ContextAsk
	s.tunnelOf(beta, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/v1/ocp/query":
			_ = json.NewDecoder(r.Body).Decode(&ask)
			f := ocp.Frame{ID: "f1", Kind: ocp.KindFact, Title: "the door", Content: "the door is blue", Score: 1, TokenCost: 4, CitationLabel: "task 1"}
			_ = json.NewEncoder(w).Encode(api.ContextAnswer{Legs: []api.ContextAnswerLeg{{ContextLeg: api.ContextLeg{Provider: "memory", Outcome: api.ContextFrames}, Result: ocp.Result{Frames: []ocp.Frame{f}}}}})
		case strings.HasPrefix(r.URL.Path, "/v1/ocp/consents/") && strings.HasSuffix(r.URL.Path, "nothing"):
			w.WriteHeader(http.StatusNotFound)
			_ = json.NewEncoder(w).Encode(api.ErrorBody{Error: api.Errorf(api.CodeNotFound, "no such provider")})
		default:
			_, _ = w.Write([]byte("{}"))
		}
		asked <- r.Method + " " + r.URL.Path
	})
	query := func(secret string, nodes ...string) (status int, out api.ContextResult) {
		t.Helper()
		status, _, data := s.call(http.MethodPost, "/v1/context/query", secret, api.ContextQuery{Query: ocp.Query{Goal: "paint the door"}, Nodes: nodes, Compose: true})
		if status == http.StatusOK && json.Unmarshal(data, &out) != nil {
			t.Fatalf("%s", data)
		}
		return status, out
	}
	if status, out := query(alice, "beta"); status != http.StatusOK || len(out.Legs) != 1 || out.Legs[0].Outcome != api.ContextAsks || len(asked) > 0 {
		t.Errorf("without consent: %d %+v, %d requests at the node", status, out, len(asked))
	}
	scope := api.ContextConsent{Scope: "goals of tasks"}
	if status, e, _ := s.call(http.MethodPut, "/v1/context/consents/beta", alice, scope); status != http.StatusNoContent {
		t.Fatalf("%d %v", status, e)
	}
	status, out := query(alice)
	if status != http.StatusOK || len(out.Frames) != 1 || out.Frames[0].Node != "beta" || !strings.Contains(out.Text, "the door is blue") {
		t.Errorf("%d %+v", status, out)
	}
	if got := <-asked; got != "POST /v1/ocp/query" || ask.Asker.Name != "alice" || ask.Operator || ask.Query.Goal != "paint the door" {
		t.Errorf("%s %+v", got, ask)
	}
	if status, out := query(bob); status != http.StatusOK || len(out.Legs) != 0 {
		t.Errorf("alice's consent is bob's: %d %+v", status, out)
	}

	// What it was used for is known to those whom it concerns.
	d := api.Dispatch{Targets: []api.DispatchTarget{{Name: "beta", ID: "t-1"}}, Text: out.Text, ContextQuery: out.ID}
	if status, e, _ := s.call(http.MethodPost, "/v1/tasks", alice, d); status != http.StatusCreated {
		t.Fatalf("%d %v", status, e)
	}
	for secret, want := range map[string]int{alice: 2, bob: 1, boss: 3} {
		var log api.ContextRecords
		if status, _, data := s.call(http.MethodGet, "/v1/context/queries", secret, nil); status != http.StatusOK || json.Unmarshal(data, &log) != nil || len(log.Queries) != want {
			t.Errorf("%d %s", status, data)
		}
		if secret == alice && (!slices.Equal(log.Queries[0].Tasks, []string{"t-1"}) || log.Queries[0].Frames[0].Label != "task 1" || log.Queries[0].Tokens != 4) {
			t.Errorf("%+v", log.Queries[0])
		}
	}

	d.Targets[0].ID, d.ContextQuery = "t-2", "the query of before"
	if status, e, _ := s.call(http.MethodPost, "/v1/tasks", alice, d); status != http.StatusBadRequest || !strings.Contains(e.Message, "leave it out") {
		t.Errorf("what is no id of a query: %d %v", status, e)
	}

	// Providers of a node are an operator's.
	for path, want := range map[string]map[string]int{
		"/v1/context/consents/beta/issues":  {alice: http.StatusForbidden, boss: http.StatusNoContent},
		"/v1/context/consents/beta/nothing": {boss: http.StatusNotFound},
		"/v1/context/consents/nobody":       {boss: http.StatusNotFound},
	} {
		for secret, code := range want {
			if status, e, _ := s.call(http.MethodPut, path, secret, scope); status != code {
				t.Errorf("%s: %d %v", path, status, e)
			}
		}
	}
	if status, e, _ := s.call(http.MethodDelete, "/v1/context/consents/beta", alice, nil); status != http.StatusNoContent {
		t.Fatalf("%d %v", status, e)
	}
	for len(asked) > 0 {
		<-asked
	}
	if status, out := query(alice); status != http.StatusOK || len(out.Legs) != 0 || len(asked) > 0 {
		t.Errorf("after it was revoked: %d %+v", status, out)
	}
	var audit api.AuditPage
	_, _, data := s.call(http.MethodGet, "/v1/audit?action=consented", boss, nil)
	if json.Unmarshal(data, &audit) != nil || len(audit.Entries) != 2 || audit.Entries[0].Object == "" || audit.Entries[0].Detail != scope.Scope {
		t.Errorf("%s", data)
	}
}

func TestANodeThatRefusesACallerIsNotAskedForContext(t *testing.T) {
	s := newShop(t)
	s.helloAllow = []string{"boss"}
	alice := s.enroll(login("alice", false))
	beta := s.enroll(join("beta"))
	s.tunnelOf(beta, func(http.ResponseWriter, *http.Request) { t.Error("it was asked") })
	if status, e, _ := s.call(http.MethodPut, "/v1/context/consents/beta", alice, api.ContextConsent{Scope: "goals"}); status != http.StatusForbidden || e.Code != api.CodeRefused {
		t.Errorf("%d %v", status, e)
	}
	q := api.ContextQuery{Query: ocp.Query{Goal: "paint"}, Nodes: []string{"beta"}}
	if status, e, _ := s.call(http.MethodPost, "/v1/context/query", alice, q); status != http.StatusForbidden || e.Code != api.CodeRefused {
		t.Errorf("%d %v", status, e)
	}
	if status, e, _ := s.call(http.MethodPost, "/v1/context/query", alice, api.ContextQuery{}); status != http.StatusBadRequest {
		t.Errorf("%d %v", status, e)
	}
}

func TestOneIdentityAsksForContextOnlySoOftenAtOnceAndLeavesOthersRoom(t *testing.T) {
	const most = federation.MaxQueries / 4
	s := newShop(t)
	alice, bob := s.enroll(login("alice", false)), s.enroll(login("bob", false))
	beta := s.enroll(join("beta"))
	asked, release := make(chan struct{}), make(chan struct{})
	s.tunnelOf(beta, func(w http.ResponseWriter, _ *http.Request) {
		asked <- struct{}{}
		<-release
		_, _ = w.Write([]byte("{}"))
	})
	scope := api.ContextConsent{Scope: "goals of tasks"}
	if status, e, _ := s.call(http.MethodPut, "/v1/context/consents/beta", alice, scope); status != http.StatusNoContent {
		t.Fatalf("%d %v", status, e)
	}
	query := func(secret string) (int, *api.Error) {
		status, e, _ := s.call(http.MethodPost, "/v1/context/query", secret, api.ContextQuery{Query: ocp.Query{Goal: "paint the door"}})
		return status, e
	}
	var work sync.WaitGroup
	for range most {
		work.Go(func() {
			if status, e := query(alice); status != http.StatusOK {
				t.Errorf("one of those that there may be: %d %v", status, e)
			}
		})
		<-asked
	}
	if status, e := query(alice); status != http.StatusTooManyRequests || e.Code != api.CodeRateLimited {
		t.Errorf("one more: %d %v", status, e)
	}
	if status, e := query(bob); status != http.StatusOK {
		t.Errorf("somebody else: %d %v", status, e)
	}
	close(release)
	work.Wait()
}
