package push_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"opencode-mesh/node/agent"
	"opencode-mesh/node/mail"
	"opencode-mesh/node/opencomms/push"
	ocm "opencode-mesh/protocol/opencomms"
)

// child is a process that delivers until it comes to a step, says so and waits there to
// be killed. Its arguments are the root of a rig, the step, and "refuse" for a host
// that refuses.
func child(args []string) int {
	root, step := args[0], args[1]
	h := newHost(filepath.Join(root, "history"))
	dir := filepath.Join(root, "project")
	for _, s := range []string{builder, reviewer} {
		h.sessions[s] = agent.Hosted{Dir: dir}
	}
	if args[2] == "refuse" {
		h.refuse = errors.New("refused")
	}
	box, err := mail.Open(mail.Config{Path: filepath.Join(root, "mail.db"), HubID: "hub", BallastBytes: 4096})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	p := push.New(push.Config{Enabled: true, Agent: h, Box: box, Projects: func() []string { return []string{dir} }, Retry: 20 * time.Millisecond})
	p.At(func(at string) {
		if at == step {
			fmt.Println("at", at)
			select {}
		}
	})
	p.Run(context.Background())
	return 0
}

// killed runs a process up to a step and kills it there; before that, what is done.
func (r *rig) killed(step, mode string, before func()) {
	r.t.Helper()
	cmd := exec.Command(os.Args[0], "pusher", r.root, step, mode)
	cmd.Stderr = r.log
	out, err := cmd.StdoutPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	timeout := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer timeout.Stop()
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "at "+step {
		r.t.Errorf("the process did not come to %q: %q %s", step, lines.Text(), r.log)
	}
	before()
	_ = cmd.Process.Kill() // SIGKILL
	_ = cmd.Wait()
}

// order is where the messages stand in what a session got, in the order of the prompts'
// files.
func (r *rig) order(session string, ids []string) []string {
	r.t.Helper()
	files, err := filepath.Glob(filepath.Join(r.host.dir, session+"-*"))
	if err != nil {
		r.t.Fatal(err)
	}
	slices.SortFunc(files, func(a, b string) int {
		x, _ := os.Stat(a)
		y, _ := os.Stat(b)
		return x.ModTime().Compare(y.ModTime())
	})
	var all strings.Builder
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			r.t.Fatal(err)
		}
		all.Write(data)
	}
	got := slices.Clone(ids)
	slices.SortStableFunc(got, func(a, b string) int { return strings.Index(all.String(), a) - strings.Index(all.String(), b) })
	return got
}

func TestWhereverTheProcessIsKilledEveryMessageArrivesOnceAndInOrder(t *testing.T) {
	for _, step := range slices.Concat(push.Points, push.PointsBack) {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			mode := "accept"
			if slices.Contains(push.PointsBack, step) {
				mode = "refuse"
			}
			// One that was delivered before, and must stay as it is.
			done := r.send(builder, "long ago")
			r.update(func(s *ocm.State) {
				e := r.project.Engine()
				e.Drain(s, builder, none)
				e.Commit(s, builder, []string{done}, ocm.ModePush)
			})
			was := r.message(done).EnvelopeFields
			var ids []string
			for _, text := range []string{"one", "two", "three"} {
				ids = append(ids, r.send(builder, text))
			}
			r.killed(step, mode, func() { ids = append(ids, r.send(builder, "four, while it stands there")) })

			flying := 0
			for _, id := range ids {
				if r.message(id).Status == ocm.StatusInFlight {
					flying++
				}
			}
			if want := step == "prompt" || step == "commit" || step == "requeue"; want != (flying == 3) || !want && flying != 0 {
				t.Errorf("%d messages were in flight at %s", flying, step)
			}

			p, _ := r.start()
			for _, id := range ids {
				r.awaitStatus(id, ocm.StatusDelivered)
				if n := r.host.times(t, builder, id); n != 1 {
					t.Errorf("%s is %d times in the session", id, n)
				}
			}
			r.eventually("nothing is under way", func() bool { return p.Notes() == 0 })
			if got := r.order(builder, ids); !slices.Equal(got, ids) {
				t.Errorf("order %v, want %v", got, ids)
			}
			if now := r.message(done).EnvelopeFields; now != was || r.host.times(t, builder, done) != 0 {
				t.Errorf("what was committed changed: %+v, was %+v", now, was)
			}
			if q := r.queue(builder); len(q) != 0 {
				t.Errorf("queue %v", q)
			}
		})
	}
}

func TestAMessageWithWhichTheHostEndsAtEveryStartIsGivenUp(t *testing.T) {
	r := newRig(t)
	id := r.send(builder, "a message that kills")
	for n := 1; n <= ocm.MaxAttempts; n++ {
		r.killed("prompt", "accept", func() {
			if e := r.message(id); e.Status != ocm.StatusInFlight || e.Attempts != n {
				t.Errorf("start %d: %+v", n, e.EnvelopeFields)
			}
		})
	}
	next := r.send(builder, "an innocent one")
	r.start()
	r.awaitStatus(next, ocm.StatusDelivered)
	if e := r.message(id); e.Status != ocm.StatusFailed || e.Attempts != ocm.MaxAttempts || r.host.times(t, builder, id) != 0 {
		t.Errorf("%+v", e.EnvelopeFields)
	}
}

func TestAfterACrashOnlyTheMessagesOfTheNoteArePutBack(t *testing.T) {
	r := newRig(t)
	mine := r.send(builder, "mine")
	r.killed("prompt", "accept", func() {})
	// Another program delivers to the other session, and the same one took a later one.
	foreign, later := r.send(reviewer, "foreign"), r.send(builder, "later")
	r.update(func(s *ocm.State) {
		e := r.project.Engine()
		e.Drain(s, reviewer, none)
		e.Drain(s, builder, none)
	})
	r.start()
	r.awaitStatus(mine, ocm.StatusDelivered)
	for _, id := range []string{foreign, later} {
		if e := r.message(id); e.Status != ocm.StatusInFlight || e.Attempts != 1 {
			t.Errorf("%+v", e.EnvelopeFields)
		}
	}
}

func TestAMessageThatAnotherProgramTookOverAfterACrashIsItsOwn(t *testing.T) {
	r := newRig(t)
	id := r.send(builder, "hello")
	r.killed("prompt", "accept", func() {})
	// The original starts, takes everything in flight for left behind, and delivers it.
	r.update(func(s *ocm.State) {
		e := r.project.Engine()
		e.Sweep(s, func(*ocm.Envelope) bool { return true })
		e.Drain(s, builder, none)
	})
	p, _ := r.start()
	r.eventually("nothing of ours is under way", func() bool { return p.Notes() == 0 })
	if e := r.message(id); e.Status != ocm.StatusInFlight || e.Attempts != 2 || r.host.times(t, builder, id) != 0 {
		t.Errorf("%+v", e.EnvelopeFields)
	}
}
