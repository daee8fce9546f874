package transport_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"opencode-mesh/node/ocp/ocptest"
	"opencode-mesh/node/ocp/transport"
	"opencode-mesh/protocol/ocp"
)

func dial(t *testing.T, a transport.Address, h http.Handler) *transport.HTTP {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	a.ID = "p"
	a.URL = s.URL + "/any/path"
	c, err := transport.Dial(a)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestAnAddressIsAlwaysEgressWhateverItSays(t *testing.T) {
	for _, version := range []string{ocp.VersionOCP, ocp.VersionContextgraph} {
		c := dial(t, transport.Address{}, ocptest.Handler(ocptest.Good))
		ack := handshake(t, c, version)
		if !ack.Provider.DataFlow.Egress || ack.ProtocolVersion != version {
			t.Errorf("%+v", ack)
		}
		if r, err := transport.Ask(t.Context(), c, "p", query); err != nil || len(r.Frames) != 2 {
			t.Errorf("%+v, %v", r, err)
		}
	}
}

func TestAnAddressGetsTheTokenAndJSONAtExactlyItsPath(t *testing.T) {
	var got *http.Request
	good := ocptest.Handler(ocptest.Good)
	c := dial(t, transport.Address{Token: "s3cret"}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Clone(r.Context())
		good.ServeHTTP(w, r)
	}))
	handshake(t, c, ocp.VersionOCP)
	if got.Method != http.MethodPost || got.URL.Path != "/any/path" || got.Header.Get("Content-Type") != "application/json" || got.Header.Get("Authorization") != "Bearer s3cret" {
		t.Errorf("%s %s %v", got.Method, got.URL, got.Header)
	}
}

func TestEachWayToBreakAnHTTPExchangeHasItsError(t *testing.T) {
	answer := func(status int, body string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		})
	}
	const ack = `{"type":"handshake_ack","protocol_version":"ocp/1.0","provider":{"name":"n","version":"v","data_flow":{}},"capabilities":{}}`
	for name, c := range map[string]struct {
		handler http.Handler
		want    any
	}{
		"a redirect":       {ocptest.Handler(ocptest.Redirects), new(*transport.ExchangeError)},
		"a status":         {ocptest.Handler(ocptest.BreaksHTTP), new(*transport.ExchangeError)},
		"no token":         {answer(http.StatusUnauthorized, ""), new(*transport.UnauthorizedError)},
		"an empty body":    {answer(http.StatusOK, ""), new(*transport.WireError)},
		"a page":           {answer(http.StatusOK, "<html>"), new(*transport.WireError)},
		"a stream":         {answer(http.StatusOK, "data: "+ack), new(*transport.WireError)},
		"two messages":     {answer(http.StatusOK, ack+ack), new(*transport.WireError)},
		"17 MiB":           {answer(http.StatusOK, strings.Repeat(" ", 17<<20)), new(*transport.ExchangeError)},
		"a broken stream":  {http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }), new(*transport.ExchangeError)},
		"another envelope": {answer(http.StatusOK, `{"type":"error","message":"no"}`), new(*transport.UnexpectedEnvelopeError)},
		"a version":        {ocptest.Handler(ocptest.BadVersion), new(*transport.VersionMismatchError)},
	} {
		conn := dial(t, transport.Address{}, c.handler)
		if _, err := transport.Handshake(t.Context(), conn, "p", ocp.VersionOCP); !errors.As(err, c.want) {
			t.Errorf("%s: %T %v", name, err, err)
		}
	}
	conn := dial(t, transport.Address{}, answer(http.StatusCreated, ack+"\n"))
	if _, err := transport.Handshake(t.Context(), conn, "p", ocp.VersionOCP); err != nil {
		t.Error(err)
	}
	hanging := dial(t, transport.Address{}, ocptest.Handler(ocptest.HangsAtOnce))
	var timeout *transport.TimeoutError
	if _, err := transport.Handshake(brief(t), hanging, "p", ocp.VersionOCP); !errors.As(err, &timeout) {
		t.Errorf("%v", err)
	}
}

func TestARedirectTakesNoQueryElsewhere(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a message went elsewhere") }))
	defer elsewhere.Close()
	c := dial(t, transport.Address{Token: "s3cret"}, http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect))
	if _, err := transport.Handshake(t.Context(), c, "p", ocp.VersionOCP); err == nil {
		t.Error("it was followed")
	}
}

func TestAddressesAreRefusedBeforeAnythingIsSent(t *testing.T) {
	for _, url := range []string{"", "ftp://localhost", "http://", "localhost:80", "http://user:hunter2@localhost/", "http://example.com/", "http://127.0.0.1.example.com/", "http://%zz"} {
		_, err := transport.Dial(transport.Address{ID: "p", URL: url})
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", url, err)
		}
	}
	for _, url := range []string{"http://localhost:1/x", "http://127.0.0.1:1", "http://[::1]:1/", "https://example.com/ocp"} {
		if _, err := transport.Dial(transport.Address{ID: "p", URL: url}); err != nil {
			t.Errorf("%s: %v", url, err)
		}
	}
	if _, err := transport.Dial(transport.Address{ID: "p", URL: "http://example.com/", AllowPlain: true}); err != nil {
		t.Error(err)
	}
}

func TestASecretInTheAddressIsInNoError(t *testing.T) {
	c, err := transport.Dial(transport.Address{ID: "p", URL: "http://127.0.0.1:1/?key=hunter2", Token: "s3cret"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_, err = transport.Handshake(t.Context(), c, "p", ocp.VersionOCP)
	if err == nil || strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("%v", err)
	}
}
