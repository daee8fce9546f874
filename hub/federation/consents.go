package federation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"opencode-mesh/hub/shown"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/ocp"
	"opencode-mesh/store"
)

// consentSetting is where the store keeps what an identity has consented to.
const consentSetting = "context.consents/"

// changeTries is how often a change of consents is made anew when somebody else made one
// meanwhile.
const changeTries = 8

// nodeFlow is what asking a node means, whatever its providers do: the goal leaves for
// another machine.
var nodeFlow = ocp.DataFlow{Reads: true, Egress: true}

// subject is a node as consent sees it. It is bound to the identity: another machine
// under the same name needs consent of its own.
func subject(node api.Party) ocp.Subject {
	return ocp.Subject{Provider: node.Name, Name: node.Name, URL: node.ID, DataFlow: nodeFlow}
}

// permits tells whether an asker's goal may go to a node; nil if so. To its own machine
// it always may.
func permits(consents *ocp.Consents, a Asker, node api.Party) error {
	if a.ID == node.ID {
		return nil
	}
	err := consents.Permits(subject(node))
	var need *ocp.ConsentRequiredError
	if errors.As(err, &need) && len(need.Changed) > 0 {
		return fmt.Errorf("another machine has the name %s since consent was given: consent again, if its owner may read your goals", node.Name)
	}
	if err != nil {
		return fmt.Errorf("your goals may not go to %s yet: nothing was sent; consent first", node.Name)
	}
	return nil
}

// consents are what an asker has consented to.
func (f *Federation) consents(ctx context.Context, a Asker) (*ocp.Consents, store.Rev, error) {
	data, rev, err := f.cfg.Store.Setting(ctx, consentSetting+a.ID)
	c := new(ocp.Consents)
	if errors.Is(err, store.ErrNotFound) {
		return c, 0, nil
	}
	if err == nil {
		err = json.Unmarshal(data, c)
	}
	return c, rev, err
}

// Consent records that an asker's goals may go to a node (id is its name), or that a
// provider of a node may be asked (NODE/PROVIDER), which decides for everybody and is an
// operator's alone. It is there for good once this returns.
func (f *Federation) Consent(ctx context.Context, a Asker, id string, c api.ContextConsent) error {
	c.Scope, c.GrantedAt, c.GrantedBy = strings.TrimSpace(c.Scope), f.cfg.Now().UTC(), a.Name
	switch {
	case c.Scope == "":
		return api.Errorf(api.CodeBadRequest, "say in words what may leave, and where to")
	case !shown.IsLine(c.Scope, api.MaxContextScope):
		return api.Errorf(api.CodeBadRequest, "what may leave is said in a line of at most %d bytes", api.MaxContextScope)
	}
	node, provider, further, err := f.subject(ctx, a, id)
	if err != nil {
		return err
	}
	if further {
		return node.Consent(ctx, provider, &c)
	}
	s := subject(node.Party())
	if c.Shown != "" && c.Shown != s.Digest() {
		return api.Errorf(api.CodeConflict, "another machine has the name %s by now: look again before you consent", s.Provider)
	}
	return f.change(ctx, a, func(all *ocp.Consents) error {
		if _, had := all.Get(s.Provider); !had && len(all.All()) >= api.MaxContextConsents {
			return api.Errorf(api.CodeQueueFull, "there are %d consents already: revoke what is not needed", api.MaxContextConsents)
		}
		return all.Record(ocp.Consent{Provider: s.Provider, Name: s.Name, URL: s.URL, DataFlow: s.DataFlow, GrantedScope: c.Scope, GrantedAt: c.GrantedAt})
	})
}

// Revoke takes a consent back; what is asked from then on needs it again, and what is
// under way by it is broken off. One that is not
// there is api.CodeNotFound.
func (f *Federation) Revoke(ctx context.Context, a Asker, id string) error {
	if name, provider, further := strings.Cut(id, "/"); further {
		if !a.Operator {
			return notYours(id)
		}
		node, err := f.cfg.Nodes.Named(ctx, a, name)
		if err != nil {
			return err
		}
		return node.Consent(ctx, provider, nil)
	}
	// The node may be gone: its consent goes nevertheless.
	err := f.change(ctx, a, func(all *ocp.Consents) error {
		if _, ok := all.Revoke(id); !ok {
			return api.Errorf(api.CodeNotFound, "there is no consent to %s", shown.Line(id, api.MaxName))
		}
		return nil
	})
	if err == nil {
		f.running.revoke(a, id)
	}
	return err
}

// subject finds what an id means.
func (f *Federation) subject(ctx context.Context, a Asker, id string) (node Node, provider string, further bool, err error) {
	name, provider, further := strings.Cut(id, "/")
	if further && !a.Operator {
		return nil, "", false, notYours(id)
	}
	node, err = f.cfg.Nodes.Named(ctx, a, name)
	return node, provider, further, err
}

func notYours(id string) error {
	return api.Errorf(api.CodeForbidden, "%s sends data further for whoever asks its node: an operator decides that, or the node's owner by meshnode ocp consent", shown.Line(id, 2*api.MaxName))
}

// change stores consents by compare-and-set.
func (f *Federation) change(ctx context.Context, a Asker, change func(*ocp.Consents) error) error {
	for range changeTries {
		all, rev, err := f.consents(ctx, a)
		if err != nil {
			return err
		}
		if err := change(all); err != nil {
			return err
		}
		data, err := json.Marshal(all)
		if err != nil {
			return err
		}
		if _, err = f.cfg.Store.PutSetting(ctx, consentSetting+a.ID, data, rev); !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
	return api.Errorf(api.CodeConflict, "consents are being changed by somebody else; try again")
}
