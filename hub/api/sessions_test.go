package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// boundSession stores a binding with one fill and one digest.
func (s *shop) boundSession(controller, target, workspace string, percent int64) {
	s.t.Helper()
	at := time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC)
	key := store.BindingKey{Controller: s.party(controller).ID, Target: s.party(target).ID, Workspace: workspace}
	fill := api.Tokens{Total: percent * 1000, Limit: 100000}
	b := store.Binding{
		BindingKey: key, Generation: 1, Lane: 1, Session: "ses_" + controller + "_" + target + "_" + workspace, Title: "opencode-mesh " + controller,
		CreatedAt: at, LastUsed: at, BoundAt: at, Tokens: &fill, Digest: 1,
	}
	ctx := context.Background()
	if _, err := s.store.PutBinding(ctx, b, api.Fill{At: at, Generation: 1, Tokens: fill}); err != nil {
		s.t.Fatal(err)
	}
	d := store.Digest{Digest: api.Digest{Generation: 1, Task: "d1", Session: b.Session, At: at, Facts: []string{"of " + b.Session}}}
	if err := s.store.PutDigest(ctx, key, d); err != nil {
		s.t.Fatal(err)
	}
}

// helloOf notes which workspaces a node has offered.
func (s *shop) helloOf(target string, workspaces ...string) {
	s.t.Helper()
	rec := store.NodeRecord{IdentityID: s.party(target).ID, JournalID: "j1", Epoch: 1, Hello: api.Hello{JournalID: "j1", Sessions: true, Workspaces: workspaces}}
	if _, err := s.store.PutNodeRecord(context.Background(), rec); err != nil {
		s.t.Fatal(err)
	}
}

// sessionShop is a hub with sessions of alice and bob.
func sessionShop(t *testing.T) (s *shop, alice, bob, boss string) {
	t.Helper()
	s = newShop(t)
	alice, bob, boss = s.enroll(login("alice", false)), s.enroll(login("bob", false)), s.enroll(login("boss", true))
	s.enroll(join("beta"))
	s.enroll(join("gamma"))
	s.helloOf("beta", "main", "shop")
	s.boundSession("alice", "beta", "main", 62)
	s.boundSession("alice", "beta", "shop", 5)
	s.boundSession("alice", "gamma", "", 7)
	s.boundSession("bob", "beta", "main", 90)
	return s, alice, bob, boss
}

func TestAControllerSeesItsOwnSessionsAndAnOperatorAll(t *testing.T) {
	s, alice, bob, boss := sessionShop(t)
	for _, c := range []struct {
		who, query string
		want       string
	}{
		{alice, "", "alice beta main, alice beta shop, alice gamma "},
		{alice, "?target=gamma", "alice gamma "},
		{alice, "?controller=alice&target=gamma", "alice gamma "},
		{boss, "?target=gamma&target=beta&target=gamma", "alice beta main, alice beta shop, alice gamma , bob beta main"},
		{alice, "?controller=-&target=gamma", "alice gamma "},
		{bob, "", "bob beta main"},
		{bob, "?target=gamma", ""},
		{boss, "", "alice beta main, alice beta shop, alice gamma , bob beta main"},
		{boss, "?controller=alice", "alice beta main, alice beta shop, alice gamma "},
		{boss, "?controller=-", ""},
	} {
		status, _, data := s.call(http.MethodGet, "/v1/bindings"+c.query, c.who, nil)
		var list api.SessionList
		if err := json.Unmarshal(data, &list); err != nil || status != http.StatusOK || list.Sessions == nil {
			t.Fatalf("%s: %d %s", c.query, status, data)
		}
		var got []string
		for _, v := range list.Sessions {
			got = append(got, v.Controller+" "+v.Target+" "+v.Workspace)
		}
		slices.Sort(got)
		if strings.Join(got, ", ") != c.want {
			t.Errorf("%q: got %q, want %q", c.query, got, c.want)
		}
	}
	for query, want := range map[string]api.Code{"?controller=alice": api.CodeNotFound, "?controller=nobody": api.CodeNotFound, "?target=nobody": api.CodeUnknownTarget} {
		status, e, _ := s.call(http.MethodGet, "/v1/bindings"+query, bob, nil)
		if status != http.StatusNotFound || e.Code != want {
			t.Errorf("%s: %d %v", query, status, e)
		}
	}
}

func TestOneSessionIsTheCallersOwnInItsWorkspace(t *testing.T) {
	s, alice, bob, boss := sessionShop(t)
	for _, c := range []struct {
		who, path string
		session   string // "" for none
		code      api.Code
	}{
		{alice, "-/beta", "ses_alice_beta_main", ""},
		{alice, "alice/beta", "ses_alice_beta_main", ""},
		{alice, "-/beta?workspace=shop", "ses_alice_beta_shop", ""},
		{alice, "-/gamma", "ses_alice_gamma_", ""}, // which never said hello
		{bob, "-/beta", "ses_bob_beta_main", ""},
		{boss, "alice/beta", "ses_alice_beta_main", ""},
		{boss, "-/beta", "", api.CodeNotFound},
		{bob, "alice/beta", "", api.CodeNotFound},
		{bob, "boss/beta", "", api.CodeNotFound},
		{bob, "-/gamma", "", api.CodeNotFound},
		{alice, "-/beta?workspace=attic", "", api.CodeNotFound},
		{alice, "-/beta?workspace=%00", "", api.CodeBadRequest},
		{alice, "-/beta?workspace=%ff", "", api.CodeBadRequest},
		{alice, "-/nobody", "", api.CodeUnknownTarget},
	} {
		status, e, data := s.call(http.MethodGet, "/v1/bindings/"+c.path, c.who, nil)
		if c.code != "" {
			if status != c.code.Status() || e == nil || e.Code != c.code {
				t.Errorf("%s: %d %s", c.path, status, data)
			}
			continue
		}
		var got api.Session
		if err := json.Unmarshal(data, &got); err != nil || status != http.StatusOK || got.Session == nil || *got.Session != c.session || len(got.Fills) != 1 {
			t.Errorf("%s: %d %s", c.path, status, data)
		}
	}
}

func TestDigestsAreTheCallersOwn(t *testing.T) {
	s, alice, bob, boss := sessionShop(t)
	for _, c := range []struct{ who, query, want string }{
		{alice, "target=beta", "of ses_alice_beta_main"},
		{alice, "controller=-&target=beta&workspace=shop", "of ses_alice_beta_shop"},
		{boss, "controller=bob&target=beta", "of ses_bob_beta_main"},
		{bob, "target=gamma", ""},
	} {
		status, _, data := s.call(http.MethodGet, "/v1/digests?"+c.query, c.who, nil)
		var list api.DigestList
		if err := json.Unmarshal(data, &list); err != nil || status != http.StatusOK || list.Digests == nil {
			t.Fatalf("%s: %d %s", c.query, status, data)
		}
		got := ""
		for _, d := range list.Digests {
			got += strings.Join(d.Facts, ",")
		}
		if got != c.want {
			t.Errorf("%s: got %q", c.query, got)
		}
	}
	for _, query := range []string{"controller=alice&target=beta", "target=nobody", ""} {
		if status, _, data := s.call(http.MethodGet, "/v1/digests?"+query, bob, nil); status != http.StatusNotFound {
			t.Errorf("%q: %d %s", query, status, data)
		}
	}
}

func TestOperationsAreForTheOwnerAndOperatorsAndAreAudited(t *testing.T) {
	s, alice, bob, boss := sessionShop(t)
	operate := func(who, path, id string) (int, *api.Error, api.Task) {
		t.Helper()
		status, e, data := s.call(http.MethodPost, "/v1/bindings/"+path, who, api.Operate{ID: id})
		var task api.Task
		_ = json.Unmarshal(data, &task)
		return status, e, task
	}
	for i, op := range []string{api.OpCompact, api.OpClear, api.OpReset} {
		id := fmt.Sprint("op-", i)
		for range 2 { // the second is a repeat
			if status, e, task := operate(alice, "-/beta/"+op, id); status != http.StatusCreated || task.Task != id || task.Op != op || task.Controller != "alice" || task.Target != "beta" {
				t.Errorf("%s: %d %v %+v", op, status, e, task)
			}
		}
	}
	if status, e, task := operate(boss, "bob/beta/compact", "op-9"); status != http.StatusCreated || task.Controller != "bob" {
		t.Errorf("an operator: %d %v %+v", status, e, task)
	}
	for path, want := range map[string]api.Code{"alice/beta/clear": api.CodeNotFound, "nobody/beta/clear": api.CodeNotFound, "-/nobody/clear": api.CodeUnknownTarget, "-/beta/destroy": api.CodeNotFound} {
		if status, e, _ := operate(bob, path, "op-x"); status != http.StatusNotFound || e.Code != want {
			t.Errorf("%s: %d %v", path, status, e)
		}
	}
	if status, e, _ := s.call(http.MethodPost, "/v1/bindings/-/beta/reset", alice, "{"); status != http.StatusBadRequest {
		t.Errorf("no JSON: %d %v", status, e)
	}
	s.written()
	_, _, data := s.call(http.MethodGet, "/v1/audit", boss, nil)
	var page api.AuditPage
	if err := json.Unmarshal(data, &page); err != nil {
		t.Fatal(err)
	}
	var noted []string
	for _, e := range page.Entries {
		if strings.HasPrefix(e.Action, "session_") {
			noted = append(noted, strings.Join([]string{e.Actor, e.Action, e.Object, e.Detail}, " "))
		}
	}
	want := []string{"alice session_compact alice -> beta op-0", "alice session_clear alice -> beta op-1", "alice session_reset alice -> beta op-2", "boss session_compact bob -> beta op-9"}
	if !slices.Equal(noted, want) {
		t.Errorf("audited %q", noted)
	}
}

// filled notes how a controller's session on a node filled up.
func (s *shop) filled(controller, target string, points int) {
	s.t.Helper()
	fills := make([]api.Fill, points)
	for i := range fills {
		fills[i] = api.Fill{At: time.Unix(int64(i), 0).UTC(), Generation: 1, Tokens: api.Tokens{Total: int64(i), Limit: 1000}}
	}
	_, err := s.store.PutBinding(context.Background(), store.Binding{
		BindingKey: store.BindingKey{Controller: s.party(controller).ID, Target: s.party(target).ID, Workspace: "main"},
		Generation: 1, Session: "ses_" + target, Tokens: &api.Tokens{Total: int64(points), Limit: 1000}, LastUsed: time.Now(),
	}, fills...)
	if err != nil {
		s.t.Fatal(err)
	}
}

func TestAListingOfSessionsHasTheirNewestFillsIfItIsAskedForThem(t *testing.T) {
	s := newShop(t)
	alice, boss := s.enroll(login("alice", false)), s.enroll(login("boss", true))
	for name, points := range map[string]int{"n0": 0, "n1": 3, "n2": 100} {
		s.enroll(join(name))
		s.filled("alice", name, points)
	}
	list := func(secret, query string) map[string][]api.Fill {
		status, _, data := s.call(http.MethodGet, "/v1/bindings?"+query, secret, nil)
		var out api.SessionList
		if err := json.Unmarshal(data, &out); err != nil || status != http.StatusOK || len(out.Sessions) != 3 {
			t.Fatalf("%s: %d %s", query, status, data)
		}
		fills := map[string][]api.Fill{}
		for _, b := range out.Sessions {
			fills[b.Target] = b.Fills
		}
		return fills
	}
	for _, secret := range []string{alice, boss} {
		if f := list(secret, ""); len(f["n1"])+len(f["n2"]) != 0 {
			t.Errorf("fills that nobody asked for: %v", f)
		}
		f := list(secret, "fills=10")
		if len(f["n0"]) != 0 || len(f["n1"]) != 3 || len(f["n2"]) != 10 || f["n2"][0].Total != 90 || f["n2"][9].Total != 99 {
			t.Errorf("%v", f)
		}
	}
	for _, n := range []string{"-1", "65", "x"} {
		if status, _, _ := s.call(http.MethodGet, "/v1/bindings?fills="+n, alice, nil); status != http.StatusBadRequest {
			t.Errorf("fills=%s: %d", n, status)
		}
	}
}

// BenchmarkFleetSessions is what a page about 2,000 nodes asks for.
func BenchmarkFleetSessions(b *testing.B) {
	s := newShop(b)
	boss := s.enroll(login("boss", true))
	for i := range 2000 {
		name := fmt.Sprint("n", i)
		s.enroll(join(name))
		s.filled("boss", name, 100)
	}
	for _, path := range []string{"/v1/nodes", "/v1/nodes?fills=24", "/v1/bindings", "/v1/bindings?fills=24"} {
		b.Run(path, func(b *testing.B) {
			var data []byte
			for b.Loop() {
				_, _, data = s.call(http.MethodGet, path, boss, nil)
			}
			b.ReportMetric(float64(len(data)), "bytes")
		})
	}
}
