package access_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"opencode-mesh/auth"
	"opencode-mesh/hub/access"
	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
	"opencode-mesh/store/bolt"
)

const password = "correct horse"

var (
	ctx  = context.Background()
	peer = netip.MustParseAddr("192.0.2.1")
)

// gate is an Access on a real store, with a check that costs nothing.
type gate struct {
	*access.Access
	t     *testing.T
	store *bolt.Store
	log   strings.Builder
	gone  []string // name and code of who was retired

	mu      sync.Mutex // guards the following fields
	now     time.Time
	refused map[string]int
}

func (g *gate) clock() time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.now
}

func (g *gate) forward(d time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.now = g.now.Add(d)
}

func newGate(t *testing.T) *gate {
	t.Helper()
	return newGateOn(t, func(s store.Store) store.Store { return s })
}

// newGateOn is a gate with something between it and its store.
func newGateOn(t *testing.T, between func(store.Store) store.Store) *gate {
	t.Helper()
	st, err := bolt.Open(bolt.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	g := &gate{t: t, store: st, now: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC), refused: map[string]int{}}
	verifier, err := auth.NewVerifier(auth.VerifierConfig{Check: func(_, pw string) (bool, error) { return pw == password, nil }})
	if err != nil {
		t.Fatal(err)
	}
	limiter, err := auth.NewLimiter(auth.LimiterConfig{Now: g.clock})
	if err != nil {
		t.Fatal(err)
	}
	g.Access = access.New(access.Config{
		Store: between(st), Verifier: verifier, Limiter: limiter, Now: g.clock,
		Log: slog.New(slog.NewTextHandler(&g.log, nil)), Failed: func(why string) {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.refused[why]++
		},
	})
	g.OnRetire(func(id store.Identity, code string) { g.gone = append(g.gone, id.Name+" "+code) })
	if err := g.SetPassword(ctx, password); err != nil {
		t.Fatal(err)
	}
	return g
}

func (g *gate) enroll(do func(context.Context, netip.Addr, api.Login) (api.Issued, error), name string, opts ...func(*api.Login)) api.Issued {
	g.t.Helper()
	req := api.Login{Name: name, Password: password}
	for _, o := range opts {
		o(&req)
	}
	is, err := do(ctx, peer, req)
	if err != nil {
		g.t.Fatal(err)
	}
	return is
}

func (g *gate) audit() []api.AuditEntry {
	g.t.Helper()
	page, err := g.store.Audit(ctx, store.AuditQuery{Limit: api.MaxPage})
	if err != nil {
		g.t.Fatal(err)
	}
	return page.Entries
}

func (g *gate) count(action string) (n int) {
	for _, e := range g.audit() {
		if e.Action == action {
			n++
		}
	}
	return n
}

func wantCode(t *testing.T, err error, code api.Code) {
	t.Helper()
	if got := api.ErrorCode(err); got != code {
		t.Fatalf("got %v, want %s", err, code)
	}
}

func asOperator(l *api.Login) { l.Operator = true }
func replacing(l *api.Login)  { l.Replace = true }

func TestACredentialSaysWhoSomebodyIsAndNothingElseDoes(t *testing.T) {
	g := newGate(t)
	is := g.enroll(g.Login, "alice", asOperator)
	p, err := g.Authenticate(ctx, is.Credential)
	if err != nil || p.Identity.Name != "alice" || !p.Operator() || p.Credential != is.CredentialID {
		t.Fatalf("%+v, %v", p, err)
	}
	for _, secret := range []string{"", "x", is.CredentialID, is.Credential + "x", is.Credential[:len(is.Credential)-1], strings.ToUpper(is.Credential), password} {
		_, err := g.Authenticate(ctx, secret)
		wantCode(t, err, api.CodeUnauthorized)
		if secret != "" && strings.Contains(err.Error(), secret) && len(secret) > 3 {
			t.Errorf("the error repeats the secret: %v", err)
		}
	}
}

func TestALoginUnderAControllersNameAddsACredentialForIt(t *testing.T) {
	g := newGate(t)
	first, second := g.enroll(g.Login, "alice"), g.enroll(g.Login, "alice", asOperator)
	if first.IdentityID != second.IdentityID || first.Credential == second.Credential {
		t.Errorf("%+v, %+v", first, second)
	}
	for is, operator := range map[api.Issued]bool{first: false, second: true} {
		if p, err := g.Authenticate(ctx, is.Credential); err != nil || p.Operator() != operator {
			t.Errorf("%+v, %v", p, err)
		}
	}
}

func TestNamesAreOneNamespaceOverAllRoles(t *testing.T) {
	g := newGate(t)
	g.enroll(g.Join, "beta")
	alice := g.enroll(g.Login, "alice")
	for name, try := range map[string]func() error{
		"login under a node's name":      func() error { _, err := g.Login(ctx, peer, api.Login{Name: "beta", Password: password}); return err },
		"join under a node's name":       func() error { _, err := g.Join(ctx, peer, api.Login{Name: "beta", Password: password}); return err },
		"join under a controller's name": func() error { _, err := g.Join(ctx, peer, api.Login{Name: "alice", Password: password}); return err },
		"replace a controller by a node": func() error {
			_, err := g.Join(ctx, peer, api.Login{Name: "alice", Password: password, Replace: true})
			return err
		},
		"login that asks to replace a node": func() error {
			_, err := g.Login(ctx, peer, api.Login{Name: "beta", Password: password, Replace: true})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) { wantCode(t, try(), api.CodeNameTaken) })
	}
	if _, err := g.Authenticate(ctx, alice.Credential); err != nil {
		t.Errorf("alice: %v", err)
	}
	if len(g.gone) != 0 {
		t.Errorf("somebody was retired: %v", g.gone)
	}
}

func TestReplacingANodeEndsTheOldOne(t *testing.T) {
	g := newGate(t)
	old := g.enroll(g.Join, "beta")
	fresh := g.enroll(g.Join, "beta", replacing)
	_, err := g.Authenticate(ctx, old.Credential)
	wantCode(t, err, api.CodeRevoked)
	if p, err := g.Authenticate(ctx, fresh.Credential); err != nil || p.Identity.ID == old.IdentityID || p.Role != api.RoleNode {
		t.Errorf("%+v, %v", p, err)
	}
	if len(g.gone) != 1 || g.gone[0] != "beta "+api.TaskTargetReplaced {
		t.Errorf("retired: %v", g.gone)
	}
}

func TestManyWhoTakeOneNameAtOnceAllGetInOrAreToldThatItIsTaken(t *testing.T) {
	g := newGate(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	ids, taken := map[string]int{}, 0
	for i := range 16 {
		wg.Go(func() {
			do, from := g.Login, netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})
			if i%2 == 1 {
				do = g.Join
			}
			is, err := do(ctx, from, api.Login{Name: "fresh", Password: password})
			for api.ErrorCode(err) == api.CodeRateLimited { // of the queue before the check, or of the name
				g.forward(time.Minute)
				is, err = do(ctx, from, api.Login{Name: "fresh", Password: password})
			}
			mu.Lock()
			defer mu.Unlock()
			switch api.ErrorCode(err) {
			case "":
				ids[is.IdentityID]++
			case api.CodeNameTaken:
				taken++
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	n := 0
	for _, got := range ids {
		n += got
	}
	if len(ids) != 1 || n+taken != 16 {
		t.Errorf("%d identities of one name; %d got in, %d were told", len(ids), n, taken)
	}
}

func TestRevokingEndsEveryCredentialAtOnceAndFreesTheName(t *testing.T) {
	g := newGate(t)
	op, err := g.Authenticate(ctx, g.enroll(g.Login, "boss", asOperator).Credential)
	if err != nil {
		t.Fatal(err)
	}
	a, b := g.enroll(g.Login, "alice"), g.enroll(g.Login, "alice")
	if err := g.Revoke(ctx, op, peer, "alice"); err != nil {
		t.Fatal(err)
	}
	for _, is := range []api.Issued{a, b} {
		_, err := g.Authenticate(ctx, is.Credential)
		wantCode(t, err, api.CodeRevoked)
	}
	if len(g.gone) != 1 || g.gone[0] != "alice "+api.TaskTargetRevoked {
		t.Errorf("retired: %v", g.gone)
	}
	wantCode(t, g.Revoke(ctx, op, peer, "alice"), api.CodeNotFound)
	if again := g.enroll(g.Login, "alice"); again.IdentityID == a.IdentityID {
		t.Error("the name stands for the old identity again")
	}
	list := g.audit()
	for _, e := range list {
		if e.Action == "revoked" && (e.Actor != "boss" || e.Object != "alice" || e.Peer != peer.String()) {
			t.Errorf("entry %+v", e)
		}
	}
	if g.count("revoked") != 1 {
		t.Errorf("entries %+v", list)
	}
}

func TestRevokingAllLeavesNobody(t *testing.T) {
	g := newGate(t)
	all := []api.Issued{g.enroll(g.Login, "boss", asOperator), g.enroll(g.Login, "alice"), g.enroll(g.Join, "beta")}
	if err := g.RevokeAll(ctx, access.Principal{Identity: store.Identity{Name: "local"}, Role: api.RoleOperator}, netip.Addr{}); err != nil {
		t.Fatal(err)
	}
	for _, is := range all {
		_, err := g.Authenticate(ctx, is.Credential)
		wantCode(t, err, api.CodeRevoked)
	}
	if len(g.gone) != 3 {
		t.Errorf("retired: %v", g.gone)
	}
}

func TestAWrongPasswordIsRefusedLimitedAndWrittenDownWithoutIt(t *testing.T) {
	g := newGate(t)
	var limited *api.Error
	for range 50 {
		_, err := g.Login(ctx, peer, api.Login{Name: "alice", Password: "guess"})
		if api.ErrorCode(err) == api.CodeRateLimited {
			errors.As(err, &limited)
			continue
		}
		wantCode(t, err, api.CodeUnauthorized)
	}
	if limited == nil || limited.RetryAfter <= 0 || g.refused["limited"] == 0 || g.refused["password"] == 0 {
		t.Errorf("limited %+v, counted %v", limited, g.refused)
	}
	if n := g.count("login_refused"); n == 0 || n > auth.DefaultPerAddress {
		t.Errorf("%d entries of 50 tries", n)
	}
	g.enroll(func(ctx context.Context, _ netip.Addr, l api.Login) (api.Issued, error) {
		return g.Login(ctx, netip.MustParseAddr("192.0.2.99"), l)
	}, "bob") // another address and name are not locked out
	for _, secret := range []string{"guess", password} {
		if strings.Contains(g.log.String(), secret) || strings.Contains(fmt.Sprint(g.audit()), secret) {
			t.Errorf("%q was written down", secret)
		}
	}
}

func TestWithoutAPasswordNobodyGetsIn(t *testing.T) {
	st, err := bolt.Open(bolt.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	verifier, err := auth.NewVerifier(auth.VerifierConfig{})
	if err != nil {
		t.Fatal(err)
	}
	limiter, err := auth.NewLimiter(auth.LimiterConfig{})
	if err != nil {
		t.Fatal(err)
	}
	a := access.New(access.Config{Store: st, Verifier: verifier, Limiter: limiter, Now: time.Now, Log: slog.New(slog.DiscardHandler), Failed: func(string) {}})
	if has, err := a.HasPassword(ctx); has || err != nil {
		t.Errorf("%v, %v", has, err)
	}
	_, err = a.Login(ctx, peer, api.Login{Name: "alice", Password: ""})
	wantCode(t, err, api.CodeUnauthorized)
	if err := a.SetPassword(ctx, ""); err == nil {
		t.Error("an empty password was set")
	}
	if err := a.SetPassword(ctx, password); err != nil {
		t.Fatal(err)
	}
	for pw, want := range map[string]bool{password: true, "other": false} {
		if same, err := a.MatchesPassword(ctx, pw); same != want || err != nil {
			t.Errorf("%s: %v, %v", pw, same, err)
		}
	}
}

func TestANameThatIsNoneIsRefusedBeforeAnythingIsSpent(t *testing.T) {
	g := newGate(t)
	for _, name := range []string{"", "-a", "Alice", "a b", strings.Repeat("x", 1<<20), "\x1b[2J"} {
		_, err := g.Login(ctx, peer, api.Login{Name: name, Password: password})
		wantCode(t, err, api.CodeBadRequest)
		if len(err.Error()) > 512 || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%.100q", err.Error())
		}
	}
	if len(g.refused) != 0 {
		t.Errorf("counted: %v", g.refused)
	}
}

func TestWhatACallerSaysOfItsMachineIsBoundedAndCleaned(t *testing.T) {
	g := newGate(t)
	is := g.enroll(g.Join, "beta", func(l *api.Login) { l.Platform = "linux\n---\x1b[2J/" + strings.Repeat("x", 1<<20) })
	id, err := g.store.Identity(ctx, is.IdentityID)
	if err != nil || len(id.Platform) > 32 || strings.ContainsAny(id.Platform, "\n\x1b") {
		t.Errorf("platform %.100q, %v", id.Platform, err)
	}
}

func TestEntriesOfTheAuditLogAreBoundedAndCleaned(t *testing.T) {
	g := newGate(t)
	evil := "\x1b[2J" + strings.Repeat("x", 1<<20)
	g.Audit(ctx, access.Principal{Identity: store.Identity{Name: evil}}, netip.Addr{}, "tested", evil, evil)
	list := g.audit()
	if s := fmt.Sprint(list[len(list)-1]); len(s) > 1024 || strings.Contains(s, "\x1b") {
		t.Errorf("%d bytes: %.100q", len(s), s)
	}
}

func TestRefusalsOfOneIdentityDoNotFloodTheAuditLog(t *testing.T) {
	g := newGate(t)
	mallory, alice := access.Principal{Identity: store.Identity{ID: "id_m", Name: "mallory"}}, access.Principal{Identity: store.Identity{ID: "id_a", Name: "alice"}}
	for range 1000 {
		g.Refused(ctx, mallory, peer, "forged", "t1", "bob")
	}
	g.Refused(ctx, alice, peer, "forged", "t1", "bob")
	if n := g.count("forged"); n < 2 || n > 20 {
		t.Errorf("%d entries", n)
	}
	was := g.count("forged")
	if err := g.Flush(); err != nil {
		t.Fatal(err)
	}
	g.Refused(ctx, mallory, peer, "forged", "t1", "bob") // a minute later
	if n := g.count("forged"); n != was+1 {
		t.Errorf("%d entries, then %d", was, n)
	}
}

func TestLastUsesAreCollectedAndWrittenNowAndThen(t *testing.T) {
	g := newGate(t)
	is := g.enroll(g.Login, "alice")
	g.forward(time.Hour)
	if _, err := g.Authenticate(ctx, is.Credential); err != nil {
		t.Fatal(err)
	}
	if err := g.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := g.Flush(); err != nil { // nothing more to write
		t.Fatal(err)
	}
	if err := g.SetPassword(ctx, "another"); err != nil { // queued behind it, and awaited
		t.Fatal(err)
	}
	list, err := g.store.Credentials(ctx)
	if err != nil || len(list) != 1 || !list[0].LastUsed.Equal(g.now) {
		t.Errorf("%+v, %v", list, err)
	}
}

func TestTheUpkeepEndsWithItsContext(t *testing.T) {
	g := newGate(t)
	ending, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() { g.Run(ending); close(ended) }()
	cancel()
	<-ended
}
