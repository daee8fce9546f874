package auth_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"opencode-mesh/auth"
	"opencode-mesh/protocol/api"
)

// quiet takes the lines that servers write about refused handshakes.
var quiet = log.New(io.Discard, "", 0)

// issuedBy is an answer as a hub gives it.
func issuedBy(req api.Login, role api.Role) api.Issued {
	secret, _ := auth.NewSecret()
	return api.Issued{HubID: "hub_1", IdentityID: "idn_1", Name: req.Name, Role: role, Credential: secret, CredentialID: "crd_1"}
}

func request() api.Login {
	return api.Login{Name: "alpha", Password: hidden, Platform: "linux/amd64"}
}

// answer makes a hub that answers every request alike.
func answer(status int, header map[string]string, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for k, v := range header {
			w.Header().Set(k, v)
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func refusalBody(code api.Code, message string) string {
	data, _ := json.Marshal(api.ErrorBody{Error: api.Errorf(code, "%s", message)})
	return string(data)
}

// enroll asks h for a credential and fails when the error, printed or logged, shows
// the password.
func enroll(t *testing.T, h *fakeHub, path string, req api.Login) (api.Issued, error) {
	t.Helper()
	is, err := auth.Enroll(t.Context(), client(t, h.link(t), ""), h.link(t), path, req)
	if err != nil {
		wantHiddenInLogs(t, err)
	}
	return is, err
}

func wantHiddenInLogs(t *testing.T, err error) {
	t.Helper()
	var out bytes.Buffer
	for _, h := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
		slog.New(h).Error("enroll", "error", err)
	}
	wantHidden(t, "the error", err.Error())
	wantHidden(t, "the log", out.String())
}

func TestEnrollExchangesThePasswordForACredential(t *testing.T) {
	for _, path := range []string{auth.EnrollJoin, auth.EnrollLogin} {
		t.Run(path, func(t *testing.T) {
			var want api.Issued
			h := newHub(t, func(w http.ResponseWriter, r *http.Request) {
				var got api.Login
				if err := json.NewDecoder(r.Body).Decode(&got); err != nil || got != request() {
					t.Errorf("the hub got %+v, %v", got, err)
				}
				if r.Method != http.MethodPost || r.URL.String() != "/v1/"+path || r.Header.Get("Content-Type") != "application/json" {
					t.Errorf("the hub got %s %s as %s", r.Method, r.URL, r.Header.Get("Content-Type"))
				}
				want = issuedBy(got, api.RoleNode)
				w.WriteHeader(http.StatusCreated)
				_ = json.NewEncoder(w).Encode(want)
			})
			if got := must(enroll(t, h, path, request()))(t); got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}

func TestEnrollReportsRefusals(t *testing.T) {
	for _, c := range []struct {
		name   string
		hub    http.HandlerFunc
		code   api.Code
		wait   time.Duration
		phrase string
	}{
		{"wrong password", answer(401, nil, refusalBody(api.CodeUnauthorized, "wrong password")), api.CodeUnauthorized, 0, "wrong password"},
		{"limited, in seconds", answer(429, map[string]string{"Retry-After": "12"}, refusalBody(api.CodeRateLimited, "slow down")), api.CodeRateLimited, 12 * time.Second, "slow down"},
		{"limited by a proxy", answer(429, map[string]string{"Retry-After": "5"}, "<html>"), api.CodeRateLimited, 5 * time.Second, "not of the mesh"},
		{"limited for ever", answer(429, map[string]string{"Retry-After": "99999999"}, ""), api.CodeRateLimited, time.Hour, ""},
		{"name taken", answer(409, nil, refusalBody(api.CodeNameTaken, "alpha is taken; use --replace")), api.CodeNameTaken, 0, "--replace"},
		{"password repeated", answer(400, nil, refusalBody(api.CodeBadRequest, "cannot read "+hidden)), api.CodeBadRequest, 0, "withheld"},
		{"password repeated by a proxy", answer(502, nil, "you sent "+hidden), api.CodeUnavailable, 0, ""},
		{"redirect without an address", answer(302, nil, ""), api.CodeInternal, 0, ""},
		{"nothing there", answer(404, nil, "404 page not found"), api.CodeNotFound, 0, ""},
		{"an endless refusal", answer(500, nil, strings.Repeat("x", 1<<20)), api.CodeInternal, 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			is, err := enroll(t, newHub(t, c.hub), auth.EnrollLogin, request())
			var e *api.Error
			if !errors.As(err, &e) || is != (api.Issued{}) {
				t.Fatalf("got %v, %v; want an api.Error", is, err)
			}
			if e.Code != c.code || e.RetryAfter != c.wait || !strings.Contains(e.Message, c.phrase) {
				t.Errorf("got %s, wait %v, %q; want %s, %v, %q", e.Code, e.RetryAfter, e.Message, c.code, c.wait, c.phrase)
			}
		})
	}
}

func TestEnrollTakesNothingThatIsNoCredential(t *testing.T) {
	good := issuedBy(request(), api.RoleNode)
	with := func(change func(is *api.Issued)) string {
		is := good
		change(&is)
		data, _ := json.Marshal(is)
		return string(data)
	}
	for name, body := range map[string]string{
		"empty":               "",
		"HTML":                "<html>welcome " + hidden,
		"another JSON":        `{"ok":true}`,
		"of another type":     `{"hub_id":5,"credential":"` + hidden + `"}`,
		"no credential":       with(func(is *api.Issued) { is.Credential = "" }),
		"malformed secret":    with(func(is *api.Issued) { is.Credential = hidden }),
		"no identity":         with(func(is *api.Issued) { is.IdentityID = "" }),
		"no hub":              with(func(is *api.Issued) { is.HubID = "" }),
		"no name":             with(func(is *api.Issued) { is.Name = "" }),
		"no role":             with(func(is *api.Issued) { is.Role = "king" }),
		"larger than allowed": with(func(*api.Issued) {}) + strings.Repeat(" ", 1<<20),
	} {
		t.Run(name, func(t *testing.T) {
			is, err := enroll(t, newHub(t, answer(200, nil, body)), auth.EnrollJoin, request())
			if err == nil || is != (api.Issued{}) {
				t.Fatalf("got %v, %v; want an error", is, err)
			}
			if !strings.Contains(err.Error(), "not a hub of the mesh") {
				t.Errorf("%q does not say what is wrong", err)
			}
			if strings.Contains(err.Error(), good.Credential) {
				t.Error("the error shows the credential")
			}
		})
	}
}

func TestEnrollSendsNothingThatCannotSucceed(t *testing.T) {
	h := newHub(t, answer(500, nil, ""))
	for name, c := range map[string]struct {
		path   string
		change func(r *api.Login)
		want   error
	}{
		"empty password":     {auth.EnrollJoin, func(r *api.Login) { r.Password = "" }, auth.ErrEmptyPassword},
		"password not UTF-8": {auth.EnrollJoin, func(r *api.Login) { r.Password = hidden + "\xff" }, &api.Error{Code: api.CodeBadRequest}},
		"bad name":           {auth.EnrollJoin, func(r *api.Login) { r.Name = "No Name" }, &api.Error{Code: api.CodeBadRequest}},
		"no such path":       {"../admin", func(*api.Login) {}, nil},
	} {
		req := request()
		c.change(&req)
		_, err := enroll(t, h, c.path, req)
		if err == nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
	if n := h.requests.Load(); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
}

func TestEnrollGivesThePasswordToThePinnedHubOnly(t *testing.T) {
	h := newHub(t, hello)
	l := h.wrongLink(t)
	_, err := auth.Enroll(t.Context(), client(t, l, ""), l, auth.EnrollJoin, request())
	wantPinMismatch(t, err, l, h.id.Pin())
	wantHiddenInLogs(t, err)
	if h.requests.Load() != 0 {
		t.Error("a request was sent")
	}

	other := newHub(t, hello)
	h = newHub(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "https://"+other.address()+"/v1/join", http.StatusTemporaryRedirect)
	})
	if _, err := enroll(t, h, auth.EnrollJoin, request()); !errors.Is(err, auth.ErrForeignRedirect) {
		t.Errorf("got %v, want ErrForeignRedirect", err)
	}
	if other.requests.Load() != 0 {
		t.Error("the password went to another hub")
	}
}

func TestEnrollEndsWithItsContext(t *testing.T) {
	arrived := make(chan struct{})
	h := newHub(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // so that the server watches for the end
		close(arrived)
		<-r.Context().Done()
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-arrived
		cancel()
	}()
	_, err := auth.Enroll(ctx, client(t, h.link(t), ""), h.link(t), auth.EnrollJoin, request())
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	wantHiddenInLogs(t, err)
}

func TestEnrollReportsAnAnswerThatBreaksOff(t *testing.T) {
	h := newHub(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		_, _ = io.WriteString(w, "{")
	})
	if _, err := enroll(t, h, auth.EnrollJoin, request()); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got %v, want io.ErrUnexpectedEOF", err)
	}
}

func TestParseRetryAfter(t *testing.T) {
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	for header, want := range map[string]time.Duration{
		"":                              0,
		"0":                             0,
		"7":                             7 * time.Second,
		"-7":                            0,
		"soon":                          0,
		"1.5":                           0,
		"3600":                          time.Hour,
		"3601":                          time.Hour,
		"99999999999999999999":          0,
		"Sun, 29 Nov 2026 12:00:30 GMT": 30 * time.Second,
		"Sun, 29 Nov 2026 11:00:00 GMT": 0,
		"Mon, 29 Nov 2027 12:00:00 GMT": time.Hour,
	} {
		if got := auth.ParseRetryAfter(header, now); got != want {
			t.Errorf("%q: got %v, want %v", header, got, want)
		}
	}
}

func TestAHubBusyWithLoginsIsComeBackTo(t *testing.T) {
	tries := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if tries++; tries < 3 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
			_ = json.NewEncoder(w).Encode(api.ErrorBody{Error: api.Errorf(api.CodeRateLimited, "busy")})
			return
		}
		secret, _ := auth.NewSecret()
		_ = json.NewEncoder(w).Encode(api.Issued{HubID: "h", IdentityID: "i", Name: "alpha", Role: api.RoleNode, Credential: secret})
	}))
	defer srv.Close()
	link, err := auth.ParseLink(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := auth.Enroll(context.Background(), srv.Client(), link, auth.EnrollJoin, api.Login{Name: "alpha", Password: "secret"}); err != nil || tries != 3 {
		t.Errorf("after %d tries: %v", tries, err)
	}
}
