package mail

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"

	"github.com/go-chi/chi/v5"
	bolt "go.etcd.io/bbolt"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store/boltdb"
)

const (
	// maxBody is the largest request body, in bytes: a mail with what is around it.
	maxBody = api.MaxMailBody + 64<<10
	// pruneStep is how many old ids one received mail forgets at most: more than come,
	// so that what is kept does not grow.
	pruneStep = 16
)

// Routes adds what the hub calls inside the tunnel: mails, and the receipts of those
// that were sent.
func (b *Box) Routes(mux chi.Router) {
	mux.Put("/v1/mail/{id}", b.handle(b.putMail))
	mux.Post("/v1/mail/receipts", b.handle(b.postReceipts))
}

// handle turns a returned error into the answer. What is not meant for the hub is only
// logged.
func (b *Box) handle(fn func(w http.ResponseWriter, req *http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		answer, err := fn(w, req)
		status := http.StatusOK
		if err != nil {
			e := b.refusal(req, err)
			status, answer = e.Code.Status(), api.ErrorBody{Error: e}
		}
		data, err := json.Marshal(answer)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = w.Write(data) // an error means that the hub is gone
	}
}

// refusal is what the hub gets to hear.
func (b *Box) refusal(req *http.Request, err error) *api.Error {
	var e *api.Error
	var unsupported *Unsupported
	switch {
	case errors.As(err, &e):
		return e
	case errors.As(err, &unsupported):
		return api.Errorf(api.CodeNotSupported, "%s", unsupported.Reason)
	case errors.Is(err, boltdb.ErrFull):
		return api.Errorf(api.CodeNodeFull, "the node's disk is full")
	case errors.Is(err, boltdb.ErrReadOnly):
		return api.Errorf(api.CodeReadOnly, "the node's mail box cannot be written")
	case errors.Is(err, boltdb.ErrClosed):
		return api.Errorf(api.CodeShuttingDown, "the node is stopping")
	case errors.Is(err, boltdb.ErrFailed):
		return api.Errorf(api.CodeUnavailable, "the node's mail box failed")
	case errors.Is(err, ErrFull):
		return api.Errorf(api.CodeNodeFull, "the node's mail box is full")
	}
	b.log.Error("a mail or receipt was not taken", "path", req.URL.Path, "err", err)
	return api.Errorf(api.CodeInternal, "the node failed; its log says more")
}

// readBody reads a JSON body of at most limit bytes.
func readBody(w http.ResponseWriter, req *http.Request, v any) error {
	var data bytes.Buffer
	_, err := data.ReadFrom(http.MaxBytesReader(w, req.Body, maxBody))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return api.Errorf(api.CodeTooLarge, "the body is larger than %d bytes", tooLarge.Limit)
	case err != nil:
		return api.Errorf(api.CodeUnavailable, "the body did not arrive whole")
	}
	if err := json.Unmarshal(data.Bytes(), v); err != nil {
		return api.Errorf(api.CodeBadRequest, "the body is not the JSON that is expected here: %v", err)
	}
	return nil
}

// putMail is PUT /v1/mail/{id}: a mail for this node.
func (b *Box) putMail(w http.ResponseWriter, req *http.Request) (any, error) {
	var m api.Mail
	if err := readBody(w, req, &m); err != nil {
		return nil, err
	}
	if err := m.Check(); err != nil {
		return nil, err
	}
	if m.ID != chi.URLParam(req, "id") || !api.ValidName(m.From) || m.SentMS == 0 {
		return nil, api.Errorf(api.CodeBadRequest, "a delivery has the id of its path, a sender and a stamp")
	}
	if err := b.receive(context.WithoutCancel(req.Context()), m); err != nil {
		return nil, err
	}
	return api.MailReceipt{ID: m.ID, State: api.MailDelivered}, nil
}

// receive takes a mail in, once.
func (b *Box) receive(ctx context.Context, m api.Mail) error {
	key := append(append([]byte(m.From), 0), m.ID...)
	known := false
	err := b.db.View(func(tx *bolt.Tx) error {
		known = tx.Bucket([]byte(bucketIn)).Get(key) != nil
		return nil
	})
	if err != nil || known {
		return err
	}
	h := b.handler(m.Kind)
	if h == nil {
		return &Unsupported{Reason: fmt.Sprintf("this node knows no mail of kind %s", m.Kind)}
	}
	fresh := false
	err = b.db.Update(ctx, func(tx *bolt.Tx) error {
		fresh = false
		in, stamps, meta := tx.Bucket([]byte(bucketIn)), tx.Bucket([]byte(bucketStamps)), tx.Bucket([]byte(bucketMeta))
		if in.Get(key) != nil {
			return nil // another tunnel brought it meanwhile
		}
		stamp := uint64Key(uint64(m.SentMS))
		if low := meta.Get(keyLowWater); bytes.Compare(stamp, low) < 0 {
			return api.Errorf(api.CodeTooOld, "mail %s is older than what this node remembers", m.ID)
		}
		if err := h.Receive(tx, m); err != nil {
			return err
		}
		if err := errors.Join(in.Put(key, stamp), stamps.Put(append(stamp, key...), nothing)); err != nil {
			return err
		}
		fresh = true
		return prune(tx, m.SentMS)
	})
	if err == nil && fresh {
		h.Received(m)
	}
	return err
}

// prune forgets the oldest ids, api.MailWindow behind a mail that came just now, and
// raises the low-water mark over them: the hub has returned what is older.
func prune(tx *bolt.Tx, nowMS int64) error {
	limit := nowMS - api.MailWindow.Milliseconds()
	if limit <= 0 {
		return nil
	}
	in, stamps := tx.Bucket([]byte(bucketIn)), tx.Bucket([]byte(bucketStamps))
	before := uint64Key(uint64(limit))
	var old [][]byte
	c := stamps.Cursor()
	for k, _ := c.First(); k != nil && len(old) < pruneStep && bytes.Compare(k, before) < 0; k, _ = c.Next() {
		old = append(old, bytes.Clone(k))
	}
	for _, k := range old {
		if err := errors.Join(stamps.Delete(k), in.Delete(k[8:])); err != nil {
			return err
		}
	}
	if len(old) == 0 {
		return nil
	}
	meta := tx.Bucket([]byte(bucketMeta))
	low := uint64Key(binary.BigEndian.Uint64(old[len(old)-1]) + 1)
	if bytes.Compare(low, meta.Get(keyLowWater)) <= 0 {
		return nil
	}
	return meta.Put(keyLowWater, low)
}

// postReceipts is POST /v1/mail/receipts. Each receipt is a request of its own to the
// writer, so that one that an application does not take holds up no other; they share
// commits.
func (b *Box) postReceipts(w http.ResponseWriter, req *http.Request) (any, error) {
	var rs api.MailReceipts
	if err := readBody(w, req, &rs); err != nil {
		return nil, err
	}
	if len(rs.Receipts) > api.MaxMailReceipts {
		return nil, api.Errorf(api.CodeTooLarge, "more than %d receipts", api.MaxMailReceipts)
	}
	ctx := context.WithoutCancel(req.Context())
	errs := make([]error, len(rs.Receipts))
	var wg sync.WaitGroup
	for i, r := range rs.Receipts {
		wg.Go(func() { errs[i] = b.settle(ctx, r) })
	}
	wg.Wait()
	done := api.MailSettled{IDs: []string{}}
	for i, err := range errs {
		if err == nil {
			done.IDs = append(done.IDs, rs.Receipts[i].ID)
		}
	}
	if len(done.IDs) == 0 && len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	for i, err := range errs {
		if err != nil {
			b.log.Warn("a receipt was not taken, the hub tells it again", "mail", rs.Receipts[i].ID, "err", err)
		}
	}
	return done, nil
}

// settle ends a mail that was sent here. One that is not known has been settled
// already. It works on a full disk too, for it makes room.
func (b *Box) settle(ctx context.Context, r api.MailReceipt) error {
	if r.State != api.MailDelivered && r.State != api.MailReturned {
		return api.Errorf(api.CodeBadRequest, "a receipt says delivered or returned")
	}
	b.mu.Lock()
	known := b.out[r.ID] != nil
	b.mu.Unlock()
	if !known {
		return nil
	}
	return b.db.UpdateRetention(ctx, func(tx *bolt.Tx) error {
		out, ids := tx.Bucket([]byte(bucketOut)), tx.Bucket([]byte(bucketOutIDs))
		key := bytes.Clone(ids.Get([]byte(r.ID)))
		if key == nil {
			return nil
		}
		m, err := decodeMail(out.Get(key))
		if err != nil {
			return err
		}
		if h := b.handler(m.Kind); h != nil {
			if err := h.Settled(tx, r, m); err != nil {
				return err
			}
		}
		err = errors.Join(out.Delete(key), ids.Delete([]byte(r.ID)), tx.Bucket([]byte(bucketOffered)).Delete(key), b.count(tx, &m, -1))
		if err != nil {
			return err
		}
		tx.OnCommit(func() { b.leave(r.ID) })
		return nil
	})
}
