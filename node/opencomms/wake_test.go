package opencomms

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"opencode-mesh/node/opencomms/engine"
	"opencode-mesh/protocol/opencomms"
)

// sleeping is a state with one pending message for a push member.
func sleeping(t *testing.T) (*opencomms.State, *opencomms.Channel, string) {
	t.Helper()
	s, now := &opencomms.State{}, time.UnixMilli(10_000)
	e := engine.Engine{Now: func() time.Time { return now }}
	first := engine.NewMember{Session: "ses_a", Role: "A", RolePrompt: "x"}
	if _, err := e.Create(s, engine.CreateRequest{Channel: "review", ProjectID: "p", Worktree: "/w", Member: &first}); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Join(s, engine.JoinRequest{Channel: "review", ProjectID: "p", Worktree: "/w", Member: engine.NewMember{Session: "ses_b", Role: "B", RolePrompt: "x"}}); err != nil {
		t.Fatal(err)
	}
	sent, err := e.Send(s, engine.Caller{Session: "ses_a"}, engine.SendRequest{Channel: "review", Content: "x"})
	if err != nil {
		t.Fatal(err)
	}
	return s, engine.Find(s, "review"), sent.MessageIDs[0]
}

func TestAnOwnerIsWokenOnceAfterThePause(t *testing.T) {
	s, ch, id := sleeping(t)
	woken := map[string]int64{}
	look := func(now int64) (time.Duration, bool) { return sleepers(s, now, woken) }

	if wait, due := look(10_000); due || wait != 1200*time.Millisecond {
		t.Errorf("at once: %v, %v", wait, due)
	}
	ch.Cooldowns.Set("ses_b", 10_900)
	if wait, due := look(11_200); due || wait != 900*time.Millisecond {
		t.Errorf("in the pause: %v, %v", wait, due)
	}
	if _, due := look(12_100); !due {
		t.Error("not woken after the pause")
	}
	if wait, due := look(13_000); due || wait != idleWait {
		t.Errorf("woken twice: %v, %v", wait, due)
	}
	// A delivery went past it: there is another pause.
	ch.Cooldowns.Set("ses_b", 14_000)
	if wait, due := look(13_000); due || wait != 2200*time.Millisecond {
		t.Errorf("in the next pause: %v, %v", wait, due)
	}
	if _, due := look(15_200); !due {
		t.Error("not woken after the next pause")
	}
	row, _ := s.Messages.Get(id)
	row.Status = opencomms.StatusInFlight
	if _, due := look(30_000); due || len(woken) != 0 {
		t.Errorf("woken for what is taken; %v", woken)
	}
}

func TestNobodyIsWokenForWhatWaitsForSomethingElse(t *testing.T) {
	for name, change := range map[string]func(ch *opencomms.Channel){
		"pull member": func(ch *opencomms.Channel) { ch.Members[1].Mode = opencomms.ModePull },
		"paused":      func(ch *opencomms.Channel) { ch.Paused = true },
		"no member":   func(ch *opencomms.Channel) { ch.Members = ch.Members[:1] },
	} {
		s, ch, _ := sleeping(t)
		change(ch)
		if wait, due := sleepers(s, 1<<40, map[string]int64{}); due || wait != idleWait {
			t.Errorf("%s: %v, %v", name, wait, due)
		}
	}
}

// Every program of a project watches the file, so one that read it at each change
// would take the processor from whoever holds the lock.
func TestAFileThatChangesAllTheTimeIsReadOnceInAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		changed := make(chan struct{})
		s, _, _ := sleeping(t)
		row := func() *opencomms.Envelope {
			for _, m := range s.Messages.All() {
				return m
			}
			return nil
		}()
		row.Timestamp = time.Now().UnixMilli()
		reads, touches := 0, 0
		done := make(chan struct{})
		go func() {
			defer close(done)
			wakeOwners(ctx, changed,
				func(context.Context) (*opencomms.State, error) { reads++; return s, nil },
				func(context.Context) error { touches++; return nil })
		}()
		sent := time.Now()
		for time.Since(sent) < 10*WakeAfter {
			time.Sleep(10 * time.Millisecond)
			changed <- struct{}{}
		}
		synctest.Wait()
		if reads < 5 || reads > 12 {
			t.Errorf("%d reads in the time of ten", reads)
		}
		if touches != 1 {
			t.Errorf("the owner was woken %d times", touches)
		}
		cancel()
		close(changed)
		<-done
	})
}

func TestWakeOwnersRewritesTheFileForThem(t *testing.T) {
	p, err := Open(t.TempDir(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.WakeOwners(ctx) }()
	s, _, id := sleeping(t) // long ago
	if err := p.Update(ctx, func(to *opencomms.State) error { *to = *s; return nil }); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(p.Dir(), ".opencomms", "state.json")
	first, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	changed := p.Watch(ctx)
	for {
		now, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if !os.SameFile(first, now) {
			break
		}
		select {
		case <-changed:
		case <-t.Context().Done():
			t.Fatal("never")
		}
	}
	if now, err := p.Read(ctx); err != nil {
		t.Error(err)
	} else if row, ok := now.Messages.Get(id); !ok || row.Status != opencomms.StatusPending {
		t.Errorf("the message became %+v", row)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
