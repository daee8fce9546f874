package main

import (
	"encoding/json"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/node/ocp/inspect"
	"opencode-mesh/node/ocp/ocptest"
	"opencode-mesh/protocol/ocp"
)

func TestInspectTellsByItsExitCodeWhetherAProviderIsConformant(t *testing.T) {
	t.Parallel()
	m := newMachine(t, nil)
	good := append([]string{"ocp", "inspect", "stdio", "--query", "anything", "--"}, ocptest.Args(ocptest.Good)...)
	wantText(t, m.Want(cli.ExitOK, good).Out,
		"provider      test provider 1\n", "leaves this machine false", "A frame (notes L1-2)", "\nconformant: ", "pass     malformed-input-tolerance")
	bad := append([]string{"ocp", "inspect", "stdio", "--"}, ocptest.Args(ocptest.BadScore)...)
	wantText(t, m.Want(cli.ExitNotDone, bad).Out, "fail     frame-validity", "score is 1.5", "not conformant: ")

	s := httptest.NewServer(ocptest.Handler(ocptest.Good))
	defer s.Close()
	wantText(t, m.Want(cli.ExitOK, []string{"ocp", "inspect", "http", s.URL, "--protocol", ocp.VersionContextgraph}).Out,
		"leaves this machine true", "protocol      contextgraph/1.0\n", "pass     exact-frames")
}

func TestInspectAsJSONPrintsTheReportAndNothingElse(t *testing.T) {
	t.Parallel()
	m := newMachine(t, nil)
	out := m.Want(cli.ExitNotDone, append([]string{"ocp", "inspect", "stdio", "--json", "--query", "anything", "--"}, ocptest.Args(ocptest.BadVersion)...)).Out
	var report inspect.Report
	if err := json.Unmarshal([]byte(out), &report); err != nil || report.Conformant() || len(report.Checks) != 17 {
		t.Errorf("%v: %s", err, out)
	}
}

func TestInspectRefusesAWrongCommandLine(t *testing.T) {
	t.Parallel()
	m := newMachine(t, nil)
	empty := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(empty, []byte("\nsecret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"stdio"}, {"stdio", "--"}, {"http"}, {"http", "a", "b"}, {"ftp"},
		{"stdio", "--protocol", "mcp/1.0", "--", "true"}, {"stdio", "--protocol", "ocp/1", "--", "true"}, {"stdio", "--timeout", "-1s", "--", "true"},
		{"http", "--token-file", "/no/such/file", "http://127.0.0.1:1"}, {"http", "--token-file", empty, "http://127.0.0.1:1"},
	} {
		m.Want(cli.ExitUsage, append([]string{"ocp", "inspect"}, args...))
	}
}
