package across

import (
	"errors"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"

	"opencode-mesh/node/mail"
	"opencode-mesh/protocol/api"
	ocm "opencode-mesh/protocol/opencomms"
)

func TestMailThatIsNotAsItShouldBeIsReturned(t *testing.T) {
	_, alpha, _ := pair(t)
	l, err := alpha.across.links(func(*link) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	good := message{
		Link: newID(prefixLink), Channel: "review", FromChannel: "review", ID: ocm.NewID(ocm.PrefixMessage), Correlation: ocm.NewID(ocm.PrefixCorrelation),
		Type: ocm.TypeManual, Content: "hello", From: l[0].Remote[0].Alias, To: l[0].Exports[0].Alias,
	}
	receive := func(from, kind string, body any) error {
		m := api.Mail{ID: mail.NewID(), Kind: kind, From: from, FromID: "id-" + from, To: "alpha", Body: encode(body), SentMS: 1}
		return alpha.box.Update(t.Context(), func(tx *bolt.Tx) error {
			if err := alpha.across.Receive(tx, m); err != nil {
				return err
			}
			return errRollback
		})
	}
	if err := receive("beta", kindMessage, good); !errors.Is(err, errRollback) {
		t.Fatalf("a good message: %v", err)
	}
	var refusal *api.Error
	if err := receive("gamma", kindMessage, good); !errors.As(err, &refusal) || refusal.Code != api.CodeRefused {
		t.Errorf("of a node without a link: %v", err)
	}
	for name, change := range map[string]func(*message){
		"type":        func(m *message) { m.Type = ocm.TypeSystem },
		"no type":     func(m *message) { m.Type = "" },
		"id":          func(m *message) { m.ID = "ocm_1" },
		"correlation": func(m *message) { m.Correlation = "x" },
		"reply":       func(m *message) { m.ReplyTo = "x" },
		"root":        func(m *message) { m.Root = "x" },
		"hops":        func(m *message) { m.Hops = -1 },
		"many hops":   func(m *message) { m.Hops = maxHops + 1 },
		"content":     func(m *message) { m.Content = " " },
		"length":      func(m *message) { m.Content = strings.Repeat("x", ocm.MaxContent+1) },
		"from":        func(m *message) { m.From = "sess_alpha_builder" },
		"to":          func(m *message) { m.To = "sess_alpha_builder" },
		"channel":     func(m *message) { m.Channel = "Review" },
		"link":        func(m *message) { m.Link = "" },
	} {
		bad := good
		change(&bad)
		if err := receive("beta", kindMessage, bad); !errors.As(err, &refusal) || refusal.Code != api.CodeRefused {
			t.Errorf("%s: %v", name, err)
		}
	}
	many := roster{Link: newID(prefixLink), Channel: "review", FromChannel: "review"}
	for range ocm.MaxMembers + 1 {
		many.Members = append(many.Members, rosterMember{Alias: newID(prefixAlias), Role: "A"})
	}
	twice := roster{Link: many.Link, Channel: "review", FromChannel: "review", Members: []rosterMember{many.Members[0], many.Members[0]}}
	role := roster{Link: many.Link, Channel: "review", FromChannel: "review", Members: []rosterMember{{Alias: many.Members[0].Alias, Role: "1\nignore"}}}
	for _, bad := range []roster{many, twice, role} {
		if err := receive("beta", kindRoster, bad); !errors.As(err, &refusal) || refusal.Code != api.CodeRefused {
			t.Errorf("roster %+v: %v", bad, err)
		}
	}
	var unsupported *mail.Unsupported
	if err := receive("beta", "opencomms.later", good); !errors.As(err, &unsupported) {
		t.Errorf("a kind of a later version: %v", err)
	}
}

var errRollback = errors.New("rolled back")

func TestOffersAreBounded(t *testing.T) {
	w, alpha, _ := pair(t)
	err := alpha.box.Update(t.Context(), func(tx *bolt.Tx) error {
		for i := range MaxOffers + 5 {
			from := "gamma" // one that offers all it can, before anybody else does
			if i > MaxNodeOffers+1 {
				from = "node" + itoa(i)
			}
			body := roster{Link: newID(prefixLink), Channel: "c" + itoa(i), FromChannel: "c"}
			m := api.Mail{ID: mail.NewID(), Kind: kindRoster, From: from, FromID: "id", To: "alpha", Body: encode(body), SentMS: 1}
			if err := alpha.across.Receive(tx, m); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	offers := alpha.status().Offers
	if n := len(offers); n != MaxOffers {
		t.Errorf("%d offers are kept", n)
	}
	of := map[string]int{}
	for _, o := range offers {
		of[o.Node]++
	}
	if of["gamma"] != MaxNodeOffers || of["node"+itoa(MaxNodeOffers+2)] != 1 {
		t.Errorf("the offers are %v", of)
	}
	w.settle()
}
