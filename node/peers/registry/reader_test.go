package registry_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"opencode-mesh/node/peers/registry"
	"opencode-mesh/protocol/peers"
)

func TestARegistryThatIsNotThereIsEmpty(t *testing.T) {
	w := newWorld(t)
	if list := w.read(); len(list) != 0 {
		t.Errorf("there are %v", ids(list))
	}
}

func TestWhoIsAlive(t *testing.T) {
	w := newWorld(t)
	dead := deadPID(t)
	for _, c := range []struct {
		name   string
		pid    int
		beat   time.Duration
		reason string
	}{
		{"now", os.Getppid(), 0, ""},
		{"30 s ago exactly", os.Getppid(), -30 * time.Second, ""},
		{"30 s and 1 ms ago", os.Getppid(), -30*time.Second - time.Millisecond, registry.ReasonStale},
		{"in the future", os.Getppid(), 24 * time.Hour, ""},
		{"dead", dead, 0, registry.ReasonGone},
		{"dead and stale", dead, -time.Hour, registry.ReasonStale},
		{"no process id", peers.NoPID, 0, registry.ReasonGone},
		{"process 0", 0, 0, ""},
		{"process 1, which may not be ours to signal", 1, 0, ""},
		{"this process", os.Getpid(), 0, ""},
		{"this process without a heartbeat", os.Getpid(), -time.Minute, registry.ReasonStale},
	} {
		e := w.alive("session-"+c.name, "00000001")
		e.PID, e.HeartbeatAt = c.pid, w.millis(c.beat)
		w.put(c.name+".json", string(e.Encode()))
		p := find(t, w.read(), e.EndpointID)
		if p.Alive != (c.reason == "") || p.Reason != c.reason {
			t.Errorf("%s: alive %v, %q", c.name, p.Alive, p.Reason)
		}
	}
	t.Run("an entry without a heartbeat is never stale", func(t *testing.T) {
		e := w.alive("session-none", "00000002")
		e.HeartbeatAt = math.NaN()
		w.foreign(e)
		if p := find(t, w.read(), "session-none"); !p.Alive {
			t.Errorf("%q", p.Reason)
		}
	})
	t.Run("a heartbeat that is a text counts", func(t *testing.T) {
		for beat, alive := range map[time.Duration]bool{0: true, -time.Minute: false} {
			w.put("text.json", fmt.Sprintf(`{"version":2,"endpointId":"session-text","processId":"x","sessionId":"s","transport":{},"pid":%d,"heartbeatAt":"%.0f"}`,
				os.Getppid(), w.millis(beat)))
			if p := find(t, w.read(), "session-text"); p.Alive != alive {
				t.Errorf("%v: alive %v", beat, p.Alive)
			}
		}
	})
	t.Run("the reader's own bound counts", func(t *testing.T) {
		r := registry.NewReader(registry.ReaderConfig{StorageDir: w.dir, Now: w.now, Stale: 2 * time.Minute})
		list, err := r.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if p := find(t, list, "session-30 s and 1 ms ago"); !p.Alive {
			t.Errorf("%q", p.Reason)
		}
	})
	t.Run("the name of the host does not", func(t *testing.T) {
		e := w.alive("session-elsewhere", "00000003")
		e.Hostname = "another-host.invalid"
		w.foreign(e)
		if p := find(t, w.read(), "session-elsewhere"); !p.Alive {
			t.Errorf("%q", p.Reason)
		}
	})
}

func TestEveryJSONFileIsReadWhateverItsName(t *testing.T) {
	w := newWorld(t)
	for i, name := range []string{"meshnode-abc.json", ".json", ".hidden.json", "a b.json", "00000001.x.v2.json"} {
		w.put(name, string(w.alive(fmt.Sprintf("session-%d", i), fmt.Sprintf("0000000%d", i)).Encode()))
	}
	for _, name := range []string{"x.json.1.tmp", "x.JSON", "x.json.bak", "json"} {
		w.put(name, string(w.alive("session-not", "000000ff").Encode()))
	}
	wantIDs(t, w.read(), "session-0", "session-1", "session-2", "session-3", "session-4")
}

func TestFilesThatAreNoEntriesArePassedOver(t *testing.T) {
	w := newWorld(t)
	good := string(w.alive("session-a", "00000001").Encode())
	w.put("good.json", good)
	w.put("torn.json", good[:len(good)/2])
	w.put("empty.json", "")
	w.put("binary.json", "\x00\x01\xff")
	w.put("future.json", `{"version":3,"endpointId":"session-x","processId":"x","sessionId":"x","transport":{}}`)
	w.put("large.json", strings.Replace(string(w.alive("session-large", "00000002").Encode()), "{", "{"+strings.Repeat(" ", registry.MaxFileBytes), 1))
	if err := os.Mkdir(w.path("directory.json"), 0o700); err != nil {
		t.Fatal(err)
	}
	if runtime.GOOS != "windows" {
		for name, to := range map[string]string{"nowhere.json": "no-such-file", "self.json": "self.json", "device.json": "/dev/zero"} {
			if err := os.Symlink(to, w.path(name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	wantIDs(t, w.read(), "session-a")
	// At the limit it is one.
	fill := registry.MaxFileBytes - len(w.alive("session-full", "00000003").Encode())
	w.put("full.json", string(w.alive("session-full", "00000003").Encode())+strings.Repeat(" ", fill))
	wantIDs(t, w.read(), "session-a", "session-full")
}

func TestNoMoreFilesAreReadThanTheLimit(t *testing.T) {
	w := newWorld(t)
	data := string(w.alive("session-a", "00000001").Encode())
	for i := range registry.MaxFiles + 5 {
		w.put(fmt.Sprintf("%05d.json", i), strings.Replace(data, "session-a", fmt.Sprintf("session-%05d", i), 1))
	}
	if n := len(w.read()); n != registry.MaxFiles {
		t.Errorf("%d agents were read", n)
	}
}

func TestVersion1IsHiddenBehindVersion2OfTheSameProcess(t *testing.T) {
	w := newWorld(t)
	// An old process has version 1 only, and is seen by it.
	w.foreign(w.alive("x", "0000000a").Compat(5))
	// A new one has both; even a dead entry of version 2 hides the other.
	e := w.alive("session-b", "0000000b")
	w.foreign(e.Compat(5))
	e.HeartbeatAt = 0
	w.foreign(e)
	// So does one that another entry of the same endpoint replaces.
	e = w.alive("session-b", "0000000c")
	w.foreign(e.Compat(5))
	w.foreign(e)
	list := w.read()
	wantIDs(t, list, "0000000a", "session-b")
	if p := list[0]; !p.V1 || !p.Alive || p.SessionID != "ses_x" {
		t.Errorf("read as %+v", p)
	}
	if p := list[1]; p.ProcessID != "0000000c" || !p.Alive {
		t.Errorf("read as %+v", p)
	}
}

// A reader of version 0.1 takes only files of version 1, as this does.
func TestAReaderOfVersion1SeesEveryEndpointOnce(t *testing.T) {
	w := newWorld(t)
	p := w.publisher()
	w.publish(p, agent("session-a", "00000001"))
	w.publish(p, agent("session-b", "00000002"))
	seen := map[string]peers.Entry{}
	for _, name := range w.names() {
		data, err := os.ReadFile(w.path(name))
		if err != nil {
			t.Fatal(err)
		}
		if e, err := peers.ReadEntry(data); err != nil {
			t.Error(err)
		} else if e.V1 {
			seen[e.EndpointID] = e
		}
	}
	for process, endpoint := range map[string]string{"00000001": "session-a", "00000002": "session-b"} {
		e := seen[process]
		if e.SessionID != "ses_"+endpoint || e.Name != "agent "+endpoint || e.InboxURL == "" || e.InboxToken == "" || e.PID != os.Getpid() {
			t.Errorf("%s is seen as %+v", endpoint, e)
		}
	}
	if len(seen) != 2 {
		t.Errorf("there are %d", len(seen))
	}
}

func TestOfOneEndpointTheLiveEntryCountsThenTheLaterHeartbeat(t *testing.T) {
	w := newWorld(t)
	dead := deadPID(t)
	put := func(file, process string, pid int, beat float64) {
		e := w.alive("session-a", process)
		e.PID, e.HeartbeatAt = pid, beat
		w.put(file, string(e.Encode()))
	}
	counts := func(process string) {
		t.Helper()
		list := w.read()
		if len(list) != 1 || list[0].ProcessID != process {
			t.Errorf("there are %+v, want the one of process %s", list, process)
		}
	}
	put("b.json", "0000000b", dead, w.millis(-20*time.Second))
	put("c.json", "0000000c", dead, w.millis(-10*time.Second))
	counts("0000000c")
	put("a.json", "0000000a", dead, w.millis(0))
	counts("0000000a")
	put("d.json", "0000000d", os.Getppid(), w.millis(-29*time.Second))
	counts("0000000d")
	put("e.json", "0000000e", os.Getppid(), w.millis(-28*time.Second))
	counts("0000000e")
	// One without a heartbeat is before all that are alive, and is alive.
	put("f.json", "0000000f", os.Getppid(), math.NaN())
	counts("0000000e")
}

func TestTheOrderIsThatOfStartAndID(t *testing.T) {
	w := newWorld(t)
	for i, c := range []struct {
		id    string
		start float64
	}{{"session-c", 5}, {"session-a", 5}, {"session-b", 5}, {"session-z", 4}, {"session-d", 1e12}, {"session-e", 5.5}} {
		e := w.alive(c.id, fmt.Sprintf("0000000%d", i))
		e.StartedAt = c.start
		w.put(fmt.Sprintf("%d.json", 9-i), string(e.Encode()))
	}
	wantIDs(t, w.read(), "session-z", "session-a", "session-b", "session-c", "session-e", "session-d")
}

func TestListsHaveOneRowOfAProcess(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		id, process string
		start       float64
	}{{"session-1", "0000000a", 1}, {"session-2", "0000000a", 3}, {"session-3", "0000000a", 2}, {"session-4", "0000000b", 2.5}} {
		e := w.alive(c.id, c.process)
		e.StartedAt = c.start
		w.foreign(e)
	}
	w.foreign(w.alive("x", "0000000c").Compat(9))
	list := w.read()
	wantIDs(t, list, "session-1", "session-3", "session-4", "session-2", "0000000c")
	wantIDs(t, registry.Collapse(list), "session-4", "session-2", "0000000c")
	wantIDs(t, registry.Collapse(nil))
	// Whatever the order of what is given.
	list[1], list[3] = list[3], list[1]
	wantIDs(t, registry.Collapse(list), "session-2", "session-4", "0000000c")
}

func TestOwnEndpointsAreMarked(t *testing.T) {
	w := newWorld(t)
	w.publish(w.publisher(), agent("session-own", "00000001"))
	w.foreign(w.alive("session-else", "00000002"))
	w.foreign(w.alive("session-claimed", "00000003")) // by another process
	r := registry.NewReader(registry.ReaderConfig{StorageDir: w.dir, Now: w.now, Own: func(id string) bool { return id == "session-own" || id == "session-claimed" }})
	list, err := r.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for id, own := range map[string]bool{"session-own": true, "session-else": false, "session-claimed": false} {
		if p := find(t, list, id); p.Own != own {
			t.Errorf("%s is own: %v", id, p.Own)
		}
	}
}

func TestAReadEndsWithItsContext(t *testing.T) {
	w := newWorld(t)
	w.foreign(w.alive("session-a", "00000001"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.reader().Read(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("read: %v", err)
	}
}
