//go:build unix

package access_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"opencode-mesh/node/internal/proc"
	node "opencode-mesh/node/peers"
	"opencode-mesh/node/peers/access"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/peers"
)

func TestAnAgentWhoseProcessWasKilledGoesBeforeItsLeaseEnds(t *testing.T) {
	a := newMachine(t).start("alpha")
	cmd := exec.Command("sleep", "300")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	id, err := proc.Identify(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	me := a.register(leaseA, access.Registration{Member: "m", Directory: "/srv/x", Process: proc.Mark{ID: id, Space: proc.Self().Space}})
	there := func() bool { _, own := a.svc.Own(me.ID); return own }
	if err := a.Sweep(t.Context()); err != nil || !there() {
		t.Fatalf("gone while it lives: %v", err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err := a.Sweep(t.Context()); err != nil || there() {
		t.Errorf("listed after its end: %v", err)
	}
}

func TestASecondProcessOfAMemberWithoutANameDoesNotRenameTheAgent(t *testing.T) {
	a := newMachine(t).start("alpha")
	named := access.Registration{Member: "m", Directory: "/srv/x", Name: "reviewer"}
	bare := access.Registration{Member: "m", Directory: "/srv/y"}
	a.register(leaseA, named)
	for range 2 {
		for lease, r := range map[string]access.Registration{leaseB: bare, leaseA: named} {
			if i := a.register(lease, r); i.Name != "reviewer" {
				t.Errorf("it is called %q", i.Name)
			}
		}
	}
}

func TestNobodyWritesToItselfByNameEither(t *testing.T) {
	a := newMachine(t).start("alpha")
	a.register(leaseA, access.Registration{Member: "m", Directory: "/srv/x", Name: "me"})
	for as, name := range map[string]string{leaseA: "me", access.Desk: "alpha"} {
		if _, err := a.Send(t.Context(), as, name, "x"); code(err) != api.CodeBadRequest || !strings.Contains(err.Error(), node.ErrSelf.Error()) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestControlCharactersThatMakeAMessageTooLargeAreNamed(t *testing.T) {
	m := newMachine(t)
	a := m.start("alpha")
	m.start("beta").session("ses_1", "shop")
	if _, err := a.Send(t.Context(), access.Desk, "shop", strings.Repeat("\x01", 8192)); code(err) != api.CodeTooLarge || !strings.Contains(err.Error(), "control characters") {
		t.Error(err)
	}
}

func TestWhatWasTakenIsNotShownAgainWhileTheSpoolIsLocked(t *testing.T) {
	m := newMachine(t)
	a, b := m.start("alpha"), m.start("beta")
	me := a.register(leaseA, access.Registration{Member: "m", Directory: "/srv/x", Name: "reader"})
	sent, err := b.Send(t.Context(), access.Desk, "reader", "hello")
	if err != nil {
		t.Fatal(err)
	}
	await(t, "the spool to be at rest", func() bool {
		left, _ := filepath.Glob(filepath.Join(m.storage, "spool", me.ID, ".lock-tickets", "*"))
		return len(left) == 0
	})
	u, err := a.Unread(leaseA)
	if err != nil || len(u.Messages) != 1 {
		t.Fatalf("%+v, %v", u, err)
	}
	claim := filepath.Join(m.storage, "spool", me.ID, ".lock-tickets", "choosing-ffffffffffffffffffffffffffffffff.json")
	if err := os.WriteFile(claim, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := a.Taken(t.Context(), leaseA, []access.Key{u.Messages[0].Key}); err == nil {
		t.Error("it is noted though the spool is locked")
	}
	if u, err := a.Unread(leaseA); err != nil || len(u.Messages) != 0 {
		t.Errorf("shown again: %+v, %v", u, err)
	}
	if err := os.Remove(claim); err != nil {
		t.Fatal(err)
	}
	// Also if its process ends meanwhile.
	if err := a.Release(t.Context(), leaseA); err != nil {
		t.Fatal(err)
	}
	b.final(access.Desk, sent.ID, peers.Delivered)
}
