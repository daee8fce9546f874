//go:build browser

package browser

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"opencode-mesh/test/opencodebin"
)

// screenPatience is how long a text may take to appear on the screen.
const screenPatience = 60 * time.Second

// terminal is a tmux of its own with one command in it.
type terminal struct {
	t      *testing.T
	socket string
	env    []string
}

func newTerminal(t *testing.T, env []string, command ...string) *terminal {
	t.Helper()
	dir, err := os.MkdirTemp("", "tmux-") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	term := &terminal{t: t, socket: filepath.Join(dir, "s"), env: append(env, "TERM=xterm-256color", "LANG=C.UTF-8")}
	term.tmux(append([]string{"-f", "/dev/null", "new-session", "-d", "-x", "120", "-y", "40"}, command...)...)
	t.Cleanup(func() { _ = exec.Command("tmux", "-S", term.socket, "kill-server").Run() })
	return term
}

func (m *terminal) tmux(args ...string) string {
	m.t.Helper()
	cmd := exec.Command("tmux", append([]string{"-S", m.socket}, args...)...)
	cmd.Env = m.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		m.t.Fatalf("tmux %s: %v\n%s", args[0], err, out)
	}
	return string(out)
}

// await waits until the screen shows a text.
func (m *terminal) await(text string) {
	m.t.Helper()
	var screen string
	for until := time.Now().Add(screenPatience); time.Now().Before(until); time.Sleep(100 * time.Millisecond) {
		if screen = m.tmux("capture-pane", "-p"); strings.Contains(screen, text) {
			return
		}
	}
	m.t.Fatalf("%q does not appear on the screen:\n%s", text, screen)
}

func TestOpencodeAttachWorksInATerminal(t *testing.T) {
	s := newSeat(t)
	cmd := s.ctl.Command("attach", "alpha", "--opencode-bin", opencodebin.Find(t))
	// Of meshctl's environment the login alone; the rest is opencode's own.
	env := append(s.env, keep(cmd.Env, "MESH_DIR=")...)
	term := newTerminal(t, env, append([]string{"sh", "-c", `"$@"; echo "ended with $?"; read line`, "sh"}, cmd.Args...)...)
	term.await("Ask anything")
	term.tmux("send-keys", "-l", "REPLY:hello-from-the-other-side")
	term.await("REPLY:hello-from-the-other-side")
	term.tmux("send-keys", "Enter")
	term.await("\n     hello-from-the-other-side") // the reply has no border
	term.tmux("send-keys", "C-c")
	term.await("ended with 0")
}

// TestAttachToANodeThatLetsNothingBeChangedSaysWhy is what somebody sees who prompts
// there. opencode only says that it failed, so meshctl has said why, on the screen that
// is there again when opencode ends.
func TestAttachToANodeThatLetsNothingBeChangedSaysWhy(t *testing.T) {
	s := newSeat(t, "--policy", "hold")
	cmd := s.ctl.Command("attach", "alpha", "--opencode-bin", opencodebin.Find(t))
	env := append(s.env, keep(cmd.Env, "MESH_DIR=")...)
	term := newTerminal(t, env, append([]string{"sh", "-c", `"$@"; echo "ended with $?"; read line`, "sh"}, cmd.Args...)...)
	term.await("Ask anything")
	term.tmux("send-keys", "-l", "REPLY:never")
	term.await("REPLY:never")
	term.tmux("send-keys", "Enter")
	term.await("Creating a session failed")
	term.tmux("send-keys", "C-c") // clears the prompt
	term.await("Ask anything")
	term.tmux("send-keys", "C-c")
	term.await("ended with 0")
	term.await("node alpha has the policy hold")
}

// keep picks the variables that begin with a prefix.
func keep(env []string, prefix string) []string {
	var out []string
	for _, kv := range env {
		if strings.HasPrefix(kv, prefix) {
			out = append(out, kv)
		}
	}
	return out
}
