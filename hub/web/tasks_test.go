package web_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestThePagesOfTasksAskForWhatTheirAddressSays(t *testing.T) {
	const waiting = "/v1/tasks?state=question&limit=500"
	for target, want := range map[string][]string{
		"/dispatch":                      {"/v1/nodes", "/v1/whoami", waiting},
		"/dispatch?node=alpha":           {"/v1/nodes", "/v1/whoami", waiting},
		"/questions":                     {waiting},
		"/peers?node=../tasks":           {"/v1/nodes", waiting}, // the module asks for the rest
		"/context?node=alpha":            {"/v1/nodes", waiting},
		"/tasks":                         {"/v1/tasks?limit=200", waiting},
		"/tasks?open=true&state=running": {"/v1/tasks?limit=200&open=true&state=running", waiting},
		"/tasks?q=a%26limit%3D1&target=x&controller=y":    {"/v1/tasks?controller=y&limit=200&q=a%26limit%3D1&target=x", waiting},
		"/tasks?limit=9999&before=7&state=":               {"/v1/tasks?limit=200", waiting}, // these are the page's own
		"/tasks/alpha-m5x2k9-7f3q":                        {"/v1/tasks/alpha-m5x2k9-7f3q", waiting},
		"/tasks/a%2Fb%3Fwait%3D60s":                       {"/v1/tasks/a%2Fb%3Fwait=60s", waiting}, // no way to another path
		"/tasks/%2e%2e%2fnodes":                           {"/v1/tasks/..%2Fnodes", waiting},
		"/tasks/alpha-m5x2k9-7f3q?wait=60s&ignored=%3Cb>": {"/v1/tasks/alpha-m5x2k9-7f3q", waiting},
	} {
		d := newDesk(t)
		d.login()
		d.asked = nil
		if resp, body := d.do(http.MethodGet, target, ""); resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %d %s", target, resp.StatusCode, body)
		}
		slices.Sort(d.asked)
		slices.Sort(want)
		if !slices.Equal(d.asked, want) {
			t.Errorf("%s asks for %q, not %q", target, d.asked, want)
		}
	}
}

func TestATaskThatIsNotThereIsSaid(t *testing.T) {
	d := newDesk(t)
	d.login()
	d.answer = func(path string) (int, string) {
		if strings.HasPrefix(path, "/v1/tasks/") {
			return http.StatusNotFound, `{"error":{"code":"unknown_task","message":"there is no task \"<b>\" of yours"}}`
		}
		return http.StatusOK, `{"tasks":[]}`
	}
	resp, body := d.do(http.MethodGet, "/tasks/gone", "")
	if resp.StatusCode != http.StatusNotFound || !strings.Contains(body, "unknown_task") || strings.Contains(body, "<b>") {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
}

// constants are the string constants of a file of the interface, by name, read from the
// source itself so that a new one is not forgotten.
func constants(t *testing.T, path string) map[string]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		for i, name := range spec.Names {
			if i >= len(spec.Values) {
				continue
			}
			if value, ok := spec.Values[i].(*ast.BasicLit); ok && value.Kind == token.STRING {
				all[name.Name], _ = strconv.Unquote(value.Value)
			}
		}
		return true
	})
	return all
}

func TestStatesFlagsAndErrorsOfTasksHaveTexts(t *testing.T) {
	texts := catalogue(t, "en")
	seen := map[string]int{}
	for name, text := range constants(t, "../../protocol/api/task.go") {
		for prefix, keys := range map[string][]string{
			"State": {"state." + text, "state." + text + ".long", "step." + text}, "Flag": {"flag." + text}, "Task": {"taskerror." + text},
		} {
			if !strings.HasPrefix(name, prefix) || name == "TaskTokenHeader" || name == "TaskTokenEnv" {
				continue
			}
			seen[prefix]++
			for _, key := range keys {
				if texts[key] == "" {
					t.Errorf("%s has no text %s", name, key)
				}
			}
		}
	}
	if seen["State"] < 13 || seen["Flag"] < 14 || seen["Task"] < 20 {
		t.Errorf("only these were found: %v", seen)
	}
}

func TestWordsOfPeersAndContextHaveTexts(t *testing.T) {
	texts := catalogue(t, "en")
	seen := 0
	for _, c := range []struct {
		file, text string
		names      []string // beginnings
	}{
		{"../../protocol/api/peers.go", "message.way.", []string{"Peer"}},
		{"../../protocol/api/context.go", "leg.", []string{"Context"}},
		{"../../protocol/peers/message.go", "peer.receipt.", []string{"Delivered", "Queued", "Held", "Refused", "Expired", "Dropped", "Full", "Duplicate"}},
		{"../../protocol/peers/message.go", "peer.policy.", []string{"Policy"}},
		{"../../protocol/peers/entry.go", "peer.status.", []string{"Idle", "Busy", "Retry"}},
	} {
		for name, word := range constants(t, c.file) {
			if !slices.ContainsFunc(c.names, func(begin string) bool { return strings.HasPrefix(name, begin) }) {
				continue
			}
			seen++
			if texts[c.text+word] == "" {
				t.Errorf("%s has no text %s", name, c.text+word)
			}
		}
	}
	if seen != 23 {
		t.Errorf("%d words were found; is one new, or are they elsewhere now?", seen)
	}
}
