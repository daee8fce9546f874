// Package access decides who may come in: it sets and checks the hub's password,
// issues credentials when somebody joins or logs in, recognises them on every
// request, and revokes them at once.
//
// It stands on auth (hashes, limiter, queue for the expensive check) and on the
// store (who there is). Every outcome that an operator would want to know of is
// written to the audit log. Secrets are in no error and no log line.
package access

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"opencode-mesh/auth"
	"opencode-mesh/hub/shown"
	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

const (
	passwordKey = "auth/password"
	// TouchEvery is how often last uses of credentials are written.
	TouchEvery = time.Minute
	// KeepAudit is how many entries of the audit log are kept, newest.
	KeepAudit = 100000
	// maxTouched bounds the last uses waiting to be written; beyond it they are
	// dropped, because they are only shown to people.
	maxTouched = 20000
	// maxRefusals is how many refused requests of one identity are written to the
	// audit log per TouchEvery: a flood of them must not push other entries out.
	maxRefusals = 10
	// maxAuditText bounds each text of an entry, in bytes.
	maxAuditText = 200
	// BrowserLimit is how long a browser stays logged in.
	BrowserLimit = 30 * 24 * time.Hour
	// BrowserIdle is how long while it is not used.
	BrowserIdle = 7 * 24 * time.Hour
	// MaxBrowsers is how many browsers may be logged in under one name at once; the one
	// that was not used for longest makes room.
	MaxBrowsers = 100
	// PruneEvery is how often the credentials of browsers that are of no more use are
	// removed.
	PruneEvery = time.Hour
)

// Principal is who a request comes from.
type Principal struct {
	Identity   store.Identity
	Role       api.Role
	Credential string // its id
	// Epoch is that in which it was recognised; see Access.Live.
	Epoch uint64
	// Ends is when a browser's session does at the latest; zero of all others.
	Ends time.Time

	hash [32]byte // of the credential
}

// Browser reports whether a browser's cookie stood for the principal.
func (p Principal) Browser() bool { return !p.Ends.IsZero() }

// Operator reports whether the principal may see and do everything.
func (p Principal) Operator() bool { return p.Role == api.RoleOperator }

// Config is what the package needs.
type Config struct {
	Store    store.Store
	Verifier *auth.Verifier
	Limiter  *auth.Limiter
	Now      func() time.Time
	Log      *slog.Logger
	// Failed is told the reason of every refused login, for metrics.
	Failed func(reason string)
}

// Access is the hub's gate. Safe for concurrent use.
type Access struct {
	cfg   Config
	st    store.Store
	known known
	acts  acts

	// mu guards the following fields.
	mu       sync.Mutex
	touched  map[string]time.Time // credential id → last use not written yet
	refusals map[string]int       // identity id → refused requests since the last flush
	hooks    []func(store.Identity, string)
	ended    func(credential string)
}

// New makes the gate of a store.
func New(cfg Config) *Access {
	return &Access{cfg: cfg, st: cfg.Store, touched: map[string]time.Time{}, refusals: map[string]int{}, ended: func(string) {}, acts: acts{by: map[string]*actsOf{}}, known: known{by: map[[32]byte]Principal{}, epoch: 1}}
}

// OnRetire registers fn to run after an identity was revoked or replaced; code is
// api.TaskTargetRevoked or api.TaskTargetReplaced. Call before serving.
func (a *Access) OnRetire(fn func(id store.Identity, code string)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.hooks = append(a.hooks, fn)
}

// HasPassword reports whether a password is set.
func (a *Access) HasPassword(ctx context.Context) (bool, error) {
	_, _, err := a.st.Setting(ctx, passwordKey)
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// SetPassword stores a new password and ends the sessions of browsers; other
// credentials live on (semantics 15). After an error, set it again.
func (a *Access) SetPassword(ctx context.Context, password string) error {
	hash, err := auth.HashPassword(password)
	if err != nil {
		return err
	}
	for {
		_, rev, err := a.st.Setting(ctx, passwordKey)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		_, err = a.st.PutSetting(ctx, passwordKey, []byte(hash), rev)
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err != nil {
			return err
		}
		a.audit(ctx, api.AuditEntry{Action: "password_changed"})
		return a.endBrowsers(ctx)
	}
}

// MatchesPassword compares without limits; for the local start-up check only.
func (a *Access) MatchesPassword(ctx context.Context, password string) (bool, error) {
	hash, _, err := a.st.Setting(ctx, passwordKey)
	if err != nil {
		return false, err
	}
	return auth.CheckPassword(string(hash), password)
}

// Authenticate recognises a credential. CodeUnauthorized when it is not one of
// ours, CodeRevoked when it was. Those of browsers are good as cookies only.
func (a *Access) Authenticate(ctx context.Context, secret string) (Principal, error) {
	hash, ok := auth.HashSecret(secret)
	if !ok {
		return Principal{}, api.Errorf(api.CodeUnauthorized, "a credential is needed: log in (meshctl login) or join (meshnode join)")
	}
	if p, ok := a.known.find(hash); ok {
		a.touch(p.Credential)
		return p, nil
	}
	p, c, err := a.read(ctx, hash)
	if errors.Is(err, store.ErrNotFound) || err == nil && c.Browser {
		return Principal{}, api.Errorf(api.CodeUnauthorized, "the credential is not known here; log in or join again")
	}
	if err != nil {
		return Principal{}, err
	}
	a.touch(c.ID)
	a.known.remember(hash, p)
	return p, nil
}

// read finds a credential that is not revoked and whom it stands for;
// store.ErrNotFound when there is none.
func (a *Access) read(ctx context.Context, hash [32]byte) (Principal, store.Credential, error) {
	epoch := a.known.now() // before it is read
	c, err := a.st.CredentialByHash(ctx, hash)
	if err == nil && !auth.EqualHash(c.Hash, hash) {
		err = store.ErrNotFound
	}
	if err != nil {
		return Principal{}, c, err
	}
	id, err := a.st.Identity(ctx, c.IdentityID)
	if err != nil {
		return Principal{}, c, err
	}
	if !c.RevokedAt.IsZero() || !id.Live() {
		return Principal{}, c, api.Errorf(api.CodeRevoked, "the credential of %s was revoked; log in or join again", c.Name)
	}
	return Principal{Identity: id, Role: c.Role, Credential: c.ID, Epoch: epoch, hash: hash}, c, nil
}

// Live refuses a principal that was revoked after it was recognised, for what is
// opened in its name to stay: who opens it first and asks then misses no revocation.
func (a *Access) Live(ctx context.Context, p Principal) error {
	if p.Identity.ID == "" || p.Epoch != 0 && p.Epoch == a.known.now() { // the local operator, or nobody was revoked meanwhile
		return nil
	}
	if p.Browser() {
		_, _, err := a.read(ctx, p.hash)
		if errors.Is(err, store.ErrNotFound) {
			err = errLoggedOut
		}
		return err
	}
	id, err := a.st.Identity(ctx, p.Identity.ID)
	if err == nil && !id.Live() {
		err = api.Errorf(api.CodeRevoked, "the credential of %s was revoked", id.Name)
	}
	return err
}

func (a *Access) touch(id string) {
	now := a.cfg.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.touched[id]; ok || len(a.touched) < maxTouched {
		a.touched[id] = now
	}
}

// Flush writes the last uses that were collected, and the acts that were counted, not
// awaited.
func (a *Access) Flush() error {
	a.flushActs()
	a.mu.Lock()
	uses := a.touched
	a.touched = map[string]time.Time{}
	clear(a.refusals)
	a.mu.Unlock()
	if len(uses) == 0 {
		return nil
	}
	return a.st.TouchCredentialsLater(uses)
}

// Run writes last uses and prunes the audit log and the credentials of browsers now
// and then until ctx ends.
func (a *Access) Run(ctx context.Context) {
	t := time.NewTicker(TouchEvery)
	defer t.Stop()
	browsers := time.NewTicker(PruneEvery)
	defer browsers.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-browsers.C:
			a.pruneBrowsers(ctx)
		case <-t.C:
			if err := a.Flush(); err != nil {
				a.cfg.Log.Warn("last uses of credentials were not written", "err", err)
			}
			if err := a.st.PruneAudit(ctx, KeepAudit); err != nil && ctx.Err() == nil {
				a.cfg.Log.Warn("the audit log was not pruned", "err", err)
			}
		}
	}
}

// audit writes an entry; that it could not be written is logged, not returned,
// because the act itself stands.
func (a *Access) audit(ctx context.Context, e api.AuditEntry) {
	e = a.entry(e)
	if err := a.st.AppendAudit(context.WithoutCancel(ctx), e); err != nil {
		a.cfg.Log.Error("an audit entry was lost", "action", e.Action, "object", e.Object, "err", err)
	}
}

// Audit writes an entry for an act outside this package.
func (a *Access) Audit(ctx context.Context, by Principal, peer netip.Addr, action, object, detail string) {
	a.audit(ctx, entryOf(by, peer, action, object, detail))
}

// Refused writes an entry for a request that was refused, while those of its
// identity are few.
func (a *Access) Refused(ctx context.Context, by Principal, peer netip.Addr, action, object, detail string) {
	a.mu.Lock()
	a.refusals[by.Identity.ID]++
	n := a.refusals[by.Identity.ID]
	a.mu.Unlock()
	if n <= maxRefusals {
		a.Audit(ctx, by, peer, action, object, detail)
	}
	a.cfg.Log.Warn("a request was refused", "action", action, "by", by.Identity.Name, "peer", peer, "object", shown.Line(object, maxAuditText))
}

// Revoke ends the live identity of a name with all its credentials and runs the
// hooks, which end its tunnels and streams and settle its tasks.
func (a *Access) Revoke(ctx context.Context, by Principal, peer netip.Addr, name string) error {
	id, err := a.st.IdentityByName(ctx, name)
	if errors.Is(err, store.ErrNotFound) {
		return api.Errorf(api.CodeNotFound, "nobody is named %q", shown.Line(name, 2*api.MaxName))
	}
	if err != nil {
		return err
	}
	if err := a.st.RetireIdentity(ctx, id, a.cfg.Now()); err != nil {
		return fmt.Errorf("revoke %s: %w", name, err)
	}
	a.known.forget()
	a.Audit(ctx, by, peer, "revoked", name, string(id.Role))
	a.retired(id, api.TaskTargetRevoked)
	return nil
}

// RevokeAll ends every live identity.
func (a *Access) RevokeAll(ctx context.Context, by Principal, peer netip.Addr) error {
	ids, err := a.st.Identities(ctx)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if !id.Live() {
			continue
		}
		if err := a.Revoke(ctx, by, peer, id.Name); err != nil {
			return err
		}
	}
	return nil
}

func (a *Access) retired(id store.Identity, code string) {
	a.mu.Lock()
	hooks := a.hooks
	a.mu.Unlock()
	for _, fn := range hooks {
		fn(id, code)
	}
}
