package transport_test

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"opencode-mesh/node/internal/proc"
	"opencode-mesh/node/ocp/ocptest"
	"opencode-mesh/node/ocp/transport"
	"opencode-mesh/protocol/ocp"
)

var query = ocp.Query{Goal: "anything", MaxFrames: 8, MaxTokens: 4096}

func spawn(t *testing.T, b ocptest.Behaviour) *transport.Process {
	t.Helper()
	p, err := transport.Spawn(transport.Command{ID: "p", Args: ocptest.Args(b), Stderr: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func handshake(t *testing.T, c transport.Conn, version string) ocp.HandshakeAck {
	t.Helper()
	ack, err := transport.Handshake(t.Context(), c, "p", version)
	if err != nil {
		t.Fatal(err)
	}
	return ack
}

// brief is a context that ends soon: tests that wait for its end pass however long it
// takes.
func brief(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

func TestAChildAnswersInTheFamilyOfItsHost(t *testing.T) {
	for _, version := range []string{ocp.VersionOCP, ocp.VersionContextgraph, ocp.VersionContextgraphDraft} {
		p := spawn(t, ocptest.Good)
		if ack := handshake(t, p, version); ack.ProtocolVersion != version || ack.Provider.Name != "test provider" {
			t.Errorf("%+v", ack)
		}
		for range 2 {
			r, err := transport.Ask(t.Context(), p, "p", query)
			if err != nil || len(r.Frames) != 2 {
				t.Errorf("%+v, %v", r, err)
			}
		}
		if exit := p.Stop(); exit.Killed || exit.Code != 0 {
			t.Errorf("%+v", exit)
		}
	}
}

func TestAChildHasNothingOfTheEnvironmentButPathAndHome(t *testing.T) {
	t.Setenv("MESH_PASSWORD", "hunter2")
	t.Setenv("OPENAI_API_KEY", "sk-secret")
	p := spawn(t, ocptest.ShowsEnv)
	handshake(t, p, ocp.VersionOCP)
	r, err := transport.Ask(t.Context(), p, "p", query)
	if err != nil {
		t.Fatal(err)
	}
	env := r.Frames[0].Content
	if !strings.Contains(env, "PATH="+os.Getenv("PATH")) {
		t.Errorf("no PATH: %s", env)
	}
	for _, secret := range []string{"hunter2", "sk-secret"} {
		if strings.Contains(env, secret) {
			t.Errorf("a secret: %s", env)
		}
	}
}

// The answer to the first query comes after its time-out. Whoever asks next must not
// get it.
func TestALateAnswerIsNeverTakenForTheNextOne(t *testing.T) {
	p := spawn(t, ocptest.Late)
	handshake(t, p, ocp.VersionOCP)
	var timeout *transport.TimeoutError
	if _, err := transport.Ask(brief(t), p, "p", query); !errors.As(err, &timeout) || timeout.ID != "p" {
		t.Fatalf("%v", err)
	}
	if r, err := transport.Ask(t.Context(), p, "p", query); !errors.Is(err, transport.ErrBroken) {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestACanceledExchangeBreaksTheConnectionToo(t *testing.T) {
	p := spawn(t, ocptest.Hangs)
	handshake(t, p, ocp.VersionOCP)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := transport.Ask(ctx, p, "p", query); !errors.Is(err, context.Canceled) {
		t.Fatalf("%v", err)
	}
	// Canceled before its turn came, it may also have sent nothing.
	if _, err := transport.Ask(brief(t), p, "p", query); err == nil {
		t.Error("it answered")
	}
}

func TestEachWayToBreakAnExchangeHasItsError(t *testing.T) {
	for b, want := range map[ocptest.Behaviour]any{
		ocptest.CrashOnQuery: new(*transport.ProviderCrashedError),
		ocptest.Floods:       new(*transport.ExchangeError),
		ocptest.NullArrays:   new(*transport.WireError),
		ocptest.OnlyErrors:   new(*transport.ProviderError),
	} {
		p := spawn(t, b)
		handshake(t, p, ocp.VersionOCP)
		if _, err := transport.Ask(t.Context(), p, "p", query); !errors.As(err, want) {
			t.Errorf("%s: %T %v", b, err, err)
		}
	}
	p := spawn(t, ocptest.BadVersion)
	var mismatch *transport.VersionMismatchError
	if _, err := transport.Handshake(t.Context(), p, "p", ocp.VersionOCP); !errors.As(err, &mismatch) || mismatch.ProviderVersion != "ocp/2.0" || mismatch.Host != ocp.VersionOCP {
		t.Errorf("%v", err)
	}
	var wire *transport.WireError
	if _, err := transport.Handshake(t.Context(), spawn(t, ocptest.Logs), "p", ocp.VersionOCP); !errors.As(err, &wire) {
		t.Errorf("%v", err)
	}
	if _, err := transport.Handshake(t.Context(), spawn(t, ocptest.WrongID), "p", ocp.VersionContextgraph); err != nil {
		t.Error(err)
	}
	var spawned *transport.SpawnError
	for _, args := range [][]string{nil, {""}, {"/no/such/program"}} {
		if _, err := transport.Spawn(transport.Command{ID: "p", Args: args}); !errors.As(err, &spawned) {
			t.Errorf("%v: %v", args, err)
		}
	}
}

func TestAnAnswerWithAnotherIdIsNoAnswer(t *testing.T) {
	p := spawn(t, ocptest.WrongID)
	handshake(t, p, ocp.VersionContextgraph)
	var wire *transport.WireError
	if _, err := transport.Ask(t.Context(), p, "p", query); !errors.As(err, &wire) {
		t.Errorf("%v", err)
	}
	// In ocp/1 there are none, and what a provider adds is passed over.
	p = spawn(t, ocptest.WrongID)
	handshake(t, p, ocp.VersionOCP)
	if _, err := transport.Ask(t.Context(), p, "p", query); err != nil {
		t.Error(err)
	}
}

// A child that reads nothing leaves a large query in the pipe.
func TestAChildThatReadsNothingCannotHoldItsHost(t *testing.T) {
	p := spawn(t, ocptest.HangsAtOnce)
	var timeout *transport.TimeoutError
	err := p.Send(brief(t), []byte(strings.Repeat("x", 1<<20)))
	if !errors.As(err, &timeout) {
		t.Errorf("%v", err)
	}
}

// What a child started may have its stdin, read nothing from it and outlive it.
func TestWhatOutlivesAChildCannotHoldItsHost(t *testing.T) {
	p := spawn(t, ocptest.LeavesReader)
	line, err := p.Receive(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(line)))
	if err != nil {
		t.Fatal(err)
	}
	left, err := os.FindProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := left.Kill(); err != nil {
			t.Errorf("it was ended with the child, so that nothing held the pipe: %v", err)
		}
	}()
	var timeout *transport.TimeoutError
	if err := p.Send(brief(t), []byte(strings.Repeat("x", 1<<20))); !errors.As(err, &timeout) {
		t.Errorf("%v", err)
	}
}

func TestALineThatNobodyAskedForBreaksTheConnection(t *testing.T) {
	p := spawn(t, ocptest.AnswersTwice)
	handshake(t, p, ocp.VersionOCP)
	if err := p.Send(t.Context(), []byte("no message")); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The second line is on its way: it is found before the query goes out, or is taken
	// for the answer. Then the answer is what nobody asked for, and found the next time.
	var wire *transport.WireError
	var refused *transport.ProviderError
	_, err := transport.Ask(t.Context(), p, "p", query)
	if !errors.As(err, &wire) && !errors.As(err, &refused) {
		t.Errorf("%v", err)
	}
}

func TestAChildThatStaysIsEndedWithAllThatItStarted(t *testing.T) {
	p := spawn(t, ocptest.NeverExits)
	handshake(t, p, ocp.VersionOCP)
	if exit := p.Stop(); !exit.Killed {
		t.Errorf("%+v", exit)
	}

	p = spawn(t, ocptest.HasChild)
	handshake(t, p, ocp.VersionOCP)
	r, err := transport.Ask(t.Context(), p, "p", query)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(r.Frames[0].Content)
	if err != nil {
		t.Fatal(r.Frames[0].Content)
	}
	sleeper, err := proc.Identify(pid)
	if err != nil {
		t.Fatal(err)
	}
	if exit := p.Stop(); exit.Killed || exit.Code != 0 {
		t.Errorf("%+v", exit)
	}
	h, err := proc.Open(sleeper, time.Millisecond)
	if errors.Is(err, proc.ErrGone) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if err := h.Wait(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestWhatAProviderSaysOfItselfIsCutInErrors(t *testing.T) {
	long := strings.Repeat("ä", 1<<16) + "\x1b[31m"
	for _, err := range []error{
		&transport.VersionMismatchError{Host: ocp.VersionOCP, Provider: long, ProviderVersion: long},
		&transport.ProviderError{ID: "p", Code: long, Message: long},
	} {
		if text := err.Error(); len(text) > 2000 || strings.Contains(text, "\x1b") {
			t.Errorf("%d bytes: %.200s", len(text), text)
		}
	}
}

func TestNothingIsWrittenBeforeAHandshake(t *testing.T) {
	p := spawn(t, ocptest.Good)
	if _, err := transport.Ask(t.Context(), p, "p", query); err == nil || errors.Is(err, transport.ErrBroken) {
		t.Errorf("%v", err)
	}
	handshake(t, p, ocp.VersionOCP)
	if _, err := transport.Ask(t.Context(), p, "p", query); err != nil {
		t.Error(err)
	}
}

func TestAClosedConnectionSaysSo(t *testing.T) {
	p := spawn(t, ocptest.Good)
	handshake(t, p, ocp.VersionOCP)
	_ = p.Close()
	if _, err := transport.Ask(t.Context(), p, "p", query); !errors.Is(err, transport.ErrBroken) {
		t.Errorf("%v", err)
	}
	_ = p.Close()
}
