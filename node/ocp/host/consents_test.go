package host

import (
	"errors"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"opencode-mesh/node/ocp/ocptest"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/ocp"
)

// tee keeps what is read.
type tee struct {
	io.ReadCloser
	kept io.Writer
}

func (t *tee) Read(b []byte) (int, error) {
	n, err := t.ReadCloser.Read(b)
	_, _ = t.kept.Write(b[:n])
	return n, err
}

func consent(t testing.TB, h *Host, name string) {
	t.Helper()
	if err := h.Consent(t.Context(), name, api.ContextConsent{Scope: "goals go there", GrantedBy: "me"}); err != nil {
		t.Fatal(err)
	}
}

func entry(t testing.TB, h *Host, name string) api.ContextProvider {
	t.Helper()
	list, err := h.Providers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list.Providers {
		if p.ID == name {
			return p
		}
	}
	t.Fatalf("no %s in %+v", name, list)
	return api.ContextProvider{}
}

func wantCode(t testing.TB, err error, code api.Code) {
	t.Helper()
	var e *api.Error
	if !errors.As(err, &e) || e.Code != code {
		t.Errorf("%v; want %s", err, code)
	}
}

func TestNothingIsSentToAnAddressWithoutConsent(t *testing.T) {
	t.Parallel()
	var posts requests
	s := httptest.NewServer(&posts)
	t.Cleanup(s.Close)
	path := Path(t.TempDir())
	h := open(t, Config{Path: path, Providers: []Provider{{Name: "web", URL: s.URL}}})
	for range 3 {
		wantOutcome(t, ask(t, h, "the secret goal")["web"], api.ContextAsks, "needs consent")
	}
	if posts.count() != 0 {
		t.Fatal("something was sent")
	}
	if e := entry(t, h, "web"); !e.NeedsConsent || e.Consent != nil || !e.DataFlow.Egress || e.Name != "test provider" || e.Where != s.URL {
		t.Errorf("%+v", e)
	}
	wantOutcome(t, ask(t, h, "the secret goal")["web"], api.ContextAsks, "needs consent")
	if posts.has("goal") {
		t.Fatal("the goal was sent")
	}
	consent(t, h, "web")
	wantOutcome(t, ask(t, h, "the secret goal")["web"], api.ContextFrames, "")
	if !posts.has("the secret goal") {
		t.Error("it did not get the goal")
	}
	if e := entry(t, h, "web"); e.NeedsConsent || e.Consent == nil || e.Consent.Scope != "goals go there" || e.Consent.GrantedBy != "me" || e.Consent.GrantedAt.IsZero() {
		t.Errorf("%+v", e)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	h.Close() // consent outlives the process
	h = open(t, Config{Path: path, Providers: []Provider{{Name: "web", URL: s.URL}}})
	wantOutcome(t, ask(t, h, "again")["web"], api.ContextFrames, "")
	if err := h.Revoke(t.Context(), "web"); err != nil {
		t.Fatal(err)
	}
	wantOutcome(t, ask(t, h, "after it")["web"], api.ContextAsks, "")
	wantCode(t, h.Revoke(t.Context(), "web"), api.CodeNotFound)
	if posts.has("after it") {
		t.Error("the goal was sent")
	}
}

func TestAProgramThatSendsDataAwayNeedsConsentAndOneThatChangesNeedsItAgain(t *testing.T) {
	t.Parallel()
	dir, path := t.TempDir(), Path(t.TempDir())
	put(t, dir, fileEgress, "")
	put(t, dir, fileName, "one")
	cfg := Config{Path: path, Providers: []Provider{{Name: "p", Command: childArgs(dir)}}}
	h := open(t, cfg)
	wantOutcome(t, ask(t, h, "g1")["p"], api.ContextAsks, "needs consent first")
	consent(t, h, "p")
	wantOutcome(t, ask(t, h, "g2")["p"], api.ContextFrames, "")
	h.Close()

	put(t, dir, fileName, "two")
	h = open(t, cfg)
	wantOutcome(t, ask(t, h, "g3")["p"], api.ContextAsks, "again: its name changed")
	if e := entry(t, h, "p"); !e.NeedsConsent || e.Consent == nil || strings.Join(e.Changed, " ") != "name" {
		t.Errorf("%+v", e)
	}
	h.Close()

	put(t, dir, fileName, "one")
	other := t.TempDir()
	put(t, other, fileName, "one")
	put(t, other, fileEgress, "")
	cfg.Providers[0].Command = childArgs(other)
	h = open(t, cfg)
	wantOutcome(t, ask(t, h, "g4")["p"], api.ContextAsks, "again: its address or program changed")
	if has(t, dir, fileGoals) != "g2\n" || has(t, other, fileGoals) != "" {
		t.Errorf("goals: %q %q", has(t, dir, fileGoals), has(t, other, fileGoals))
	}
}

func TestAConsentIsToWhatThisAskerWasShown(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	put(t, dir, fileEgress, "")
	put(t, dir, fileName, "one")
	h := open(t, Config{Providers: []Provider{{Name: "p", Command: childArgs(dir)}}})
	one := entry(t, h, "p").Shown
	put(t, dir, fileName, "two")
	h.members[0].disconnect()     // the next one calls itself otherwise
	two := entry(t, h, "p").Shown // to somebody else
	seen := func(shown string) error {
		return h.Consent(t.Context(), "p", api.ContextConsent{Scope: "goals go there", Shown: shown})
	}
	wantCode(t, seen(one), api.CodeConflict)
	wantOutcome(t, ask(t, h, "g")["p"], api.ContextAsks, "")
	if err := seen(two); err != nil {
		t.Fatal(err)
	}
	wantOutcome(t, ask(t, h, "g")["p"], api.ContextFrames, "")
}

func TestAProgramThatWasReplacedNeedsConsentAgain(t *testing.T) {
	t.Parallel()
	dir, bin := t.TempDir(), filepath.Join(t.TempDir(), "provider")
	put(t, dir, fileEgress, "")
	args := childArgs(dir)
	original, err := os.ReadFile(args[0])
	if err != nil {
		t.Fatal(err)
	}
	replace := func(data []byte) {
		t.Helper()
		next := bin + ".next"
		if err := os.WriteFile(next, data, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(next, bin); err != nil {
			t.Fatal(err)
		}
	}
	replace(original)
	args[0] = bin
	h := open(t, Config{Providers: []Provider{{Name: "p", Command: args}}})
	consent(t, h, "p")
	wantOutcome(t, ask(t, h, "g1")["p"], api.ContextFrames, "")
	h.members[0].disconnect()
	replace(append(original, 0)) // it calls itself the same and does the same
	wantOutcome(t, ask(t, h, "g2")["p"], api.ContextAsks, "again: its address or program changed")
	h.members[0].disconnect()
	replace(original)
	wantOutcome(t, ask(t, h, "g3")["p"], api.ContextFrames, "")
	if has(t, dir, fileGoals) != "g1\ng3\n" {
		t.Errorf("goals: %q", has(t, dir, fileGoals))
	}
}

func TestAnAddressIsSentNothingWhenItsConsentIsGone(t *testing.T) {
	t.Parallel()
	var posts requests
	s := httptest.NewServer(&posts)
	t.Cleanup(s.Close)
	h := open(t, Config{Providers: []Provider{{Name: "never", URL: s.URL + "/1"}, {Name: "web", URL: s.URL + "/2"}}})
	entry(t, h, "never")
	consent(t, h, "web")
	wantOutcome(t, ask(t, h, "g")["web"], api.ContextFrames, "")
	if err := h.Revoke(t.Context(), "web"); err != nil {
		t.Fatal(err)
	}
	before := posts.count()
	h.Close()
	if n := posts.count() - before; n != 0 || posts.has("shutdown") {
		t.Errorf("%d requests after it", n)
	}
}

func TestRevokingWhatIsNotThereBreaksOffNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() // it sends nothing, so it needs no consent
	h := open(t, Config{Providers: []Provider{{Name: "p", Command: childArgs(dir)}}})
	legs := make(chan map[string]api.ContextAnswerLeg, 1)
	go func() { legs <- ask(t, h, "late") }()
	await(t, "the query", func() bool { return has(t, dir, fileGoals) != "" })
	wantCode(t, h.Revoke(t.Context(), "p"), api.CodeNotFound)
	put(t, dir, fileGo, "")
	wantOutcome(t, (<-legs)["p"], api.ContextFrames, "")
}

func TestAScopeOffTheMachineIsEgressWhateverElseIsSaid(t *testing.T) {
	t.Parallel()
	declared := ocp.DataFlow{EgressScopes: []string{"local-only", "third-party-model"}}
	if !flow(declared).Egress || flow(ocp.DataFlow{EgressScopes: []string{"local-only"}}).Egress {
		t.Error("a scope off the machine and egress are not the same")
	}
}

func TestRevokeBreaksOffAQueryThatIsUnderWay(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	put(t, dir, fileEgress, "")
	h := open(t, Config{Providers: []Provider{{Name: "p", Command: childArgs(dir)}}})
	consent(t, h, "p")
	legs := make(chan map[string]api.ContextAnswerLeg, 1)
	go func() { legs <- ask(t, h, "late") }()
	await(t, "the query", func() bool { return has(t, dir, fileGoals) != "" })
	if err := h.Revoke(t.Context(), "p"); err != nil {
		t.Fatal(err)
	}
	wantOutcome(t, (<-legs)["p"], api.ContextFailed, "consent was revoked")
	if failures(h.members[0]) != 0 {
		t.Error("that is no failure of the program")
	}
}

func TestADamagedFileOfConsentsIsSetAsideAndMeansNone(t *testing.T) {
	t.Parallel()
	var posts requests
	s := httptest.NewServer(&posts)
	t.Cleanup(s.Close)
	for _, damage := range []string{"", "{", `{"records":{"web":{"provider_id":"other","granted_scope":"x"}}}`, `{"records":[]}`, strings.Repeat(" ", maxConsentsFile+1)} {
		path := Path(t.TempDir())
		put(t, filepath.Dir(path), filepath.Base(path), damage)
		var seen logs
		h := open(t, Config{Path: path, Log: seen.logger(t), Providers: []Provider{{Name: "web", URL: s.URL}}})
		wantOutcome(t, ask(t, h, "the goal")["web"], api.ContextAsks, "")
		aside, err := filepath.Glob(path + ".damaged-*")
		if err != nil || len(aside) != 1 || has(t, filepath.Dir(path), filepath.Base(aside[0])) != damage {
			t.Errorf("aside: %v, %v", aside, err)
		}
		if !strings.Contains(seen.text(), "consents is damaged") {
			t.Error("nothing in the log")
		}
		consent(t, h, "web")
		wantOutcome(t, ask(t, h, "fine")["web"], api.ContextFrames, "")
	}
	if posts.has("the goal") {
		t.Error("the goal was sent")
	}
}

func TestConsentsThatMakeNoSenseAreRefused(t *testing.T) {
	t.Parallel()
	h := open(t, Config{Providers: []Provider{
		goodSource(), {Name: "local", Command: ocptest.Args(ocptest.Good)}, {Name: "gone", URL: "http://127.0.0.1:1/"},
	}})
	for name, code := range map[string]api.Code{"other": api.CodeNotFound, "memory": api.CodeBadRequest, "local": api.CodeBadRequest, "gone": api.CodeUnavailable} {
		wantCode(t, h.Consent(t.Context(), name, api.ContextConsent{Scope: "x"}), code)
	}
	for _, scope := range []string{"", " \n", "two\nlines", "\x1b[31mred", strings.Repeat("x", api.MaxContextScope+1)} {
		wantCode(t, h.Consent(t.Context(), "gone", api.ContextConsent{Scope: scope}), api.CodeBadRequest)
	}
	wantCode(t, h.Revoke(t.Context(), "other"), api.CodeNotFound)
}

func TestAConsentThatIsNotOnDiskDoesNotCountAndARevocationDoesAtOnce(t *testing.T) {
	t.Parallel()
	var posts requests
	s := httptest.NewServer(&posts)
	t.Cleanup(s.Close)
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	h := open(t, Config{Path: Path(dir), Providers: []Provider{{Name: "web", URL: s.URL}, {Name: "net", URL: s.URL}}})
	consent(t, h, "web")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := h.Consent(t.Context(), "net", api.ContextConsent{Scope: "x"}); err == nil {
		t.Error("it was stored nowhere")
	}
	wantOutcome(t, ask(t, h, "g")["net"], api.ContextAsks, "")
	if err := h.Revoke(t.Context(), "web"); err == nil {
		t.Error("it was stored nowhere")
	}
	wantOutcome(t, ask(t, h, "g")["web"], api.ContextAsks, "")
}

func TestConsentsOfProvidersThatAreGoneAreShownAndCanBeRevoked(t *testing.T) {
	t.Parallel()
	var posts requests
	s := httptest.NewServer(&posts)
	t.Cleanup(s.Close)
	path := Path(t.TempDir())
	h := open(t, Config{Path: path, Providers: []Provider{{Name: "web", URL: s.URL}}})
	consent(t, h, "web")
	h.Close()
	h = open(t, Config{Path: path})
	if e := entry(t, h, "web"); e.Consent == nil || !strings.Contains(e.Error, "not configured") {
		t.Errorf("%+v", e)
	}
	if err := h.Revoke(t.Context(), "web"); err != nil {
		t.Fatal(err)
	}
	if list, err := h.Providers(t.Context()); err != nil || len(list.Providers) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
}

func TestNoSecretOfACommandOrAddressIsShownOrStored(t *testing.T) {
	t.Parallel()
	var posts requests
	s := httptest.NewServer(&posts)
	t.Cleanup(s.Close)
	dir := t.TempDir()
	put(t, dir, fileEgress, "")
	path := Path(t.TempDir())
	var seen logs
	cfg := Config{Path: path, Log: seen.logger(t), Now: func() time.Time { return time.Unix(1e9, 0) }, Providers: []Provider{
		{Name: "web", URL: s.URL + "/p?key=hunter2", Token: "hunter2"}, {Name: "cmd", Command: childArgs(dir)}, // its argument is as good as a secret
	}}
	h := open(t, cfg)
	list, err := h.Providers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	consent(t, h, "web")
	consent(t, h, "cmd")
	legs := ask(t, h, "g")
	wantOutcome(t, legs["web"], api.ContextFrames, "")
	stored := has(t, filepath.Dir(path), filepath.Base(path))
	for what, text := range map[string]string{"list": asJSON(t, list), "file": stored, "log": seen.text(), "legs": asJSON(t, legs)} {
		if strings.Contains(text, "hunter2") || strings.Contains(text, dir) {
			t.Errorf("a secret in the %s: %s", what, text)
		}
	}
	if !strings.Contains(stored, "granted_at\": \"2001-09-09T01:46:40Z\"") {
		t.Errorf("%s", stored)
	}
	h.Close()
	cfg.Providers[0].URL = s.URL + "/p?key=another"
	h = open(t, cfg)
	wantOutcome(t, ask(t, h, "g")["web"], api.ContextAsks, "its address or program changed")
}
