package mail

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// retryFull is when a sender is asked to come back with a mail that has no room.
const retryFull = 2 * time.Second

// Accept takes a mail from a node and returns once it is on disk. A repeat of one that
// is known is answered with its state; fresh says that it was not. m passed
// api.Mail.Check.
func (o *Office) Accept(ctx context.Context, from store.Identity, m api.Mail) (rc api.MailReceipt, fresh bool, err error) {
	k := key{from.Name, m.ID}
	rec := store.Mail{
		ID: m.ID, Kind: m.Kind, From: api.Party{ID: from.ID, Name: from.Name}, To: m.To, ToID: m.ToID, Lane: m.Lane,
		Hash: hash(&m), Size: len(m.Body), State: api.MailQueued,
	}
	over, e, err := o.enter(ctx, k, &rec, m.SentMS)
	switch {
	case err != nil:
		return rc, false, err
	case e != nil:
		return *e, false, nil
	}
	stored, holder, err := o.commit(ctx, rec, m.Body)
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.taking, k)
	close(over)
	if err != nil {
		o.reserve(&rec, -1)
		return rc, false, err
	}
	entry := &entry{key: k, m: stored}
	o.mails[k] = entry
	o.place(entry)
	o.cfg.Observer.MailTaken()
	rc = entry.receipt()
	if other(&stored, holder) {
		o.conclude(entry, replaced)
	}
	return rc, true, nil
}

// enter finds a mail that is known, or reserves the room for one that is not. over is
// to be closed when the latter is stored or refused.
func (o *Office) enter(ctx context.Context, k key, m *store.Mail, sentMS int64) (over chan struct{}, known *api.MailReceipt, err error) {
	for {
		o.mu.Lock()
		other := o.taking[k]
		if other == nil {
			defer o.mu.Unlock()
			if e := o.mails[k]; e != nil {
				rc, err := repeated(e, m)
				return nil, rc, err
			}
			if err := errors.Join(o.stamp(m, sentMS), o.room(m)); err != nil {
				return nil, nil, err
			}
			over = make(chan struct{})
			o.taking[k] = over
			o.reserve(m, 1)
			return over, nil, nil
		}
		o.mu.Unlock()
		select { // the same mail came over another tunnel
		case <-other:
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		}
	}
}

// repeated answers a mail that is known. Called with mu held.
func repeated(e *entry, m *store.Mail) (*api.MailReceipt, error) {
	switch {
	case e.m.Hash != m.Hash:
		return nil, api.Errorf(api.CodeConflict, "mail %s is another one here", m.ID)
	case e.phase == gone:
		// It was settled just now; a moment later it is a new one.
		err := api.Errorf(api.CodeUnavailable, "mail %s was just settled; send it again", m.ID)
		err.RetryAfter = time.Second
		return nil, err
	}
	rc := e.receipt()
	return &rc, nil
}

// stamp tells how old a mail is: as old as its sender says, if that can be.
func (o *Office) stamp(m *store.Mail, sentMS int64) error {
	now := o.cfg.Clock.Now()
	m.SentAt = now
	if sent := time.UnixMilli(sentMS).UTC(); sentMS != 0 && sent.Before(now) {
		m.SentAt = sent
	}
	switch {
	case now.Sub(m.SentAt) <= api.MailAge:
		return nil
	case !o.cfg.Clock.MayExpire():
		err := api.Errorf(api.CodeUnavailable, "the hub has just started or its clock jumped; send it again in a minute")
		err.RetryAfter = retryMax
		return err
	}
	return api.Errorf(api.CodeTooOld, "the mail was first sent more than %d days ago", int(api.MailAge/(24*time.Hour)))
}

// room refuses what does not fit. Called with mu held.
func (o *Office) room(m *store.Mail) error {
	var to, from party
	var share share
	if p := o.parties[m.To]; p != nil {
		to, share = *p, p.shares[m.From.Name]
	}
	if p := o.parties[m.From.Name]; p != nil {
		from = *p
	}
	var err *api.Error
	switch w := weight(m); {
	case to.queued >= o.cfg.MaxPerTarget || to.bytes+w > o.cfg.MaxBytesPerTarget:
		err = api.Errorf(api.CodeQueueFull, "%d mails of %d bytes wait for %s; send it again later", to.queued, to.bytes, m.To)
	case share.queued >= o.cfg.MaxPerPair || share.bytes+w > o.cfg.MaxBytesPerPair:
		err = api.Errorf(api.CodeQueueFull, "%d mails of %d bytes of %s wait for %s; send it again later", share.queued, share.bytes, m.From.Name, m.To)
	case from.sent >= o.cfg.MaxPerSender:
		err = api.Errorf(api.CodeQueueFull, "%d mails of %s wait here; send it again later", from.sent, m.From.Name)
	case o.bytes+w > o.cfg.MaxBytes:
		err = api.Errorf(api.CodeQueueFull, "%d bytes of mail wait at the hub; send it again later", o.bytes)
	default:
		return nil
	}
	err.RetryAfter = retryFull
	return err
}

// commit stores a mail if a node has the name that it is for, and tells whose the name
// is.
func (o *Office) commit(ctx context.Context, m store.Mail, body []byte) (stored store.Mail, holder string, err error) {
	switch holder, err = o.holder(ctx, m.To); {
	case err != nil:
		return m, "", err
	case holder == "":
		return m, "", api.Errorf(api.CodeUnknownTarget, "no node is named %q", m.To)
	}
	stored, err = o.st.AddMail(ctx, m, body)
	return stored, holder, err
}

// holder is the identity of the node that has a name, "" if there is none.
func (o *Office) holder(ctx context.Context, name string) (string, error) {
	id, err := o.st.IdentityByName(ctx, name)
	if errors.Is(err, store.ErrNotFound) || err == nil && id.Role != api.RoleNode {
		return "", nil
	}
	return id.ID, err
}

// other reports whether a mail is for another identity than that which has the name.
func other(m *store.Mail, holder string) bool { return m.ToID != "" && m.ToID != holder }

// replaced is the receipt of such a mail.
var replaced = api.MailReceipt{State: api.MailReturned, Code: api.MailTargetReplaced, Message: "another machine has the name of the target"}

// Known tells a node which of its mails without a receipt are not here.
func (o *Office) Known(from store.Identity, ids []string) api.MailKnown {
	known := api.MailKnown{Unknown: []string{}, NowMS: o.cfg.Clock.Now().UnixMilli()}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, id := range ids {
		if e := o.mails[key{from.Name, id}]; e == nil || e.phase == gone {
			known.Unknown = append(known.Unknown, id)
		}
	}
	return known
}

// hash tells mails of one id apart.
func hash(m *api.Mail) string {
	h := sha256.New()
	for _, s := range []string{m.Kind, m.To, m.Lane} { // none can hold a NUL
		_, _ = io.WriteString(h, s+"\x00")
	}
	if m.ToID != "" {
		_, _ = io.WriteString(h, m.ToID+"\x00")
	}
	_, _ = h.Write(m.Body)
	return hex.EncodeToString(h.Sum(nil))
}
