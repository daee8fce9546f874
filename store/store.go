// Package store defines what a hub must not lose and the interface that keeps
// it: identities and credentials, tasks with their texts and results, session
// bindings, mail between nodes, what is known of each node, settings and the audit
// log.
//
// Every method takes a context and every change of a record is a
// compare-and-set on its revision, so that no caller relies on a transaction or
// an in-process lock for correctness: several hubs may share a store one day.
// A method that changes something returns only after the change is on disk,
// unless its name says Later. bolt/ is the embedded implementation; storetest/
// is the contract suite that any implementation must pass.
package store

import (
	"context"
	"errors"
	"io"
	"time"

	"opencode-mesh/protocol/api"
)

// Errors of every implementation. Disk trouble (semantics 21) has three faces:
// no room now, not writable now, and a sync that failed, after which nothing is
// acknowledged any more and the process must end.
var (
	ErrNotFound  = errors.New("store: not found")
	ErrExists    = errors.New("store: exists already")
	ErrConflict  = errors.New("store: changed meanwhile")
	ErrNameTaken = errors.New("store: name is taken")
	ErrForgotten = errors.New("store: forgotten, only a tombstone is left")
	ErrFull      = errors.New("store: disk is full")
	ErrReadOnly  = errors.New("store: disk is read-only")
	ErrBusy      = errors.New("store: write queue is full")
	ErrFailed    = errors.New("store: a sync failed, nothing is acknowledged any more")
	ErrClosed    = errors.New("store: closed")
)

// Rev is a record's revision. Zero in a change means that the record must not
// exist yet.
type Rev uint64

// Info identifies a store. HubID lives as long as the data and is kept by a
// restore; Generation is new at each restore and part of every event id
// (semantics 10).
type Info struct {
	HubID      string
	Generation string
	CreatedAt  time.Time
	// RestoredAt is when a backup was restored last; zero if never.
	RestoredAt time.Time
}

// Store keeps a hub's state. Safe for concurrent use.
type Store interface {
	Info() Info

	// Setting returns a small named value; ErrNotFound when unset.
	Setting(ctx context.Context, key string) (value []byte, rev Rev, err error)
	// PutSetting sets it if its revision is still rev (0: must be unset).
	PutSetting(ctx context.Context, key string, value []byte, rev Rev) (Rev, error)

	// CreateIdentity makes an identity and its first credential at once.
	// ErrNameTaken when another live identity has the name.
	CreateIdentity(ctx context.Context, id Identity, cred Credential) error
	// ReplaceIdentity retires the live identity old (ErrConflict when its revision
	// moved) with its credentials and makes the new one under the same name.
	ReplaceIdentity(ctx context.Context, old Identity, id Identity, cred Credential) error
	// Identity finds one by its random id, retired ones included.
	Identity(ctx context.Context, id string) (Identity, error)
	// IdentityByName finds the live one of that name.
	IdentityByName(ctx context.Context, name string) (Identity, error)
	Identities(ctx context.Context) ([]Identity, error)
	// RetireIdentity ends a live identity and revokes its credentials; its name is
	// free afterwards.
	RetireIdentity(ctx context.Context, id Identity, at time.Time) error

	// AddCredential adds one to a live identity.
	AddCredential(ctx context.Context, cred Credential) error
	// CredentialByHash finds one by the hash of its secret, revoked ones included.
	CredentialByHash(ctx context.Context, hash [32]byte) (Credential, error)
	Credentials(ctx context.Context) ([]Credential, error)
	// RevokeCredential marks one revoked; a repeat is not an error.
	RevokeCredential(ctx context.Context, id string, at time.Time) error
	// PruneBrowsers removes the credentials of browsers that were revoked, whose time
	// ended by now, or that were last used, or made, before unused.
	PruneBrowsers(ctx context.Context, now, unused time.Time) (removed int, err error)
	// TouchCredentialsLater records last uses, coarse and not awaited.
	TouchCredentialsLater(uses map[string]time.Time) error

	// CreateTasks stores new tasks with their texts, all or none, and stamps Seq
	// and Rev in the returned copies. When an id exists: ErrExists (*ExistsError
	// names it). When only a tombstone is left of it: ErrForgotten. acts enter the
	// audit log in the same commit, see AppendActsLater.
	CreateTasks(ctx context.Context, tasks []NewTask, acts ...api.AuditEntry) ([]Task, error)
	// Task returns a task's record. When only a tombstone is left the error is both
	// ErrForgotten and ErrNotFound; so it is from UpdateTask and Part.
	Task(ctx context.Context, id string) (Task, error)
	// UpdateTask stores t if its revision is still t.Rev and returns it with the
	// new one, which is higher; parts that are given are stored beside it in the same
	// commit. A task's ID, Seq and parties never change.
	UpdateTask(ctx context.Context, t Task, parts ...Part) (Task, error)
	// UpdateTaskLater does the same without waiting for the disk: the returned task
	// carries the revision it will have. Later changes of the same task by the same
	// caller keep their order. onFail, which may be nil, runs when it could not be
	// stored: on a goroutine of the store, never inside this call, and not after an
	// error was returned. It must not call Close, which waits for it.
	UpdateTaskLater(t Task, onFail func(error)) (Task, error)
	// Part returns a stored text; ErrNotFound when there is none.
	Part(ctx context.Context, task string, key PartKey) ([]byte, error)
	// Tasks lists tasks newest first. With a Text it looks at MaxSearch tasks and
	// MaxSearchBytes of texts, then the page ends; see TaskPage.
	Tasks(ctx context.Context, q TaskQuery) (TaskPage, error)
	// Settled lists settled tasks of a party, the one that ended first first; see
	// SettledQuery.
	Settled(ctx context.Context, q SettledQuery) ([]Task, error)
	// OpenTasks calls fn for every task that is not settled, in commit order.
	OpenTasks(ctx context.Context, fn func(Task) error) error
	// Tombstone returns what is left of a task that retention removed.
	Tombstone(ctx context.Context, id string) (Tombstone, error)
	// Prune removes settled tasks beyond the limits and leaves tombstones; it also
	// drops tombstones past their time. At most limit tasks a call.
	Prune(ctx context.Context, r Retention, limit int) (removed int, err error)

	Binding(ctx context.Context, key BindingKey) (Binding, error)
	// PutBinding stores b if its revision is still b.Rev. Fills that are given join its
	// series in the same commit; the oldest beyond MaxFills go.
	PutBinding(ctx context.Context, b Binding, fills ...api.Fill) (Binding, error)
	// Bindings lists those of a controller and a target; "" stands for any.
	Bindings(ctx context.Context, controller, target string) ([]Binding, error)
	// Fills returns a binding's series, oldest first.
	Fills(ctx context.Context, key BindingKey) ([]api.Fill, error)
	// NewestFills returns the newest n fills of each of these bindings, oldest first,
	// in the order of the bindings. It costs what it returns.
	NewestFills(ctx context.Context, of []Binding, n int) ([][]api.Fill, error)
	// PutDigest stores one generation of a binding that exists (else ErrNotFound). One
	// that is stored already is kept: a repeat of the same task's is no error, another
	// task's is ErrExists.
	PutDigest(ctx context.Context, key BindingKey, d Digest) error
	// Digests returns all generations, oldest first.
	Digests(ctx context.Context, key BindingKey) ([]Digest, error)

	NodeRecord(ctx context.Context, identity string) (NodeRecord, error)
	PutNodeRecord(ctx context.Context, n NodeRecord) (NodeRecord, error)
	NodeRecords(ctx context.Context) ([]NodeRecord, error)

	// AddMail stores a queued mail with its body and stamps Seq in the returned copy,
	// higher than every one before. ErrExists when the sender's name has a mail of that
	// id.
	AddMail(ctx context.Context, m Mail, body []byte) (Mail, error)
	// MailBody returns the body of a queued mail; ErrNotFound of any other.
	MailBody(ctx context.Context, seq uint64) ([]byte, error)
	// Mails calls fn for every mail, in the order of Seq.
	Mails(ctx context.Context, fn func(Mail) error) error
	// ChangeMails moves mails forward, all or none. A change of a mail that is that far
	// already is passed over. It works on a full disk too: it makes room.
	ChangeMails(ctx context.Context, changes []MailChange) error

	// AppendAudit adds an entry; Seq is stamped.
	AppendAudit(ctx context.Context, e api.AuditEntry) error
	// AppendActsLater adds entries of everyday acts without waiting for the disk. They
	// are numbered and listed with the others and pruned apart from them, so that what
	// happens all the time pushes nothing out that happens rarely.
	AppendActsLater(acts ...api.AuditEntry) error
	// Audit lists entries of both kinds. It looks at MaxAuditLook entries, then the page
	// ends.
	Audit(ctx context.Context, q AuditQuery) (AuditPage, error)
	// PruneAudit keeps the newest keep entries of each kind.
	PruneAudit(ctx context.Context, keep int) error

	// Backup writes a consistent copy while the store is in use.
	Backup(ctx context.Context, w io.Writer) (int64, error)
	// Writable is nil when changes are taken now; else ErrFull, ErrReadOnly,
	// ErrFailed or ErrClosed.
	Writable() error
	// Failed is closed after a sync failed: the owner must end the process.
	Failed() <-chan struct{}
	Close() error
}
