package provider_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"opencode-mesh/node/ocp/provider"
	"opencode-mesh/protocol/ocp"
)

// source answers every query with the same; what it was asked is kept.
type source struct {
	result ocp.Result
	err    error
	asked  []ocp.Query
}

func (s *source) Query(_ context.Context, q ocp.Query) (ocp.Result, error) {
	s.asked = append(s.asked, q)
	return s.result, s.err
}

func frame(id, content string) ocp.Frame {
	return ocp.Frame{
		ID: id, Kind: ocp.KindFact, Title: "A fact", Content: content, Score: 0.5, TokenCost: ocp.TokenCost(content),
		CitationLabel: "a digest", ContentDigest: "sha256:" + strings.Repeat("0", 64),
	}
}

func newProvider(s provider.Source) *provider.Provider {
	return provider.New(provider.Config{Name: "memory", Version: "1", Kinds: []ocp.FrameKind{ocp.KindFact}, Source: s})
}

// Lines of hosts.
const (
	greet     = `{"type":"handshake","protocol_version":"ocp/1.0-draft"}`
	greetNext = `{"type":"handshake","protocol_version":"contextgraph/1.0"}`
	ask       = `{"type":"query","query":{"goal":"g","max_frames":8,"max_tokens":100}}`
	askWithID = `{"type":"query","id":"7","query":{"goal":"g","max_frames":8,"max_tokens":100}}`
	bye       = `{"type":"shutdown"}`
)

// talk sends lines and returns those of the answer.
func talk(t *testing.T, s provider.Source, in string) []string {
	t.Helper()
	var out strings.Builder
	if err := newProvider(s).Serve(context.Background(), strings.NewReader(in), &out); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	if text == "" {
		return nil
	}
	if !strings.HasSuffix(text, "\n") {
		t.Fatalf("the last line lacks its end: %q", text)
	}
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for _, l := range lines {
		if !json.Valid([]byte(l)) {
			t.Fatalf("a line that is no message: %q", l)
		}
	}
	return lines
}

func lines(l ...string) string { return strings.Join(l, "\n") + "\n" }

func decode(t *testing.T, line string) ocp.Envelope {
	t.Helper()
	e, err := ocp.Decode([]byte(line))
	if err != nil {
		t.Fatalf("%v in %s", err, line)
	}
	return e
}

func TestEachRequestGetsOneLineAndShutdownEndsIt(t *testing.T) {
	got := talk(t, &source{result: ocp.Result{Frames: []ocp.Frame{frame("f", "x")}}}, lines(greet, "", ask, ask, bye, ask))
	if len(got) != 3 {
		t.Fatalf("%d lines: %q", len(got), got)
	}
	if ack := decode(t, got[0]).HandshakeAck; ack == nil || ack.ProtocolVersion != "ocp/1.0-draft" || ack.Provider.Name != "memory" {
		t.Errorf("acknowledged with %s", got[0])
	}
	for _, l := range got[1:] {
		if f := decode(t, l).Frames; f == nil || len(f.Frames) != 1 {
			t.Errorf("answered with %s", l)
		}
	}
}

func TestTheEndOfTheStreamEndsItAfterALastLineWithoutAnEnd(t *testing.T) {
	got := talk(t, &source{}, greet+"\r\n"+ask)
	if len(got) != 2 || decode(t, got[1]).Frames == nil {
		t.Fatalf("got %q", got)
	}
}

func TestEachFamilyGetsItsOwnMessages(t *testing.T) {
	s := &source{result: ocp.Result{Frames: []ocp.Frame{frame("f", "x")}}}
	old, next := talk(t, s, lines(greet, askWithID)), talk(t, s, lines(greetNext, askWithID))
	for _, word := range []string{"correlation", `"id":"7"`, "content_digest"} {
		if strings.Contains(strings.Join(old, ""), word) {
			t.Errorf("%s is not of ocp/1: %q", word, old)
		}
		if !strings.Contains(strings.Join(next, ""), word) {
			t.Errorf("%s is missing for contextgraph/1: %q", word, next)
		}
	}
	if v := decode(t, next[0]).HandshakeAck.ProtocolVersion; v != "contextgraph/1.0" {
		t.Errorf("a host of contextgraph/1.0 is greeted with %s", v)
	}
	// A second greeting is of another family, and what follows too.
	both := talk(t, s, lines(greetNext, greet, ask))
	if strings.Contains(both[2], "content_digest") {
		t.Errorf("answered in the family of the greeting before: %s", both[2])
	}
	if v := decode(t, talk(t, s, lines(`{"type":"handshake","protocol_version":"ocp/2.0"}`))[0]).HandshakeAck.ProtocolVersion; v != ocp.VersionOCP {
		t.Errorf("a foreign host is told %s", v)
	}
}

func TestLinesThatAreNoRequestAreErrorsAndHurtNothing(t *testing.T) {
	for name, line := range map[string]string{
		"no JSON":             "this is not valid json {{{",
		"a mark at the start": "\ufeff" + ask,
		"two messages":        ask + ask,
		"a double member":     `{"type":"query","query":{"goal":"g","goal":"h","max_frames":8,"max_tokens":100}}`,
		"a fraction":          `{"type":"query","query":{"goal":"g","max_frames":8.0,"max_tokens":100}}`,
		"an answer":           `{"type":"error","message":"m"}`,
		"another family's":    `{"type":"verify","request":{"frames":[]}}`,
		"a line too long":     strings.Repeat("x", ocp.MaxMessage+200<<10),
		"just too long":       strings.Repeat(" ", ocp.MaxMessage+8) + ask,
	} {
		got := talk(t, &source{}, lines(greet, line, ask))
		if len(got) != 3 || decode(t, got[1]).Error == nil || decode(t, got[2]).Frames == nil {
			t.Errorf("%s: %.300q", name, got)
		}
	}
	// The successor wants to know why.
	got := talk(t, &source{}, lines(greetNext, "this is not valid json {{{"))
	if e := decode(t, got[1]).Error; e == nil || e.Code != ocp.CodeBadRequest {
		t.Errorf("without its code: %s", got[1])
	}
}

func TestASourceIsAskedWithinBounds(t *testing.T) {
	s := &source{}
	talk(t, s, lines(greet, `{"type":"query","query":{"goal":"g","embedding":[1],"max_frames":4294967295,"max_tokens":4294967295}}`, ask))
	if q := s.asked[0]; q.MaxFrames != provider.MaxFrames || q.MaxTokens != provider.MaxTokens || q.Embedding != nil {
		t.Errorf("asked %+v", q)
	}
	if q := s.asked[1]; q.MaxFrames != 8 || q.MaxTokens != 100 {
		t.Errorf("asked %+v", q)
	}
}

func TestWhatBreaksTheRulesDoesNotLeave(t *testing.T) {
	bad := map[string]func(*ocp.Frame){
		"a blank label":    func(f *ocp.Frame) { f.CitationLabel = " " },
		"a blank title":    func(f *ocp.Frame) { f.Title = "" },
		"a score above 1":  func(f *ocp.Frame) { f.Score = 1.5 },
		"a cost too high":  func(f *ocp.Frame) { f.TokenCost++ },
		"a local time":     func(f *ocp.Frame) { f.ValidFrom = "2026-01-01T00:00:00+01:00" },
		"a nameless edge":  func(f *ocp.Frame) { f.Relations = []ocp.Relation{{Rel: "of", TargetURI: "u"}} },
		"a second good":    func(f *ocp.Frame) { f.ID = "good" },
		"a digest of less": func(f *ocp.Frame) { f.Provenance = []ocp.Provenance{{Type: "file", Digest: "sha256:00"}} },
	}
	for name, spoil := range bad {
		f := frame("bad", "y")
		spoil(&f)
		got := talk(t, &source{result: ocp.Result{Frames: []ocp.Frame{frame("good", "x"), f}}}, lines(greetNext, ask))
		if r := decode(t, got[1]).Frames; r == nil || len(r.Frames) != 1 || r.Frames[0].ID != "good" {
			t.Errorf("%s: %s", name, got[1])
		}
	}
	over := ocp.Result{Frames: []ocp.Frame{frame("a", strings.Repeat("x", 400)), frame("b", "y")}}
	if e := decode(t, talk(t, &source{result: over}, lines(greetNext, ask))[1]).Error; e == nil || e.Code != ocp.CodeInternal {
		t.Error("more than the budget left")
	}
	// What ocp/1 cannot say is an error there.
	odd := frame("odd", "x")
	odd.Kind = "novel"
	if e := decode(t, talk(t, &source{result: ocp.Result{Frames: []ocp.Frame{odd}}}, lines(greet, ask))[1]).Error; e == nil {
		t.Error("a kind that ocp/1 does not have left")
	}
}

func TestTheSourcesOwnErrorsAreToldAndOthersAreNot(t *testing.T) {
	told := talk(t, &source{err: &ocp.Error{Code: ocp.CodeUnavailable, Message: "no node runs"}}, lines(greetNext, askWithID))
	if e := decode(t, told[1]); e.ID != "7" || e.Error == nil || e.Error.Code != ocp.CodeUnavailable || e.Error.Message != "no node runs" {
		t.Errorf("got %s", told[1])
	}
	hidden := talk(t, &source{err: errors.New("secret path")}, lines(greetNext, ask))
	if e := decode(t, hidden[1]).Error; e == nil || e.Code != ocp.CodeInternal || strings.Contains(hidden[1], "secret") {
		t.Errorf("got %s", hidden[1])
	}
}

func TestAHostThatStopsReadingEndsIt(t *testing.T) {
	r, w := io.Pipe()
	_ = r.Close()
	if err := newProvider(&source{}).Serve(context.Background(), strings.NewReader(lines(greet, ask)), w); !errors.Is(err, io.ErrClosedPipe) {
		t.Fatalf("got %v", err)
	}
}
