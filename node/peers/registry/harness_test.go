package registry_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"opencode-mesh/node/peers/registry"
	"opencode-mesh/protocol/peers"
)

// world is a storage directory and a clock that stands until it is put forward.
type world struct {
	t    *testing.T
	dir  string // of storage
	late atomic.Int64
	base time.Time
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return &world{t: t, dir: filepath.Join(t.TempDir(), "storage"), base: time.Now()}
}

func (w *world) now() time.Time                 { return w.base.Add(time.Duration(w.late.Load())) }
func (w *world) forward(d time.Duration)        { w.late.Add(int64(d)) }
func (w *world) path(name string) string        { return filepath.Join(w.dir, registry.Dir, name) }
func (w *world) millis(d time.Duration) float64 { return float64(w.now().Add(d).UnixMilli()) }

func (w *world) publisher() *registry.Publisher {
	return registry.NewPublisher(registry.PublisherConfig{StorageDir: w.dir, Now: w.now})
}

func (w *world) reader() *registry.Reader {
	return registry.NewReader(registry.ReaderConfig{StorageDir: w.dir, Now: w.now})
}

func (w *world) publish(p *registry.Publisher, e peers.Entry) {
	w.t.Helper()
	if err := p.Publish(w.t.Context(), e); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) read() []registry.Peer {
	w.t.Helper()
	list, err := w.reader().Read(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return list
}

// put writes a file of the registry as it is.
func (w *world) put(name, content string) {
	w.t.Helper()
	if err := os.MkdirAll(w.path(""), 0o700); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(w.path(name), []byte(content), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// foreign writes the file of another process's endpoint.
func (w *world) foreign(e peers.Entry) {
	w.t.Helper()
	w.put(e.FileName(), string(e.Encode()))
}

// age makes a file older than the janitor lets others be.
func (w *world) age(name string, d time.Duration) {
	w.t.Helper()
	at := w.now().Add(-d)
	if err := os.Chtimes(w.path(name), at, at); err != nil {
		w.t.Fatal(err)
	}
}

// names are those of the files in the registry, sorted.
func (w *world) names() []string {
	w.t.Helper()
	items, err := os.ReadDir(w.path(""))
	if err != nil && !os.IsNotExist(err) {
		w.t.Fatal(err)
	}
	var names []string
	for _, item := range items {
		names = append(names, item.Name())
	}
	return names
}

func (w *world) want(names ...string) {
	w.t.Helper()
	slices.Sort(names)
	if got := w.names(); !slices.Equal(got, names) {
		w.t.Errorf("the registry has %v, want %v", got, names)
	}
}

// agent is an endpoint of the process with this id.
func agent(endpoint, process string) peers.Entry {
	return peers.Entry{
		EndpointID: endpoint, ProcessID: process, PID: os.Getppid(), SessionID: "ses_" + endpoint, Name: "agent " + endpoint, Directory: "/srv/" + process,
		Status: peers.Idle, Transport: peers.Transport{Type: "unix", Path: "/run/" + process + ".sock"}, InboxURL: "http://127.0.0.1:1", InboxToken: "token",
		InboundPolicy: peers.PolicyAccept, PeerPermissions: "allow", StartedAt: 1000,
	}
}

// alive is the entry of another process that lives.
func (w *world) alive(endpoint, process string) peers.Entry {
	e := agent(endpoint, process)
	e.HeartbeatAt = w.millis(0)
	return e
}

// deadPID is the id of a process that has ended.
func deadPID(t *testing.T) int {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid
}

func ids(list []registry.Peer) []string {
	var ids []string
	for _, p := range list {
		ids = append(ids, p.EndpointID)
	}
	return ids
}

func wantIDs(t *testing.T, list []registry.Peer, want ...string) {
	t.Helper()
	if got := ids(list); !slices.Equal(got, want) {
		t.Errorf("there are %v, want %v", got, want)
	}
}

func find(t *testing.T, list []registry.Peer, id string) registry.Peer {
	t.Helper()
	for _, p := range list {
		if p.EndpointID == id {
			return p
		}
	}
	t.Fatalf("%s is not in %v", id, ids(list))
	return registry.Peer{}
}

// field is the raw value of a field in a file.
func (w *world) field(name, field string) string {
	w.t.Helper()
	data, err := os.ReadFile(w.path(name))
	if err != nil {
		w.t.Fatal(err)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		w.t.Fatal(err)
	}
	return string(fields[field])
}
