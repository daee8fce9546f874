package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	hubapi "opencode-mesh/hub/api"
	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
	"opencode-mesh/tunnel"
)

// tunnelOf opens a node's tunnel, says hello and serves what the hub asks through it.
// A node that was there before says a higher epoch.
func (s *shop) tunnelOf(secret string, h http.HandlerFunc, again ...uint64) *tunnel.Session {
	s.t.Helper()
	epoch := uint64(1)
	for _, n := range again {
		epoch = n
	}
	session, err := tunnel.Dial(context.Background(), tunnel.DialConfig{
		URL: strings.Replace(s.url, "http", "ws", 1) + "/v1/tunnel", Header: http.Header{"Authorization": {"Bearer " + secret}},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	srv := &http.Server{Handler: h}
	var served sync.WaitGroup
	served.Go(func() { _ = srv.Serve(session) })
	s.t.Cleanup(func() {
		_ = session.Close()
		_ = srv.Close()
		served.Wait()
	})
	hc := &http.Client{Transport: &http.Transport{DialContext: session.DialContext}}
	defer hc.CloseIdleConnections()
	body, err := json.Marshal(api.Hello{Protocol: api.ProtocolVersion, JournalID: "j1", Epoch: epoch, Instance: "p1", AcceptFrom: s.helloAllow})
	if err != nil {
		s.t.Fatal(err)
	}
	resp, err := hc.Post("http://hub/v1/hello", "application/json", bytes.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		s.t.Fatalf("the hello: %d", resp.StatusCode)
	}
	return session
}

// party is how records name somebody.
func (s *shop) party(name string) api.Party {
	s.t.Helper()
	id, err := s.store.IdentityByName(context.Background(), name)
	if err != nil {
		s.t.Fatal(err)
	}
	return api.Party{ID: id.ID, Name: name}
}

// ended stores a task of alice on beta that has ended so.
func (s *shop) ended(id string, o api.Outcome) { s.t.Helper(); s.endedFor("alice", id, o) }

func (s *shop) endedFor(controller, id string, o api.Outcome) {
	s.t.Helper()
	now := time.Now().UTC()
	t := store.Task{
		ID: id, Controller: s.party(controller), Target: s.party("beta"), Hash: "h", Workspace: "main", Mode: "session",
		State: o.State, Since: now, CreatedAt: now, EndedAt: now, ExpiresAt: now.Add(time.Hour), Attempt: 1, Turn: 1, Kind: api.TurnTask, Outcome: &o,
	}
	if _, err := s.store.CreateTasks(context.Background(), []store.NewTask{{Task: t}}); err != nil {
		s.t.Fatal(err)
	}
}

// file asks for an artifact; header are pairs.
func (s *shop) file(ctx context.Context, secret, task, path string, header ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/v1/tasks/"+task+"/artifacts/file?path="+url.QueryEscape(path), nil)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+secret)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return s.hc.Do(req)
}

const report = "out/a report.html"

// offered is a node that gives content for every path.
func offered(content []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/artifacts" || r.URL.Query().Get("workspace") != "main" || r.URL.Query().Get("path") != report {
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"error":{"code":"not_found","message":"no \u001b[31msuch file"}}`)
			return
		}
		w.Header().Set("Etag", `"v1"`)
		w.Header().Set("Set-Cookie", "session=stolen")
		w.Header().Set("Content-Type", "text/html")
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
	}
}

func TestAnArtifactComesFromItsNodeWholeAndInParts(t *testing.T) {
	s := newShop(t)
	alice, beta := s.enroll(login("alice", false)), s.enroll(join("beta"))
	content := bytes.Repeat([]byte("0123456789"), 50000)
	s.tunnelOf(beta, offered(content))
	s.ended("t1", api.Outcome{State: api.StateDone, Artifacts: []string{report}})
	for _, c := range []struct {
		what   string
		header []string
		status int
		from   int
		to     int
	}{
		{"the whole", nil, 200, 0, len(content)},
		{"a part", []string{"Range", "bytes=10-19"}, 206, 10, 20},
		{"the rest", []string{"Range", "bytes=499990-"}, 206, 499990, len(content)},
		{"the rest of the same file", []string{"Range", "bytes=5-", "If-Range", `"v1"`}, 206, 5, len(content)},
		{"the rest of a file that changed", []string{"Range", "bytes=5-", "If-Range", `"v0"`}, 200, 0, len(content)},
		{"several parts", []string{"Range", "bytes=0-1,5-6"}, 200, 0, len(content)},
		{"a part beyond the end", []string{"Range", "bytes=500000-"}, 416, 0, 0},
	} {
		t.Run(c.what, func(t *testing.T) {
			resp, err := s.file(t.Context(), alice, "t1", report, c.header...)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			got, err := io.ReadAll(resp.Body)
			if err != nil || resp.StatusCode != c.status || !bytes.Equal(got, content[c.from:c.to]) {
				t.Fatalf("%d, %d bytes, %v", resp.StatusCode, len(got), err)
			}
			if c.status == 416 {
				if v := resp.Header.Get("Content-Range"); v != "bytes */500000" {
					t.Errorf("Content-Range %q", v)
				}
				return
			}
			for key, want := range map[string]string{
				"Content-Type": "application/octet-stream", "Content-Disposition": `attachment; filename="a report.html"`,
				"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox", "Accept-Ranges": "bytes", "Etag": `"v1"`,
				"Content-Length": fmt.Sprint(c.to - c.from), "Set-Cookie": "",
			} {
				if v := resp.Header.Get(key); v != want {
					t.Errorf("%s: %q, want %q", key, v, want)
				}
			}
		})
	}
}

func TestAnArtifactThatTheResultDoesNotNameIsNotFound(t *testing.T) {
	s := newShop(t)
	alice, bob, boss, beta := s.enroll(login("alice", false)), s.enroll(login("bob", false)), s.enroll(login("boss", true)), s.enroll(join("beta"))
	asked := make(chan string, 10)
	s.tunnelOf(beta, func(w http.ResponseWriter, r *http.Request) {
		asked <- r.URL.Query().Get("path")
		offered([]byte("x"))(w, r)
	})
	s.ended("t1", api.Outcome{State: api.StateDone, Artifacts: []string{report, "gone.txt"}})
	s.ended("t2", api.Outcome{State: api.StateFailed})
	for _, c := range []struct {
		what, secret, task, path string
		code                     api.Code
	}{
		{"another path", alice, "t1", "out", api.CodeNotFound},
		{"another way to write it", alice, "t1", "./" + report, api.CodeNotFound},
		{"a path that leads away", alice, "t1", report + "/../../../etc/passwd", api.CodeNotFound},
		{"no path", alice, "t1", "", api.CodeNotFound},
		{"a result without any", alice, "t2", report, api.CodeNotFound},
		{"somebody else's task", bob, "t1", report, api.CodeUnknownTask},
		{"no task", alice, "t3", report, api.CodeUnknownTask},
	} {
		t.Run(c.what, func(t *testing.T) {
			status, e, _ := s.call(http.MethodGet, "/v1/tasks/"+c.task+"/artifacts/file?path="+url.QueryEscape(c.path), c.secret, nil)
			if status != http.StatusNotFound || e == nil || e.Code != c.code {
				t.Errorf("%d %v", status, e)
			}
			if len(asked) > 0 {
				t.Errorf("the node was asked for %q", <-asked)
			}
		})
	}
	t.Run("but an operator sees all", func(t *testing.T) {
		if status, _, data := s.call(http.MethodGet, "/v1/tasks/t1/artifacts/file?path="+url.QueryEscape(report), boss, nil); status != 200 || string(data) != "x" {
			t.Errorf("%d %s", status, data)
		}
	})
	t.Run("one that its node does not have any more", func(t *testing.T) {
		status, e, _ := s.call(http.MethodGet, "/v1/tasks/t1/artifacts/file?path=gone.txt", alice, nil)
		if status != http.StatusNotFound || e.Code != api.CodeNotFound || !strings.Contains(e.Message, "no such file") || strings.Contains(e.Message, "\x1b") {
			t.Errorf("%d %v", status, e)
		}
	})
}

func TestArtifactsAreListedAsTheyWereWhenTheTaskEnded(t *testing.T) {
	s := newShop(t)
	alice, bob := s.enroll(login("alice", false)), s.enroll(login("bob", false))
	s.enroll(join("beta"))
	s.ended("t1", api.Outcome{State: api.StateDone, Artifacts: []string{"a", "b", "c"}, Files: []api.Artifact{
		{Path: "b", Problem: "not there"}, {Path: "a", Size: 7, SHA256: "00ff"},
	}})
	s.ended("t2", api.Outcome{State: api.StateDone})
	for id, want := range map[string]string{
		"t1": `{"artifacts":[{"path":"a","size":7,"sha256":"00ff"},{"path":"b","size":0,"problem":"not there"},{"path":"c","size":0,"problem":"its node did not look at it"}]}`,
		"t2": `{"artifacts":[]}`,
	} {
		if status, _, data := s.call(http.MethodGet, "/v1/tasks/"+id+"/artifacts", alice, nil); status != 200 || strings.TrimSpace(string(data)) != want {
			t.Errorf("%s: %d %s", id, status, data)
		}
	}
	if status, e, _ := s.call(http.MethodGet, "/v1/tasks/t1/artifacts", bob, nil); status != 404 || e.Code != api.CodeUnknownTask {
		t.Errorf("somebody else: %d %v", status, e)
	}
}

func TestANodeThatIsAwayOrRefusesIsNamed(t *testing.T) {
	s := newShop(t)
	alice, beta := s.enroll(login("alice", false)), s.enroll(join("beta"))
	s.ended("t1", api.Outcome{State: api.StateDone, Artifacts: []string{report}})
	get := func() (int, *api.Error) {
		t.Helper()
		status, e, _ := s.call(http.MethodGet, "/v1/tasks/t1/artifacts/file?path="+url.QueryEscape(report), alice, nil)
		if e == nil || !strings.Contains(e.Message, "beta") {
			t.Errorf("%d %v does not name the node", status, e)
		}
		return status, e
	}
	if status, e := get(); status != http.StatusBadGateway || e.Code != api.CodeNodeOffline {
		t.Errorf("a node that is away: %d %v", status, e)
	}
	var refusal api.Code
	s.tunnelOf(beta, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(refusal.Status())
		_ = json.NewEncoder(w).Encode(api.ErrorBody{Error: api.Errorf(refusal, "no")})
	})
	for code, want := range map[api.Code]api.Code{
		api.CodeUnauthorized: api.CodeNotFound, // must not look like the hub's own word
		api.CodeRevoked:      api.CodeNotFound,
		api.CodeBadRequest:   api.CodeNotFound,
		api.CodeInternal:     api.CodeUnavailable,
		api.CodeReadOnly:     api.CodeUnavailable,
	} {
		refusal = code
		if status, e := get(); e.Code != want || status != want.Status() {
			t.Errorf("a node that says %s: %d %v", code, status, e)
		}
	}
}

// endless is a node that gives bytes of an unknown number and tells when it is let go.
// It stops after so many, and then neither goes on nor ends; -1 goes on for ever.
func endless(stopAfter int, gone chan<- error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		chunk := make([]byte, 64<<10)
		for n := 0; ; n += len(chunk) {
			if stopAfter >= 0 && n >= stopAfter {
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
			}
			if _, err := w.Write(chunk); err != nil || r.Context().Err() != nil {
				gone <- errors.Join(err, r.Context().Err())
				return
			}
		}
	}
}

func TestATransferEndsWithItsClient(t *testing.T) {
	s := newShop(t)
	alice, beta := s.enroll(login("alice", false)), s.enroll(join("beta"))
	gone := make(chan error, 1)
	s.tunnelOf(beta, endless(-1, gone))
	s.ended("t1", api.Outcome{State: api.StateDone, Artifacts: []string{report}})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	resp, err := s.file(ctx, alice, "t1", report)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.CopyN(io.Discard, resp.Body, 8<<20); err != nil { // far more than anything holds
		t.Fatal(err)
	}
	cancel()
	select {
	case <-gone:
	case <-time.After(2 * time.Minute):
		t.Error("the node still sends")
	}
}

func TestATransferThatStandsStillIsEnded(t *testing.T) {
	const limit = 100 * time.Millisecond
	for name, c := range map[string]struct {
		stopAfter int  // bytes of the node
		reads     bool // whether the client takes them
	}{
		"a node that never answers":         {0, true},
		"a node that stops in the middle":   {1 << 20, true},
		"a client that takes nothing of it": {-1, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShop(t, func(cfg *hubapi.Config) { cfg.ArtifactStall = limit })
			alice, beta := s.enroll(login("alice", false)), s.enroll(join("beta"))
			gone := make(chan error, 1)
			s.tunnelOf(beta, func(w http.ResponseWriter, r *http.Request) {
				if c.stopAfter == 0 {
					<-r.Context().Done()
					gone <- nil
					return
				}
				endless(c.stopAfter, gone)(w, r)
			})
			s.ended("t1", api.Outcome{State: api.StateDone, Artifacts: []string{report}})
			resp, err := s.file(t.Context(), alice, "t1", report)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if c.stopAfter == 0 && resp.StatusCode != http.StatusServiceUnavailable {
				t.Errorf("%d", resp.StatusCode)
			}
			if c.stopAfter > 0 {
				if n, err := io.Copy(io.Discard, resp.Body); err == nil {
					t.Errorf("%d bytes look like the whole", n)
				}
			}
			select {
			case <-gone:
			case <-time.After(2 * time.Minute):
				t.Error("the node is still asked")
			}
		})
	}
}

func TestATransferEndsWhenItsControllerIsRevokedOrTheHubStops(t *testing.T) {
	for name, end := range map[string]func(*shop){
		"revoked": func(s *shop) {
			op, err := s.access.Authenticate(context.Background(), s.enroll(login("boss", true)))
			if err == nil {
				err = s.access.Revoke(context.Background(), op, peer, "alice")
			}
			if err != nil {
				s.t.Error(err)
			}
		},
		"the hub stops": func(s *shop) { s.api.Close(context.Background()) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newShop(t)
			alice, beta := s.enroll(login("alice", false)), s.enroll(join("beta"))
			gone := make(chan error, 1)
			s.tunnelOf(beta, endless(-1, gone))
			s.ended("t1", api.Outcome{State: api.StateDone, Artifacts: []string{report}})
			resp, err := s.file(t.Context(), alice, "t1", report)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			ended := make(chan error, 1)
			go func() {
				_, err := io.Copy(io.Discard, resp.Body)
				ended <- err
			}()
			end(s)
			if err := <-ended; err == nil {
				t.Error("part of a file looks like the whole")
			}
			<-gone
		})
	}
}

func TestAConnectionServesOnAfterAnArtifact(t *testing.T) {
	// By the inner interface, whose connections have no deadlines of their own.
	s := newShop(t, func(cfg *hubapi.Config) { cfg.ArtifactStall = 50 * time.Millisecond })
	session := s.tunnelOf(s.enroll(join("beta")), offered([]byte("x")))
	s.endedFor("beta", "t1", api.Outcome{State: api.StateDone, Artifacts: []string{report}})
	dials := 0
	hc := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		dials++
		return session.DialContext(ctx, network, addr)
	}}}
	defer hc.CloseIdleConnections()
	for _, path := range []string{"tasks/t1/artifacts/file?path=" + url.QueryEscape(report), "whoami"} {
		resp, err := hc.Get("http://hub/v1/" + path)
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %d %q %v", path, resp.StatusCode, data, err)
		}
		<-time.After(100 * time.Millisecond) // longer than a write may take
	}
	if dials != 1 {
		t.Errorf("%d connections were needed", dials)
	}
}
