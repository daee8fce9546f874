package access

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"opencode-mesh/auth"
	"opencode-mesh/hub/shown"
	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// Login checks the password and adds a credential for a controller's name, which
// is made when it is new (semantics 9).
func (a *Access) Login(ctx context.Context, peer netip.Addr, req api.Login) (api.Issued, error) {
	return a.login(ctx, peer, req, false)
}

func (a *Access) login(ctx context.Context, peer netip.Addr, req api.Login, browser bool) (api.Issued, error) {
	role := api.RoleController
	if req.Operator {
		role = api.RoleOperator
	}
	if err := a.admit(ctx, peer, req, "login"); err != nil {
		return api.Issued{}, err
	}
	for {
		id, err := a.st.IdentityByName(ctx, req.Name)
		switch {
		case errors.Is(err, store.ErrNotFound):
			issued, err := a.create(ctx, peer, req, api.RoleController, kind{role, browser}, nil)
			if errors.Is(err, store.ErrNameTaken) {
				continue // somebody took it in that moment
			}
			return issued, err
		case err != nil:
			return api.Issued{}, err
		case id.Role == api.RoleNode:
			return api.Issued{}, api.Errorf(api.CodeNameTaken, "%s is the name of a node; choose another, or use --same-as-node on that machine", req.Name)
		}
		secret, cred := a.mint(id, kind{role, browser})
		err = a.st.AddCredential(ctx, cred)
		if errors.Is(err, store.ErrConflict) {
			continue // it was revoked in that moment: the name is free
		}
		if err != nil {
			return api.Issued{}, err
		}
		a.audited(ctx, "login", peer, id.Name, kind{role, browser}.String())
		return a.issued(id, cred, secret), nil
	}
}

// Join checks the password and makes a node. A taken name is CodeNameTaken
// unless Replace is set: then the old identity is revoked and the new one starts
// empty.
func (a *Access) Join(ctx context.Context, peer netip.Addr, req api.Login) (api.Issued, error) {
	if err := a.admit(ctx, peer, req, "join"); err != nil {
		return api.Issued{}, err
	}
	for {
		old, err := a.st.IdentityByName(ctx, req.Name)
		switch {
		case errors.Is(err, store.ErrNotFound):
			issued, err := a.create(ctx, peer, req, api.RoleNode, kind{role: api.RoleNode}, nil)
			if errors.Is(err, store.ErrNameTaken) {
				continue
			}
			return issued, err
		case err != nil:
			return api.Issued{}, err
		case old.Role != api.RoleNode:
			return api.Issued{}, api.Errorf(api.CodeNameTaken, "%s is the name of a controller; choose another, or have an operator revoke it first", req.Name)
		case !req.Replace:
			return api.Issued{}, api.Errorf(api.CodeNameTaken, "the name %s is taken by a node; choose another, or join with --replace to revoke the old one", req.Name)
		}
		issued, err := a.create(ctx, peer, req, api.RoleNode, kind{role: api.RoleNode}, &old)
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err == nil {
			a.retired(old, api.TaskTargetReplaced)
		}
		return issued, err
	}
}

// admit runs the checks that come before anything is made: the shape of the name,
// the limits, the password.
func (a *Access) admit(ctx context.Context, peer netip.Addr, req api.Login, action string) error {
	if !api.ValidName(req.Name) {
		return api.Errorf(api.CodeBadRequest, "%q is not a name: %s", shown.Line(req.Name, 2*api.MaxName), api.NameRule)
	}
	if wait := a.cfg.Limiter.Allow(peer, req.Name); wait > 0 {
		a.refused(ctx, action, peer, req.Name, "limited")
		e := api.Errorf(api.CodeRateLimited, "too many tries; try again in %s", wait.Round(time.Second))
		e.RetryAfter = wait
		return e
	}
	hash, _, err := a.st.Setting(ctx, passwordKey)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	ok, err := a.cfg.Verifier.Verify(ctx, peer, string(hash), req.Password)
	if err != nil {
		if api.ErrorCode(err) == api.CodeRateLimited {
			a.refused(ctx, action, peer, req.Name, "queue")
		}
		return err
	}
	if !ok {
		a.refused(ctx, action, peer, req.Name, "password")
		return api.Errorf(api.CodeUnauthorized, "the password is wrong")
	}
	a.cfg.Limiter.Succeeded(peer, req.Name)
	return nil
}

func (a *Access) refused(ctx context.Context, action string, peer netip.Addr, name, why string) {
	a.cfg.Failed(why)
	// Refusals are audited only while they are few: a flood must not turn into a
	// flood of writes.
	if why == "password" {
		a.audited(ctx, action+"_refused", peer, name, why)
	}
	a.cfg.Log.Warn("a login was refused", "action", action, "peer", peer, "name", name, "reason", why)
}

func (a *Access) audited(ctx context.Context, action string, peer netip.Addr, name, detail string) {
	a.audit(ctx, api.AuditEntry{Action: action, Peer: peer.String(), Object: name, Detail: detail})
}

// maxPlatform bounds what a caller says of its machine, in bytes.
const maxPlatform = 32

func (a *Access) create(ctx context.Context, peer netip.Addr, req api.Login, role api.Role, of kind, old *store.Identity) (api.Issued, error) {
	id := store.Identity{ID: auth.NewID("id_"), Name: req.Name, Role: role, Platform: shown.Line(req.Platform, maxPlatform), CreatedAt: a.cfg.Now()}
	secret, cred := a.mint(id, of)
	var err error
	action := "join"
	if role != api.RoleNode {
		action = "login"
	}
	if old == nil {
		err = a.st.CreateIdentity(ctx, id, cred)
	} else {
		err = a.st.ReplaceIdentity(ctx, *old, id, cred)
		a.known.forget()
		action = "join_replace"
	}
	if err != nil {
		return api.Issued{}, err
	}
	a.audited(ctx, action, peer, id.Name, of.String())
	return a.issued(id, cred, secret), nil
}

// kind is what a credential is for.
type kind struct {
	role    api.Role
	browser bool
}

// String is how the audit log has it.
func (k kind) String() string {
	if k.browser {
		return string(k.role) + " in a browser"
	}
	return string(k.role)
}

func (a *Access) mint(id store.Identity, of kind) (string, store.Credential) {
	secret, hash := auth.NewSecret()
	c := store.Credential{ID: auth.NewID("cred_"), IdentityID: id.ID, Name: id.Name, Role: of.role, Hash: hash, CreatedAt: a.cfg.Now()}
	if of.browser {
		c.Browser, c.ExpiresAt = true, c.CreatedAt.Add(BrowserLimit)
	}
	return secret, c
}

func (a *Access) issued(id store.Identity, c store.Credential, secret string) api.Issued {
	return api.Issued{HubID: a.st.Info().HubID, IdentityID: id.ID, Name: id.Name, Role: c.Role, Credential: secret, CredentialID: c.ID}
}
