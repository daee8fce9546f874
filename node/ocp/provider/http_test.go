package provider_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"opencode-mesh/node/ocp/provider"
	"opencode-mesh/protocol/ocp"
)

// request makes one to a handler.
func request(cfg provider.HTTPConfig, s provider.Source, method, host, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "http://"+host+"/any/path", strings.NewReader(body))
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	newProvider(s).Handler(cfg).ServeHTTP(w, r)
	return w
}

const here = "127.0.0.1:7777"

func TestOverHTTPEachRequestStandsForItself(t *testing.T) {
	s := &source{result: ocp.Result{Frames: []ocp.Frame{frame("f", "x")}}}
	for name, c := range map[string]struct {
		body, want string
		not        []string
	}{
		"a handshake of ocp":          {greet, `"protocol_version":"ocp/1.0-draft"`, []string{"correlation"}},
		"a handshake of contextgraph": {greetNext, `"correlation":true`, nil},
		"a query":                     {ask, `"type":"frames"`, []string{"content_digest"}},
		"a query with an id":          {askWithID, `"content_digest"`, nil},
		"garbage":                     {"{{{", `"type":"error"`, []string{`"code"`}},
		"nothing":                     {"", `"type":"error"`, nil},
		"an unknown message":          {`{"type":"ping"}`, `"type":"error"`, nil},
		"a message of the successor":  {`{"type":"verify","request":{"frames":[]}}`, `"code":"bad_request"`, nil},
	} {
		w := request(provider.HTTPConfig{}, s, http.MethodPost, here, c.body)
		if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
		for _, word := range c.not {
			if strings.Contains(w.Body.String(), word) {
				t.Errorf("%s: %s has %s", name, w.Body, word)
			}
		}
	}
	if w := request(provider.HTTPConfig{}, s, http.MethodPost, here, bye); w.Code != http.StatusNoContent || w.Body.Len() > 0 {
		t.Errorf("shutdown: %d %q", w.Code, w.Body)
	}
}

func TestOverHTTPOnlyPostIsTaken(t *testing.T) {
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPut, http.MethodOptions, http.MethodDelete} {
		w := request(provider.HTTPConfig{}, &source{}, method, here, "")
		if w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") != http.MethodPost {
			t.Errorf("%s: %d, Allow %q", method, w.Code, w.Header().Get("Allow"))
		}
	}
}

func TestABodyHasABound(t *testing.T) {
	s := &source{}
	if w := request(provider.HTTPConfig{}, s, http.MethodPost, here, strings.Repeat(" ", ocp.MaxMessage-len(ask))+ask); w.Code != http.StatusOK {
		t.Errorf("the largest body: %d %s", w.Code, w.Body)
	}
	if w := request(provider.HTTPConfig{}, s, http.MethodPost, here, strings.Repeat(" ", ocp.MaxMessage)+ask); w.Code != http.StatusRequestEntityTooLarge {
		t.Errorf("a larger one: %d", w.Code)
	}
	if len(s.asked) != 1 {
		t.Errorf("asked %d times", len(s.asked))
	}
}

func TestForeignPagesAndNamesAreRefused(t *testing.T) {
	loopback, open := provider.HTTPConfig{}, provider.HTTPConfig{Token: "t", Hosts: []string{"desk.local"}}
	for _, c := range []struct {
		cfg    provider.HTTPConfig
		host   string
		header []string
		ok     bool
	}{
		{loopback, here, nil, true},
		{loopback, "localhost:7777", nil, true},
		{loopback, "[::1]:7777", nil, true},
		{loopback, "rebound.example:7777", nil, false},
		{loopback, "192.0.2.7:7777", nil, false},
		{loopback, here, []string{"Origin", "http://" + here}, true},
		{loopback, here, []string{"Origin", "http://127.0.0.1:8888"}, false},
		{loopback, here, []string{"Origin", "https://evil.example"}, false},
		{loopback, here, []string{"Origin", "null"}, false},
		{loopback, here, []string{"Sec-Fetch-Site", "cross-site"}, false},
		{open, "192.0.2.7:7777", nil, true},
		{open, "DESK.local", nil, true},
		{open, "rebound.example", nil, false},
	} {
		s := &source{}
		w := request(c.cfg, s, http.MethodPost, c.host, ask, append(c.header, "Authorization", "Bearer t")...)
		if ok := w.Code == http.StatusOK; ok != c.ok || (len(s.asked) > 0) != c.ok {
			t.Errorf("%s %v: %d, asked %d times", c.host, c.header, w.Code, len(s.asked))
		}
	}
}

func TestWithATokenNothingIsServedWithoutIt(t *testing.T) {
	cfg := provider.HTTPConfig{Token: "right"}
	for _, header := range []string{"", "right", "Bearer", "Bearer ", "Bearer wrong", "Bearer right ", "Bearer rightright", "Basic right"} {
		s := &source{}
		w := request(cfg, s, http.MethodPost, here, ask, "Authorization", header)
		if w.Code != http.StatusUnauthorized || w.Header().Get("WWW-Authenticate") != "Bearer" || len(s.asked) > 0 {
			t.Errorf("%q: %d, asked %d times", header, w.Code, len(s.asked))
		}
	}
	for _, header := range []string{"Bearer right", "bearer right"} {
		if w := request(cfg, &source{}, http.MethodPost, here, ask, "Authorization", header); w.Code != http.StatusOK {
			t.Errorf("%q: %d", header, w.Code)
		}
	}
}

func TestABodyThatBreaksOffIsNoRequest(t *testing.T) {
	s := &source{}
	r := httptest.NewRequest(http.MethodPost, "http://"+here, io.MultiReader(strings.NewReader(ask), errReader{}))
	newProvider(s).Handler(provider.HTTPConfig{}).ServeHTTP(httptest.NewRecorder(), r)
	if len(s.asked) > 0 {
		t.Error("half a request was taken")
	}
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// slowSource answers once it is told to.
type slowSource struct{ asked, release chan struct{} }

func (s *slowSource) Query(context.Context, ocp.Query) (ocp.Result, error) {
	s.asked <- struct{}{}
	<-s.release
	return ocp.Result{}, nil
}

func TestOnlySoManyRequestsWait(t *testing.T) {
	s := &slowSource{make(chan struct{}, provider.MaxParallel), make(chan struct{})}
	h := newProvider(s).Handler(provider.HTTPConfig{})
	post := func(body io.Reader) int {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "http://"+here, body))
		return w.Code
	}
	codes := make(chan int, provider.MaxParallel+2*provider.MaxWaiting)
	var work sync.WaitGroup
	for range provider.MaxParallel {
		work.Go(func() { codes <- post(strings.NewReader(ask)) })
		<-s.asked
	}
	for range 2 * provider.MaxWaiting { // half of them are one too many, whichever
		work.Go(func() { codes <- post(strings.NewReader(bye)) })
	}
	for range provider.MaxWaiting {
		if code := <-codes; code != http.StatusServiceUnavailable {
			t.Errorf("one of those that are too many: %d", code)
		}
	}
	close(s.release)
	work.Wait()
	close(codes)
	for code := range codes {
		if code != http.StatusOK && code != http.StatusNoContent {
			t.Errorf("one that waited: %d", code)
		}
	}
}
