package storetest

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// start is the time at which the tests play, with a fraction that must survive.
var start = time.Date(2026, 11, 30, 12, 0, 0, 123456789, time.UTC)

// after is a time d after start.
func after(d time.Duration) time.Time { return start.Add(d) }

// newTask is a queued task with an id of its own; edits change it.
func newTask(id string, edits ...func(*store.Task)) store.NewTask {
	t := store.Task{
		ID: id, Hash: "hash of " + id, Mode: "task", State: api.StateQueued, Kind: api.TurnTask, Attempt: 1, Turn: 1,
		Controller: api.Party{ID: "id-ctl", Name: "ctl"}, Target: api.Party{ID: "id-node", Name: "node"},
		Since: start, CreatedAt: start, ExpiresAt: after(24 * time.Hour),
	}
	for _, edit := range edits {
		edit(&t)
	}
	return store.NewTask{Task: t, Text: []byte("text of " + id)}
}

// by, to, in and ended are edits of a new task.
func by(controller string) func(*store.Task) {
	return func(t *store.Task) { t.Controller = api.Party{ID: controller, Name: controller} }
}

func to(target string) func(*store.Task) {
	return func(t *store.Task) { t.Target = api.Party{ID: target, Name: target} }
}

func in(state api.State) func(*store.Task) {
	return func(t *store.Task) { t.State = state }
}

func ended(state api.State, at time.Time) func(*store.Task) {
	return func(t *store.Task) { t.State, t.Since, t.EndedAt = state, at, at }
}

// create stores tasks in one call.
func create(t *testing.T, s store.Store, tasks ...store.NewTask) []store.Task {
	t.Helper()
	created, err := s.CreateTasks(t.Context(), tasks)
	if err != nil {
		t.Fatalf("create %d tasks: %v", len(tasks), err)
	}
	if len(created) != len(tasks) {
		t.Fatalf("%d tasks came back for %d", len(created), len(tasks))
	}
	return created
}

// createOne stores one task.
func createOne(t *testing.T, s store.Store, id string, edits ...func(*store.Task)) store.Task {
	t.Helper()
	return create(t, s, newTask(id, edits...))[0]
}

// update changes a stored task and waits.
func update(t *testing.T, s store.Store, task store.Task, edit func(*store.Task), parts ...store.Part) store.Task {
	t.Helper()
	edit(&task)
	got, err := s.UpdateTask(t.Context(), task, parts...)
	if err != nil {
		t.Fatalf("update task %s: %v", task.ID, err)
	}
	return got
}

// wantTask compares a stored task.
func wantTask(t *testing.T, s store.Store, want store.Task) {
	t.Helper()
	got, err := s.Task(t.Context(), want.ID)
	if err != nil {
		t.Fatalf("task %s: %v", want.ID, err)
	}
	same(t, got, want)
}

// wantPart compares a stored text.
func wantPart(t *testing.T, s store.Store, task string, key store.PartKey, want string) {
	t.Helper()
	got, err := s.Part(t.Context(), task, key)
	if err != nil {
		t.Fatalf("%v of %s: %v", key, task, err)
	}
	if string(got) != want {
		t.Fatalf("%v of %s: %d bytes, want %d bytes", key, task, len(got), len(want))
	}
}

// firstText is where a new task's text is.
var firstText = store.PartKey{Kind: store.PartText, Attempt: 1, Turn: 1}

// list goes through all pages of a listing and returns the ids.
func list(t *testing.T, s store.Store, q store.TaskQuery) (ids []string) {
	t.Helper()
	for pages := 0; ; pages++ {
		page, err := s.Tasks(t.Context(), q)
		if err != nil {
			t.Fatalf("list %+v: %v", q, err)
		}
		if pages > 10000 || page.Next != 0 && len(page.Tasks) == 0 {
			t.Fatalf("list %+v does not end", q)
		}
		for _, task := range page.Tasks {
			ids = append(ids, task.ID)
		}
		if page.Next == 0 {
			return ids
		}
		q.Before = page.Next
	}
}

// openIDs returns the ids of the open tasks.
func openIDs(t *testing.T, s store.Store) (ids []string) {
	t.Helper()
	err := s.OpenTasks(t.Context(), func(task store.Task) error {
		ids = append(ids, task.ID)
		return nil
	})
	if err != nil {
		t.Fatalf("open tasks: %v", err)
	}
	return ids
}

// ids are n numbered ids.
func ids(prefix string, n int) (ids []string) {
	for i := range n {
		ids = append(ids, fmt.Sprintf("%s-%04d", prefix, i))
	}
	return ids
}

// reversed returns a reversed copy.
func reversed[S ~[]E, E any](s S) S {
	s = slices.Clone(s)
	slices.Reverse(s)
	return s
}

// identity and credential make one of their kind, named for what they are.
func identity(name, id string) store.Identity {
	return store.Identity{ID: id, Name: name, Role: api.RoleNode, CreatedAt: start}
}

func credential(id string, of store.Identity) store.Credential {
	return store.Credential{ID: id, IdentityID: of.ID, Name: of.Name, Role: of.Role, Hash: hash(id), CreatedAt: start}
}

// browser is the credential of a browser whose time ends.
func browser(id string, of store.Identity, ends time.Time) store.Credential {
	c := credential(id, of)
	c.Browser, c.ExpiresAt = true, ends
	return c
}

// hash is the hash of a credential's secret.
func hash(id string) [32]byte { return sha256.Sum256([]byte("secret of " + id)) }

// join makes an identity with one credential and returns it as stored.
func join(t *testing.T, s store.Store, name, id, cred string) store.Identity {
	t.Helper()
	made := identity(name, id)
	if err := s.CreateIdentity(t.Context(), made, credential(cred, made)); err != nil {
		t.Fatalf("create identity %s: %v", id, err)
	}
	return byID(t, s, id)
}

func byID(t *testing.T, s store.Store, id string) store.Identity {
	t.Helper()
	got, err := s.Identity(t.Context(), id)
	if err != nil {
		t.Fatalf("identity %s: %v", id, err)
	}
	return got
}

// byHash returns the credential of an id that credential made.
func byHash(t *testing.T, s store.Store, id string) store.Credential {
	t.Helper()
	got, err := s.CredentialByHash(t.Context(), hash(id))
	if err != nil {
		t.Fatalf("credential %s: %v", id, err)
	}
	return got
}

// same compares values; times by the instant.
func same(t *testing.T, got, want any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("not as wanted (-want +got):\n%s", diff)
	}
}

// ok ends the test on an error.
func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// fails ends the test unless err is of the kind.
func fails(t *testing.T, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("got error %v, want %v", err, kind)
	}
}

// fill sets every field of what v points to, so that a field that is added to a
// record later is tested without anybody thinking of it. n makes values differ.
func fill(v any) { fillValue(reflect.ValueOf(v).Elem(), new(int)) }

func fillValue(v reflect.Value, n *int) {
	*n++
	switch v.Interface().(type) {
	case time.Time:
		v.Set(reflect.ValueOf(after(time.Duration(*n) * time.Second)))
		return
	case api.State:
		v.Set(reflect.ValueOf(api.StateDone))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fillValue(v.Field(i), n)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fillValue(v.Elem(), n)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fillValue(v.Index(0), n)
		fillValue(v.Index(1), n)
	case reflect.Array:
		for i := range v.Len() {
			fillValue(v.Index(i), n)
		}
	case reflect.String:
		v.SetString(fmt.Sprintf("<%d> & \"é\"\n", *n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*n))
	case reflect.Uint8:
		v.SetUint(uint64(*n % 256))
	case reflect.Uint64:
		v.SetUint(uint64(*n))
	default:
		panic(fmt.Sprintf("storetest: cannot fill a %s", v.Type()))
	}
}
