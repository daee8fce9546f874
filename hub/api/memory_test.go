package api_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"testing"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

func TestANodeReadsPageAfterPageOfWhatConcernsItAndNobodyElseReadsIt(t *testing.T) {
	s := newShop(t)
	boss := s.enroll(login("boss", true))
	joined := s.enroll(join("beta"))
	alpha, beta := s.tunnelOf(s.enroll(join("alpha")), nothing), s.tunnelOf(joined, nothing)
	ids := map[string]string{}
	list, err := s.store.Identities(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, who := range list {
		ids[who.Name] = who.ID
	}
	for i, target := range []string{"alpha", "beta", "alpha", "alpha"} {
		at := time.Now().Add(-time.Hour).Add(time.Duration(i) * time.Second).UTC()
		task := store.Task{
			ID: fmt.Sprint("t", i), Hash: fmt.Sprint(i), Mode: "one-shot", Kind: api.TurnTask, Attempt: 1, Turn: 1, State: api.StateDone, Since: at, CreatedAt: at, EndedAt: at,
			Controller: api.Party{ID: ids["boss"], Name: "boss"}, Target: api.Party{ID: ids[target], Name: target}, Outcome: &api.Outcome{State: api.StateDone, Summary: "done"},
		}
		if _, err := s.store.CreateTasks(context.Background(), []store.NewTask{{Task: task, Text: []byte("do it")}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, secret := range []string{boss, joined, ""} {
		if status, _, data := s.call(http.MethodGet, "/v1/memory", secret, nil); status < 400 {
			t.Errorf("outside of a tunnel: %d %s", status, data)
		}
	}
	var told []string
	pages, cursor := 0, ""
	for more := true; more && pages < 10; pages++ {
		var page api.MemoryPage
		if e := inner(t, alpha, http.MethodGet, "/v1/memory?limit=1&after="+url.QueryEscape(cursor), nil, &page); e != nil {
			t.Fatal(e)
		}
		if len(page.Items) > 1 {
			t.Fatalf("a page of %d items", len(page.Items))
		}
		for _, it := range page.Items {
			told = append(told, it.Result.Task)
		}
		cursor, more = page.Next, page.More
	}
	if !slices.Equal(told, []string{"t0", "t2", "t3"}) {
		t.Errorf("alpha is told %v", told)
	}
	var page api.MemoryPage
	if e := inner(t, beta, http.MethodGet, "/v1/memory?after=t.0.0..0", nil, &page); e != nil || len(page.Items) != 1 || page.Items[0].Result.Task != "t1" || page.More {
		t.Errorf("beta is told %+v, %v", page, e)
	}
	for _, query := range []string{"limit=0", fmt.Sprint("limit=", api.MaxMemoryPage+1), "limit=x", "after=x"} {
		if e := inner(t, alpha, http.MethodGet, "/v1/memory?"+query, nil, nil); e == nil || e.Code != api.CodeBadRequest {
			t.Errorf("%s: %v", query, e)
		}
	}
}
