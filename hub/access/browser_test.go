package access_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"opencode-mesh/hub/access"
	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// visit logs a browser in.
func (g *gate) visit(name string) api.Issued {
	g.t.Helper()
	is, err := g.Visit(ctx, peer, name, password)
	if err != nil {
		g.t.Fatal(err)
	}
	return is
}

func TestABrowserIsAnOperatorByItsCookieOnly(t *testing.T) {
	g := newGate(t)
	is := g.visit("dashboard")
	p, err := g.Browser(ctx, is.Credential)
	if err != nil {
		t.Fatal(err)
	}
	if !p.Operator() || !p.Browser() || p.Identity.Name != "dashboard" || p.Credential != is.CredentialID || !p.Ends.Equal(g.clock().Add(access.BrowserLimit)) {
		t.Errorf("the browser is %+v", p)
	}
	if _, err := g.Authenticate(ctx, is.Credential); api.ErrorCode(err) != api.CodeUnauthorized {
		t.Errorf("as a bearer credential: %v", err)
	}
	other := g.enroll(g.Login, "alice", func(r *api.Login) { r.Operator = true })
	for name, secret := range map[string]string{"another credential": other.Credential, "none": "", "nonsense": "mesh_x", "an unknown one": "mesh_EsJHDxUPEcKnKQh-LIw68-eXvyhEDsCXfCdL1UYhADo"} {
		if _, err := g.Browser(ctx, secret); api.ErrorCode(err) != api.CodeUnauthorized {
			t.Errorf("%s as a cookie: %v", name, err)
		}
	}
}

func TestABrowserLogsInUnderTheSameRulesAsOthers(t *testing.T) {
	g := newGate(t)
	g.enroll(g.Join, "beta")
	_, err := g.Visit(ctx, peer, "beta", password)
	wantCode(t, err, api.CodeNameTaken)
	_, err = g.Visit(ctx, peer, "No Name", password)
	wantCode(t, err, api.CodeBadRequest)
	for range 5 {
		_, err = g.Visit(ctx, peer, "dashboard", "wrong")
	}
	wantCode(t, err, api.CodeUnauthorized)
	_, err = g.Visit(ctx, peer, "dashboard", password)
	wantCode(t, err, api.CodeRateLimited)
	if n := g.count("login_refused"); n != 5 {
		t.Errorf("%d refusals are in the audit log", n)
	}
	g.forward(time.Minute)
	g.visit("dashboard")
	last := g.audit()
	if e := last[len(last)-1]; e.Action != "login" || e.Detail != "operator in a browser" || e.Object != "dashboard" || e.Peer != peer.String() {
		t.Errorf("the audit log has %+v", e)
	}
}

func TestABrowsersTimeEndsAndIdleOnesEndSooner(t *testing.T) {
	g := newGate(t)
	idle, used := g.visit("idle"), g.visit("used")
	for day := 1; day < 30; day++ {
		g.forward(24 * time.Hour)
		if day == 15 { // what was used is known from the store too
			if err := g.Flush(); err != nil {
				t.Fatal(err)
			}
			g.visit("another") // is written behind it
		}
		if _, err := g.Browser(ctx, used.Credential); err != nil {
			t.Fatalf("used daily, on day %d: %v", day, err)
		}
		if day == 7 {
			if _, err := g.Browser(ctx, idle.Credential); api.ErrorCode(err) != api.CodeUnauthorized {
				t.Errorf("unused for a week: %v", err)
			}
		}
	}
	g.forward(24 * time.Hour)
	if _, err := g.Browser(ctx, used.Credential); api.ErrorCode(err) != api.CodeUnauthorized {
		t.Errorf("after thirty days: %v", err)
	}
}

func TestLogoutEndsOneBrowserAndSaysSo(t *testing.T) {
	g := newGate(t)
	var ended []string
	g.OnLogout(func(credential string) { ended = append(ended, credential) })
	one, two := g.visit("dashboard"), g.visit("dashboard")
	p, err := g.Browser(ctx, one.Credential)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Live(ctx, p); err != nil {
		t.Fatalf("before: %v", err)
	}
	if err := g.Logout(ctx, p, peer); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Browser(ctx, one.Credential); api.ErrorCode(err) != api.CodeUnauthorized {
		t.Errorf("after its logout: %v", err)
	}
	if err := g.Live(ctx, p); err == nil {
		t.Error("what it opens in this moment may stay")
	}
	if q, err := g.Browser(ctx, two.Credential); err != nil || g.Live(ctx, q) != nil {
		t.Errorf("the other browser: %v", err)
	}
	if len(ended) != 1 || ended[0] != one.CredentialID || g.count("logout") != 1 {
		t.Errorf("ended %v, %d in the audit log", ended, g.count("logout"))
	}
	if err := g.Logout(ctx, access.Principal{Identity: store.Identity{ID: "x"}}, peer); api.ErrorCode(err) != api.CodeBadRequest {
		t.Errorf("logout of what is no browser: %v", err)
	}
}

func TestTheBrowserThatWasNotUsedForLongestMakesRoom(t *testing.T) {
	g := newGate(t)
	oldest, idle, other := g.visit("dashboard"), g.visit("dashboard"), g.visit("ann")
	for range access.MaxBrowsers - 2 {
		g.forward(time.Second)
		g.visit("dashboard")
	}
	if _, err := g.Browser(ctx, oldest.Credential); err != nil { // is used, and so is not it
		t.Fatal(err)
	}
	g.forward(time.Second)
	last := g.visit("dashboard")
	if _, err := g.Browser(ctx, idle.Credential); api.ErrorCode(err) != api.CodeUnauthorized {
		t.Errorf("the idle one: %v", err)
	}
	for _, is := range []api.Issued{oldest, last, other} {
		if _, err := g.Browser(ctx, is.Credential); err != nil {
			t.Errorf("%s: %v", is.CredentialID, err)
		}
	}
}

func TestANewPasswordEndsBrowsersAndNothingElse(t *testing.T) {
	g := newGate(t)
	var ended []string
	g.OnLogout(func(credential string) { ended = append(ended, credential) })
	one, two, cli := g.visit("one"), g.visit("two"), g.enroll(g.Login, "alice")
	if err := g.SetPassword(ctx, "another one"); err != nil {
		t.Fatal(err)
	}
	for _, is := range []api.Issued{one, two} {
		if _, err := g.Browser(ctx, is.Credential); api.ErrorCode(err) != api.CodeUnauthorized {
			t.Errorf("%s: %v", is.Name, err)
		}
	}
	if len(ended) != 2 {
		t.Errorf("ended: %v", ended)
	}
	if _, err := g.Authenticate(ctx, cli.Credential); err != nil {
		t.Errorf("a credential went with it: %v", err)
	}
}

// late is a store in which the password changes just after a login was checked.
type late struct {
	store.Store
	change func()
}

func (l *late) AddCredential(ctx context.Context, c store.Credential) error {
	if f := l.change; f != nil {
		l.change = nil
		f()
	}
	return l.Store.AddCredential(ctx, c)
}

func TestABrowserThatLoggedInWithTheOldPasswordInThatMomentIsOut(t *testing.T) {
	l := &late{}
	g := newGateOn(t, func(s store.Store) store.Store { l.Store = s; return l })
	g.visit("dashboard") // the identity is there
	l.change = func() {
		if err := g.SetPassword(ctx, "another one"); err != nil {
			t.Error(err)
		}
	}
	if is, err := g.Visit(ctx, peer, "dashboard", password); api.ErrorCode(err) != api.CodeUnauthorized {
		t.Fatalf("got %+v, %v", is, err)
	}
	all, err := g.store.Credentials(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all {
		if c.RevokedAt.IsZero() {
			t.Errorf("%s is still good", c.ID)
		}
	}
}

func TestARevokedIdentitysBrowsersAreOut(t *testing.T) {
	g := newGate(t)
	is := g.visit("dashboard")
	p, err := g.Browser(ctx, is.Credential)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Revoke(ctx, p, peer, "dashboard"); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Browser(ctx, is.Credential); api.ErrorCode(err) != api.CodeUnauthorized {
		t.Errorf("recognised: %v", err)
	}
	if g.Live(ctx, p) == nil {
		t.Error("what it opens may stay")
	}
}

func TestNoSecretOfABrowserIsInTheLogs(t *testing.T) {
	g := newGate(t)
	is := g.visit("dashboard")
	for _, e := range g.audit() {
		if strings.Contains(e.Detail+e.Object+e.Actor, is.Credential) {
			t.Errorf("the audit log tells: %+v", e)
		}
	}
	if strings.Contains(g.log.String(), is.Credential) {
		t.Error("the log tells")
	}
}
