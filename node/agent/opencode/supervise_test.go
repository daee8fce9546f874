package opencode_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"opencode-mesh/node/agent/opencode"
	"opencode-mesh/protocol/api"
)

// supervised is a configuration whose "opencode" is a shell script.
func supervised(t *testing.T, script string) opencode.Config {
	t.Helper()
	needProc(t)
	bin := filepath.Join(t.TempDir(), "opencode")
	if err := os.WriteFile(bin, []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
	return opencode.Config{Bin: bin, GuardCommand: guardCommand(t), DataDir: filepath.Join(t.TempDir(), "agent"),
		Workspaces: workspaces(t), StopGrace: 100 * time.Millisecond, HealthInterval: 20 * time.Millisecond}
}

// awaitDetail waits until the status says something.
func awaitDetail(t *testing.T, a *opencode.Agent, text string) api.AgentStatus {
	t.Helper()
	eventually(t, "a status with "+text, func() bool { return strings.Contains(a.Status(t.Context()).Detail, text) })
	return a.Status(t.Context())
}

func TestASupervisedServerThatDoesNotStart(t *testing.T) {
	t.Run("says why, in its own words without colours", func(t *testing.T) {
		a := start(t, supervised(t, `printf '\033[91mError: \033[0mUnexpected error\n\nunable to open database file\n' >&2; exit 1`))
		s := awaitDetail(t, a, "Error: Unexpected error unable to open database file")
		if s.Health != api.HealthUnreachable || !strings.Contains(s.Detail, "exit status 1") {
			t.Errorf("status %+v", s)
		}
	})
	t.Run("is tried again until it does", func(t *testing.T) {
		cfg := supervised(t, `[ -f "$COUNT" ] && { echo third time; exit 3; }; echo x >> "$COUNT.1"; [ $(wc -l < "$COUNT.1") = 2 ] && touch "$COUNT"; exit 1`)
		count := filepath.Join(t.TempDir(), "count")
		cfg.Env = []string{"COUNT=" + count, "PATH=" + os.Getenv("PATH")}
		awaitDetail(t, start(t, cfg), "exit status 3")
	})
	t.Run("because it is not installed says so, and may be installed later", func(t *testing.T) {
		cfg := supervised(t, "exit 7")
		installed := cfg.Bin
		cfg.Bin = installed + "-later"
		a := start(t, cfg)
		awaitDetail(t, a, "not installed")
		if err := os.Rename(installed, cfg.Bin); err != nil {
			t.Fatal(err)
		}
		awaitDetail(t, a, "exit status 7")
	})
}

func TestAServerThatWillNotEndIsKilledWithItsChildren(t *testing.T) {
	cfg := supervised(t, `trap '' TERM INT HUP
(setsid sleep `+nap(15)+` >/dev/null 2>&1 &)
echo "opencode server listening on http://127.0.0.1:1"
while :; do sleep `+nap(16)+`; done`)
	a := start(t, cfg)
	for _, arg := range []string{nap(15), nap(16)} {
		eventually(t, "its children run", func() bool { return len(withArgument(t, arg)) == 1 })
	}
	stop(t, a)
	for _, arg := range []string{cfg.Bin, nap(15), nap(16)} {
		if left := withArgument(t, arg); len(left) != 0 {
			t.Errorf("%s is left: %v", arg, left)
		}
	}
}

func TestAGuardThatIsToldToEndEndsItsServer(t *testing.T) {
	cfg := supervised(t, `echo "opencode server listening on http://127.0.0.1:1"; exec sleep `+nap(17))
	a := start(t, cfg)
	eventually(t, "the server runs", func() bool { return len(withArgument(t, nap(17))) == 1 })
	r := &real{cfg: cfg}
	rec := r.record(t)
	p, err := os.FindProcess(rec.Guard.PID)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the server is gone", func() bool { return !running(rec.Server.PID) && !running(rec.Guard.PID) })
	// The node starts another.
	eventually(t, "another server runs", func() bool { return len(withArgument(t, nap(17))) == 1 })
	stop(t, a)
	if left := withArgument(t, nap(17)); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestLeftovers(t *testing.T) {
	t.Run("are not what merely has their pid now", func(t *testing.T) {
		victim := exec.Command("sleep", nap(18))
		if err := victim.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = victim.Process.Kill()
			_ = victim.Wait()
		})
		cfg := supervised(t, "exit 9")
		pid := fmt.Sprint(victim.Process.Pid)
		write(t, filepath.Join(cfg.DataDir, "server.json"),
			`{"guard":{"pid":`+pid+`,"start":"an earlier boot"},"server":{"pid":`+pid+`,"start":"an earlier boot"},"marker":"m"}`)
		awaitDetail(t, start(t, cfg), "exit status 9")
		if !running(victim.Process.Pid) {
			t.Error("a stranger was killed")
		}
	})
	t.Run("that cannot be identified keep a new server from starting", func(t *testing.T) {
		cfg := supervised(t, "touch ran; exit 9")
		write(t, filepath.Join(cfg.DataDir, "server.json"), "{")
		awaitDetail(t, start(t, cfg), "cannot be read")
		if _, err := os.Stat(filepath.Join(cfg.Workspaces[0].Dir, "ran")); err == nil {
			t.Error("a server was started")
		}
	})
}

func TestGuardMainWantsInstructions(t *testing.T) {
	for _, in := range []string{"", "hello\n", `{"bin":"x"`} {
		cmd := exec.Command(guardCommand(t)[0], "guard")
		cmd.Stdin = strings.NewReader(in)
		out, err := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != 2 || !strings.Contains(string(out), "meshnode") {
			t.Errorf("%q: exit %d, %v: %s", in, code, err, out)
		}
	}
}

func TestAGuardReportsWhatItCannotStart(t *testing.T) {
	dir := t.TempDir()
	spec, err := json.Marshal(map[string]any{"bin": filepath.Join(dir, "nothing"), "dir": dir, "record": filepath.Join(dir, "server.json"), "marker": "m"})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(guardCommand(t)[0], "guard")
	cmd.Stdin = strings.NewReader(string(spec) + "\n")
	out, _ := cmd.Output()
	if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(string(out), `"ended":"start opencode: `) {
		t.Errorf("exit %d: %s", code, out)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "server.json*")); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
}
