package hub_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"opencode-mesh/protocol/api"
)

// letter is the mail n of a test.
func letter(n byte, to string) api.Mail {
	return api.Mail{ID: "mail_" + strings.Repeat(string('a'+n), 32), Kind: "test.text", To: to, Lane: "l", Body: []byte(`{"a":"<b>"}`), From: "forged", FromID: "forged"}
}

func (p *peer) send(m api.Mail) (int, *api.Error) {
	p.t.Helper()
	return p.call(http.MethodPut, "/v1/mail/"+m.ID, m, nil)
}

// awaited is what comes next.
func awaited[T any](t *testing.T, c <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(2 * time.Minute):
		t.Fatal("no " + what + " came")
	}
	return v
}

func TestAMailGoesThroughTheTunnelsAndItsReceiptBack(t *testing.T) {
	b := start(t, config(t.TempDir()))
	alpha, beta := b.enroll("join", "alpha"), b.enroll("join", "beta")
	p := b.greeted(alpha, "j1", 1)
	m := letter(0, "beta")
	for _, want := range []int{http.StatusAccepted, http.StatusOK} {
		if status, e := p.send(m); status != want {
			t.Fatalf("%d %v, want %d", status, e, want)
		}
	}
	if err := b.stop(); err != nil { // it is on disk
		t.Fatal(err)
	}
	b = start(t, config(b.dir))
	q := b.greeted(beta, "j2", 1)
	got := awaited(t, q.mails, "mail")
	if got.From != "alpha" || got.FromID == "forged" || got.FromID == "" || got.SentMS == 0 || got.Lane != "l" || got.Kind != m.Kind {
		t.Errorf("%+v", got)
	}
	p = b.greeted(alpha, "j1", 2)
	if rc := awaited(t, p.told, "receipt"); rc.ID != m.ID || rc.State != api.MailDelivered {
		t.Errorf("%+v", rc)
	}
	var known api.MailKnown
	if status, e := p.call(http.MethodPost, "/v1/mail/known", api.MailQuery{IDs: []string{letter(1, "").ID}}, &known); status != http.StatusOK {
		t.Fatalf("%d %v", status, e)
	}
	if !slices.Equal(known.Unknown, []string{letter(1, "").ID}) || known.NowMS == 0 {
		t.Errorf("%+v", known)
	}
}

func TestMailIsCheckedAndOnlyForNodesThatSaidHello(t *testing.T) {
	b := start(t, config(t.TempDir()))
	alpha, alice := b.enroll("join", "alpha"), b.enroll("login", "alice")
	silent, err := b.dial(alpha)
	if err != nil {
		t.Fatal(err)
	}
	status, e := silent.send(letter(0, "alpha"))
	want(t, status, e, http.StatusServiceUnavailable, api.CodeUnavailable)
	p := b.greeted(alpha, "j1", 1)
	status, e = p.send(letter(0, "nobody"))
	want(t, status, e, http.StatusNotFound, api.CodeUnknownTarget)
	status, e = p.send(letter(0, "alice"))
	want(t, status, e, http.StatusNotFound, api.CodeUnknownTarget)
	bad := letter(0, "alpha")
	bad.Kind = "No Kind"
	status, e = p.send(bad)
	want(t, status, e, http.StatusBadRequest, api.CodeBadRequest)
	large := letter(0, "alpha")
	large.Body = []byte(`"` + strings.Repeat("x", api.MaxMailBody) + `"`)
	status, e = p.send(large)
	want(t, status, e, http.StatusRequestEntityTooLarge, api.CodeTooLarge)
	status, e = p.call(http.MethodPost, "/v1/mail/known", api.MailQuery{IDs: make([]string, api.MaxReconcile+1)}, nil)
	want(t, status, e, http.StatusRequestEntityTooLarge, api.CodeTooLarge)
	drain, err := b.dial(alpha, "Mesh-Tunnel", "drain")
	if err != nil {
		t.Fatal(err)
	}
	status, e = drain.send(letter(0, "alpha"))
	want(t, status, e, http.StatusConflict, api.CodeSuperseded)
	status, e, _ = b.call(http.MethodPut, "/v1/mail/"+letter(0, "").ID, alice, letter(0, "alpha"))
	want(t, status, e, http.StatusNotFound, api.CodeNotFound) // there is none outside of tunnels
}

func TestTheMailOfARevokedNodeComesBackAndThatOfAReplacedOneStays(t *testing.T) {
	b := start(t, config(t.TempDir()))
	alpha := b.enroll("join", "alpha")
	b.enroll("join", "beta")
	b.enroll("join", "gamma")
	op := b.enroll("login", "boss", operator)
	p := b.greeted(alpha, "j1", 1)
	for n, to := range []string{"beta", "gamma"} {
		if status, e := p.send(letter(byte(n), to)); status != http.StatusAccepted {
			t.Fatalf("%d %v", status, e)
		}
	}
	if status, e, _ := b.call(http.MethodPost, "/v1/revoke/beta", op, nil); status != http.StatusNoContent {
		t.Fatalf("%d %v", status, e)
	}
	if rc := awaited(t, p.told, "receipt"); rc.ID != letter(0, "").ID || rc.State != api.MailReturned || rc.Code != api.MailTargetRevoked {
		t.Errorf("%+v", rc)
	}
	gamma := b.enroll("join", "gamma", func(l *api.Login) { l.Replace = true })
	q := b.greeted(gamma, "j2", 1)
	if m := awaited(t, q.mails, "mail"); m.ID != letter(1, "").ID {
		t.Errorf("%+v", m)
	}
	if rc := awaited(t, p.told, "receipt"); rc.State != api.MailDelivered {
		t.Errorf("%+v", rc)
	}
}
