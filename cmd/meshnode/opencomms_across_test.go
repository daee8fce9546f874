package main

import (
	"strings"
	"testing"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/cmd/internal/clitest"
)

func TestALinkNamesTheOtherSidesCommandAndTheRolesThatNobodyHas(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	o.hub = clitest.StartHub(t)
	o.join("alpha")
	r := o.online("alpha", o.demo())
	o.review()
	out, stderr := o.want(0, "link", "review", "--node", "beta", "--member", "builder", "--member", "Nobody")
	wantText(t, out, "review is linked with review of beta\n", "once it was made on both sides; on beta: meshnode opencomms link review --node alpha")
	wantText(t, stderr, "no member of review here has the role Nobody yet")
	if strings.Contains(stderr, "builder") {
		t.Errorf("a role that is there is warned of: %s", stderr)
	}
	wantText(t, o.do("status"), "review is linked with review of beta: waiting", "may show them Nobody, a role that no member here has")
	if _, stderr := o.want(0, "link", "review", "--node", "beta"); stderr != "" {
		t.Errorf("without --member it warns: %s", stderr)
	}
	if out := o.do("status"); strings.Contains(out, "may show them") {
		t.Errorf("got %s", out)
	}

	// A channel with members of other machines that another node carries.
	o.do("create", "other", "--as", "p1", "--role", "Tester-gamma", "--prompt", "x", "--host", "opencode-mesh")
	wantText(t, o.do("status"), "other has members of other machines, and the node on "+o.data+" has no link of it", "--data")
	r.Stop()
	wantText(t, o.do("status"), "other has members of other machines, and no node runs that carries their mail: none is on "+o.data, "--data")
}

func TestWhatTheOperatorSendsToAnotherMachineIsRefused(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	o.review()
	o.do("join", "review", "--as", "p1", "--role", "Tester-beta", "--prompt", "x", "--host", "opencode-mesh")
	before := o.read(".opencomms/state.json")
	for _, to := range []string{"Tester-beta", "tester-BETA", " Tester-beta ", "p1"} {
		out, stderr := o.want(cli.ExitUsage, "send", "review", "--to", to, "--", "x")
		wantText(t, stderr, "Tester-beta is on another machine", "--as")
		if out != "" {
			t.Errorf("%q: it says %s", to, out)
		}
	}
	if o.read(".opencomms/state.json") != before {
		t.Error("a refusal changed the file")
	}
	wantText(t, o.do("send", "review", "--as", "Builder", "--to", "Tester-beta", "--", "x"), "queued ocm_", "for Tester-beta (p1)")
}
