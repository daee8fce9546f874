package main

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/cmd/internal/clitest"
	"opencode-mesh/protocol/api"
)

// serviceHub is a shell that is logged in at a hub whose node beta has the services
// opencode and db, and whose node gone is offline. The first answers with its path.
func serviceHub(t *testing.T) *clitest.Shell {
	t.Helper()
	return stubHub(t, func(w http.ResponseWriter, r *http.Request) {
		fail := func(e *api.Error) {
			w.WriteHeader(e.Code.Status())
			_ = json.NewEncoder(w).Encode(api.ErrorBody{Error: e})
		}
		service, ok := strings.CutPrefix(r.URL.Path, "/v1/nodes/beta/services")
		switch {
		case strings.HasPrefix(r.URL.Path, "/v1/nodes/closed/"):
			fail(api.Errorf(api.CodeRefused, "node closed takes nothing from desk"))
		case r.URL.Path == "/v1/nodes/held/services":
			_ = json.NewEncoder(w).Encode(api.ServiceList{Services: []api.ServiceInfo{{Name: "opencode", Kind: api.ServiceHTTP, Policy: api.PolicyHold}, {Name: "web", Kind: api.ServiceHTTP}}})
		case strings.HasPrefix(r.URL.Path, "/v1/nodes/gone/"):
			fail(api.Errorf(api.CodeNodeOffline, "node gone is offline"))
		case !ok:
			fail(api.Errorf(api.CodeUnknownTarget, "no node is named that"))
		case service == "":
			_ = json.NewEncoder(w).Encode(api.ServiceList{Services: []api.ServiceInfo{{Name: "opencode", Kind: api.ServiceHTTP}, {Name: "db", Kind: api.ServiceTCP}}})
		case service == "/db":
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: mesh-stream\r\n\r\n\x00\x00\x00\x0dhello from db\x00\x00\x00\x00")
			_ = conn.Close()
		default:
			_, _ = io.WriteString(w, "opencode at "+strings.TrimPrefix(service, "/opencode"))
		}
	})
}

// forwarded is the address that a command has printed.
func forwarded(t *testing.T, r *clitest.Running) string {
	t.Helper()
	r.Out.AwaitText(t, "\n")
	url, ok := strings.CutPrefix(strings.TrimSuffix(r.Out.String(), "\n"), "forwarding ")
	if !ok {
		t.Fatalf("it printed %q", r.Out.String())
	}
	return url
}

// page gets a page without leaving a connection behind.
func page(t *testing.T, url string, change ...func(*http.Request)) (int, string) {
	t.Helper()
	r, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Close = true
	for _, c := range change {
		c(r)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestForwardPrintsItsAddressServesAndEndsWithCtrlC(t *testing.T) {
	sh := serviceHub(t)
	for _, target := range []string{"beta", "beta/opencode"} {
		r := sh.Start([]string{"forward", target})
		url := forwarded(t, r)
		if !strings.HasPrefix(url, "http://127.0.0.1:") {
			t.Errorf("%s: it serves at %s", target, url)
		}
		if code, body := page(t, url+"/session"); code != 200 || body != "opencode at /session" {
			t.Errorf("%s: %d %q", target, code, body)
		}
		if res := r.Stop(); res.Code != 0 || res.Err != "" || res.Out != "forwarding "+url+"\n" {
			t.Errorf("%s: %+v", target, res)
		}
	}
}

func TestForwardTakesTheAddressThatItIsTold(t *testing.T) {
	sh := serviceHub(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	res := sh.Want(cli.ExitNotDone, []string{"forward", "beta", port})
	wantText(t, res.Err, "cannot listen", port)
	_ = l.Close()
	r := sh.Start([]string{"forward", "beta", "127.0.0.1:" + port})
	if url := forwarded(t, r); url != "http://127.0.0.1:"+port {
		t.Errorf("it serves at %s", url)
	}
	r.Stop()
}

func TestForwardOfARawStream(t *testing.T) {
	r := serviceHub(t).Start([]string{"forward", "beta/db"})
	addr, ok := strings.CutPrefix(forwarded(t, r), "tcp://")
	if !ok {
		t.Fatal(r.Out.String())
	}
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got, err := io.ReadAll(conn); err != nil || string(got) != "hello from db" {
		t.Errorf("%q %v", got, err)
	}
}

func TestWhatCannotBeForwardedIsSaidAtOnce(t *testing.T) {
	sh := serviceHub(t)
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"forward beta/nope", cli.ExitUsage, `no service "nope"; it has db, opencode`},
		{"forward nobody", cli.ExitUsage, "no node"},
		{"forward gone", cli.ExitNoAccess, "offline"},
		{"forward closed", cli.ExitNoAccess, "node closed takes nothing from"},
		{"forward closed/web 4096", cli.ExitNoAccess, "node closed takes nothing from"},
		{"open closed", cli.ExitNoAccess, "takes nothing from"},
		{"attach closed --opencode-bin /bin/sh", cli.ExitNoAccess, "takes nothing from"},
		{"forward beta/", cli.ExitUsage, "NODE/SERVICE"},
		{"forward", cli.ExitUsage, "arg"},
		{"forward beta 0.0.0.0:80", cli.ExitUsage, "127.0.0.1"},
		{"forward beta nonsense", cli.ExitUsage, "local address"},
		{"attach gone --opencode-bin /bin/sh", cli.ExitNoAccess, "offline"},
		{"attach beta/db --opencode-bin /bin/sh", cli.ExitUsage, "raw stream"},
		{"attach beta gamma --opencode-bin /bin/sh", cli.ExitUsage, "one node"},
		{"open gone", cli.ExitNoAccess, "offline"},
		{"open beta/db", cli.ExitUsage, "meshctl forward beta/db"},
	} {
		res := sh.Want(c.code, strings.Fields(c.args))
		wantText(t, res.Err, c.says)
		if res.Out != "" {
			t.Errorf("%s: stdout carries %q", c.args, res.Out)
		}
	}
}

func TestANodeThatLetsNothingBeChangedIsSaidSoAtTheStart(t *testing.T) {
	sh := serviceHub(t)
	script(t, sh, "opencode", "echo attached")
	for target, says := range map[string]bool{"held": true, "held/web": false, "beta": false} {
		r := sh.Start([]string{"forward", target})
		forwarded(t, r)
		if res := r.Stop(); res.Code != 0 || strings.Contains(res.Err, "policy hold") != says {
			t.Errorf("%s: %+v", target, res)
		}
	}
	res := sh.Want(0, []string{"attach", "held"})
	wantText(t, res.Err, "policy hold", "dispatch a task")
	if res.Out != "attached\n" {
		t.Errorf("%+v", res)
	}
}

func TestCountersStandOnATerminalOnly(t *testing.T) {
	sh := serviceHub(t)
	r := sh.Start([]string{"forward", "beta"}, func(app *cli.App) { app.StderrTerminal = true })
	url := forwarded(t, r)
	r.Err.AwaitText(t, "0 open, 0 connections")
	page(t, url)
	r.Err.AwaitText(t, "1 connections, ")
	if res := r.Stop(); strings.Contains(res.Out, "open") || !strings.HasSuffix(res.Err, "\n") {
		t.Errorf("%+v", res)
	}
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536 << 10: "1.5 MiB", 1 << 62: "4.0 EiB"} {
		if got := bytesText(n); got != want {
			t.Errorf("%d is shown as %s", n, got)
		}
	}
}

// eventually asks until something holds that comes about by itself.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	(&world{t: t}).eventually(what, holds)
}

// script puts a program into the shell's PATH, before all others.
func script(t *testing.T, sh *clitest.Shell, name, text string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text), 0o755); err != nil {
		t.Fatal(err)
	}
	sh.Set("PATH", dir+string(filepath.ListSeparator)+os.Getenv("PATH"))
}

func TestAttachRunsOpencodeWithAPasswordOfItsOwn(t *testing.T) {
	sh := serviceHub(t)
	sh.Set("MESH_PASSWORD", "of the mesh")
	sh.Set("MESHCTL_PROFILE", "default")
	sh.Set("OPENCODE_SERVER_PASSWORD", "of another server")
	said := filepath.Join(t.TempDir(), "said")
	sh.Set("SAID", said)
	script(t, sh, "opencode", `{ env; echo "ARGS=$*"; } > "$SAID.tmp" && mv "$SAID.tmp" "$SAID"; echo started; read line; exit 7`)
	stdin, typing := io.Pipe()
	r := sh.Start([]string{"attach", "beta", "--", "--dir", "/src"}, func(app *cli.App) { app.Stdin = stdin; app.StderrTerminal = true })
	r.Out.AwaitText(t, "started\n")
	b, err := os.ReadFile(said)
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]string{}
	for line := range strings.Lines(string(b)) {
		k, v, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		env[k] = v
		if strings.HasPrefix(k, "MESH") {
			t.Errorf("the child sees %s", k)
		}
	}
	args := strings.Fields(env["ARGS"])
	if len(args) != 4 || args[0] != "attach" || !slices.Equal(args[2:], []string{"--dir", "/src"}) {
		t.Fatalf("it is started with %q", args)
	}
	user, password := env["OPENCODE_SERVER_USERNAME"], env["OPENCODE_SERVER_PASSWORD"]
	if len(password) < 20 || strings.Contains(env["ARGS"], password) {
		t.Errorf("password %q, arguments %q", password, env["ARGS"])
	}
	if code, body := page(t, args[1]+"/config", func(r *http.Request) { r.SetBasicAuth(user, password) }); code != 200 || body != "opencode at /config" {
		t.Errorf("%d %q", code, body)
	}
	for _, wrong := range []string{"", "of another server", password + "x"} {
		if code, _ := page(t, args[1]+"/config", func(r *http.Request) { r.SetBasicAuth(user, wrong) }); code != http.StatusUnauthorized {
			t.Errorf("password %q: %d", wrong, code)
		}
	}
	_, _ = io.WriteString(typing, "\n")
	_ = typing.Close()
	if res := r.Wait(); res.Code != 7 || res.Out != "started\n" || res.Err != "" {
		t.Errorf("%+v", res)
	}
}

func TestAttachEndsAsItsChildDoes(t *testing.T) {
	for text, want := range map[string]int{"exit 0": 0, "exit 3": 3, "kill -9 $$": 137} {
		sh := serviceHub(t)
		script(t, sh, "opencode", text)
		if res := sh.Want(want, []string{"attach", "beta"}); res.Out != "" || res.Err != "" {
			t.Errorf("%s: %+v", text, res)
		}
	}
	sh := serviceHub(t)
	script(t, sh, "opencode", "trap 'exit 9' TERM\necho started\nwhile :; do sleep 0.05; done")
	r := sh.Start([]string{"attach", "beta"})
	r.Out.AwaitText(t, "started")
	if res := r.Stop(); res.Code != 9 {
		t.Errorf("%+v", res)
	}
}

func TestAttachWithoutOpencodeSaysWhatToDo(t *testing.T) {
	sh := serviceHub(t)
	sh.Set("PATH", t.TempDir())
	wantText(t, sh.Want(cli.ExitUsage, []string{"attach", "beta"}).Err, "not installed", "npm install", "--opencode-bin")
	wantText(t, sh.Want(cli.ExitUsage, []string{"attach", "beta", "--opencode-bin", "/no/such/file"}).Err, "/no/such/file")
}

func TestOpenStartsABrowserOnTheForwardedPort(t *testing.T) {
	for _, browser := range []string{"my-browser", "my-browser --new %s", "/no/such:my-browser"} {
		sh := serviceHub(t)
		sh.Set("MESH_PASSWORD", "of the mesh")
		seen := filepath.Join(t.TempDir(), "seen")
		sh.Set("SEEN", seen)
		sh.Set("BROWSER", browser)
		script(t, sh, "my-browser", `echo "$* $MESH_PASSWORD" > "$SEEN.tmp" && mv "$SEEN.tmp" "$SEEN"`)
		r := sh.Start([]string{"open", "beta"})
		url := forwarded(t, r)
		want := url + " \n"
		if strings.Contains(browser, "%s") {
			want = "--new " + want
		}
		var got []byte
		eventually(t, "the browser", func() bool { got, _ = os.ReadFile(seen); return got != nil })
		if string(got) != want {
			t.Errorf("%s: the browser gets %q, want %q", browser, got, want)
		}
		if code, body := page(t, url); code != 200 || body != "opencode at /" {
			t.Errorf("%s: %d %q", browser, code, body)
		}
		if res := r.Stop(); res.Code != 0 || res.Err != "" {
			t.Errorf("%s: %+v", browser, res)
		}
	}
}

func TestOpenWithoutABrowserStillServes(t *testing.T) {
	sh := serviceHub(t)
	sh.Set("BROWSER", "/no/such/browser")
	r := sh.Start([]string{"open", "beta"})
	url := forwarded(t, r)
	r.Err.AwaitText(t, "open "+url+" yourself")
	if code, _ := page(t, url); code != 200 {
		t.Errorf("%d", code)
	}
	if res := r.Stop(); res.Code != 0 {
		t.Errorf("%+v", res)
	}
	r = sh.Start([]string{"open", "beta", "--no-browser"})
	forwarded(t, r)
	if res := r.Stop(); res.Code != 0 || res.Err != "" {
		t.Errorf("%+v", res)
	}
}
