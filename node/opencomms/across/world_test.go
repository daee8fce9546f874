package across

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	bolt "go.etcd.io/bbolt"
	"go.uber.org/goleak"

	"opencode-mesh/node/mail"
	"opencode-mesh/node/opencomms"
	"opencode-mesh/node/opencomms/engine"
	"opencode-mesh/node/opencomms/statefile"
	"opencode-mesh/protocol/api"
	ocm "opencode-mesh/protocol/opencomms"
	"opencode-mesh/store/boltdb"
)

func TestMain(m *testing.M) {
	// Each check syncs files some hundred times. -rapid.checks=N, but not 100, has its way.
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue {
		_ = f.Value.Set("20")
	}
	goleak.VerifyTestMain(m)
}

// tester is what *testing.T and *rapid.T have in common.
type tester interface {
	Helper()
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
	Logf(format string, args ...any)
}

// disk fails from a commit on, which is what a kill there leaves behind.
type disk struct{ left atomic.Int64 }

const whole = 1 << 40

func newDisk() *disk {
	d := &disk{}
	d.left.Store(whole)
	return d
}

func (d *disk) BeforeCommit(boltdb.CommitOp) error {
	if d.left.Add(-1) < 0 {
		return boltdb.WriteFault(syscall.EROFS)
	}
	return nil
}

func (d *disk) dead() bool { return d.left.Load() < 0 }

// side is a machine: a box, the links, one project. The worker is driven by the test.
type side struct {
	t       tester
	w       *world
	name    string
	dir     string
	file    string
	disk    *disk
	box     *mail.Box
	across  *Across
	worker  *worker
	mux     http.Handler
	project *opencomms.Project
	online  bool
	life    int // how often it was killed
}

// world is machines and a post, with a clock of their own.
type world struct {
	t     tester
	post  *post
	sides map[string]*side
	now   atomic.Int64
}

func newWorld(t tester, dir string, names ...string) *world {
	w := &world{t: t, post: newPost(t), sides: map[string]*side{}}
	w.now.Store(time.Now().UnixMilli())
	for _, name := range names {
		w.add(dir, name)
	}
	return w
}

func (w *world) add(dir, name string) *side {
	s := &side{t: w.t, w: w, name: name, dir: filepath.Join(dir, name+"-project"), file: filepath.Join(dir, name+".db")}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		w.t.Fatalf("%v", err)
	}
	var err error
	if s.dir, err = filepath.EvalSymlinks(s.dir); err != nil {
		w.t.Fatalf("%v", err)
	}
	if s.project, err = opencomms.Open(s.dir, opencomms.Options{Now: w.clock}); err != nil {
		w.t.Fatalf("%v", err)
	}
	w.post.ids[name] = "id-" + name
	w.sides[name] = s
	s.open()
	s.connect()
	return s
}

func (w *world) clock() time.Time { return time.UnixMilli(w.now.Load()) }

func (w *world) pass(d time.Duration) { w.now.Add(d.Milliseconds()) }

func (s *side) open() {
	s.disk = newDisk()
	var err error
	s.box, err = mail.Open(mail.Config{Path: s.file, HubID: "hub", BallastBytes: -1, RetryMin: time.Millisecond, RetryMax: 5 * time.Millisecond, Faults: s.disk})
	if err != nil {
		s.t.Fatalf("open the box of %s: %v", s.name, err)
	}
	s.across = New(Config{Box: s.box, Node: s.name, Now: s.w.clock})
	s.worker = newWorker(s.across, s.dir)
	if s.worker.project, err = s.across.open(s.dir); err != nil {
		s.t.Fatalf("%v", err)
	}
	s.across.workers[s.dir] = s.worker
	mux := chi.NewRouter()
	s.box.Routes(mux)
	s.mux = mux
}

func (s *side) connect() {
	s.online = true
	s.box.Attach(client{s.w.post, s.name})
}

func (s *side) disconnect() {
	s.online = false
	s.box.Detach()
}

// crash kills the machine and starts it again.
func (s *side) crash() {
	s.life++
	s.disk.left.Store(-1)
	s.box.Detach()
	_ = s.box.Close()
	s.open()
	if s.online {
		s.connect()
	}
}

// spoil makes the state file one that is not valid, until what it returns is called.
func (s *side) spoil() (mend func()) {
	s.t.Helper()
	path := filepath.Join(s.dir, statefile.Dir, "state.json")
	data, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, []byte("{"), 0o600)
	}
	if err != nil {
		s.t.Fatalf("%v", err)
	}
	return func() {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			s.t.Fatalf("%v", err)
		}
	}
}

func (s *side) put(method, path string, body any) error {
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	rec := httptest.NewRecorder()
	s.mux.ServeHTTP(rec, httptest.NewRequest(method, path, bytes.NewReader(data)))
	if rec.Code > 299 {
		return api.DecodeError(rec.Code, rec.Body.Bytes())
	}
	return nil
}

// work makes one pass, as the worker would.
func (s *side) work() error {
	_, err := s.worker.pass(context.Background())
	return err
}

func (w *world) close() {
	for _, s := range w.sides {
		s.box.Detach()
		_ = s.box.Close()
	}
}

// settle works until nothing moves any more.
func (w *world) settle() {
	w.t.Helper()
	quiet := 0
	for deadline := time.Now().Add(2 * time.Minute); quiet < 3; {
		if time.Now().After(deadline) {
			w.t.Fatalf("it does not come to rest")
		}
		for _, s := range w.sides {
			if s.disk.dead() {
				s.crash()
			}
			if err := s.work(); err != nil {
				w.t.Logf("%s: %v", s.name, err)
			}
		}
		w.post.pump(w.sides)
		quiet++
		for _, s := range w.sides {
			if s.online && s.box.Snapshot().Unsent > 0 {
				quiet = 0
			}
		}
		w.post.mu.Lock()
		for _, m := range w.post.queue {
			if to := w.sides[m.To]; to != nil && to.online {
				quiet = 0
			}
		}
		for _, r := range w.post.receipts {
			if to := w.sides[r.to]; to != nil && to.online {
				quiet = 0
			}
		}
		w.post.mu.Unlock()
		if quiet == 0 {
			time.Sleep(time.Millisecond)
		}
	}
}

// create makes a channel with members of a side, whose session ids are their roles
// with the side's name.
func (s *side) create(channel string, r engine.CreateRequest, roles ...string) {
	s.t.Helper()
	r.Channel = channel
	if r.RateLimit == 0 {
		r.RateLimit = 1000
	}
	if _, err := s.project.Create(context.Background(), r); err != nil {
		s.t.Fatalf("create: %v", err)
	}
	for _, role := range roles {
		s.join(channel, role)
	}
}

func (s *side) session(role string) string { return "sess_" + s.name + "_" + strings.ToLower(role) }

func (s *side) join(channel, role string) {
	s.t.Helper()
	_, err := s.project.Join(context.Background(), engine.JoinRequest{Channel: channel, Member: engine.NewMember{
		Session: s.session(role), Role: role, RolePrompt: "Work.", Host: "test", Mode: ocm.ModePull, Surface: ocm.SurfaceMCP,
		Policy: &ocm.StalePolicy{Mode: ocm.StaleNone},
	}})
	if err != nil {
		s.t.Fatalf("join: %v", err)
	}
}

func (s *side) link(channel, node string, members ...string) {
	s.t.Helper()
	if _, err := s.across.Link(context.Background(), LinkRequest{Project: s.dir, Channel: channel, Node: node, Members: members}); err != nil {
		s.t.Fatalf("link: %v", err)
	}
}

func (s *side) unlink(channel, node string) {
	s.t.Helper()
	if _, err := s.across.Unlink(context.Background(), UnlinkRequest{Project: s.dir, Channel: channel, Node: node}); err != nil {
		s.t.Fatalf("unlink: %v", err)
	}
}

func (s *side) send(r engine.SendRequest, role string) ([]string, error) {
	if r.Channel == "" {
		r.Channel = "review"
	}
	sent, err := s.project.Send(context.Background(), engine.Caller{Session: s.session(role)}, r)
	return sent.MessageIDs, err
}

// say sends to a role and returns the message's id.
func (s *side) say(from, to, content string, replyTo ...string) string {
	s.t.Helper()
	ids, err := s.send(engine.SendRequest{To: to, Content: content, ReplyTo: strings.Join(replyTo, "")}, from)
	if err != nil {
		s.t.Fatalf("send: %v", err)
	}
	return ids[0]
}

func (s *side) state() *ocm.State {
	s.t.Helper()
	st, err := s.project.Read(context.Background())
	if err != nil {
		s.t.Fatalf("read the file of %s: %v", s.name, err)
	}
	return st
}

func (s *side) row(id string) *ocm.Envelope {
	row, _ := s.state().Messages.Get(id)
	return row
}

// roles are the members of a channel.
func (s *side) roles(channel string) (out []string) {
	if ch := engine.Find(s.state(), channel); ch != nil {
		for _, m := range ch.Members {
			out = append(out, m.Role)
		}
	}
	return out
}

// notices are the system rows for a member.
func (s *side) notices(role string) (out []string) {
	for _, row := range s.state().Messages.All() {
		if row.Type == ocm.TypeSystem && row.Recipient == s.session(role) {
			out = append(out, row.Content)
		}
	}
	return out
}

// pull takes a member's mail.
func (s *side) pull(role string) []string {
	s.t.Helper()
	got, err := s.project.Pull(context.Background(), engine.Caller{Session: s.session(role)})
	if err != nil {
		s.t.Fatalf("pull: %v", err)
	}
	return got.MessageIDs
}

func (s *side) change(fn func(*ocm.State)) {
	s.t.Helper()
	err := s.project.Update(context.Background(), func(st *ocm.State) error {
		fn(st)
		return nil
	})
	if err != nil {
		s.t.Fatalf("%v", err)
	}
}

// sent is what a side's status says of a message.
func (s *side) sent(id string) Message {
	s.t.Helper()
	st, err := s.across.Status(s.dir)
	if err != nil {
		s.t.Fatalf("%v", err)
	}
	for _, m := range st.Messages {
		if m.ID == id {
			return m
		}
	}
	return Message{}
}

func (s *side) status() Status {
	s.t.Helper()
	st, err := s.across.Status(s.dir)
	if err != nil {
		s.t.Fatalf("%v", err)
	}
	return st
}

// pair is two machines whose channel review is linked.
func pair(t *testing.T) (w *world, alpha, beta *side) {
	t.Helper()
	w = newWorld(t, t.TempDir(), "alpha", "beta")
	t.Cleanup(w.close)
	alpha, beta = w.sides["alpha"], w.sides["beta"]
	alpha.create("review", engine.CreateRequest{}, "Builder")
	beta.create("review", engine.CreateRequest{}, "Reviewer")
	alpha.link("review", "beta")
	beta.link("review", "alpha")
	w.settle()
	return w, alpha, beta
}

// buckets counts the records of a box in all buckets that hold what is under way.
func (s *side) underWay() (n int) {
	err := s.box.View(func(tx *bolt.Tx) error {
		for _, bucket := range []string{bucketOut, bucketIn, bucketTell} {
			if b := tx.Bucket([]byte(bucket)); b != nil {
				n += b.Stats().KeyN
			}
		}
		return nil
	})
	if err != nil {
		s.t.Fatalf("%v", err)
	}
	return n
}
