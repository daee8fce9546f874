package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// auditPage reads a page of the audit log.
func (s *shop) auditPage(secret, query string) (page api.AuditPage) {
	s.t.Helper()
	status, _, data := s.call(http.MethodGet, "/v1/audit?"+query, secret, nil)
	if err := json.Unmarshal(data, &page); err != nil || status != http.StatusOK {
		s.t.Fatalf("%s: %d %s", query, status, data)
	}
	return page
}

// written waits for the entries that nobody waits for.
func (s *shop) written() {
	s.t.Helper()
	_, rev, _ := s.store.Setting(context.Background(), "written")
	if _, err := s.store.PutSetting(context.Background(), "written", nil, rev); err != nil {
		s.t.Fatal(err)
	}
}

// dispatch makes tasks.
func (s *shop) dispatch(secret, text string, targets ...api.DispatchTarget) {
	s.t.Helper()
	if status, _, data := s.call(http.MethodPost, "/v1/tasks", secret, api.Dispatch{Targets: targets, Text: text}); status != http.StatusCreated {
		s.t.Fatalf("%d %s", status, data)
	}
}

func TestWhatIsDoneWithTasksIsInTheAuditLog(t *testing.T) {
	s := newShop(t)
	alice, boss := s.enroll(login("alice", false)), s.enroll(login("boss", true))
	for i := range 5 {
		s.enroll(join(fmt.Sprint("n", i)))
	}
	one := api.DispatchTarget{Name: "n0", ID: "one"}
	s.dispatch(alice, "a secret text", one)
	s.dispatch(alice, "a secret text", one) // a repeat is no act
	var many []api.DispatchTarget
	for i := range 5 {
		many = append(many, api.DispatchTarget{Name: fmt.Sprint("n", i), ID: fmt.Sprint("m", i)})
	}
	s.dispatch(alice, "x", many...)
	for _, act := range []string{"cancel", "retry"} {
		if status, _, data := s.call(http.MethodPost, "/v1/tasks/one/"+act, alice, nil); status != http.StatusOK {
			t.Fatalf("%s: %d %s", act, status, data)
		}
	}
	if status, _, _ := s.call(http.MethodPost, "/v1/tasks/one/answer", alice, api.Answer{Text: "x"}); status == http.StatusOK {
		t.Fatal("answered what was not asked")
	}
	s.written()
	var got []string
	for _, e := range s.auditPage(boss, "before=").Entries {
		if e.Actor == "alice" {
			got = append(got, e.Action+": "+e.Object+": "+e.Detail)
			if e.Peer != "127.0.0.1" || e.At.IsZero() || strings.Contains(fmt.Sprint(e), "secret") {
				t.Errorf("%+v", e)
			}
		}
	}
	want := []string{
		"retried: one: alice -> n0", "canceled: one: alice -> n0",
		"dispatched: n0, n1, n2 and 2 more: session m0, m1, m2 and 2 more", "dispatched: n0: session one",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

func TestTheAuditLogIsReadFromBothEndsAndSentAsAFile(t *testing.T) {
	s := newShop(t)
	boss := s.enroll(login("boss", true))
	const many = api.MaxPage + 20
	for i := range many {
		if err := s.store.AppendActsLater(api.AuditEntry{Action: fmt.Sprint("a", i%2), Object: "<" + fmt.Sprint(i) + ">"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.store.AppendAudit(context.Background(), api.AuditEntry{Action: "last"}); err != nil {
		t.Fatal(err)
	}
	objects := func(query, cursor string) (out []string) {
		for next := ""; ; {
			page := s.auditPage(boss, query+"&"+cursor+"="+next)
			for _, e := range page.Entries {
				if strings.HasPrefix(e.Object, "<") {
					out = append(out, e.Object)
				}
			}
			if page.Next == 0 {
				return out
			}
			next = fmt.Sprint(page.Next)
		}
	}
	up, down := objects("", "after"), objects("limit=300", "before")
	if len(up) != many || up[0] != "<0>" {
		t.Errorf("%d from the oldest on", len(up))
	}
	slices.Reverse(down)
	if !slices.Equal(up, down) {
		t.Errorf("%d from the newest on, %d from the oldest", len(down), len(up))
	}
	if some := objects("limit=7&action=a1", "before"); len(some) != many/2 || some[0] != fmt.Sprintf("<%d>", many-1) {
		t.Errorf("%d of one action", len(some))
	}
	for query, want := range map[string]int{"format=jsonl": many + 3, "format=jsonl&action=a0": many / 2, "format=jsonl&before=": many + 3} {
		resp := s.open(http.MethodGet, "/v1/audit?"+query, boss, nil)
		h := resp.Header
		if h.Get("Content-Type") != "application/x-ndjson" || !strings.HasPrefix(h.Get("Content-Disposition"), "attachment; filename=audit-") || h.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %v", query, h)
		}
		n := 0
		for lines := bufio.NewScanner(resp.Body); lines.Scan(); n++ {
			var e api.AuditEntry
			if err := json.Unmarshal(lines.Bytes(), &e); err != nil || e.Seq == 0 {
				t.Fatalf("%s: %q: %v", query, lines.Text(), err)
			}
		}
		resp.Body.Close()
		if n != want {
			t.Errorf("%s: %d lines, want %d", query, n, want)
		}
	}
	for _, query := range []string{"before=x", "after=-1", "before=1&after=1", "limit=0", "limit=1001", "format=xml"} {
		if status, e, _ := s.call(http.MethodGet, "/v1/audit?"+query, boss, nil); status != http.StatusBadRequest || e == nil {
			t.Errorf("%s: %d", query, status)
		}
	}
	for _, query := range []string{"before=", "format=jsonl"} {
		if status, _, _ := s.call(http.MethodGet, "/v1/audit?"+query, s.enroll(login("alice", false)), nil); status != http.StatusForbidden {
			t.Errorf("%s of a controller: %d", query, status)
		}
	}
}

func TestTasksAreSearchedAmongThoseOfTheCaller(t *testing.T) {
	s := newShop(t)
	alice, bob, boss := s.enroll(login("alice", false)), s.enroll(login("bob", false)), s.enroll(login("boss", true))
	s.enroll(join("n0"))
	s.enroll(join("beta"))
	for i := range 6 {
		s.dispatch(alice, fmt.Sprint("Mend the ROOF of house ", i), api.DispatchTarget{Name: "n0", ID: fmt.Sprint("a", i)})
	}
	s.dispatch(bob, "paint the roof", api.DispatchTarget{Name: "n0", ID: "b0"})
	s.endedFor("bob", "b1", api.Outcome{State: api.StateDone, Summary: "Roofing done"})
	find := func(secret, query string) (ids []string, page api.TaskPage) {
		status, _, data := s.call(http.MethodGet, "/v1/tasks?"+query, secret, nil)
		if err := json.Unmarshal(data, &page); err != nil || status != http.StatusOK {
			t.Fatalf("%s: %d %s", query, status, data)
		}
		for _, task := range page.Tasks {
			ids = append(ids, task.Task)
			if task.Text != "" {
				t.Error("a listing with texts")
			}
		}
		return ids, page
	}
	for _, c := range []struct{ who, secret, query, want string }{
		{"bob", bob, "q=roof", "b1 b0"},
		{"bob", bob, "q=+house+", ""},
		{"alice", alice, "q=HOUSE%203", "a3"},
		{"alice", alice, "q=roof&limit=2", "a5 a4"},
		{"boss", boss, "q=roof", "b1 b0 a5 a4 a3 a2 a1 a0"},
		{"boss", boss, "q=roof&controller=bob&open=true", "b0"},
		{"boss", boss, "q=bob", "b1 b0"},
		{"boss", boss, "q=n0&limit=1", "b0"},
	} {
		if ids, page := find(c.secret, c.query); strings.Join(ids, " ") != c.want || page.Stopped {
			t.Errorf("%s, %s: %v, stopped %v", c.who, c.query, ids, page.Stopped)
		}
	}
	_, page := find(alice, "q=roof&limit=4")
	if ids, last := find(alice, "q=roof&limit=4&before="+page.Next); strings.Join(ids, " ") != "a1 a0" || last.Next != "" {
		t.Errorf("second page %v, next %q", ids, last.Next)
	}
	many := make([]store.NewTask, store.MaxSearch+1)
	for i := range many {
		many[i] = store.NewTask{Task: store.Task{ID: fmt.Sprint("hay", i), Controller: s.party("alice"), Target: s.party("n0"), State: api.StateDone, Attempt: 1, Turn: 1}}
	}
	if _, err := s.store.CreateTasks(context.Background(), many); err != nil {
		t.Fatal(err)
	}
	ids, page := find(alice, "q=roof")
	if len(ids) != 0 || !page.Stopped || page.Next == "" {
		t.Errorf("%v, stopped %v, next %q", ids, page.Stopped, page.Next)
	}
	if ids, page = find(alice, "q=roof&before="+page.Next); len(ids) != 6 || page.Stopped {
		t.Errorf("then %v, stopped %v", ids, page.Stopped)
	}
	if status, _, _ := s.call(http.MethodGet, "/v1/tasks?q="+strings.Repeat("x", api.MaxQuery+1), alice, nil); status != http.StatusBadRequest {
		t.Errorf("%d for a long text", status)
	}
}
