package mail

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"

	"opencode-mesh/protocol/api"
)

// session is the time between Attach and Detach.
type session struct {
	box   *Box
	hub   Hub
	ctx   context.Context
	end   context.CancelFunc
	slots chan struct{} // holds a token per request that carries a mail
	work  sync.WaitGroup

	// The following are guarded by Box.mu.
	ready bool      // the hub has said what it knows
	nowMS int64     // its time then
	at    time.Time // when that was
}

// Attach gives the box its hub: what is in the outbox is sent until Detach. A hub that
// was attached before is detached first. The link calls both from one goroutine.
func (b *Box) Attach(hub Hub) {
	b.Detach()
	ctx, cancel := context.WithCancel(context.Background())
	s := &session{box: b, hub: hub, ctx: ctx, end: cancel, slots: make(chan struct{}, maxTargets)}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		cancel()
		return
	}
	b.session = s
	s.work.Go(s.run)
}

// Detach takes the hub away and returns when no request is under way.
func (b *Box) Detach() {
	b.mu.Lock()
	s := b.session
	b.session = nil
	b.mu.Unlock()
	if s != nil {
		s.end()
		s.work.Wait()
	}
}

// hubNow is the hub's time in Unix milliseconds, if there is a hub.
func (b *Box) hubNow() (ms int64, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.session
	if s == nil || !s.ready {
		return 0, false
	}
	return s.now(), true
}

// now is the hub's time. Called with mu held, once ready.
func (s *session) now() int64 { return s.nowMS + time.Since(s.at).Milliseconds() }

// run finds out what the hub knows and then starts to send.
func (s *session) run() {
	for try := 0; ; try++ {
		err := s.greet()
		if err == nil || s.ctx.Err() != nil {
			break
		}
		if try == 0 {
			s.box.log.Info("the hub did not say which mails it has, asking again", "err", err)
		}
		s.pause(try, err)
	}
	b := s.box
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.session == s && s.ready {
		for _, ln := range b.lines {
			b.wake(ln)
		}
	}
}

// greet asks the hub which of the mails without a receipt it has; the others are sent
// again, in their order. Then the box knows the hub's time, and all that waits is
// stamped with it in one commit.
func (s *session) greet() error {
	b := s.box
	b.mu.Lock()
	all := make([]*letter, 0, len(b.out))
	for _, l := range b.out {
		all = append(all, l)
	}
	b.mu.Unlock()
	slices.SortFunc(all, func(x, y *letter) int { return cmp.Compare(x.number, y.number) })
	unknown := make(map[string]bool)
	var nowMS int64
	var at time.Time
	for first := true; first || len(all) > 0; first = false {
		n := min(len(all), api.MaxReconcile)
		q := api.MailQuery{IDs: make([]string, n)}
		for i, l := range all[:n] {
			q.IDs[i] = l.id
		}
		var known api.MailKnown
		at = time.Now()
		if err := s.call(http.MethodPost, "/v1/mail/known", q, &known); err != nil {
			return err
		}
		if known.NowMS <= 0 {
			return errors.New("the hub did not tell its time")
		}
		nowMS = known.NowMS
		for _, id := range known.Unknown {
			unknown[id] = true
		}
		b.mu.Lock()
		for _, l := range all[:n] {
			if b.out[l.id] != l {
				continue // its receipt came meanwhile
			}
			b.taken(l)
			if unknown[l.id] {
				b.requeue(l)
			}
		}
		b.mu.Unlock()
		all = all[n:]
	}
	if err := b.stampAll(nowMS); err != nil {
		return err
	}
	b.mu.Lock()
	s.ready, s.nowMS, s.at = true, nowMS, at
	b.mu.Unlock()
	return nil
}

// requeue puts a letter into its line, at its place. Called with mu held.
func (b *Box) requeue(l *letter) {
	ln := b.lines[l.to]
	if ln == nil {
		ln = &line{to: l.to}
		b.lines[l.to] = ln
	}
	i, found := slices.BinarySearchFunc(ln.unsent, l.number, func(x *letter, n uint64) int { return cmp.Compare(x.number, n) })
	if !found {
		ln.unsent = slices.Insert(ln.unsent, i, l)
	}
}

// stampAll notes the hub's time as that of the first offer of all mails without one.
func (b *Box) stampAll(nowMS int64) error {
	var keys [][]byte
	err := b.db.View(func(tx *bolt.Tx) error {
		offered := tx.Bucket([]byte(bucketOffered))
		return tx.Bucket([]byte(bucketOutIDs)).ForEach(func(_, key []byte) error {
			if offered.Get(key) == nil {
				keys = append(keys, slices.Clone(key))
			}
			return nil
		})
	})
	if err != nil || len(keys) == 0 {
		return err
	}
	return b.db.Update(context.Background(), func(tx *bolt.Tx) error {
		return stamp(tx, keys, nowMS)
	})
}

// stamp notes the time of the first offer of mails that have none and are still there.
func stamp(tx *bolt.Tx, keys [][]byte, nowMS int64) error {
	out, offered := tx.Bucket([]byte(bucketOut)), tx.Bucket([]byte(bucketOffered))
	for _, key := range keys {
		if offered.Get(key) != nil || out.Get(key) == nil {
			continue
		}
		if err := offered.Put(key, uint64Key(uint64(nowMS))); err != nil {
			return err
		}
	}
	return nil
}

// wake starts a worker for a line if there is something to send. Called with mu held.
func (b *Box) wake(ln *line) {
	s := b.session
	if ln == nil || s == nil || !s.ready || s.ctx.Err() != nil || ln.busy || len(ln.unsent) == 0 {
		return
	}
	ln.busy = true
	s.work.Go(func() { s.send(ln) })
}

// send is a line's worker: it sends one mail after the other. A mail that is not taken
// for a passing reason is tried again, and what is behind it waits.
func (s *session) send(ln *line) {
	b := s.box
	try := 0
	for {
		b.mu.Lock()
		if s.ctx.Err() != nil || len(ln.unsent) == 0 {
			ln.busy = false
			if len(ln.unsent) == 0 && b.lines[ln.to] == ln {
				delete(b.lines, ln.to)
			}
			b.mu.Unlock()
			return
		}
		l := ln.unsent[0]
		b.mu.Unlock()
		err := s.post(l)
		if err == nil {
			try = 0
			continue
		}
		if s.ctx.Err() == nil && !l.told {
			l.told = true
			b.log.Info("a mail could not be sent, trying again", "mail", l.id, "to", l.to, "err", err)
		}
		s.pause(try, err)
		try++
	}
}

// post makes one attempt to send a mail. nil means that it is out of its line: taken,
// or returned for good.
func (s *session) post(l *letter) error {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
	b := s.box
	m, found, err := b.stamped(l)
	if err != nil {
		return err
	}
	if found {
		b.mu.Lock()
		tried := l.tried
		l.tried = true
		b.mu.Unlock()
		var rc api.MailReceipt
		err = s.call(http.MethodPut, "/v1/mail/"+url.PathEscape(m.ID), m, &rc)
		var refusal *api.Error
		switch {
		case errors.As(err, &refusal) && final(refusal):
			r := api.MailReceipt{ID: m.ID, State: api.MailReturned, Code: string(refusal.Code), Message: refusal.Message, MayHaveArrived: tried}
			if err := b.settle(s.ctx, r); err != nil {
				return err
			}
		case err != nil:
			return err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.taken(l)
	return nil
}

// stamped reads a mail, and stamps one that Send wrote just before the hub's time was
// known.
func (b *Box) stamped(l *letter) (m api.Mail, found bool, err error) {
	key := uint64Key(l.number)
	read := func() error {
		return b.db.View(func(tx *bolt.Tx) error {
			raw := tx.Bucket([]byte(bucketOut)).Get(key)
			if raw == nil {
				return nil // its receipt came meanwhile
			}
			found = true
			if m, err = decodeMail(raw); err != nil {
				return err
			}
			if at := tx.Bucket([]byte(bucketOffered)).Get(key); len(at) == 8 {
				m.SentMS = int64(binary.BigEndian.Uint64(at))
			}
			return nil
		})
	}
	if err := read(); err != nil || !found || m.SentMS != 0 {
		return m, found, err
	}
	now, ok := b.hubNow()
	if !ok {
		return m, found, errors.New("the hub is gone")
	}
	err = b.db.Update(context.Background(), func(tx *bolt.Tx) error { return stamp(tx, [][]byte{key}, now) })
	if err != nil {
		return m, found, fmt.Errorf("stamp mail %s: %w", l.id, err)
	}
	m.SentMS = now
	return m, found, nil
}

// final reports whether a refusal of the hub would be the same if the mail came again.
func final(e *api.Error) bool {
	switch e.Code {
	case api.CodeUnknownTarget, api.CodeTooOld, api.CodeTooLarge, api.CodeBadRequest, api.CodeForbidden, api.CodeRefused, api.CodeConflict:
		return true
	}
	return false // among them what a hub says that knows nothing of mail
}

// call makes one request to the hub.
func (s *session) call(method, path string, in, out any) error {
	ctx, cancel := context.WithTimeout(s.ctx, callTimeout)
	defer cancel()
	return s.hub.Call(ctx, method, path, in, out)
}

// pause waits before the next try, counted from 0: twice as long each time, half of it
// jittered, and never less than what the hub asked for.
func (s *session) pause(try int, err error) {
	wait := s.box.cfg.RetryMax
	if try < 20 {
		wait = min(wait, s.box.cfg.RetryMin<<try)
	}
	wait = wait/2 + rand.N(wait/2+1)
	var refusal *api.Error
	if errors.As(err, &refusal) {
		wait = max(wait, refusal.RetryAfter)
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.ctx.Done():
	}
}
