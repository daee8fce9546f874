package bolt_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
	"opencode-mesh/store/bolt"
	"opencode-mesh/store/boltdb"
)

// backup writes a backup to a file.
func backup(t *testing.T, s *bolt.Store) string {
	t.Helper()
	var b bytes.Buffer
	if _, err := s.Backup(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "backup")
	if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// enroll makes an identity with a credential.
func enroll(t *testing.T, s *bolt.Store, name string) {
	t.Helper()
	id := store.Identity{ID: "id-" + name, Name: name, Role: api.RoleNode, CreatedAt: start}
	cred := store.Credential{ID: "cred-" + name, IdentityID: id.ID, Name: name, Role: api.RoleNode, CreatedAt: start}
	copy(cred.Hash[:], name)
	if err := s.CreateIdentity(t.Context(), id, cred); err != nil {
		t.Fatal(err)
	}
}

func TestRestoreTellsWhatItBringsBack(t *testing.T) {
	s := open(t, config(t))
	for _, name := range []string{"alpha", "beta", "gamma"} {
		enroll(t, s, name)
	}
	if err := s.RevokeCredential(t.Context(), "cred-gamma", start); err != nil {
		t.Fatal(err)
	}
	if _, err := s.PutSetting(t.Context(), "auth/password", []byte("hash"), 0); err != nil {
		t.Fatal(err)
	}
	settle(t, s, create(t, s, "a", "b", "c")[0], start)
	before := time.Now()
	file := backup(t, s)
	if err := s.RevokeCredential(t.Context(), "cred-beta", start); err != nil { // undone by the restore
		t.Fatal(err)
	}

	dir := filepath.Join(t.TempDir(), "restored")
	done, err := bolt.Restore(t.Context(), file, dir)
	if err != nil {
		t.Fatal(err)
	}
	if done.AsOf.Before(before.Truncate(time.Second)) || done.AsOf.After(time.Now()) {
		t.Errorf("as of %v, the backup was made at %v", done.AsOf, before)
	}
	var creds []string
	for _, c := range done.Credentials {
		creds = append(creds, c.ID)
	}
	slices.Sort(creds)
	if !slices.Equal(creds, []string{"cred-alpha", "cred-beta"}) || len(done.Revoked) != 1 || done.Revoked[0].ID != "cred-gamma" {
		t.Errorf("valid again: %v; revoked: %+v", creds, done.Revoked)
	}
	if !slices.Equal(done.Settings, []string{"auth/password"}) || done.Tasks != 3 || done.Open != 2 {
		t.Errorf("%+v", done)
	}
	fi, err := os.Stat(bolt.Config{Dir: dir}.Path())
	if err != nil || fi.Mode() != 0o600 {
		t.Errorf("mode %v: %v", fi.Mode(), err)
	}
	sound(t, dir)
	r := open(t, bolt.Config{Dir: dir, BallastBytes: -1})
	if r.Info() != done.Info || done.Info.HubID != s.Info().HubID || done.Info.Generation == s.Info().Generation {
		t.Errorf("the store says %+v, the restore said %+v", r.Info(), done.Info)
	}
	cred, err := r.CredentialByHash(t.Context(), hashOf("beta"))
	if err != nil || !cred.RevokedAt.IsZero() {
		t.Errorf("the undone revocation: %+v, %v", cred, err)
	}
}

func TestNoBrowserIsLoggedInAfterARestore(t *testing.T) {
	s := open(t, config(t))
	enroll(t, s, "alpha")
	cred := store.Credential{ID: "cred-browser", IdentityID: "id-alpha", Name: "alpha", CreatedAt: start, Browser: true, ExpiresAt: start.Add(time.Hour), Hash: hashOf("browser")}
	if err := s.AddCredential(t.Context(), cred); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	done, err := bolt.Restore(t.Context(), backup(t, s), dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(done.Credentials) != 1 || done.Credentials[0].ID != "cred-alpha" || len(done.Revoked) != 0 {
		t.Errorf("valid again: %+v; revoked: %+v", done.Credentials, done.Revoked)
	}
	sound(t, dir)
	if _, err := open(t, bolt.Config{Dir: dir, BallastBytes: -1}).CredentialByHash(t.Context(), cred.Hash); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("the browser's session: %v", err)
	}
	if c, err := s.CredentialByHash(t.Context(), cred.Hash); err != nil || !c.RevokedAt.IsZero() {
		t.Errorf("in the hub that was backed up: %+v, %v", c, err)
	}
}

func hashOf(name string) (hash [32]byte) {
	copy(hash[:], name)
	return hash
}

func TestTheAgeOfABackupIsToldByTheAuditLogTooIfThatIsNewer(t *testing.T) {
	// On a full disk the backup's own stamp could not be written.
	s := open(t, config(t))
	late := time.Now().Add(time.Hour).UTC()
	if err := s.AppendAudit(t.Context(), api.AuditEntry{At: late, Action: "x"}); err != nil {
		t.Fatal(err)
	}
	done, err := bolt.Restore(t.Context(), backup(t, s), t.TempDir())
	if err != nil || !done.AsOf.Equal(late) {
		t.Fatalf("as of %v, want %v: %v", done.AsOf, late, err)
	}
}

func TestRestoreRefusesToOverwrite(t *testing.T) {
	cfg := config(t)
	s := open(t, cfg)
	file := backup(t, s)
	create(t, s, "a")
	closed(t, s)
	if _, err := bolt.Restore(t.Context(), file, cfg.Dir); !errors.Is(err, boltdb.ErrExists) {
		t.Fatalf("restored over a store: %v", err)
	}
	if all, _ := tasks(t, open(t, cfg)); len(all) != 1 {
		t.Fatal("the store was changed")
	}
}

func TestRestoreTakesNothingButAHubStore(t *testing.T) {
	write := func(t *testing.T, data []byte) string {
		file := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	good, err := os.ReadFile(backup(t, open(t, config(t))))
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "journal")
	db, err := boltdb.Open(boltdb.Config{Path: other, Kind: "node journal", Schema: 1, BallastBytes: -1})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	for name, file := range map[string]string{
		"no file":       filepath.Join(t.TempDir(), "nothing"),
		"an empty file": write(t, nil),
		"a text":        write(t, bytes.Repeat([]byte("no store\n"), 10000)),
		"half a backup": write(t, good[:len(good)/2]),
		"a journal":     other,
	} {
		dir := filepath.Join(t.TempDir(), "restored")
		if _, err := bolt.Restore(t.Context(), file, dir); err == nil {
			t.Errorf("%s was restored", name)
		}
		if _, err := os.Lstat(bolt.Config{Dir: dir}.Path()); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s left a store behind: %v", name, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir := filepath.Join(t.TempDir(), "restored")
	if _, err := bolt.Restore(ctx, write(t, good), dir); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
}

func TestCompactGivesRoomBackAndKeepsTheRecords(t *testing.T) {
	cfg := config(t)
	s := open(t, cfg)
	for i := range 20 {
		n := newTask(fmt.Sprint("t", i))
		n.Text = make([]byte, 200_000)
		n.Task.State, n.Task.EndedAt = api.StateDone, start.Add(time.Duration(i))
		if _, err := s.CreateTasks(t.Context(), []store.NewTask{n}); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := s.Prune(t.Context(), store.Retention{Keep: 1, TombstonesUntil: start}, 100); n != 19 || err != nil {
		t.Fatalf("pruned %d: %v", n, err)
	}
	want, _ := tasks(t, s)
	closed(t, s)
	before, after, err := bolt.Compact(cfg.Dir)
	if err != nil || after >= before/2 || after == 0 {
		t.Fatalf("%d bytes became %d: %v", before, after, err)
	}
	sound(t, cfg.Dir)
	s = open(t, cfg)
	got, _ := tasks(t, s)
	if len(got) != 1 || got[0].ID != want[0].ID || got[0].Rev != want[0].Rev {
		t.Fatalf("%+v became %+v", want, got)
	}
	if _, err := s.Tombstone(t.Context(), "t3"); err != nil {
		t.Fatal(err)
	}
	if next := create(t, s, "next")[0]; next.Seq != 21 {
		t.Fatalf("the numbers start at %d again", next.Seq)
	}
}

func TestOfflineWorkNeedsAStore(t *testing.T) {
	dir := t.TempDir()
	if _, err := bolt.Check(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("check: %v", err)
	}
	if _, _, err := bolt.Compact(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("compact: %v", err)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 0 {
		t.Errorf("left behind: %v, %v", files, err)
	}
}

// first changes the first record of a bucket; a nil result deletes it.
func first(bucket string, edit func(key, value []byte) (newKey, newValue []byte)) func(tx *bbolt.Tx) error {
	return func(tx *bbolt.Tx) error {
		b := tx.Bucket([]byte(bucket))
		key, value := b.Cursor().First()
		key = slices.Clone(key)
		newKey, newValue := edit(key, slices.Clone(value))
		if !bytes.Equal(newKey, key) {
			if err := b.Delete(key); err != nil {
				return err
			}
		}
		if newKey == nil {
			return nil
		}
		return b.Put(newKey, newValue)
	}
}

func drop(bucket string) func(tx *bbolt.Tx) error {
	return first(bucket, func(_, _ []byte) (_, _ []byte) { return nil, nil })
}

func putRaw(bucket, key, value string) func(tx *bbolt.Tx) error {
	return func(tx *bbolt.Tx) error { return tx.Bucket([]byte(bucket)).Put([]byte(key), []byte(value)) }
}

// garble makes the first record's JSON unreadable.
func garble(bucket string) func(tx *bbolt.Tx) error {
	return first(bucket, func(key, value []byte) ([]byte, []byte) { return key, append(value[:len(value)-1], '!') })
}

func TestCheckFindsWhatIsWrongWithRecords(t *testing.T) {
	for name, tc := range map[string]struct {
		damage func(tx *bbolt.Tx) error
		want   string
	}{
		"no hub id":                  {drop("info"), "info: no hub id"},
		"missing bucket":             {func(tx *bbolt.Tx) error { return tx.DeleteBucket([]byte("parts")) }, "parts: bucket is missing"},
		"unreadable task":            {garble("tasks"), "tasks 1: "},
		"task without a head":        {first("tasks", func(k, _ []byte) ([]byte, []byte) { return k, []byte("x") }), "tasks 1: "},
		"task with a foreign head":   {first("tasks", func(k, v []byte) ([]byte, []byte) { v[24] ^= 1; return k, v }), "tasks 1: the head does not belong"},
		"task beyond the last":       {first("tasks", func(_, v []byte) ([]byte, []byte) { return binary.BigEndian.AppendUint64(nil, 99), v }), "beyond the last"},
		"task without an id":         {drop("ids"), "ids: no entry of task a"},
		"id that leads elsewhere":    {putRaw("ids", "a", "\x00\x00\x00\x00\x00\x00\x00\x02"), "ids: entry of task a leads elsewhere"},
		"id of no task":              {putRaw("ids", "z", "\x00\x00\x00\x00\x00\x00\x00\x09"), "ids: 4 entries of 3 tasks and tombstones"},
		"unreadable tombstone":       {putRaw("ids", "gone", "{not a tombstone"), "ids \"gone\": "},
		"tombstone of another":       {putRaw("ids", "gone", `{"id":"other"}`), "ids \"gone\": the tombstone is of"},
		"tombstone that stays":       {drop("lapse"), "lapse: no entry of tombstone of gone"},
		"lapse of no tombstone":      {putRaw("lapse", "12345678nobody", ""), "lapse: 2 entries of 1 tombstones"},
		"part of no task":            {putRaw("parts", "\x00\x00\x00\x00\x00\x00\x00\x09\x01\x00\x00\x00\x01\x00\x00\x00\x01", "x"), "parts 9: part of no task"},
		"part of no kind":            {putRaw("parts", "\x00\x00\x00\x00\x00\x00\x00\x01\x09\x00\x00\x00\x01\x00\x00\x00\x01", "x"), "parts 1: part with a bad key"},
		"unreadable identity":        {garble("identities"), "identities \"id-alpha\": "},
		"identity of another id":     {first("identities", func(_, v []byte) ([]byte, []byte) { return []byte("id-x"), v }), "identities \"id-x\": the record is of"},
		"name of nobody":             {putRaw("names", "nobody", "id-9"), "names: 3 entries of 2 live identities"},
		"identity without its name":  {drop("names"), "names: no entry of identity id-alpha"},
		"unreadable credential":      {garble("credentials"), "credentials 616c7068"},
		"credential without its id":  {drop("credential_ids"), "credential_ids: no entry of credential cred-alpha"},
		"credential issued to none":  {drop("issued"), "issued: no entry of credential cred-alpha"},
		"credential of nobody":       {drop("identities"), "identity id-alpha: store: not found"},
		"credential of a retired":    {first("identities", retired), "credential cred-alpha is valid and its identity is retired"},
		"setting without a revision": {putRaw("settings", "key", "x"), "settings \"key\": no revision"},
		"unreadable binding":         {garble("bindings"), "bindings "},
		"binding of another key":     {first("bindings", func(_, v []byte) ([]byte, []byte) { return []byte("x\x00y\x00"), v }), "the binding is of"},
		"unreadable fill":            {garble("fills"), "fills "},
		"fill of no binding":         {drop("bindings"), "fill of no binding"},
		"fill in another slot":       {first("fills", func(k, v []byte) ([]byte, []byte) { k[len(k)-1] ^= 1; return k, v }), "fill 0 is in the wrong slot"},
		"fill with a short key":      {putRaw("fills", "c", "\x00\x00\x00\x00\x00\x00\x00\x00{}"), "fill 0 is in the wrong slot"},
		"fill that nobody counted":   {putRaw("fills", "c\x00n\x00\x00\x00\x02", "\x00\x00\x00\x00\x00\x00\x00\x02{}"), "fill 2 of a binding that counts 2"},
		"fill that is missing":       {drop("fills"), "fills: 1 fills of binding \"c\\x00n\\x00\", which counts 2"},
		"unreadable digest":          {garble("digests"), "digests "},
		"digest of no binding":       {drop("bindings"), "digest of no binding"},
		"digest of another":          {first("digests", func(k, v []byte) ([]byte, []byte) { k[len(k)-1] ^= 2; return k, v }), "the digest is of generation 1"},
		"digest with a short key":    {putRaw("digests", "c", "{}"), "the digest is of generation 0"},
		"unreadable mail":            {garble("mails"), "mails 1: "},
		"mail without its id":        {drop("mail_ids"), "mail_ids: no entry of mail mail_1"},
		"id of no mail":              {putRaw("mail_ids", "a\x00mail_9", "\x00\x00\x00\x00\x00\x00\x00\x09"), "mail_ids: 3 entries of 2 mails"},
		"mail without a body":        {drop("mail_bodies"), "mail mail_1 of 4 bytes has a body of 0"},
		"body of no queued mail":     {putRaw("mail_bodies", "\x00\x00\x00\x00\x00\x00\x00\x02", "x"), "mail_bodies: 2 entries of 1 queued mails"},
		"mail beyond the last":       {first("mails", func(_, v []byte) ([]byte, []byte) { return binary.BigEndian.AppendUint64(nil, 99), v }), "beyond the last"},
		"unreadable node record":     {garble("nodes"), "nodes \"id-alpha\": "},
		"node record of another":     {first("nodes", func(_, v []byte) ([]byte, []byte) { return []byte("id-x"), v }), "the node record is of"},
		"unreadable audit entry":     {garble("audit"), "audit 1: "},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(t)
			s, err := bolt.Open(cfg)
			if err != nil {
				t.Fatal(err)
			}
			furnish(t, s)
			closed(t, s)
			sound(t, cfg.Dir)
			tamper(t, cfg.Dir, tc.damage)
			found, err := bolt.Check(cfg.Dir)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(found, func(f string) bool { return strings.Contains(f, tc.want) }) {
				t.Fatalf("found %q, want %q", found, tc.want)
			}
		})
	}
}

// retired makes an identity's record one that is retired.
func retired(key, value []byte) ([]byte, []byte) {
	return key, append(value[:len(value)-1], `,"retired_at":"2026-11-30T12:00:00Z"}`...)
}

// furnish puts a record of each kind into a store.
func furnish(t *testing.T, s *bolt.Store) {
	t.Helper()
	enroll(t, s, "alpha")
	enroll(t, s, "beta")
	made := create(t, s, "a", "b", "gone")
	settle(t, s, made[2], start)
	_, errPrune := s.Prune(t.Context(), store.Retention{Before: start.Add(1), TombstonesUntil: start.Add(time.Hour)}, 10)
	_, errSet := s.PutSetting(t.Context(), "key", []byte("x"), 0)
	key := store.BindingKey{Controller: "c", Target: "n"}
	_, errBind := s.PutBinding(t.Context(), store.Binding{BindingKey: key}, api.Fill{}, api.Fill{})
	errDigest := s.PutDigest(t.Context(), key, store.Digest{Digest: api.Digest{Generation: 1, Task: "a"}})
	_, errNode := s.PutNodeRecord(t.Context(), store.NodeRecord{IdentityID: "id-alpha"})
	errAudit := s.AppendAudit(t.Context(), api.AuditEntry{Action: "x"})
	mail := store.Mail{ID: "mail_1", From: api.Party{Name: "a"}, To: "b", Size: 4, SentAt: start, State: api.MailQueued}
	_, errMail := s.AddMail(t.Context(), mail, []byte("body"))
	mail.ID = "mail_2"
	ended, errMail2 := s.AddMail(t.Context(), mail, []byte("body"))
	errEnd := s.ChangeMails(t.Context(), []store.MailChange{{Seq: ended.Seq, Receipt: api.MailReceipt{State: api.MailDelivered}}})
	if err := errors.Join(errPrune, errSet, errBind, errDigest, errNode, errAudit, errMail, errMail2, errEnd); err != nil {
		t.Fatal(err)
	}
}

func TestCheckFindsDamagedPages(t *testing.T) {
	cfg := config(t)
	s, err := bolt.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	furnish(t, s)
	closed(t, s)
	raw, err := os.ReadFile(cfg.Path())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(cfg.Path(), raw[:len(raw)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	found, err := bolt.Check(cfg.Dir)
	if err != nil || len(found) == 0 {
		t.Fatalf("found %q: %v", found, err)
	}
	if _, err := bolt.Open(cfg); err == nil {
		t.Fatal("opened")
	}
}
