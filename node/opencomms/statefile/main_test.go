package statefile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"opencode-mesh/protocol/opencomms"
)

// looper is set in processes that the tests start to be killed.
const looper = "MESH_TEST_STATEFILE_LOOP"

func TestMain(m *testing.M) {
	if project := os.Getenv(looper); project != "" {
		loop(project)
		return
	}
	goleak.VerifyTestMain(m)
}

// loop adds messages for ever and says after each that it is written.
func loop(project string) {
	s := Open(project, Options{})
	for i := 0; ; i++ {
		id := fmt.Sprintf("ocm_%d_%d", os.Getpid(), i)
		if err := s.Update(context.Background(), func(st *opencomms.State) error { add(st, id); return nil }); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		fmt.Println("wrote", id)
	}
}

// add puts a message into a state, and the channel that it is in.
func add(s *opencomms.State, id string) {
	const channel = "chn_0123456789abcdef0123456789abcdef"
	if s.Channels.Len() == 0 {
		s.Channels.Set("review", &opencomms.Channel{
			ID: channel, Name: "review", ProjectID: "local-project", Worktree: "/project",
			CreatedAt: 1, MaxMembers: 8, MaxHops: 4, RateLimit: 20, DeliveryCooldown: 1000, StaleAfter: 300000,
			Lifecycle: opencomms.LifecycleActive,
		})
	}
	s.Messages.Set(id, &opencomms.Envelope{EnvelopeFields: opencomms.EnvelopeFields{
		ID: id, ChannelID: channel, Sender: "sess_a", SenderRole: "Builder", Recipient: "sess_b", RecipientRole: "Reviewer",
		Timestamp: time.Now().UnixMilli(), Type: opencomms.TypeManual, Content: strings.Repeat("text ", 100),
		Status: opencomms.StatusPending, Correlation: "cor_0123456789abcdef0123456789abcdef",
	}})
}

// mustAdd adds one message through the Store.
func mustAdd(t *testing.T, s *Store, id string) {
	t.Helper()
	if err := s.Update(t.Context(), func(st *opencomms.State) error { add(st, id); return nil }); err != nil {
		t.Fatal(err)
	}
}

// ids are those of the messages in the file.
func ids(t *testing.T, s *Store) []string {
	t.Helper()
	st, err := s.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return idsOf(st)
}

func idsOf(st *opencomms.State) []string {
	list := []string{}
	for id := range st.Messages.All() {
		list = append(list, id)
	}
	return list
}

// names are those of a directory, sorted.
func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	list := []string{}
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

func want[T comparable](t *testing.T, got, want []T) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// age makes a file look as if it was last written so long ago.
func age(t *testing.T, path string, d time.Duration) {
	t.Helper()
	at := time.Now().Add(-d)
	if err := os.Chtimes(path, at, at); err != nil {
		t.Fatal(err)
	}
}

// errDead is what everything gives once a faulty disk's process is dead.
var errDead = errors.New("the process is dead")

// faulty is a disk on which one step fails.
type faulty struct {
	disk
	mu   sync.Mutex
	step int      // steps until now
	log  []string // what they were

	at   int   // the step that fails, from 1; 0: none
	err  error // with this error
	dies bool  // nothing is done from that step on, as if the process was killed
	half bool  // a write that fails writes half of it
}

// next counts a step and says what becomes of it.
func (d *faulty) next(format string, args ...any) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.step++
	d.log = append(d.log, strconv.Itoa(d.step)+" "+fmt.Sprintf(format, args...))
	if d.at == 0 || d.step < d.at || d.step > d.at && !d.dies {
		return nil
	}
	if d.dies {
		return errDead
	}
	return d.err
}

func (d *faulty) Create(path string, mode fs.FileMode) (file, error) {
	if err := d.next("create %s", filepath.Base(path)); err != nil {
		return nil, err
	}
	f, err := d.disk.Create(path, mode)
	if err != nil {
		return nil, err
	}
	return &faultyFile{file: f, disk: d, name: filepath.Base(path)}, nil
}

func (d *faulty) Open(path string) (file, error) {
	if err := d.next("open %s", filepath.Base(path)); err != nil {
		return nil, err
	}
	return d.disk.Open(path)
}

func (d *faulty) Mkdir(path string, mode fs.FileMode) error {
	if err := d.next("mkdir %s", filepath.Base(path)); err != nil {
		return err
	}
	return d.disk.Mkdir(path, mode)
}

func (d *faulty) Rename(from, to string) error {
	if err := d.next("rename to %s", filepath.Base(to)); err != nil {
		return err
	}
	return d.disk.Rename(from, to)
}

func (d *faulty) Remove(path string) error {
	if err := d.next("remove %s", filepath.Base(path)); err != nil {
		return err
	}
	return d.disk.Remove(path)
}

func (d *faulty) SyncDir(path string) error {
	if err := d.next("sync directory"); err != nil {
		return err
	}
	return d.disk.SyncDir(path)
}

type faultyFile struct {
	file
	disk *faulty
	name string
}

func (f *faultyFile) Write(b []byte) (int, error) {
	if err := f.disk.next("write %s", f.name); err != nil {
		if f.disk.half {
			_, _ = f.file.Write(b[:len(b)/2])
		}
		return 0, err
	}
	return f.file.Write(b)
}

func (f *faultyFile) Sync() error {
	if err := f.disk.next("sync %s", f.name); err != nil {
		return err
	}
	return f.file.Sync()
}
