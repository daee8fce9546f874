package mail_test

import (
	"slices"
	"testing"

	"opencode-mesh/hub/mail"
	"opencode-mesh/protocol/api"
)

// meant is letter n for one identity only.
func meant(n int, to, id string) api.Mail {
	m := letter(n, to, "")
	m.ToID = id
	return m
}

func TestMailForAnIdentityIsReturnedWhenAnotherHasTheName(t *testing.T) {
	for name, connected := range map[string]bool{"the new one connects": true, "the sweep finds it": false} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t)
			g.mustAccept("alpha", meant(1, "beta", "id-beta"), letter(2, "beta", ""))
			g.leave("beta")
			g.join("beta", "id-other")
			g.mustAccept("alpha", meant(3, "beta", "id-beta"), meant(4, "beta", "id-other"))
			h := g.restart()
			alpha, beta := &target{}, &target{}
			h.attach("alpha", alpha)
			other := identity("beta")
			other.ID = "id-other"
			if !connected {
				h.office.Sweep(t.Context())
			}
			t.Cleanup(h.office.Attach(t.Context(), other, beta))
			eventually(t, "what the new one may have", func() bool { return len(beta.bodies()) == 2 })
			if got := beta.bodies(); !slices.Equal(got, []string{"2", "4"}) {
				t.Errorf("the new one got %v", got)
			}
			h.write()
			eventually(t, "the receipts", func() bool { return len(alpha.told()) == 4 })
			for _, r := range alpha.told() {
				mine := r.ID == letter(1, "", "").ID || r.ID == letter(3, "", "").ID
				if mine != (r.Code == api.MailTargetReplaced) || mine != (r.State == api.MailReturned) {
					t.Errorf("%+v", r)
				}
			}
		})
	}
}

func TestTheIdentityBelongsToTheContentOfAMail(t *testing.T) {
	g := newRig(t)
	g.mustAccept("alpha", meant(1, "beta", "id-beta"), meant(1, "beta", "id-beta"))
	g.refused("alpha", letter(1, "beta", ""), api.CodeConflict)
}

func TestNoSenderKeepsOthersFromATarget(t *testing.T) {
	for name, limit := range map[string]func(*mail.Config){
		"mails": func(c *mail.Config) { c.MaxPerTarget, c.MaxPerPair = 4, 2 },
		"bytes": func(c *mail.Config) {
			c.MaxBytesPerTarget, c.MaxBytesPerPair = 4*api.MailOverhead+10, 2*api.MailOverhead+10
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, limit)
			g.join("delta", "id-delta")
			g.mustAccept("alpha", letter(1, "beta", ""), letter(2, "beta", ""))
			g.refused("alpha", letter(3, "beta", ""), api.CodeQueueFull)
			g.mustAccept("alpha", letter(3, "gamma", ""))
			g.mustAccept("gamma", letter(1, "beta", ""), letter(2, "beta", ""))
			g.refused("delta", letter(1, "beta", ""), api.CodeQueueFull) // the whole is full
			detach := g.attach("beta", &target{})
			eventually(t, "beta's mail", func() bool { w, _ := g.office.Counts(); return w == 1 })
			detach()
			g.mustAccept("alpha", letter(4, "beta", ""), letter(5, "beta", ""))
			g.refused("alpha", letter(6, "beta", ""), api.CodeQueueFull)
		})
	}
}
