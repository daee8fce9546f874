package e2e

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/test/fleet"
)

// site is a local server on a node's machine.
type site struct {
	*httptest.Server
	// arrived and ended are told of each request to /endless.
	arrived, ended chan struct{}
}

// newSite serves endless bodies, a page and WebSocket-like upgrades.
func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{arrived: make(chan struct{}, 4096), ended: make(chan struct{}, 4096)}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/endless":
			if r.URL.Query().Has("length") {
				w.Header().Set("Content-Length", "1000000000000")
			}
			s.arrived <- struct{}{}
			defer func() { s.ended <- struct{}{} }()
			for block := make([]byte, 64<<10); r.Context().Err() == nil; {
				if _, err := w.Write(block); err != nil {
					return
				}
			}
		case r.URL.Path == "/wait":
			s.arrived <- struct{}{}
			<-r.Context().Done()
			s.ended <- struct{}{}
		case r.Header.Get("Upgrade") != "":
			c, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			defer c.Close()
			_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			_ = rw.Flush()
			_, _ = io.Copy(c, rw)
		case r.Method == http.MethodPost:
			_, _ = io.Copy(w, r.Body)
		default:
			fmt.Fprintf(w, "%s %s for %q", r.Method, r.URL.Path, r.Header.Get("Mesh-Authorization"))
		}
	}))
	t.Cleanup(s.CloseClientConnections)
	t.Cleanup(s.Close)
	return s
}

func addr(url string) string { return url[strings.Index(url, "://")+3:] }

// ask makes a request that the test's end ends.
func ask(t *testing.T, url string, header ...string) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(bounded(t), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Close = true
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return http.DefaultClient.Do(req)
}

// refused demands an error of the mesh that names the node.
func refused(t *testing.T, resp *http.Response, err error, status int, code api.Code, words ...string) {
	t.Helper()
	if err != nil {
		t.Error(err)
		return
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	var e api.ErrorBody
	if json.Unmarshal(body, &e) != nil || e.Error == nil || resp.StatusCode != status || e.Error.Code != code {
		t.Errorf("got %d %s, want %d %s", resp.StatusCode, body, status, code)
		return
	}
	for _, w := range append(words, "alpha") {
		if !strings.Contains(e.Error.Message, w) {
			t.Errorf("%s %q does not say %q", code, e.Error.Message, w)
		}
	}
}

// TestAKilledHubBreaksTransfersOffAndServesAgain is kill -9 in the middle: whoever reads
// sees a failure and never half of it as the whole, the services on the node are told,
// and what is asked of the forwards once the hub is back works.
func TestAKilledHubBreaksTransfersOffAndServesAgain(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	f := fleet.New(t, "--tls", "off")
	echo := echoServer(t)
	f.Node("alpha", fleet.Args("--service", "web="+s.URL, "--service", "echo=tcp://"+echo.addr), f.Demo())
	ctl := f.Ctl("desk")
	ctl.Online("alpha")
	forwarded, raw := ctl.Forward("alpha/web"), ctl.Forward("alpha/echo")
	direct := f.Hub.URL + "/v1/nodes/alpha/services/web"
	auth := []string{"Mesh-Authorization", "Bearer " + ctl.Profile().Credential.Reveal()}

	ends := make(chan error, 8)
	transfers := 0
	for _, url := range []string{direct + "/endless", direct + "/endless?length", forwarded + "/endless", forwarded + "/endless?length"} {
		resp, err := ask(t, url, auth...)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %v %v", url, resp, err)
		}
		if _, err := io.CopyN(io.Discard, resp.Body, 4<<20); err != nil {
			t.Fatal(err)
		}
		transfers++
		go func() {
			defer resp.Body.Close()
			_, err := io.Copy(io.Discard, resp.Body)
			ends <- err
		}()
	}
	stream, err := net.Dial("tcp", addr(raw))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	fmt.Fprint(stream, "hello")
	if _, err := io.ReadFull(stream, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}

	f.Hub.Kill()
	for range transfers {
		if err := within(t, ends, "a reader's end"); err == nil {
			t.Error("half of an answer was taken for the whole")
		}
		within(t, s.ended, "the end of a request at the service")
	}
	_ = stream.SetReadDeadline(time.Now().Add(patience))
	if n, err := stream.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("the raw stream ended with %d bytes and %v", n, err)
	}
	within(t, echo.ended, "the end of a connection at the raw service")
	if resp, err := ask(t, forwarded+"/"); err != nil || resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
		t.Errorf("without a hub the forward answers %v %v", resp, err)
	} else {
		_ = resp.Body.Close()
	}

	f.Hub.Start()
	ctl.Online("alpha")
	resp, err := ask(t, forwarded+"/again")
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if string(body) != `GET /again for ""` {
		t.Errorf("afterwards: %d %s", resp.StatusCode, body)
	}
	echoes(t, addr(raw))
}

// within takes a value that must come.
func within[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("waited in vain for %s", what)
		panic("unreachable")
	}
}

// echoing is a raw server that repeats what it gets.
type echoing struct {
	addr  string
	ended chan struct{} // told of the end of each connection
}

func echoServer(t *testing.T) *echoing {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &echoing{addr: l.Addr().String(), ended: make(chan struct{}, 64)}
	var all sync.WaitGroup
	all.Go(func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			all.Go(func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
				e.ended <- struct{}{}
			})
		}
	})
	t.Cleanup(func() { _ = l.Close() })
	return e
}

// echoes demands that a raw service repeats 1 MiB and ends when its client does.
func echoes(t *testing.T, at string) {
	t.Helper()
	c, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	sent, got := sha256.New(), sha256.New()
	go func() {
		_, _ = io.CopyN(io.MultiWriter(c, sent), rand.Reader, 1<<20)
		_ = c.(*net.TCPConn).CloseWrite()
	}()
	if n, err := io.Copy(got, c); err != nil || n != 1<<20 || string(got.Sum(nil)) != string(sent.Sum(nil)) {
		t.Errorf("%d bytes came back, %v", n, err)
	}
}

// TestRefusalsComeWithTheNodesNameThroughHubAndForward has every refusal that a user of
// services meets, from real processes.
func TestRefusalsComeWithTheNodesNameThroughHubAndForward(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	f := fleet.New(t, "--tls", "off")
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := gone.Addr().String()
	_ = gone.Close()
	n := f.Node("alpha", fleet.Args("--service", "web="+s.URL, "--service", "nobody=http://"+nobody, "--service", "nodb=tcp://"+nobody), f.Demo())
	ctl := f.Ctl("desk")
	ctl.Online("alpha")
	base := f.Hub.URL + "/v1/nodes/alpha/services/"
	auth := []string{"Mesh-Authorization", "Bearer " + ctl.Profile().Credential.Reveal()}

	resp, err := ask(t, base+"nobody/", auth...)
	refused(t, resp, err, http.StatusBadGateway, api.CodeServiceDown, "nobody")
	resp, err = ask(t, base+"nodb", append(auth, "Connection", "Upgrade", "Upgrade", api.UpgradeStream)...)
	refused(t, resp, err, http.StatusBadGateway, api.CodeServiceDown, "nodb")
	resp, err = ask(t, base+"none/", auth...)
	refused(t, resp, err, http.StatusNotFound, api.CodeNotFound, "web")

	t.Run("a raw forward says that nobody listens, and its connections are reset", func(t *testing.T) {
		run := ctl.In(t).Start("forward", "alpha/nodb")
		var at string
		eventually(t, "it forwards", func() bool {
			_, at, _ = strings.Cut(strings.TrimSpace(run.Output()), "forwarding tcp://")
			return at != ""
		})
		c, err := net.Dial("tcp", at)
		if err == nil {
			if _, err = io.ReadAll(c); err == nil {
				t.Error("the connection ended as if all were well")
			}
			_ = c.Close()
		}
		eventually(t, "it says so", func() bool { return strings.Contains(run.Log(), "nodb of node alpha does not run") })
	})

	t.Run("at the limit, with Retry-After", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var all sync.WaitGroup
		for range api.MaxRequestsPerNode {
			all.Go(func() {
				req, _ := http.NewRequestWithContext(ctx, http.MethodGet, base+"web/wait", nil)
				req.Header.Set(auth[0], auth[1])
				if resp, err := http.DefaultClient.Do(req); err == nil {
					_ = resp.Body.Close()
				}
			})
		}
		for range api.MaxRequestsPerNode {
			within(t, s.arrived, "a request")
		}
		resp, err := ask(t, base+"web/", auth...)
		if err == nil && resp.Header.Get("Retry-After") != "1" {
			t.Errorf("Retry-After %q", resp.Header.Get("Retry-After"))
		}
		refused(t, resp, err, http.StatusServiceUnavailable, api.CodeUnavailable)
		cancel()
		all.Wait()
		eventually(t, "the limit is given back", func() bool {
			resp, err := ask(t, base+"web/", auth...)
			if err != nil {
				return false
			}
			_ = resp.Body.Close()
			return resp.StatusCode == http.StatusOK
		})
	})
	url := ctl.Forward("alpha/web")
	n.Kill()
	eventually(t, "the node is gone", func() bool {
		resp, err := ask(t, url+"/")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			return false
		}
		refused(t, resp, nil, http.StatusBadGateway, api.CodeNodeOffline)
		return true
	})
	if out := ctl.Run("forward", "alpha/web"); out.Code != 3 || !strings.Contains(out.Stderr, "alpha is offline") || out.Stdout != "" {
		t.Errorf("%+v", out)
	}
}

// TestWhoIsNotLetInIsToldAtTheStart has the node's allow list and its policy.
func TestWhoIsNotLetInIsToldAtTheStart(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	f := fleet.New(t, "--tls", "off")
	f.Node("alpha", fleet.Args("--policy", "refuse", "--service", "opencode="+s.URL, "--service", "web="+s.URL), f.Demo())
	f.Node("closed", fleet.Args("--accept-from", "friend", "--service", "web="+s.URL), f.Demo())
	ctl, friend := f.Ctl("desk"), f.Ctl("friend")
	ctl.Online("alpha")
	ctl.Online("closed")
	for _, command := range []string{"forward", "open"} {
		if out := ctl.Run(command, "closed/web"); out.Code != 3 || !strings.Contains(out.Stderr, "closed takes nothing from desk") || out.Stdout != "" {
			t.Errorf("%s: %+v", command, out)
		}
	}
	if resp, err := ask(t, friend.Forward("closed/web")+"/"); err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("%v %v", resp, err)
	}
	if out := ctl.Run("forward", "alpha/none"); out.Code != 2 || !strings.Contains(out.Stderr, "it has opencode, web") {
		t.Errorf("%+v", out)
	}
	run := ctl.Start("forward", "alpha")
	var at string
	eventually(t, "it forwards", func() bool { _, at, _ = strings.Cut(strings.TrimSpace(run.Output()), "forwarding "); return at != "" })
	eventually(t, "it says so", func() bool { return strings.Contains(run.Log(), "policy refuse") })
	if resp, err := ask(t, at+"/session"); err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("reading: %v %v", resp, err)
	}
	resp, err := http.Post(at+"/session", "application/json", strings.NewReader("{}"))
	refused(t, resp, err, http.StatusForbidden, api.CodeRefused, "policy refuse", "dispatch a task")
	resp, err = http.Post(ctl.Forward("alpha/web")+"/session", "application/json", strings.NewReader("{}"))
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("another service: %v %v", resp, err)
	}
}

// TestForwardAttachAndOpenWorkWithAHubOfItsOwnTLS: pages, upgrades and raw streams.
func TestForwardAttachAndOpenWorkWithAHubOfItsOwnTLS(t *testing.T) {
	t.Parallel()
	s, echo := newSite(t), echoServer(t)
	f := fleet.New(t)
	if !strings.HasPrefix(f.Hub.URL, "https://") {
		t.Fatal(f.Hub.URL)
	}
	f.Node("alpha", fleet.Args("--service", "opencode="+s.URL, "--service", "web="+s.URL, "--service", "echo=tcp://"+echo.addr), f.Demo())
	ctl := f.Ctl("desk")
	ctl.Online("alpha")
	url := ctl.Forward("alpha")
	resp, err := ask(t, url+"/a")
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if string(body) != `GET /a for ""` {
		t.Errorf("got %s", body)
	}
	echoes(t, addr(ctl.Forward("alpha/echo")))

	at := addr(ctl.Forward("alpha/web"))
	c, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "GET /socket HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nearly", at)
	in := bufio.NewReader(c)
	if up, err := http.ReadResponse(in, nil); err != nil || up.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%v %v", up, err)
	}
	fmt.Fprint(c, " and late")
	_ = c.(*net.TCPConn).CloseWrite()
	if got, err := io.ReadAll(in); err != nil || string(got) != "early and late" {
		t.Errorf("%q %v", got, err)
	}

	dir := t.TempDir()
	script, said := filepath.Join(dir, "opencode"), filepath.Join(dir, "said")
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho $2 $OPENCODE_SERVER_USERNAME $OPENCODE_SERVER_PASSWORD > "+said+".tmp; mv "+said+".tmp "+said+"; read line; exit 7\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := ctl.Command("attach", "alpha", "--opencode-bin", script)
	typing, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	var told []string
	eventually(t, "opencode is started", func() bool { b, _ := os.ReadFile(said); told = strings.Fields(string(b)); return len(told) == 3 })
	req, err := http.NewRequestWithContext(bounded(t), http.MethodGet, told[0]+"/config", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Close = true
	req.SetBasicAuth(told[1], told[2])
	if resp, err := http.DefaultClient.Do(req); err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("attach: %v %v", resp, err)
	}
	_, _ = io.WriteString(typing, "\n")
	if _ = cmd.Wait(); cmd.ProcessState.ExitCode() != 7 {
		t.Errorf("attach ended with %s", cmd.ProcessState)
	}
	run := ctl.Start("open", "alpha", "--no-browser")
	eventually(t, "it forwards", func() bool { return strings.HasPrefix(run.Output(), "forwarding http://127.0.0.1:") })
	if resp, err := ask(t, strings.TrimPrefix(strings.TrimSpace(run.Output()), "forwarding ")+"/"); err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("open: %v %v", resp, err)
	}
}
