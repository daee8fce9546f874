package hub_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"opencode-mesh/hub"
	"opencode-mesh/protocol/api"
	"opencode-mesh/store/boltdb"
)

// disk is a disk whose writes fail on demand.
type disk struct{ errno atomic.Uint32 }

func (d *disk) BeforeCommit(boltdb.CommitOp) error {
	switch e := syscall.Errno(d.errno.Load()); e {
	case 0:
		return nil
	case syscall.EIO:
		return syscall.EIO // as a failed sync
	default:
		return boltdb.WriteFault(e)
	}
}

func TestAFullOrReadOnlyDiskRefusesKeepsReadingAndRecovers(t *testing.T) {
	for name, c := range map[string]struct {
		errno  syscall.Errno
		status int
		code   api.Code
	}{
		"full":      {syscall.ENOSPC, http.StatusInsufficientStorage, api.CodeDiskFull},
		"read-only": {syscall.EROFS, http.StatusServiceUnavailable, api.CodeReadOnly},
	} {
		t.Run(name, func(t *testing.T) {
			d := &disk{}
			b := start(t, hub.WithDisk(config(t.TempDir()), d, 10*time.Millisecond))
			beta, alice := b.enroll("join", "beta"), b.enroll("login", "alice")
			b.call(http.MethodPost, "/v1/tasks", alice, dispatch("beta", "t1", "before"))
			d.errno.Store(uint32(c.errno))
			status, e, _ := b.call(http.MethodPost, "/v1/tasks", alice, dispatch("beta", "t2", "during"))
			want(t, status, e, c.status, c.code)
			if status, _, _ := b.call(http.MethodGet, "/readyz", "", nil); status != http.StatusServiceUnavailable {
				t.Errorf("readyz: %d", status)
			}
			if status, _, _ := b.call(http.MethodGet, "/v1/tasks/t1", alice, nil); status != http.StatusOK {
				t.Errorf("reading: %d", status)
			}
			if status, _, _ := b.call(http.MethodGet, "/v1/tasks/t2", alice, nil); status != http.StatusNotFound {
				t.Errorf("what was refused is there: %d", status)
			}
			d.errno.Store(0)
			for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
				if status, _, _ := b.call(http.MethodGet, "/readyz", "", nil); status == http.StatusOK {
					break
				}
				if time.Now().After(deadline) {
					t.Fatal("no recovery")
				}
			}
			if status, _, data := b.call(http.MethodPost, "/v1/tasks", alice, dispatch("beta", "t2", "during")); status != http.StatusCreated {
				t.Errorf("after: %d %s", status, data)
			}
			p := b.greeted(beta, "j1", 1)
			for _, id := range []string{"t1", "t2"} {
				if o := p.offer(); o.Task != id {
					t.Errorf("offered %s, want %s", o.Task, id)
				}
			}
		})
	}
}

func TestAResultIsNotAcknowledgedByAFullDisk(t *testing.T) {
	d := &disk{}
	b := start(t, hub.WithDisk(config(t.TempDir()), d, 10*time.Millisecond))
	beta, alice := b.enroll("join", "beta"), b.enroll("login", "alice")
	p := b.greeted(beta, "j1", 1)
	b.call(http.MethodPost, "/v1/tasks", alice, dispatch("beta", "t1", "x"))
	o := p.offer()
	d.errno.Store(uint32(syscall.ENOSPC))
	res := api.Result{Triple: o.Triple, JournalID: "j1", Epoch: 1, Outcome: api.Outcome{State: api.StateDone}}
	status, e := p.call(http.MethodPut, "/v1/tasks/t1/result", res, nil)
	want(t, status, e, http.StatusInsufficientStorage, api.CodeDiskFull)
	d.errno.Store(0)
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(5 * time.Millisecond) { // the node's retries
		status, _ := p.call(http.MethodPut, "/v1/tasks/t1/result", res, nil)
		if status == http.StatusOK {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the result is still refused: %d", status)
		}
	}
}

func TestAFailedSyncStopsTheHub(t *testing.T) {
	d := &disk{}
	h, err := hub.Open(context.Background(), hub.WithDisk(config(t.TempDir()), d, time.Second))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- h.Serve(context.Background()) }()
	d.errno.Store(uint32(syscall.EIO))
	body, _ := json.Marshal(api.Login{Name: "alice", Password: password})
	resp, err := http.Post(h.URL()+"/v1/login", "application/json", strings.NewReader(string(body)))
	if err == nil {
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode < 500 {
			t.Errorf("a login was answered %d", resp.StatusCode)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	select {
	case err := <-done:
		if !errors.Is(err, hub.ErrStoreFailed) {
			t.Errorf("ended with %v", err)
		}
	case <-time.After(2 * time.Minute):
		t.Fatal("it goes on")
	}
}

// loginFrom tries to log in from a loopback address of its own.
func loginFrom(t *testing.T, b *box, from, name, pw string, header ...string) int {
	t.Helper()
	hc := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext}}
	body, _ := json.Marshal(api.Login{Name: name, Password: pw})
	req, _ := http.NewRequest(http.MethodPost, b.hub.URL()+"/v1/login", strings.NewReader(string(body)))
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := hc.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	return resp.StatusCode
}

func TestASpoofedForwardedForDoesNotEscapeTheLockoutAndOthersStillGetIn(t *testing.T) {
	b := start(t, config(t.TempDir()))
	limited := false
	for i := range 25 {
		if loginFrom(t, b, "127.0.0.1", "mallory", "wrong", "X-Forwarded-For", "10.1.2."+string(rune('0'+i%10))) == http.StatusTooManyRequests {
			limited = true
		}
	}
	if !limited {
		t.Error("a new X-Forwarded-For each time escaped the limit")
	}
	if s := loginFrom(t, b, "127.0.0.2", "alice", password); s != http.StatusOK {
		t.Errorf("another address is locked out too: %d", s)
	}
}

func TestOnlyABearerCredentialAuthenticates(t *testing.T) {
	b := start(t, config(t.TempDir()))
	alice := b.enroll("login", "alice")
	for name, set := range map[string]func(*http.Request){
		"a cookie":             func(r *http.Request) { r.AddCookie(&http.Cookie{Name: "session", Value: alice}) },
		"the URL":              func(r *http.Request) { r.URL.RawQuery = "token=" + alice },
		"Basic":                func(r *http.Request) { r.SetBasicAuth("alice", alice) },
		"a friendly Origin":    func(r *http.Request) { r.Header.Set("Origin", b.hub.URL()) },
		"no Origin at all":     func(*http.Request) {},
		"the password instead": func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+password) },
	} {
		t.Run(name, func(t *testing.T) {
			req, _ := http.NewRequest(http.MethodGet, b.hub.URL()+"/v1/nodes", nil)
			set(req)
			resp, err := b.hc.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if resp.StatusCode != http.StatusUnauthorized {
				t.Errorf("got %d", resp.StatusCode)
			}
		})
	}
}
