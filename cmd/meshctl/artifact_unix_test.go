//go:build unix

package main

import (
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"opencode-mesh/cmd/internal/cli"
)

func TestAnArtifactReplacesNoPipeAndNoLink(t *testing.T) {
	sh := artifactHub(t, map[string]string{"f": "hello"}, map[string]string{"f": "hello"})
	dir := t.TempDir()
	pipe, link, file := filepath.Join(dir, "pipe"), filepath.Join(dir, "link"), filepath.Join(dir, "file")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	read := make(chan string, 1)
	go func() {
		f, err := os.Open(pipe)
		if err != nil {
			read <- err.Error()
			return
		}
		data, err := io.ReadAll(f)
		if err != nil {
			data = []byte(err.Error())
		}
		_ = f.Close()
		read <- string(data)
	}()
	sh.Want(0, []string{"artifact", "get", "t1", "f", "-o", pipe})
	if got := <-read; got != "hello" {
		t.Errorf("the pipe's reader got %q", got)
	}
	if err := os.WriteFile(file, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("file", link); err != nil {
		t.Fatal(err)
	}
	sh.Want(0, []string{"artifact", "get", "t1", "f", "-o", link})
	if to, err := os.Readlink(link); err != nil || to != "file" {
		t.Errorf("link to %q, %v", to, err)
	}
	if data, err := os.ReadFile(file); err != nil || string(data) != "hello" {
		t.Errorf("file %q, %v", data, err)
	}
	wantText(t, sh.Want(cli.ExitNotDone, []string{"artifact", "get", "t1", "f", "-o", filepath.Join(dir, "none") + "/"}).Err, "there is no directory")
}
