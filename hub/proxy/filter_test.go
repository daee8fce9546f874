package proxy_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"opencode-mesh/hub/proxy"
	"opencode-mesh/protocol/api"
)

// opencode is the service of that name, which answers every request with a
// configuration that has keys in it.
func opencode(filter bool, policy string, h http.HandlerFunc) setting {
	return func(b *bed) {
		b.hello.Policy = policy
		offers(api.Service{Name: api.ServiceOpencode, Kind: api.ServiceHTTP, Filter: filter, Username: "opencode", Password: "own"}, b.serve(h))(b)
	}
}

const opencodePath = "/v1/nodes/alpha/services/opencode"

// opencodeBed has b.url point to that service.
func opencodeBed(t *testing.T, filter bool, policy string, h http.HandlerFunc) *bed {
	t.Helper()
	b := newBed(t, opencode(filter, policy, h))
	b.url = b.root + opencodePath
	return b
}

func ok(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "passed ", r.URL.RawQuery) }

// refusals are requests that the table refuses, and others like them that it does
// not.
var refusals = []struct {
	method, path string
	refused      bool
}{
	{"GET", "/auth", true}, {"PUT", "/auth/anthropic", true}, {"DELETE", "/auth/a/b", true}, {"GET", "/author", false},
	{"PATCH", "/config", true}, {"GET", "/config", false}, {"PATCH", "/global/config", true}, {"PATCH", "/session/x", false},
	{"POST", "/global/upgrade", true}, {"POST", "/global/dispose", true}, {"POST", "/instance/dispose", true}, {"GET", "/global/health", false},
	{"POST", "/provider/anthropic/oauth/authorize", true}, {"POST", "/provider/x/oauth/callback", true}, {"GET", "/provider/auth", false},
	{"POST", "/mcp/x/auth", true}, {"POST", "/mcp/x/auth/callback", true}, {"DELETE", "/mcp/x/auth", true}, {"POST", "/mcp/x/connect", false}, {"GET", "/mcp", false},
	{"POST", "/api/session", true}, {"DELETE", "/api/session/x", true}, {"GET", "/api/health", false}, {"POST", "/apis", false},
	{"POST", "/session", false}, {"POST", "/session/x/message", false}, {"POST", "/pty", false},
	// The same, written as opencode would still understand it, or as it would not.
	{"PUT", "/%61uth/anthropic", true}, {"PUT", "/x/../auth/anthropic", true}, {"PUT", "/x/%2e%2E/auth/anthropic", true}, {"PUT", "/./auth/anthropic", true},
	{"PUT", "//auth/anthropic", true}, {"PUT", `/x\..\auth\anthropic`, true}, {"PATCH", "/config/", true}, {"PATCH", "/config#x", true},
	{"PUT", "/auth/x%2F..%2F..%2Fsession", true}, {"POST", "/global/%75pgrade", true}, {"POST", "/../../api/session", true},
	{"POST", "/session/..%2Fauth", false}, {"GET", "/AUTH/x", true}, {"PATCH", "/Config", true}, {"POST", "/INSTANCE/dispose", true}, {"POST", "/API/session", true},
	{"PATCH", "/config;x", true}, {"PATCH", "/config;/x", true}, {"POST", "/instance/dispose;x", true},
}

func TestTheTableRefusesWhatIsTheOwnersBusiness(t *testing.T) {
	b := opencodeBed(t, true, api.PolicyAccept, ok)
	free := opencodeBed(t, false, api.PolicyAccept, ok)
	for _, c := range refusals {
		got := b.ask(c.method + " " + opencodePath + c.path + " HTTP/1.1")
		if refused := strings.HasPrefix(got, string(api.CodeRefused)); refused != c.refused {
			t.Errorf("%s %s: got %q", c.method, c.path, got)
		}
		if got := free.ask(c.method + " " + opencodePath + c.path + " HTTP/1.1"); !strings.HasPrefix(got, "passed") {
			t.Errorf("without the table, %s %s: got %q", c.method, c.path, got)
		}
	}
	want(t, b.do(b.request(http.MethodPut, "/auth/anthropic", nil)), api.CodeRefused, "opencode of node alpha", "on the node's own machine")
	if resp := b.do(b.request(http.MethodHead, "/api/health", nil)); resp.StatusCode != http.StatusForbidden {
		t.Errorf("HEAD: %d", resp.StatusCode)
	}
}

func TestAPolicyThatHoldsTasksHoldsForServices(t *testing.T) {
	beds := map[string]*bed{} // one for each kind of node
	for _, policy := range []string{api.PolicyAccept, api.PolicyHold, api.PolicyRefuse} {
		for _, filter := range []bool{true, false} {
			beds[fmt.Sprint(policy, filter)] = opencodeBed(t, filter, policy, ok)
		}
	}
	for _, c := range []struct {
		method, path, why string // why "" passes
	}{
		{"POST", "/session/ses_1/message", "prompt"}, {"POST", "/session/ses_1/prompt_async", "prompt"}, {"POST", "/session/ses_1/command", "prompt"},
		{"POST", "/session/ses_1/shell", "run commands"}, {"POST", "/session/ses_1/summarize", "prompt"}, {"POST", "/tui/submit-prompt", "prompt"},
		{"POST", "/pty", "open a terminal"}, {"GET", "/pty/pty_1/connect", "open a terminal"}, {"POST", "/pty/pty_1/connect-token", "open a terminal"},
		{"DELETE", "/session/ses_1", "delete sessions"}, {"DELETE", "/session/ses_1/message/m", "delete sessions"}, {"POST", "/api/session/ses_1/prompt", "change"},
		{"POST", "/%73ession/ses_1/./message", "prompt"},
		{"GET", "/session", ""}, {"GET", "/session/ses_1/message", ""}, {"POST", "/session", "change"}, {"POST", "/mcp", "change"}, {"POST", "/permission/per_1/reply", "change"},
		{"POST", "/SESSION/ses_1/prompt_async", "prompt"}, {"POST", "/PTY", "open a terminal"}, {"POST", "/pty;x", "open a terminal"}, {"GET", "/event", ""}, {"GET", "/pty", ""},
	} {
		for _, policy := range []string{api.PolicyAccept, api.PolicyHold, api.PolicyRefuse} {
			for _, filter := range []bool{true, false} {
				n := beds[fmt.Sprint(policy, filter)]
				got := n.ask(c.method + " " + opencodePath + c.path + " HTTP/1.1")
				held := policy != api.PolicyAccept && c.why != ""
				if passed := strings.HasPrefix(got, "passed"); passed == held && (policy != api.PolicyAccept || !strings.Contains(c.path, "/api/")) {
					t.Errorf("%s %s, policy %s, filter %v: %q", c.method, c.path, policy, filter, got)
				} else if held && (!strings.Contains(got, policy) || !strings.Contains(got, c.why)) {
					t.Errorf("%s %s: %q does not say why", c.method, c.path, got)
				}
			}
		}
	}
}

func TestOnlyOpencodesOwnTokenLeavesTheQuery(t *testing.T) {
	b := opencodeBed(t, true, "", ok)
	for sent, arrives := range map[string]string{
		"?auth_token=x": "", "?a=1&auth_token=x&b=%zz": "a=1&b=%zz", "?%61uth%5ftoken=x&c": "c", "?auth_tokens=x": "auth_tokens=x",
		"?a=auth_token": "a=auth_token", "?&&x": "&&x", "?auth_token": "", "?a=1;b&auth_token=2&auth_token=3": "a=1;b",
	} {
		if got := b.ask("GET " + opencodePath + "/event" + sent + " HTTP/1.1"); got != "passed "+arrives {
			t.Errorf("%s arrived as %q", sent, got)
		}
	}
}

// settings is as opencode answers, with more ways to hide a key than it has.
const settings = `{ "providers" : [ {"id":"a","key":"SECRET","env":["A_KEY"],"options":{"apiKey":"SECRET","baseURL":"https://me:SECRET@host/v1?x=1","headers":{"X-Own":"SECRET","n":1}},
  "models":{"m":{"id":"m","limit":{"context":200000},"cost":{"input":0.10}}}} ],
"mcp":{"x":{"environment":{"TOKEN":"SECRET","MY_VAR":"SECRET"},"oauth":{"clientSecret":"SECRET","client_id":"kept"},"headers":{}}},
"API-Key":"SECRET","\u0061pi_key":"SECRET","token":null,"tokens":{"input":5},"keybinds":{"leader":"ctrl+x"},"key":{"nested":"kept","key":"SECRET"},
"text":"a \"quoted\" } ] , <b>&","empty":{},"list":[],"url":"mailto://a@b" }`

const stripped = `{ "providers" : [ {"id":"a","env":["A_KEY"],"options":{"baseURL":"https://host/v1?x=1","headers":{"X-Own":"","n":1}},
  "models":{"m":{"id":"m","limit":{"context":200000},"cost":{"input":0.10}}}} ],
"mcp":{"x":{"environment":{"MY_VAR":""},"oauth":{"client_id":"kept"},"headers":{}}},
"tokens":{"input":5},"keybinds":{"leader":"ctrl+x"},"key":{"nested":"kept"},
"text":"a \"quoted\" } ] , <b>&","empty":{},"list":[],"url":"mailto://b" }`

func TestKeysAreTakenOutOfAnswersAndNothingElse(t *testing.T) {
	var asked http.Header
	b := opencodeBed(t, true, "", func(w http.ResponseWriter, r *http.Request) {
		asked = r.Header.Clone()
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		w.Header().Set("Etag", `"1"`)
		fmt.Fprint(w, settings)
	})
	for _, path := range []string{"/config", "/global/config", "/config/providers", "/provider", "/provider?directory=/x", "/api/provider", "/api/provider/x", "/api/providers", "/api/model", "/%63onfig", "//config", "/CONFIG", "/config;x"} {
		resp := b.do(b.request(http.MethodGet, path, nil, "Accept-Encoding", "gzip, br", "Range", "bytes=0-10", "If-Range", `"1"`))
		body := text(t, resp)
		if strings.Contains(body, "SECRET") {
			t.Errorf("%s: a key is in %s", path, body)
		}
		if squeezed(body) != squeezed(stripped) {
			t.Errorf("%s: got %s", path, body)
		}
		var v any
		if err := json.Unmarshal([]byte(body), &v); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if int64(len(body)) != resp.ContentLength || resp.Header.Get("Etag") != "" || asked.Get("Accept-Encoding") != "identity" || asked.Get("Range")+asked.Get("If-Range") != "" {
			t.Errorf("%s: length %d, Etag %q, the service was asked %v", path, resp.ContentLength, resp.Header.Get("Etag"), asked)
		}
	}
	for _, path := range []string{"/session", "/config/other", "/providers", "/api/session"} {
		if body := text(t, b.do(b.request(http.MethodGet, path, nil))); body != settings {
			t.Errorf("%s was changed: %s", path, body)
		}
	}
}

// squeezed leaves the white space out, of which some goes with a member.
func squeezed(s string) string { return strings.Join(strings.Fields(s), "") }

func TestAnAnswerWhoseKeysCannotBeFoundIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		h      http.HandlerFunc
		passes string
	}{
		"no JSON": {h: func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"key":"SECRET"`) }},
		"compressed": {h: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			fmt.Fprint(w, "SECRET")
		}},
		"too large": {h: func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `"`, strings.Repeat("SECRET", api.MaxRewritten/6+1), `"`)
		}},
		"a page": {h: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprint(w, "<html>")
		}, passes: "<html>"},
		"nothing":                {h: func(http.ResponseWriter, *http.Request) {}, passes: ""},
		"a text that is no list": {h: func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, ` "x" `) }, passes: ` "x" `},
	} {
		t.Run(name, func(t *testing.T) {
			b := opencodeBed(t, true, "", func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				c.h(w, r)
			})
			resp := b.do(b.request(http.MethodGet, "/config", nil))
			if resp.StatusCode == http.StatusOK {
				if body := text(t, resp); body != c.passes || strings.Contains(body, "SECRET") {
					t.Errorf("got %.200q", body)
				}
				return
			}
			want(t, resp, api.CodeServiceDown, "alpha")
		})
	}
}

func TestAPasswordThatOpencodeDoesNotTakeIsNoQuestionToTheClient(t *testing.T) {
	denied := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("WWW-Authenticate", "Basic")
		w.WriteHeader(http.StatusUnauthorized)
	}
	b := opencodeBed(t, true, "", denied)
	resp := b.do(b.request(http.MethodGet, "/session", nil))
	if resp.Header.Get("WWW-Authenticate") != "" || resp.Header.Get("Retry-After") == "" {
		t.Errorf("got %v", resp.Header)
	}
	want(t, resp, api.CodeUnavailable, "alpha", "try again")

	t.Run("until its node has told the new one", func(t *testing.T) {
		b := opencodeBed(t, true, "", func(w http.ResponseWriter, r *http.Request) {
			if _, p, _ := r.BasicAuth(); p != "new" {
				denied(w, r)
			}
		})
		b.node.SetServices([]api.Service{{Name: api.ServiceOpencode, Kind: api.ServiceHTTP, Filter: true, Username: "opencode", Password: "new"}})
		if resp := b.do(b.request(http.MethodGet, "/session", nil)); resp.StatusCode != http.StatusOK {
			t.Errorf("got %d", resp.StatusCode)
		}
	})
	t.Run("another service may ask", func(t *testing.T) {
		b := newBed(t, web(http.HandlerFunc(denied)))
		b.caller = proxy.Caller{Apart: true}
		if resp := b.get(""); resp.StatusCode != http.StatusUnauthorized || resp.Header.Get("WWW-Authenticate") != "Basic" {
			t.Errorf("got %d %v", resp.StatusCode, resp.Header)
		}
	})
}

func TestHeadOfAnAnswerThatIsRewrittenSaysNoLength(t *testing.T) {
	b := opencodeBed(t, true, "", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "17")
		if r.URL.Query().Has("json") {
			w.Header().Set("Content-Type", "application/json")
		}
	})
	for path, says := range map[string]bool{"/config?json": false, "/config": false, "/session?json": true} {
		got := b.say("HEAD " + opencodePath + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		if !strings.HasPrefix(got, "HTTP/1.1 200") || strings.Contains(got, "Content-Length: 17\r\n") != says || strings.Contains(got, "Content-Length: 0") || strings.Contains(got, "Transfer-Encoding") {
			t.Errorf("%s: got %q", path, got)
		}
	}
}
