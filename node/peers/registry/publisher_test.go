package registry_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"opencode-mesh/node/peers/registry"
	"opencode-mesh/protocol/peers"
)

func TestNothingIsOnDiskBeforeSomethingIsPublished(t *testing.T) {
	w := newWorld(t)
	p := w.publisher()
	p.Beat(t.Context())
	if err := p.Withdraw(t.Context(), "session-a"); err != nil {
		t.Error(err)
	}
	if list := w.read(); len(list) != 0 {
		t.Errorf("there are %v", ids(list))
	}
	if _, err := os.Stat(w.dir); !os.IsNotExist(err) {
		t.Errorf("the directory is there: %v", err)
	}
}

func TestAnEndpointHasAFileOfEitherVersion(t *testing.T) {
	w := newWorld(t)
	w.publish(w.publisher(), agent("session-a/b", "00000001"))
	w.want("00000001.json", "00000001.session-a_b.v2.json")
	if runtime.GOOS != "windows" {
		for name, want := range map[string]os.FileMode{"": 0o700, "00000001.json": 0o600, "00000001.session-a_b.v2.json": 0o600} {
			if info, err := os.Stat(w.path(name)); err != nil || info.Mode().Perm() != want {
				t.Errorf("%q has mode %v, %v", name, info.Mode(), err)
			}
		}
	}
	for name, want := range map[string][2]string{
		"00000001.session-a_b.v2.json": {"2", "1000"}, "00000001.json": {"1", strconv.FormatInt(w.base.UnixMilli(), 10)},
	} {
		for field, want := range map[string]string{
			"version": want[0], "startedAt": want[1], "heartbeatAt": strconv.FormatInt(w.base.UnixMilli(), 10), "pid": strconv.Itoa(os.Getpid()),
		} {
			if got := w.field(name, field); got != want {
				t.Errorf("%s of %s is %s, want %s", field, name, got, want)
			}
		}
	}
}

func TestADirectoryThatOthersCanReadIsClosed(t *testing.T) {
	if runtime.GOOS == "windows" {
		return // there are no such modes
	}
	w := newWorld(t)
	if err := os.MkdirAll(w.path(""), 0o755); err != nil {
		t.Fatal(err)
	}
	w.publish(w.publisher(), agent("session-a", "00000001"))
	if info, err := os.Stat(w.path("")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("it has mode %v, %v", info.Mode(), err)
	}
}

func TestWithoutAnAddressOfVersion1ThereIsNoFileOfIt(t *testing.T) {
	w := newWorld(t)
	p := w.publisher()
	e := agent("session-a", "00000001")
	w.publish(p, e)
	e.InboxURL = ""
	w.publish(p, e)
	w.want("00000001.session-a.v2.json")
}

func TestWhatAnEntryLeavesOpenIsFilledIn(t *testing.T) {
	w := newWorld(t)
	p := w.publisher()
	e := agent("session-a", "00000001")
	e.Status, e.StartedAt, e.UpdatedAt, e.PID, e.Busy, e.HeartbeatAt = "", 0, 0, 1, true, 5
	w.publish(p, e)
	start := w.millis(0)
	got := w.read()[0]
	if got.Status != peers.Idle || got.Busy || got.StartedAt != start || got.UpdatedAt != start || got.PID != os.Getpid() || got.HeartbeatAt != start {
		t.Errorf("published as %+v", got)
	}
	// A change has its own time, the start stays.
	w.forward(time.Second)
	e.Status = peers.Busy
	w.publish(p, e)
	got = w.read()[0]
	if got.Status != peers.Busy || !got.Busy || got.StartedAt != start || got.UpdatedAt != w.millis(0) {
		t.Errorf("published as %+v", got)
	}
	// The same again is no change.
	w.forward(time.Second)
	w.publish(p, e)
	if got = w.read()[0]; got.UpdatedAt != w.millis(-time.Second) {
		t.Errorf("nothing changed, and it was updated at %v", got.UpdatedAt)
	}
}

func TestWhatNobodyCouldSeeIsRefused(t *testing.T) {
	w := newWorld(t)
	p := w.publisher()
	for name, change := range map[string]func(*peers.Entry){
		"id": func(e *peers.Entry) { e.EndpointID = "" }, "process": func(e *peers.Entry) { e.ProcessID = "" },
		"session": func(e *peers.Entry) { e.SessionID = "" }, "transport": func(e *peers.Entry) { e.Transport = peers.Transport{} },
		"path": func(e *peers.Entry) { e.ProcessID = "../x" },
	} {
		e := agent("session-a", "00000001")
		change(&e)
		if err := p.Publish(t.Context(), e); err == nil {
			t.Errorf("without %s it is published", name)
		}
	}
	w.want()
}

func TestAHeartbeatRenewsEveryFile(t *testing.T) {
	w := newWorld(t)
	p := w.publisher()
	w.publish(p, agent("session-a", "00000001"))
	w.publish(p, agent("session-b", "00000002"))
	w.forward(31 * time.Second)
	for _, peer := range w.read() {
		if peer.Alive || peer.Reason != registry.ReasonStale {
			t.Errorf("%s is alive without a heartbeat: %+v", peer.EndpointID, peer)
		}
	}
	p.Beat(t.Context())
	for _, peer := range w.read() {
		if !peer.Alive || peer.HeartbeatAt != w.millis(0) {
			t.Errorf("%s is not alive: %+v", peer.EndpointID, peer)
		}
	}
	if got := w.field("00000001.json", "heartbeatAt"); got != strconv.FormatInt(w.now().UnixMilli(), 10) {
		t.Errorf("the file of version 1 has a heartbeat of %s", got)
	}
	t.Run("and brings back what somebody removed", func(t *testing.T) {
		if err := os.RemoveAll(w.dir); err != nil {
			t.Fatal(err)
		}
		p.Beat(t.Context())
		w.want("00000001.json", "00000001.session-a.v2.json", "00000002.json", "00000002.session-b.v2.json")
	})
}

func TestWhatIsWithdrawnIsGone(t *testing.T) {
	w := newWorld(t)
	p := w.publisher()
	w.publish(p, agent("session-a", "00000001"))
	w.publish(p, agent("session-b", "00000002"))
	for range 2 { // the second time it is not there
		if err := p.Withdraw(t.Context(), "session-a"); err != nil {
			t.Error(err)
		}
	}
	p.Beat(t.Context())
	w.want("00000002.json", "00000002.session-b.v2.json")
}

func TestWhatCouldNotBeRemovedIsRemovedLater(t *testing.T) {
	for name, again := range map[string]func(*registry.Publisher) error{
		"by another withdrawal": func(p *registry.Publisher) error { return p.Withdraw(t.Context(), "session-a") },
		"by the next heartbeat": func(p *registry.Publisher) error { p.Beat(t.Context()); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			p := w.publisher()
			w.publish(p, agent("session-a", "00000001"))
			// A directory that is not empty cannot be removed as a file.
			if err := errors.Join(os.Remove(w.path("00000001.json")), os.MkdirAll(w.path("00000001.json/x"), 0o700)); err != nil {
				t.Fatal(err)
			}
			if err := p.Withdraw(t.Context(), "session-a"); err == nil {
				t.Fatal("it is said to be gone")
			}
			if err := os.Remove(w.path("00000001.json/x")); err != nil {
				t.Fatal(err)
			}
			if err := again(p); err != nil {
				t.Fatal(err)
			}
			w.want()
			w.publish(p, agent("session-a", "00000001"))
			p.Beat(t.Context())
			w.want("00000001.json", "00000001.session-a.v2.json")
		})
	}
}

func TestAnEndpointThatMovesToAnotherProcessLeavesNothing(t *testing.T) {
	w := newWorld(t)
	p := w.publisher()
	w.publish(p, agent("session-a", "00000001"))
	w.publish(p, agent("session-a", "00000002"))
	w.want("00000002.json", "00000002.session-a.v2.json")
}

func TestAnErrorLeavesAllAsItWas(t *testing.T) {
	w := newWorld(t)
	p := w.publisher()
	w.publish(p, agent("session-a", "00000001"))
	// A directory in its place keeps the file of version 1 from being written.
	if err := os.MkdirAll(w.path("00000002.json/x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := p.Publish(t.Context(), agent("session-b", "00000002")); err == nil {
		t.Fatal("it could be published")
	}
	p.Beat(t.Context())
	w.want("00000001.json", "00000001.session-a.v2.json", "00000002.json")
}

// run runs a publisher until the end of the test or until stop is called.
func run(t *testing.T, p *registry.Publisher) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func TestAStopRemovesOwnFilesAndNoOthers(t *testing.T) {
	w := newWorld(t)
	p := w.publisher()
	stop := run(t, p)
	w.publish(p, agent("session-a", "00000001"))
	w.publish(p, agent("session-b", "00000002"))
	w.foreign(w.alive("session-c", "00000003"))
	stop()
	w.want("00000003.session-c.v2.json")
	if err := p.Publish(t.Context(), agent("session-a", "00000001")); !errors.Is(err, registry.ErrStopped) {
		t.Errorf("published after the stop: %v", err)
	}
	w.want("00000003.session-c.v2.json")
}

func TestRunBeatsByItself(t *testing.T) {
	w := newWorld(t)
	p := registry.NewPublisher(registry.PublisherConfig{StorageDir: w.dir, Heartbeat: time.Millisecond, Now: w.now})
	w.publish(p, agent("session-a", "00000001"))
	w.forward(time.Second)
	run(t, p)
	want := strconv.FormatInt(w.now().UnixMilli(), 10)
	for w.field("00000001.json", "heartbeatAt") != want || w.field("00000001.session-a.v2.json", "heartbeatAt") != want {
		if t.Context().Err() != nil {
			t.Fatal("no heartbeat came")
		}
		runtime.Gosched()
	}
}

func TestReadersNeverSeeHalfAFile(t *testing.T) {
	w := newWorld(t)
	p := registry.NewPublisher(registry.PublisherConfig{StorageDir: w.dir, Heartbeat: time.Millisecond, Now: w.now})
	w.publish(p, agent("session-a", "00000001"))
	run(t, p)
	var writers sync.WaitGroup
	for i := range 4 {
		writers.Go(func() {
			id := fmt.Sprintf("session-w%d", i)
			for n := range 25 {
				e := agent(id, fmt.Sprintf("1000000%d", i))
				e.Title = strings.Repeat("x", 500*(n%7))
				if err := p.Publish(t.Context(), e); err != nil {
					t.Error(err)
				}
			}
			if err := p.Withdraw(t.Context(), id); err != nil {
				t.Error(err)
			}
		})
	}
	for range 200 {
		find(t, w.read(), "session-a") // in version 2, whole
		for _, peer := range w.read() {
			if peer.V1 {
				t.Errorf("%s is there in version 1 alone", peer.EndpointID)
			}
		}
	}
	writers.Wait()
	wantIDs(t, w.read(), "session-a")
}

func TestTwoPublishersShareADirectory(t *testing.T) {
	w := newWorld(t)
	a, b := w.publisher(), w.publisher()
	stop := run(t, a)
	w.publish(a, agent("session-a", "00000001"))
	w.publish(b, agent("session-b", "00000002"))
	a.Beat(t.Context())
	b.Beat(t.Context())
	wantIDs(t, w.read(), "session-a", "session-b")
	stop()
	wantIDs(t, w.read(), "session-b")
	w.want("00000002.json", "00000002.session-b.v2.json")
}

const crashDir = "REGISTRY_CRASH_DIR"

// TestCrashHelper is what TestWhatACrashLeavesIsClearedAway kills.
func TestCrashHelper(t *testing.T) {
	dir := os.Getenv(crashDir)
	if dir == "" {
		return
	}
	p := registry.NewPublisher(registry.PublisherConfig{StorageDir: dir})
	if err := p.Publish(t.Context(), agent("session-crashed", "0000dead")); err != nil {
		t.Fatal(err)
	}
	fmt.Println("published")
	_ = p.Run(context.Background())
}

func TestWhatACrashLeavesIsClearedAway(t *testing.T) {
	w := newWorld(t)
	cmd := exec.Command(os.Args[0], "-test.run=^TestCrashHelper$")
	cmd.Env = append(os.Environ(), crashDir+"="+w.dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "published" {
	}
	if p := find(t, w.read(), "session-crashed"); !p.Alive || p.PID != cmd.Process.Pid {
		t.Errorf("while it lives: %+v", p)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if p := find(t, w.read(), "session-crashed"); p.Alive || p.Reason != registry.ReasonGone {
		t.Errorf("after it was killed: %+v", p)
	}

	other := w.publisher()
	w.publish(other, agent("session-a", "00000001"))
	left := []string{"0000dead.json", "0000dead.session-crashed.v2.json"}
	for _, name := range left {
		w.age(name, 4*time.Minute+59*time.Second)
	}
	other.Beat(t.Context())
	w.want(append(left, "00000001.json", "00000001.session-a.v2.json")...)
	for _, name := range left {
		w.age(name, 5*time.Minute+time.Second)
	}
	other.Beat(t.Context())
	w.want("00000001.json", "00000001.session-a.v2.json")
}

func TestTheJanitorTakesTheOldFilesOfTheDeadOnly(t *testing.T) {
	w := newWorld(t)
	dead := deadPID(t)
	old := 6 * time.Minute

	of := func(endpoint, process string, pid int) string {
		e := w.alive(endpoint, process)
		e.PID = pid
		w.foreign(e)
		w.age(e.FileName(), old)
		return e.FileName()
	}
	// Those that go.
	of("session-dead", "00000011", dead)
	of("session-nopid", "00000012", peers.NoPID)
	of("session-predecessor", "00000013", os.Getpid())
	v1 := w.alive("x", "00000014").Compat(1)
	v1.PID = dead
	w.foreign(v1)
	w.age(v1.FileName(), old)
	for name, content := range map[string]string{
		"torn.json": `{"version":2,"endpo`, "empty.json": "", "strange.json": `{"version":3}`, "list.json": "[]", "no-id.json": `{"version":2,"pid":1}`, ".json": "x",
	} {
		w.put(name, content)
		w.age(name, old)
	}
	// Those that stay.
	stay := []string{
		of("session-alive", "00000021", os.Getppid()), // and its heartbeat does not matter
		of("session-first", "00000022", 1),
		of("session-zero", "00000023", 0),
		"large.json", "x.json.1.tmp", "notes.txt", "young.json", "young-dead.json", "directory.json",
	}
	w.put("large.json", strings.Repeat(" ", registry.MaxFileBytes)+"{")
	w.put("x.json.1.tmp", "{")
	w.put("notes.txt", "")
	for _, name := range []string{"large.json", "x.json.1.tmp", "notes.txt"} {
		w.age(name, old)
	}
	w.put("young.json", "{")
	e := w.alive("session-young", "00000024")
	e.PID = dead
	w.put("young-dead.json", string(e.Encode()))
	w.age("young-dead.json", peers.JanitorAge)
	if err := os.Mkdir(w.path("directory.json"), 0o700); err != nil {
		t.Fatal(err)
	}
	w.age("directory.json", old)

	p := w.publisher()
	w.publish(p, agent("session-a", "00000001"))
	p.Beat(t.Context())
	w.want(append(stay, "00000001.json", "00000001.session-a.v2.json")...)
}

func TestTheJanitorAlsoRunsWhenNothingIsPublishedAnyMore(t *testing.T) {
	w := newWorld(t)
	p := w.publisher()
	w.publish(p, agent("session-a", "00000001"))
	if err := p.Withdraw(t.Context(), "session-a"); err != nil {
		t.Fatal(err)
	}
	w.put("torn.json", "{")
	w.age("torn.json", 6*time.Minute)
	p.Beat(t.Context())
	w.want()
}

func TestTheJanitorNeverTakesOwnFiles(t *testing.T) {
	w := newWorld(t)
	p := w.publisher()
	w.publish(p, agent("session-a", "00000001"))
	// The disk is full: what can be read of them is old and none of an entry.
	for _, name := range w.names() {
		w.put(name, "")
		w.age(name, time.Hour)
		if err := os.MkdirAll(w.path(name+"."+strconv.Itoa(os.Getpid())+".tmp"), 0o700); err != nil {
			t.Fatal(err)
		}
		w.put(name+"."+strconv.Itoa(os.Getpid())+".tmp/x", "")
	}
	p.Beat(t.Context())
	for _, name := range []string{"00000001.json", "00000001.session-a.v2.json"} {
		if info, err := os.Stat(w.path(name)); err != nil || info.Size() != 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNobodyWaitsForAPublisherLongerThanTheyWant(t *testing.T) {
	w := newWorld(t)
	p := w.publisher()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Publish(ctx, agent("session-a", "00000001")); !errors.Is(err, context.Canceled) {
		t.Errorf("published: %v", err)
	}
	if err := p.Withdraw(ctx, "session-a"); !errors.Is(err, context.Canceled) {
		t.Errorf("withdrawn: %v", err)
	}
	w.want()
}
