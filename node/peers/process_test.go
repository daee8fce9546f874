package peers

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"testing"

	"opencode-mesh/node/peers/spool"
	"opencode-mesh/protocol/peers"
)

// childEnv makes this program a peer of its own: storage, runtime, data directory and
// what it does with messages.
const childEnv = "PEERS_TEST_CHILD"

// child prints what it gets; it takes it, or hangs.
func child(arg string) {
	part := strings.Split(arg, "\n")
	s, err := New(Config{Node: "child", StorageDir: part[0], RuntimeDir: part[1], DataDir: part[2]})
	if err != nil {
		panic(err)
	}
	box := newInbox()
	box.answer = func(ctx context.Context, r spool.Record) error {
		fmt.Println(r.Message.Text)
		if part[3] == "hang" {
			<-ctx.Done()
		}
		return ctx.Err()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	e := Endpoint{ID: peers.EndpointID("child"), Session: "child", Directory: "/child", Receiver: box}
	if err := s.Publish(ctx, e); err != nil {
		panic(err)
	}
	fmt.Println("ready")
	_ = s.Run(ctx)
}

type process struct {
	cmd   *exec.Cmd
	lines chan string
}

func (m *machine) child(how string) *process {
	m.t.Helper()
	p := &process{cmd: exec.Command(os.Args[0]), lines: make(chan string, 100)}
	p.cmd.Env = append(os.Environ(), childEnv+"="+strings.Join([]string{m.storage, m.runtime, m.t.TempDir(), how}, "\n"))
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		m.t.Fatal(err)
	}
	go func() {
		defer close(p.lines)
		for in := bufio.NewScanner(out); in.Scan(); {
			p.lines <- in.Text()
		}
	}()
	m.t.Cleanup(p.kill)
	if line := await(m.t, "the process", p.lines); line != "ready" {
		m.t.Fatal(line)
	}
	return p
}

// kill ends it without giving it time for anything.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	for range p.lines { // until it is gone
	}
	_ = p.cmd.Wait()
}

func TestAProcessThatIsKilledLeavesWhatItWasGivenToTheNext(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	s := m.start("alpha")
	id, to := s.agent("a", "", newInbox()), peers.EndpointID("child")
	p := m.child("hang")
	sent := s.send(id, to, "hello")
	if line := await(t, "the message", p.lines); line != "hello" {
		t.Errorf("got %q", line)
	}
	p.kill()
	if _, err := s.Send(t.Context(), id, s.peer(to), "to a dead process"); !errors.Is(err, ErrOffline) {
		t.Errorf("got %v", err)
	}
	next := m.child("take")
	if line := await(t, "the message again", next.lines); line != "hello" {
		t.Errorf("got %q", line)
	}
	if r := s.awaitFinal(sent); r.FinalStatus != peers.Delivered {
		t.Errorf("final %q", r.FinalStatus)
	}
	if r := s.awaitFinal(s.send(id, to, "and more")); r.FinalStatus != peers.Delivered {
		t.Errorf("final %q", r.FinalStatus)
	}
	if line := await(t, "the next message", next.lines); line != "and more" {
		t.Errorf("got %q", line)
	}
}
