package statefile

import (
	"bufio"
	"context"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"opencode-mesh/protocol/opencomms"
)

// Processes are killed at any moment of their writes, with a lock and temporary
// files left behind, while a reader looks on.
func TestKilledProcessesLoseNothingThatTheySaidWasWritten(t *testing.T) {
	s := Open(t.TempDir(), Options{})
	mustAdd(t, s, "ocm_first")
	ctx, cancel := context.WithCancel(t.Context())
	var reader sync.WaitGroup
	reader.Go(func() {
		reads := 0
		for ; ctx.Err() == nil; reads++ {
			if _, err := s.Read(t.Context()); err != nil {
				t.Error("a reader met:", err)
				return
			}
		}
		t.Log(reads, "reads")
	})
	written := map[string]bool{"ocm_first": true}
	lock := filepath.Join(s.dir, lockName)
	left := 0
	for range 40 {
		// The lock of the process before is taken for dead at once.
		if _, err := os.Lstat(lock); err == nil {
			left++
			age(t, lock, time.Minute)
		}
		for _, id := range killed(t, s.project) {
			written[id] = true
		}
	}
	cancel()
	reader.Wait()
	t.Log(len(written), "messages written,", left, "of 40 processes died with the lock")
	if _, err := os.Lstat(lock); err == nil {
		age(t, lock, time.Minute)
	}
	if err := s.Update(t.Context(), func(st *opencomms.State) error {
		for _, id := range idsOf(st) {
			delete(written, id)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if len(written) > 0 {
		t.Error("lost:", written)
	}
}

// killed runs a process that writes, kills it somewhere in its second write or
// later, and returns what it said it wrote.
func killed(t *testing.T, project string) (ids []string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), looper+"="+project)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		id, ok := strings.CutPrefix(lines.Text(), "wrote ")
		if !ok {
			t.Error(lines.Text())
		}
		if ids = append(ids, id); len(ids) == 1 {
			time.AfterFunc(rand.N(20*time.Millisecond), func() { _ = cmd.Process.Kill() })
		}
	}
	_ = cmd.Wait()
	return ids
}
