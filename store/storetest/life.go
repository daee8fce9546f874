package storetest

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// call is one method of a store, used in a way that would succeed.
type call struct {
	name string
	do   func(ctx context.Context, s store.Store) error
}

// calls returns all methods that take a context, ready for a store that holds the
// task "a", the identity alpha, the credential cred-1, the binding of c to n with a
// fill and a digest, and a mail.
func calls(t *testing.T, s store.Store) []call {
	task := createOne(t, s, "a")
	alpha := join(t, s, "alpha", "id-1", "cred-1")
	bound := putFills(t, s, binding("c", "n", ""), fillAt(1))
	ok(t, s.PutDigest(t.Context(), bound.BindingKey, digest(1, "a")))
	mail := addMail(t, s, "alpha", "mail_1", "body")
	beta, gamma := identity("beta", "id-2"), identity("alpha", "id-3")
	return []call{
		{"PutSetting", func(ctx context.Context, s store.Store) error {
			_, err := s.PutSetting(ctx, "key", []byte("x"), 0)
			return err
		}},
		{"CreateIdentity", func(ctx context.Context, s store.Store) error {
			return s.CreateIdentity(ctx, beta, credential("cred-2", beta))
		}},
		{"ReplaceIdentity", func(ctx context.Context, s store.Store) error {
			return s.ReplaceIdentity(ctx, alpha, gamma, credential("cred-3", gamma))
		}},
		{"RetireIdentity", func(ctx context.Context, s store.Store) error { return s.RetireIdentity(ctx, alpha, start) }},
		{"AddCredential", func(ctx context.Context, s store.Store) error {
			return s.AddCredential(ctx, credential("cred-4", alpha))
		}},
		{"RevokeCredential", func(ctx context.Context, s store.Store) error { return s.RevokeCredential(ctx, "cred-1", start) }},
		{"PruneBrowsers", func(ctx context.Context, s store.Store) error {
			_, err := s.PruneBrowsers(ctx, after(time.Hour), start)
			return err
		}},
		{"CreateTasks", func(ctx context.Context, s store.Store) error {
			_, err := s.CreateTasks(ctx, []store.NewTask{newTask("b")})
			return err
		}},
		{"UpdateTask", func(ctx context.Context, s store.Store) error {
			_, err := s.UpdateTask(ctx, task)
			return err
		}},
		{"Prune", func(ctx context.Context, s store.Store) error {
			_, err := s.Prune(ctx, store.Retention{Now: start, Before: after(time.Hour)}, 10)
			return err
		}},
		{"PutBinding", func(ctx context.Context, s store.Store) error {
			_, err := s.PutBinding(ctx, bound, fillAt(2))
			return err
		}},
		{"PutDigest", func(ctx context.Context, s store.Store) error {
			return s.PutDigest(ctx, bound.BindingKey, digest(2, "a"))
		}},
		{"PutNodeRecord", func(ctx context.Context, s store.Store) error {
			_, err := s.PutNodeRecord(ctx, store.NodeRecord{IdentityID: "id-1"})
			return err
		}},
		{"AddMail", func(ctx context.Context, s store.Store) error {
			_, err := s.AddMail(ctx, newMail("alpha", "mail_2", "body"), []byte("body"))
			return err
		}},
		{"MailBody", func(ctx context.Context, s store.Store) error {
			_, err := s.MailBody(ctx, mail.Seq)
			return err
		}},
		{"Mails", func(ctx context.Context, s store.Store) error {
			return s.Mails(ctx, func(store.Mail) error { return nil })
		}},
		{"ChangeMails", func(ctx context.Context, s store.Store) error {
			return s.ChangeMails(ctx, []store.MailChange{{Seq: mail.Seq, Receipt: api.MailReceipt{State: api.MailDelivered}}})
		}},
		{"AppendAudit", func(ctx context.Context, s store.Store) error { return s.AppendAudit(ctx, api.AuditEntry{Action: "x"}) }},
		{"PruneAudit", func(ctx context.Context, s store.Store) error { return s.PruneAudit(ctx, 0) }},

		{"Setting", func(ctx context.Context, s store.Store) error {
			_, _, err := s.Setting(ctx, "key")
			return err
		}},
		{"Identity", func(ctx context.Context, s store.Store) error {
			_, err := s.Identity(ctx, "id-1")
			return err
		}},
		{"IdentityByName", func(ctx context.Context, s store.Store) error {
			_, err := s.IdentityByName(ctx, "alpha")
			return err
		}},
		{"Identities", func(ctx context.Context, s store.Store) error {
			_, err := s.Identities(ctx)
			return err
		}},
		{"CredentialByHash", func(ctx context.Context, s store.Store) error {
			_, err := s.CredentialByHash(ctx, hash("cred-1"))
			return err
		}},
		{"Credentials", func(ctx context.Context, s store.Store) error {
			_, err := s.Credentials(ctx)
			return err
		}},
		{"Task", func(ctx context.Context, s store.Store) error {
			_, err := s.Task(ctx, "a")
			return err
		}},
		{"Part", func(ctx context.Context, s store.Store) error {
			_, err := s.Part(ctx, "a", firstText)
			return err
		}},
		{"Tasks", func(ctx context.Context, s store.Store) error {
			_, err := s.Tasks(ctx, store.TaskQuery{})
			return err
		}},
		{"OpenTasks", func(ctx context.Context, s store.Store) error {
			return s.OpenTasks(ctx, func(store.Task) error { return nil })
		}},
		{"Tombstone", func(ctx context.Context, s store.Store) error {
			_, err := s.Tombstone(ctx, "a")
			return err
		}},
		{"Binding", func(ctx context.Context, s store.Store) error {
			_, err := s.Binding(ctx, bound.BindingKey)
			return err
		}},
		{"Bindings", func(ctx context.Context, s store.Store) error {
			_, err := s.Bindings(ctx, "", "")
			return err
		}},
		{"Fills", func(ctx context.Context, s store.Store) error {
			_, err := s.Fills(ctx, bound.BindingKey)
			return err
		}},
		{"Digests", func(ctx context.Context, s store.Store) error {
			_, err := s.Digests(ctx, bound.BindingKey)
			return err
		}},
		{"NewestFills", func(ctx context.Context, s store.Store) error {
			_, err := s.NewestFills(ctx, []store.Binding{bound}, 1)
			return err
		}},
		{"NodeRecord", func(ctx context.Context, s store.Store) error {
			_, err := s.NodeRecord(ctx, "id-1")
			return err
		}},
		{"NodeRecords", func(ctx context.Context, s store.Store) error {
			_, err := s.NodeRecords(ctx)
			return err
		}},
		{"Audit", func(ctx context.Context, s store.Store) error {
			_, err := s.Audit(ctx, store.AuditQuery{Limit: 1})
			return err
		}},
		{"Backup", func(ctx context.Context, s store.Store) error {
			_, err := s.Backup(ctx, io.Discard)
			return err
		}},
	}
}

// picture is everything that can be read of a small store.
type picture struct {
	Tasks       []store.Task
	Identities  []store.Identity
	Credentials []store.Credential
	Bindings    []store.Binding
	Fills       [][]api.Fill
	Digests     [][]store.Digest
	Nodes       []store.NodeRecord
	Audit       []api.AuditEntry
	Mails       []store.Mail
	Bodies      []string // of the queued mails
}

func look(t *testing.T, s store.Store) (p picture) {
	t.Helper()
	page, err := s.Tasks(t.Context(), store.TaskQuery{})
	p.Tasks = page.Tasks
	errs := []error{err}
	add := func(err error) { errs = append(errs, err) }
	p.Identities, err = s.Identities(t.Context())
	add(err)
	p.Credentials, err = s.Credentials(t.Context())
	add(err)
	p.Bindings, err = s.Bindings(t.Context(), "", "")
	add(err)
	for _, b := range p.Bindings {
		fills, err := s.Fills(t.Context(), b.BindingKey)
		add(err)
		digests, err := s.Digests(t.Context(), b.BindingKey)
		add(err)
		p.Fills, p.Digests = append(p.Fills, fills), append(p.Digests, digests)
	}
	p.Nodes, err = s.NodeRecords(t.Context())
	add(err)
	log, err := s.Audit(t.Context(), store.AuditQuery{})
	p.Audit = log.Entries
	add(err)
	p.Mails = mails(t, s)
	for _, m := range p.Mails {
		if m.State == api.MailQueued {
			body, err := s.MailBody(t.Context(), m.Seq)
			add(err)
			p.Bodies = append(p.Bodies, string(body))
		}
	}
	ok(t, errors.Join(errs...))
	return p
}

var lifeContracts = []contract{
	{"a call whose context has ended does nothing", func(t *testing.T, s store.Store) {
		all := calls(t, s)
		before := look(t, s)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for _, c := range all {
			if err := c.do(ctx, s); !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", c.name, err)
			}
		}
		same(t, look(t, s), before)
	}},
	{"going through the open tasks ends with its context", func(t *testing.T, s store.Store) {
		create(t, s, newTask("a"), newTask("b"))
		ctx, cancel := context.WithCancel(t.Context())
		seen := 0
		err := s.OpenTasks(ctx, func(store.Task) error {
			seen++
			cancel()
			return nil
		})
		fails(t, err, context.Canceled)
		same(t, seen, 1)
	}},
	{"a store that is open takes changes", func(t *testing.T, s store.Store) {
		ok(t, s.Writable())
		select {
		case <-s.Failed():
			t.Fatal("failed")
		default:
		}
	}},
	{"a closed store refuses everything", func(t *testing.T, s store.Store) {
		all := calls(t, s)
		task, err := s.Task(t.Context(), "a")
		ok(t, err)
		ok(t, s.Close())
		for _, c := range all {
			if err := c.do(t.Context(), s); !errors.Is(err, store.ErrClosed) {
				t.Errorf("%s: %v", c.name, err)
			}
		}
		_, err = s.UpdateTaskLater(task, nil)
		fails(t, err, store.ErrClosed)
		fails(t, s.TouchCredentialsLater(map[string]time.Time{"cred-1": start}), store.ErrClosed)
		fails(t, s.Writable(), store.ErrClosed)
	}},
	{"closing is done once, however often it is asked for", func(t *testing.T, s store.Store) {
		together(4, func(int) {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		ok(t, s.Close())
	}},
	{"closing while in use loses nothing that was acknowledged", func(t *testing.T, s store.Store) {
		var wg sync.WaitGroup
		for _, id := range ids("t", 8) {
			task := createOne(t, s, id)
			wg.Go(func() {
				for {
					next, err := s.UpdateTask(t.Context(), task)
					if errors.Is(err, store.ErrClosed) {
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
					task = next
				}
			})
		}
		ok(t, s.Close())
		wg.Wait()
	}},
}
