package client_test

import (
	"bytes"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"opencode-mesh/auth"
	"opencode-mesh/hub/client"
	"opencode-mesh/protocol/api"
)

// serviceAt is a service of a hub, as the link and the certificate file lead there.
func serviceAt(t *testing.T, url, ca string) *client.Service {
	t.Helper()
	link, err := auth.ParseLink(url)
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(auth.Profile{Link: link, CAFile: ca, Name: "laptop", Credential: auth.Secret(credential)}, "token-of-a-task")
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.Service("beta", "web")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// ask makes a request as a reverse proxy would that serves as localhost:4096.
func ask(t *testing.T, s *client.Service) *http.Response {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, "http://localhost:4096/x", nil)
	r.URL = s.URL("/x", "", false)
	before := r.Header.Clone()
	resp, err := s.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	if len(r.Header) != len(before) {
		t.Errorf("the request was changed: %v", r.Header)
	}
	return resp
}

func TestTheServiceSeesTheBrowsersHostAlsoThroughAProxyThatGoesByNames(t *testing.T) {
	var got *http.Request
	note := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r })
	hub := httptest.NewServer(note)
	t.Cleanup(hub.Close)
	ask(t, serviceAt(t, strings.Replace(hub.URL, "http://", "mesh+plain://", 1), ""))
	if got.Host != "localhost:4096" || got.Header.Get(api.HeaderHost) != "localhost:4096" {
		t.Errorf("Host %s, Mesh-Host %s", got.Host, got.Header.Get(api.HeaderHost))
	}
	if got.Header.Get(api.HeaderAuthorization) != "Bearer "+credential || got.Header.Get("Authorization") != "" || got.Header.Get(api.TaskTokenHeader) != "" {
		t.Errorf("header %v", got.Header)
	}

	named := httptest.NewTLSServer(note)
	t.Cleanup(named.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: named.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	ask(t, serviceAt(t, named.URL, ca))
	if got.Host != strings.TrimPrefix(named.URL, "https://") || got.Header.Get(api.HeaderHost) != "localhost:4096" {
		t.Errorf("through a name: Host %s, Mesh-Host %s", got.Host, got.Header.Get(api.HeaderHost))
	}
}

func TestAServiceMayBeSilentAndItsBytesStayAsTheyAre(t *testing.T) {
	packed := []byte("\x1f\x8b not really")
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header["Accept-Encoding"] != nil {
			t.Errorf("asked for %s", r.Header["Accept-Encoding"])
		}
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write(packed)
	}))
	t.Cleanup(hub.Close)
	s := serviceAt(t, hub.URL, "")
	if d := s.AnswerTimeout(); d != 0 {
		t.Errorf("an answer must begin within %s", d)
	}
	resp := ask(t, s)
	var got bytes.Buffer
	if _, err := got.ReadFrom(resp.Body); err != nil || !bytes.Equal(got.Bytes(), packed) {
		t.Errorf("%q %v", got.Bytes(), err)
	}
}

func TestAStreamThatTheHubRefusesSaysWhy(t *testing.T) {
	hub := newStub(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "2")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write([]byte(`{"error":{"code":"unavailable","message":"too many requests to node beta"}}`))
	})
	_, err := serviceAt(t, hub.URL, "").Dial(t.Context())
	var e *api.Error
	if !errors.As(err, &e) || e.Code != api.CodeUnavailable || e.RetryAfter == 0 {
		t.Errorf("%v", err)
	}
	hub.Close()
	if _, err := serviceAt(t, hub.URL, "").Dial(t.Context()); !errors.Is(err, client.ErrUnreachable) {
		t.Errorf("a hub that is away: %v", err)
	}
}
