package federation

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"opencode-mesh/hub/shown"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/ocp"
)

// Providers lists the nodes that are online with what the asker has consented to, each
// followed by its providers; those of a node that the asker's goals may not reach are not
// asked for. Nodes that are gone but were consented to are listed too, so that it can be
// taken back.
func (f *Federation) Providers(ctx context.Context, a Asker) (api.ContextProviders, error) {
	out := api.ContextProviders{Providers: []api.ContextProvider{}}
	consents, _, err := f.consents(ctx, a)
	if err != nil {
		return out, err
	}
	nodes, err := f.cfg.Nodes.Online(ctx, a)
	if err != nil {
		return out, err
	}
	lists := make([][]api.ContextProvider, len(nodes))
	var work sync.WaitGroup
	slots := make(chan struct{}, api.MaxContextNodes)
	online := map[string]bool{}
	for i, n := range nodes {
		p := n.Party()
		online[p.Name] = true
		entry := nodeEntry(consents, a, p)
		lists[i] = []api.ContextProvider{entry}
		if entry.NeedsConsent {
			continue
		}
		work.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(ctx, api.ContextLegLimit)
			defer cancel()
			answer, err := n.Providers(ctx)
			if err != nil {
				lists[i][0].Error = shown.Line(err.Error(), maxDetail)
				return
			}
			for _, v := range answer.Providers[:min(len(answer.Providers), api.MaxContextProviders)] {
				lists[i] = append(lists[i], tidyProvider(p.Name, v))
			}
		})
	}
	work.Wait()
	for _, l := range lists {
		out.Providers = append(out.Providers, l...)
	}
	for _, c := range consents.All() {
		if !online[c.Provider] {
			out.Providers = append(out.Providers, api.ContextProvider{
				ID: c.Provider, Node: c.Provider, Name: c.Name, DataFlow: c.DataFlow, Consent: given(c), Error: "the node is offline",
			})
		}
	}
	return out, ctx.Err()
}

func nodeEntry(consents *ocp.Consents, a Asker, p api.Party) api.ContextProvider {
	e := api.ContextProvider{ID: p.Name, Node: p.Name, Name: p.Name, DataFlow: nodeFlow, Shown: subject(p).Digest()}
	if a.ID == p.ID {
		e.DataFlow = ocp.DataFlow{Reads: true}
		return e
	}
	err := consents.Permits(subject(p))
	e.NeedsConsent = err != nil
	var need *ocp.ConsentRequiredError
	if errors.As(err, &need) {
		e.Changed = need.Changed
	}
	if c, ok := consents.Get(p.Name); ok {
		e.Consent = given(c)
	}
	return e
}

func given(c ocp.Consent) *api.ContextConsent {
	return &api.ContextConsent{Scope: c.GrantedScope, GrantedAt: c.GrantedAt}
}

// Bounds of what a node says of a provider.
const (
	// maxWhere is the longest address, name, scope and name of a listing, in bytes.
	maxWhere = 512
	// maxWords is how many kinds, changes and scopes are shown.
	maxWords = 32
)

// tidyProvider makes what a node says of a provider fit to be shown. What it is called
// under here is no word of the node's.
func tidyProvider(node string, v api.ContextProvider) api.ContextProvider {
	id := shown.Line(v.ID, api.MaxName)
	out := api.ContextProvider{
		ID: node + "/" + id, Node: node, Name: shown.Line(v.Name, maxWhere), Version: shown.Line(v.Version, api.MaxName),
		Where: shown.Line(v.Where, maxWhere), Kinds: shown.Lines(v.Kinds, maxWords, api.MaxName), DataFlow: v.DataFlow,
		NeedsConsent: v.NeedsConsent, Changed: shown.Lines(v.Changed, maxWords, api.MaxName), Error: shown.Line(v.Error, maxDetail),
		Shown: shown.Line(v.Shown, maxWhere),
	}
	out.DataFlow.EgressScopes = shown.Lines(v.DataFlow.EgressScopes, maxWords, maxWhere)
	if n := len(v.DataFlow.EgressScopes); n > maxWords && out.Error == "" { // nobody consents to what is not seen
		out.Error = fmt.Sprintf("it sends data to %d places, of which %d are shown: look at the node itself with meshnode ocp providers before you consent", n, maxWords)
	}
	if c := v.Consent; c != nil {
		at := c.GrantedAt
		if at.Year() < 0 || at.Year() > 9999 { // it could not be encoded again
			at = time.Time{}
		}
		out.Consent = &api.ContextConsent{Scope: shown.Line(c.Scope, api.MaxContextScope), GrantedAt: at, GrantedBy: shown.Line(c.GrantedBy, api.MaxName)}
	}
	return out
}
