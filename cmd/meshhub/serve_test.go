package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"opencode-mesh/auth"
	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/cmd/internal/clitest"
	"opencode-mesh/protocol/api"
)

func TestServePrintsWhereItListensAndHowToJoin(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	r, url, link := b.serve()
	if !strings.HasPrefix(url, "https://127.0.0.1:") || !strings.HasPrefix(link, "mesh://127.0.0.1:") {
		t.Errorf("got %s and %s", url, link)
	}
	l, err := auth.ParseLink(link)
	if err != nil {
		t.Fatal(err)
	}
	r.Err.AwaitText(t, "sha256:"+l.Pin)
	mustEnroll(t, link, auth.EnrollLogin, "laptop")

	t.Run("and ends with 0 when it is told to", func(t *testing.T) {
		if res := r.Stop(); res.Code != 0 {
			t.Errorf("exit code %d: %s", res.Code, res.Err)
		}
	})
	t.Run("and keeps its key, so the link stays good", func(t *testing.T) {
		_, _, again := b.serve("--listen", strings.TrimPrefix(url, "https://"))
		if again != link {
			t.Errorf("link was %s and is %s", link, again)
		}
	})
}

func TestServeWithoutAPasswordSaysWhatToDo(t *testing.T) {
	sh := shell(t)
	sh.Set("MESH_DIR", t.TempDir())
	res := sh.Want(cli.ExitUsage, []string{"serve", "--listen", "127.0.0.1:0"})
	wantText(t, res.Err, "meshhub passwd", "MESH_PASSWORD", "--password-file")
	if res.Out != "" {
		t.Errorf("stdout carries %q", res.Out)
	}
}

func TestAPasswordThatCannotBeReadMattersOnTheFirstStartOnly(t *testing.T) {
	t.Parallel()
	gone := filepath.Join(t.TempDir(), "gone")
	sh := shell(t)
	sh.Set("MESH_DIR", t.TempDir())
	wantText(t, sh.Want(cli.ExitUsage, []string{"serve", "--listen", "127.0.0.1:0", "--password-file", gone}).Err, gone)

	b := newBox(t)
	r, _, _ := b.serve()
	r.Stop()
	r, _, _ = b.serve("--password-file", gone)
	r.Err.AwaitText(t, "is ignored because one is set")
}

func TestServeIgnoresAnotherPasswordOnceOneIsSet(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	file := filepath.Join(t.TempDir(), "pw")
	if err := os.WriteFile(file, []byte("another one\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r, _, _ := b.serve()
	if res := r.Stop(); strings.Contains(res.Err, "ignored") {
		t.Errorf("warned without a reason: %s", res.Err)
	}
	r, _, link := b.serve("--password-file", file)
	wantText(t, r.Err.String(), "WARN", "meshhub passwd")
	mustEnroll(t, link, auth.EnrollLogin, "laptop")
	if _, err := enroll(t, link, auth.EnrollLogin, "laptop", "another one"); api.ErrorCode(err) != api.CodeUnauthorized {
		t.Errorf("the ignored password gives %v", err)
	}
}

func TestASecondHubOnTheSameDataNamesFileAndHolder(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.serve()
	var all []*clitest.Running // each waits a moment for the holder to go
	for _, args := range [][]string{{"serve", "--listen", "127.0.0.1:0"}, {"check"}, {"compact"}} {
		all = append(all, b.Start(args))
	}
	for _, r := range all {
		res := r.Wait()
		if res.Code != cli.ExitNotDone || res.Out != "" {
			t.Errorf("exit code %d, stdout %q", res.Code, res.Out)
		}
		wantText(t, res.Err, filepath.Join(b.data, "hub.db"), fmt.Sprintf("pid %d ", os.Getpid()))
	}
}

func TestServeRefusesBadFlags(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ args, says string }{
		{"--listen nowhere", "--listen"},
		{"--tls maybe", "--tls"},
		{"--tls off --listen 0.0.0.0:0", "--allow-plain-http"},
		{"--tls files", "--cert"},
		{"--tls acme", "--public-url"},
		{"--public-url mesh", "--public-url"},
		{"--trusted-proxy everyone", "--trusted-proxy"},
		{"--heartbeat soon", "--heartbeat"},
		{"--password-file /nowhere", "/nowhere"},
		{"--log-level loud", "--log-level"},
		{"extra", "extra"},
	} {
		b := newBox(t)
		wantText(t, b.Want(cli.ExitUsage, append([]string{"serve"}, strings.Fields(c.args)...)).Err, c.says)
		if _, err := os.Stat(b.data); err == nil {
			t.Errorf("%s: a data directory was made", c.args)
		}
	}
}

func TestServeOnATakenAddressFails(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	wantText(t, newBox(t).Want(cli.ExitNotDone, []string{"serve", "--listen", l.Addr().String()}).Err, l.Addr().String())
}

func TestServeTakesItsSettingsFromTheEnvironment(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.Set("MESHHUB_TLS", "off")
	b.Set("MESHHUB_TRUSTED_PROXY", "10.0.0.0/8\n192.0.2.7")
	_, url, link := b.serve()
	if !strings.HasPrefix(url, "http://") || !strings.HasPrefix(link, "mesh+plain://") {
		t.Errorf("got %s and %s", url, link)
	}
	mustEnroll(t, link, auth.EnrollJoin, "alpha")
}
