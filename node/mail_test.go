package node_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"opencode-mesh/node"
	"opencode-mesh/node/link/linktest"
	"opencode-mesh/node/mail"
	"opencode-mesh/protocol/api"
	"opencode-mesh/store/boltdb"
	"opencode-mesh/tunnel"
)

// letters is an application that counts.
type letters struct{ received, settled atomic.Int64 }

func (l *letters) Receive(*mail.Tx, api.Mail) error { return nil }
func (l *letters) Received(api.Mail)                { l.received.Add(1) }
func (l *letters) Settled(*mail.Tx, api.MailReceipt, api.Mail) error {
	l.settled.Add(1)
	return nil
}

// post sends a mail from a node.
func (p *process) post(text string) string {
	p.t.Helper()
	box, id := p.node.Mail(), mail.NewID()
	err := box.Update(p.t.Context(), func(tx *mail.Tx) error {
		return box.Send(tx, api.Mail{ID: id, Kind: "test.text", To: "beta", Body: fmt.Appendf(nil, "%q", text)})
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return id
}

func TestANodesMailGoesOverItsTunnelAndWaitsInItsFileMeanwhile(t *testing.T) {
	hub := linktest.New(t, tunnel.Config{})
	dir := t.TempDir()
	p := launch(t, hub, dir)
	linktest.Await(t, hub.Conns, "the node")
	app := &letters{}
	p.node.Mail().Handle("test.", app)
	id := p.post("hello")
	if m := linktest.Await(t, hub.Mails, "the mail"); m.ID != id || m.SentMS == 0 {
		t.Errorf("%+v", m)
	}
	if s := p.node.Status(t.Context()); s.Mail.Waiting != 1 {
		t.Errorf("%+v", s.Mail)
	}
	p.quit()
	if _, err := os.Stat(filepath.Join(dir, "mail-"+linktest.HubID+".db")); err != nil {
		t.Fatal(err)
	}

	p = launch(t, hub, dir)
	c := linktest.Await(t, hub.Conns, "the node again")
	p.node.Mail().Handle("test.", app)
	if m := linktest.Await(t, hub.Mails, "the mail that the hub does not know"); m.ID != id {
		t.Errorf("%+v", m)
	}
	in := api.Mail{ID: mail.NewID(), Kind: "test.text", From: "beta", FromID: "id-beta", To: "node", Body: []byte("1"), SentMS: time.Now().UnixMilli()}
	for range 2 {
		if status, err := c.Call(http.MethodPut, "/v1/mail/"+in.ID, in, nil); err != nil || status != http.StatusOK {
			t.Fatalf("%d %v", status, err)
		}
	}
	var done api.MailSettled
	if _, err := c.Call(http.MethodPost, "/v1/mail/receipts", api.MailReceipts{Receipts: []api.MailReceipt{{ID: id, State: api.MailDelivered}}}, &done); err != nil || len(done.IDs) != 1 {
		t.Fatalf("%+v %v", done, err)
	}
	if app.received.Load() != 1 || app.settled.Load() != 1 {
		t.Errorf("received %d, settled %d", app.received.Load(), app.settled.Load())
	}
}

func TestANodeEndsWhenItsMailBoxCannotBeSynced(t *testing.T) {
	hub := linktest.New(t, tunnel.Config{})
	var fail atomic.Bool
	p := launch(t, hub, t.TempDir(), func(c *node.Config) {
		c.Mail.Faults = boltdb.FaultFunc(func(boltdb.CommitOp) error {
			if fail.Load() {
				return errors.New("fdatasync: input/output error")
			}
			return nil
		})
	})
	linktest.Await(t, hub.Conns, "the node")
	fail.Store(true)
	box := p.node.Mail()
	if err := box.Update(t.Context(), func(*mail.Tx) error { return nil }); err == nil {
		t.Fatal("a failed sync was acknowledged")
	}
	if err := p.end(); !errors.Is(err, node.ErrJournalFailed) {
		t.Fatalf("ended with %v", err)
	}
}

func TestAMailBoxThatCannotBeReadStopsTheNode(t *testing.T) {
	hub := linktest.New(t, tunnel.Config{})
	dir := t.TempDir()
	p := launch(t, hub, dir)
	linktest.Await(t, hub.Conns, "the node")
	p.quit()
	path := mail.Path(dir, linktest.HubID)
	if err := os.WriteFile(path, []byte(strings.Repeat("no box", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	var damaged *boltdb.CorruptError
	if _, err := node.New(config(t, hub, dir, newWorker())); !errors.As(err, &damaged) {
		t.Fatalf("opened: %v", err)
	}
	if raw, err := os.ReadFile(path); err != nil || !strings.HasPrefix(string(raw), "no box") {
		t.Error("the file was made anew")
	}
}
