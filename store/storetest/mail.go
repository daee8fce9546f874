package storetest

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

var mailContracts = []contract{
	{"a mail comes back as it was stored, with its body, in the order of its number", func(t *testing.T, s store.Store) {
		a, b := addMail(t, s, "a", "mail_1", "body 1"), addMail(t, s, "b", "mail_2", "")
		if a.Seq == 0 || b.Seq <= a.Seq {
			t.Errorf("numbers %d and %d", a.Seq, b.Seq)
		}
		if diff := cmp.Diff([]store.Mail{a, b}, mails(t, s)); diff != "" {
			t.Errorf("-stored +listed\n%s", diff)
		}
		want := newMail("a", "mail_1", "body 1")
		want.Seq = a.Seq
		if diff := cmp.Diff(want, a); diff != "" {
			t.Errorf("-given +returned\n%s", diff)
		}
		wantBody(t, s, a.Seq, "body 1")
		wantBody(t, s, b.Seq, "")
	}},
	{"an id is taken once per sender's name", func(t *testing.T, s store.Store) {
		first := addMail(t, s, "a", "mail_1", "x")
		if _, err := s.AddMail(t.Context(), newMail("a", "mail_1", "y"), []byte("y")); !errors.Is(err, store.ErrExists) {
			t.Errorf("a second one: %v", err)
		}
		addMail(t, s, "b", "mail_1", "z")
		wantBody(t, s, first.Seq, "x")
	}},
	{"a new mail is queued and as large as its body", func(t *testing.T, s store.Store) {
		for name, edit := range map[string]func(*store.Mail){
			"delivered": func(m *store.Mail) { m.State = api.MailDelivered },
			"size":      func(m *store.Mail) { m.Size++ },
			"no id":     func(m *store.Mail) { m.ID = "" },
			"no target": func(m *store.Mail) { m.To = "" },
		} {
			m := newMail("a", "mail_1", "x")
			edit(&m)
			if _, err := s.AddMail(t.Context(), m, []byte("x")); err == nil {
				t.Errorf("%s: taken", name)
			}
		}
		if got := mails(t, s); len(got) != 0 {
			t.Errorf("%d mails are there", len(got))
		}
	}},
	{"an ended mail keeps its receipt, loses its body and stays ended", func(t *testing.T, s store.Store) {
		m := addMail(t, s, "a", "mail_1", "x")
		r := api.MailReceipt{ID: m.ID, State: api.MailReturned, Code: api.MailExpired, Message: "why", MayHaveArrived: true}
		changeMails(t, s, store.MailChange{Seq: m.Seq, Receipt: r})
		changeMails(t, s, store.MailChange{Seq: m.Seq, Receipt: api.MailReceipt{State: api.MailDelivered}})
		m.State, m.Code, m.Message, m.MayHaveArrived = r.State, r.Code, r.Message, r.MayHaveArrived
		if diff := cmp.Diff([]store.Mail{m}, mails(t, s)); diff != "" {
			t.Errorf("-want +got\n%s", diff)
		}
		if _, err := s.MailBody(t.Context(), m.Seq); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("body: %v", err)
		}
		if err := s.ChangeMails(t.Context(), []store.MailChange{{Seq: m.Seq, Receipt: api.MailReceipt{State: api.MailQueued}}}); err == nil {
			t.Error("queued again")
		}
	}},
	{"a mail that is gone leaves nothing, and its number and id are not the next one's", func(t *testing.T, s store.Store) {
		m, other := addMail(t, s, "a", "mail_1", "x"), addMail(t, s, "a", "mail_2", "y")
		changeMails(t, s, store.MailChange{Seq: other.Seq, Gone: true}, store.MailChange{Seq: m.Seq, Gone: true})
		changeMails(t, s, store.MailChange{Seq: m.Seq, Gone: true}, store.MailChange{Seq: m.Seq, Receipt: api.MailReceipt{State: api.MailDelivered}})
		if got := mails(t, s); len(got) != 0 {
			t.Errorf("%d mails are there", len(got))
		}
		if _, err := s.MailBody(t.Context(), m.Seq); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("body: %v", err)
		}
		if again := addMail(t, s, "a", "mail_1", "z"); again.Seq <= other.Seq {
			t.Errorf("the number %d was given before", again.Seq)
		}
	}},
	{"mails that are added at once are all there, each once", func(t *testing.T, s store.Store) {
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				m := newMail(fmt.Sprint("sender", i%4), fmt.Sprint("mail_", i), "x")
				if _, err := s.AddMail(t.Context(), m, []byte("x")); err != nil {
					t.Errorf("mail %d: %v", i, err)
				}
			})
		}
		wg.Wait()
		seen := map[string]bool{}
		for _, m := range mails(t, s) {
			seen[m.ID] = true
		}
		if len(seen) != 20 {
			t.Errorf("%d of 20", len(seen))
		}
	}},
}

func newMail(from, id, body string) store.Mail {
	return store.Mail{
		ID: id, Kind: "test.kind", From: api.Party{ID: "id-" + from, Name: from}, To: "beta", Lane: "lane", Hash: "hash of " + body,
		Size: len(body), SentAt: start, State: api.MailQueued,
	}
}

func addMail(t *testing.T, s store.Store, from, id, body string) store.Mail {
	t.Helper()
	m, err := s.AddMail(t.Context(), newMail(from, id, body), []byte(body))
	if err != nil {
		t.Fatalf("add mail %s: %v", id, err)
	}
	return m
}

func changeMails(t *testing.T, s store.Store, changes ...store.MailChange) {
	t.Helper()
	if err := s.ChangeMails(t.Context(), changes); err != nil {
		t.Fatalf("change mails: %v", err)
	}
}

func mails(t *testing.T, s store.Store) (all []store.Mail) {
	t.Helper()
	err := s.Mails(t.Context(), func(m store.Mail) error {
		all = append(all, m)
		return nil
	})
	if err != nil {
		t.Fatalf("mails: %v", err)
	}
	return all
}

func wantBody(t *testing.T, s store.Store, seq uint64, want string) {
	t.Helper()
	body, err := s.MailBody(t.Context(), seq)
	if err != nil || string(body) != want {
		t.Errorf("body of %d: %q, %v", seq, body, err)
	}
}
