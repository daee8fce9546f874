package across

import (
	"slices"
	"testing"

	ocm "opencode-mesh/protocol/opencomms"
)

func TestQuestionAndAnswerKeepTheirIds(t *testing.T) {
	w, alpha, beta := pair(t)
	if got := alpha.roles("review"); !slices.Equal(got, []string{"Builder", "Reviewer-beta"}) {
		t.Fatalf("alpha's channel has %v", got)
	}
	q := alpha.say("Builder", "Reviewer-beta", "ready?")
	w.settle()
	far := beta.row(q)
	if far == nil || far.SenderRole != "Builder-alpha" || far.Status != ocm.StatusPending {
		t.Fatalf("beta has %+v", far)
	}
	if got := alpha.sent(q); got.State != stateQueued {
		t.Errorf("the state is %q", got.State)
	}
	beta.pull("Reviewer")
	a := beta.say("Reviewer", "Builder-alpha", "yes", q)
	w.settle()
	back := alpha.row(a)
	if back == nil || back.Hops != 1 || back.Correlation != alpha.row(q).Correlation || back.Root != q || back.ReplyTo != q {
		t.Fatalf("alpha has %+v", back)
	}
	if got := alpha.sent(q); got.State != ocm.StatusDelivered {
		t.Errorf("the final state is %q", got.State)
	}
}
