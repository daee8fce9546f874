package access

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"opencode-mesh/auth"
	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

var errLoggedOut = api.Errorf(api.CodeUnauthorized, "you are not logged in, or no longer; log in again")

// Visit is Login for a browser: the credential is an operator's (semantics 11), good
// as a cookie only, for BrowserLimit and until it is not used for BrowserIdle, the
// browser logs out or the password changes.
func (a *Access) Visit(ctx context.Context, peer netip.Addr, name, password string) (api.Issued, error) {
	_, before, err := a.st.Setting(ctx, passwordKey)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return api.Issued{}, err
	}
	issued, err := a.login(ctx, peer, api.Login{Name: name, Password: password, Operator: true}, true)
	if err != nil {
		return issued, err
	}
	// A change of the password ends the browsers that it finds. One that came between
	// the check of the password and the new credential may not have found this one.
	_, now, err := a.st.Setting(ctx, passwordKey)
	if err == nil && now != before {
		err = api.Errorf(api.CodeUnauthorized, "the password was changed in this moment")
	}
	if err != nil {
		return api.Issued{}, errors.Join(err, a.st.RevokeCredential(context.WithoutCancel(ctx), issued.CredentialID, a.cfg.Now()))
	}
	if err := a.makeRoom(context.WithoutCancel(ctx), issued.IdentityID); err != nil {
		a.cfg.Log.Warn("sessions of browsers beyond the limit were not ended", "name", name, "err", err)
	}
	return issued, nil
}

// makeRoom ends the sessions of a name's browsers that are beyond MaxBrowsers.
func (a *Access) makeRoom(ctx context.Context, identity string) error {
	all, err := a.st.Credentials(ctx)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(c store.Credential) bool {
		return !c.Browser || !c.RevokedAt.IsZero() || c.IdentityID != identity
	})
	if len(all) <= MaxBrowsers {
		return nil
	}
	slices.SortFunc(all, func(x, y store.Credential) int { return a.used(x).Compare(a.used(y)) })
	for _, c := range all[:len(all)-MaxBrowsers] {
		if err := a.end(ctx, c.ID); err != nil {
			return err
		}
	}
	return nil
}

// Browser recognises the secret of a browser's cookie; CodeUnauthorized when it is
// none, or over.
func (a *Access) Browser(ctx context.Context, secret string) (Principal, error) {
	hash, ok := auth.HashSecret(secret)
	if !ok {
		return Principal{}, errLoggedOut
	}
	p, c, err := a.read(ctx, hash)
	if errors.Is(err, store.ErrNotFound) || api.ErrorCode(err) == api.CodeRevoked || err == nil && (!c.Browser || a.over(c)) {
		return Principal{}, errLoggedOut
	}
	if err != nil {
		return Principal{}, err
	}
	p.Ends = c.ExpiresAt
	a.touch(c.ID)
	return p, nil
}

// over reports whether a browser's time has ended.
func (a *Access) over(c store.Credential) bool {
	now := a.cfg.Now()
	return !now.Before(c.ExpiresAt) || !now.Before(a.used(c).Add(BrowserIdle))
}

// used is when a credential was used last, or made.
func (a *Access) used(c store.Credential) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	last := c.CreatedAt
	for _, at := range []time.Time{c.LastUsed, a.touched[c.ID]} {
		if at.After(last) {
			last = at
		}
	}
	return last
}

// OnLogout registers what runs after a browser's session was ended, with the id of
// its credential. Call before serving.
func (a *Access) OnLogout(fn func(credential string)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended = fn
}

// Logout ends the session of a browser, and what it has open.
func (a *Access) Logout(ctx context.Context, p Principal, peer netip.Addr) error {
	if !p.Browser() {
		return api.Errorf(api.CodeBadRequest, "this is no browser's session; revoke %s instead", p.Identity.Name)
	}
	if err := a.end(ctx, p.Credential); err != nil {
		return err
	}
	a.audited(ctx, "logout", peer, p.Identity.Name, "")
	return nil
}

// end ends one browser's session.
func (a *Access) end(ctx context.Context, credential string) error {
	err := a.st.RevokeCredential(ctx, credential, a.cfg.Now())
	if errors.Is(err, store.ErrNotFound) { // pruned already
		return nil
	}
	if err != nil {
		return err
	}
	a.known.forget()
	a.mu.Lock()
	ended := a.ended
	a.mu.Unlock()
	ended(credential)
	return nil
}

// endBrowsers ends the sessions of all browsers.
func (a *Access) endBrowsers(ctx context.Context) error {
	all, err := a.st.Credentials(ctx)
	if err != nil {
		return err
	}
	for _, c := range all {
		if !c.Browser || !c.RevokedAt.IsZero() {
			continue
		}
		if err := a.end(ctx, c.ID); err != nil {
			return err
		}
	}
	return nil
}

func (a *Access) pruneBrowsers(ctx context.Context) {
	now := a.cfg.Now()
	if _, err := a.st.PruneBrowsers(ctx, now, now.Add(-BrowserIdle)); err != nil && ctx.Err() == nil {
		a.cfg.Log.Warn("the sessions of browsers that are over were not removed", "err", err)
	}
}
