package local_test

import (
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"opencode-mesh/auth/local"
)

func serve(t *testing.T, dir string) {
	t.Helper()
	l, err := local.Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close(); <-done })
}

func get(dir string) (string, error) {
	resp, err := local.Client(dir).Get("http://local/")
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

func TestAClientReachesTheProcessOfItsDirectory(t *testing.T) {
	dir := t.TempDir()
	serve(t, dir)
	if got, err := get(dir); err != nil || got != "hello" {
		t.Fatalf("got %q, %v", got, err)
	}
	info, err := os.Stat(filepath.Join(dir, "admin.sock"))
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("others may open the socket: %v", info.Mode())
	}
}

func TestADirectoryWithALongNameWorksToo(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("a-long-directory-name", 10))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	serve(t, dir)
	if got, err := get(dir); err != nil || got != "hello" {
		t.Fatalf("got %q, %v", got, err)
	}
}

func TestALeftoverSocketIsReplaced(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "admin.sock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	serve(t, dir)
	if got, err := get(dir); err != nil || got != "hello" {
		t.Fatalf("got %q, %v", got, err)
	}
}

func TestWithoutAProcessTheErrorSaysSo(t *testing.T) {
	if _, err := get(t.TempDir()); !errors.Is(err, local.ErrNotRunning) {
		t.Fatalf("got %v", err)
	}
}
