//go:build faults

package faults

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/test/fleet"
)

// order lists the starts in the order in which they were written.
func order(t *testing.T, file string) []string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, line := range strings.Split(strings.TrimSpace(string(b)), "\n") {
		id, _, _ := strings.Cut(line, " ")
		ids = append(ids, id)
	}
	return ids
}

func copyDir(t *testing.T, from, to string) {
	t.Helper()
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		switch {
		case d.IsDir():
			return os.MkdirAll(filepath.Join(to, rel), 0o700)
		case !d.Type().IsRegular():
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, rel), b, 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestARestoredHubGoesOnWithWhatItsNodesKnow restores a backup that knows nothing
// of what happened since.
func TestARestoredHubGoesOnWithWhatItsNodesKnow(t *testing.T) {
	f := fleet.New(t, quick...)
	log := filepath.Join(f.Dir, "starts")
	f.Node("alpha", f.Demo())
	ctl := f.Ctl("desk")
	ctl.Online("alpha")
	before, _ := ctl.Dispatch("alpha", "--", "APPEND:"+log)
	backup := filepath.Join(f.Dir, "hub.bak")
	if out := f.Hub.Run("backup", backup); out.Code != 0 {
		t.Fatalf("%+v", out)
	}
	// It finishes while the hub is down, and the hub that returns does not know it.
	slow, _ := ctl.Dispatch("alpha", "--detach", "--", "SLEEP:3s\nAPPEND:"+log)
	ctl.AwaitNode("alpha", func(n api.Node) bool { return n.Running > 0 })
	f.Hub.Kill()
	if out := f.Hub.Run("restore", backup); out.Code == 0 {
		t.Fatal("restore overwrote a store")
	}
	if err := os.Rename(f.Hub.Dir, f.Hub.Dir+".old"); err != nil {
		t.Fatal(err)
	}
	copyDir(t, filepath.Join(f.Hub.Dir+".old", "tls"), filepath.Join(f.Hub.Dir, "tls")) // the key is kept apart from the store
	out := f.Hub.Run("restore", backup)
	if out.Code != 0 || !strings.Contains(out.Stderr, "alpha") {
		t.Fatalf("%+v", out)
	}
	if out := f.Hub.Run("check"); out.Code != 0 {
		t.Fatalf("%+v", out)
	}
	f.Hub.Start()
	ctl.Online("alpha")
	done, out := ctl.Tasks("task", "wait", before[0].Task)
	if out.Code != 0 || done[0].State != api.StateDone {
		t.Errorf("the old task: %+v", out)
	}
	for deadline := time.Now().Add(settleTime); ; time.Sleep(50 * time.Millisecond) {
		adopted := ctl.Run("task", "show", slow[0].Task, "--json")
		if adopted.Code == 0 && strings.Contains(adopted.Stdout, api.FlagRecovered) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the task of before the restore was not adopted: %+v", adopted)
		}
	}
	if runs := started(t, log); runs[before[0].Task] != 1 || runs[slow[0].Task] != 1 {
		t.Errorf("starts %v", runs)
	}
}

// TestAHubOnAFullDiskTakesNothingLosesNothingAndRecovers fills a small disk of
// its own.
func TestAHubOnAFullDiskTakesNothingLosesNothingAndRecovers(t *testing.T) {
	disk := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", disk).CombinedOutput(); err != nil {
		t.Fatalf("this test mounts a small disk and needs root: %v %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", "-l", disk).CombinedOutput(); err != nil {
			t.Errorf("umount: %v %s", err, out)
		}
	})
	f := fleet.NewAt(t, filepath.Join(disk, "hub"), quick...)
	f.Node("alpha", f.Demo())
	ctl := f.Ctl("desk")
	ctl.Online("alpha")
	kept, out := ctl.Dispatch("alpha", "--", "before")
	if out.Code != 0 {
		t.Fatalf("%+v", out)
	}
	filler := filepath.Join(disk, "filler")
	fill(t, filler)
	text := strings.Repeat("x", 200<<10)
	refused := false
	for i := 0; i < 60 && !refused; i++ {
		out := ctl.RunStdin(text, "dispatch", "alpha", "--detach", "-")
		refused = out.Code == 3 && strings.Contains(out.Stderr, "disk is full")
		if out.Code != 0 && !refused {
			t.Fatalf("%+v", out)
		}
	}
	if !refused {
		t.Fatal("a full disk took everything")
	}
	if _, out := ctl.Tasks("task", "show", kept[0].Task); out.Code != 0 {
		t.Errorf("reading stopped too: %+v", out)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(settleTime); ; {
		_, out := ctl.Dispatch("alpha", "--timeout", "1m", "--", "after")
		if out.Code == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("no recovery: %+v\n%s", out, f.Hub.Log())
		}
	}
	tasks, out := ctl.Tasks("task", "list", "--open", "--limit", "1000")
	for _, task := range tasks {
		if _, out := ctl.Tasks("task", "wait", task.Task); out.Code != 0 {
			t.Errorf("an accepted task did not settle: %+v", out)
		}
	}
	if out.Code != 0 {
		t.Errorf("%+v", out)
	}
	if code := f.Hub.Stop(); code != 0 {
		t.Errorf("exit %d", code)
	}
	if out := f.Hub.Run("check"); out.Code != 0 {
		t.Errorf("%+v", out)
	}
}

// fill writes until there is no room.
func fill(t *testing.T, file string) {
	t.Helper()
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	buf := make([]byte, 64<<10)
	for {
		if _, err := f.Write(buf); err != nil {
			return
		}
	}
}
