package peers

import "math"

// Transport is where a process takes requests.
type Transport struct {
	Type string `json:"type"` // "unix", else host and port count
	Path string `json:"path,omitempty"`
	Host string `json:"host,omitempty"`
	Port int    `json:"port,omitempty"`
}

// NoPID is the process id of an entry that has none that could be one: its process is not
// there.
const NoPID = -1

// Entry is a line of the registry, of either version, as readers see it.
type Entry struct {
	V1              bool
	EndpointID      string // version 1: the instance id
	ProcessID       string
	PID             int    // NoPID: none
	SessionID       string // version 1: "" if there is none
	ParentSessionID string
	Title           string
	Name            string
	Hostname        string
	Directory       string
	Status          string // idle, busy or retry
	Transport       Transport
	ServerURL       string
	InboxURL        string
	InboxToken      string
	Busy            bool
	QueuedCount     int
	InboundPolicy   string
	PeerPermissions string
	PluginVersion   string
	// StartedAt, UpdatedAt and HeartbeatAt are Unix milliseconds. An entry without a
	// heartbeat has NaN there and never goes stale; the others are 0 then.
	StartedAt   float64
	UpdatedAt   float64
	HeartbeatAt float64
}

// The states of a session.
const (
	Idle  = "idle"
	Busy  = "busy"
	Retry = "retry"
)

// ReadEntry reads a file of the registry. Only what an entry cannot be without is looked
// for, and not of which type it is: the rest is taken as JavaScript would take it. The
// error is ErrJSON or wraps ErrShape; readers pass such files over.
func ReadEntry(data []byte) (Entry, error) {
	o, err := readObject(data)
	if err != nil {
		return Entry{}, err
	}
	switch {
	case o.is("version", 1):
		return readV1(o)
	case o.is("version", 2):
		return readV2(o)
	}
	return Entry{}, shape("the version is neither 1 nor 2")
}

func readV1(o object) (Entry, error) {
	for _, name := range []string{"instanceId", "inboxUrl"} {
		if !o.truthy(name) {
			return Entry{}, shape("%s is missing", name)
		}
	}
	e := o.common()
	e.V1 = true
	e.EndpointID = o.word("instanceId")
	e.ProcessID = e.EndpointID
	e.SessionID = o.word("activeSessionId")
	e.Title = o.word("activeSessionTitle")
	e.Status = Idle
	if e.Busy {
		e.Status = Busy
	}
	return e, nil
}

func readV2(o object) (Entry, error) {
	for _, name := range []string{"endpointId", "processId", "transport", "sessionId"} {
		if !o.truthy(name) {
			return Entry{}, shape("%s is missing", name)
		}
	}
	e := o.common()
	e.EndpointID = o.word("endpointId")
	e.ProcessID = o.word("processId")
	e.SessionID = o.word("sessionId")
	e.ParentSessionID = o.word("parentSessionId")
	e.Title = o.word("activeSessionTitle") // which is what is listed
	if e.Title == "" {
		e.Title = o.word("title")
	}
	e.Status = o.word("status")
	t := o.object("transport")
	e.Transport = Transport{Type: t.word("type"), Path: t.word("path"), Host: t.word("host"), Port: whole(t.number("port"), 0)}
	e.UpdatedAt = orZero(o.object("timestamps").number("updatedAt"))
	e.PeerPermissions = o.object("policy").word("peerPermissions")
	return e, nil
}

// common reads what entries of both versions have.
func (o object) common() Entry {
	return Entry{
		PID:           whole(o.number("pid"), NoPID),
		Name:          o.word("name"),
		Hostname:      o.word("hostname"),
		Directory:     o.word("directory"),
		ServerURL:     o.word("serverUrl"),
		InboxURL:      o.word("inboxUrl"),
		InboxToken:    o.word("inboxToken"),
		Busy:          o.truthy("busy"),
		QueuedCount:   whole(o.number("queuedCount"), 0),
		InboundPolicy: o.word("inboundPolicy"),
		PluginVersion: o.word("pluginVersion"),
		StartedAt:     orZero(o.number("startedAt")),
		HeartbeatAt:   o.number("heartbeatAt"),
	}
}

// whole is f as an int, or other if it is none.
func whole(f float64, other int) int {
	if f != math.Trunc(f) || math.Abs(f) > math.MaxInt32 {
		return other
	}
	return int(f)
}

func orZero(f float64) float64 {
	if math.IsNaN(f) {
		return 0
	}
	return f
}

// capabilities are what every entry of version 2 names. Nobody reads them.
var capabilities = []string{"local", "protocol-v2", "prompt-async", "ack"}

type timestamps struct {
	StartedAt   float64  `json:"startedAt"`
	UpdatedAt   float64  `json:"updatedAt"`
	HeartbeatAt *float64 `json:"heartbeatAt,omitempty"`
}

type policy struct {
	InboundPolicy   string `json:"inboundPolicy"`
	PeerPermissions string `json:"peerPermissions"`
}

type fileV2 struct {
	Version         int        `json:"version"`
	EndpointID      string     `json:"endpointId"`
	ProcessID       string     `json:"processId"`
	PID             int        `json:"pid"`
	SessionID       string     `json:"sessionId"`
	ParentSessionID string     `json:"parentSessionId,omitempty"`
	Title           string     `json:"title"`
	Name            string     `json:"name"`
	Hostname        string     `json:"hostname"`
	Directory       string     `json:"directory"`
	Status          string     `json:"status"`
	Transport       Transport  `json:"transport"`
	ServerURL       string     `json:"serverUrl"`
	InboxURL        string     `json:"inboxUrl"`
	InboxToken      string     `json:"inboxToken"`
	Capabilities    []string   `json:"capabilities"`
	Timestamps      timestamps `json:"timestamps"`
	Policy          policy     `json:"policy"`
	PluginVersion   string     `json:"pluginVersion"`
	ActiveID        string     `json:"activeSessionId"`
	ActiveTitle     string     `json:"activeSessionTitle"`
	Busy            bool       `json:"busy"`
	QueuedCount     int        `json:"queuedCount"`
	InboundPolicy   string     `json:"inboundPolicy"`
	StartedAt       float64    `json:"startedAt"`
	HeartbeatAt     *float64   `json:"heartbeatAt,omitempty"`
}

type fileV1 struct {
	Version       int      `json:"version"`
	InstanceID    string   `json:"instanceId"`
	Name          string   `json:"name"`
	PID           int      `json:"pid"`
	Hostname      string   `json:"hostname"`
	Directory     string   `json:"directory"`
	ServerURL     string   `json:"serverUrl"`
	InboxURL      string   `json:"inboxUrl"`
	InboxToken    string   `json:"inboxToken"`
	ActiveID      *string  `json:"activeSessionId"`
	ActiveTitle   *string  `json:"activeSessionTitle"`
	Busy          bool     `json:"busy"`
	QueuedCount   int      `json:"queuedCount"`
	InboundPolicy string   `json:"inboundPolicy"`
	StartedAt     float64  `json:"startedAt"`
	HeartbeatAt   *float64 `json:"heartbeatAt,omitempty"`
	PluginVersion string   `json:"pluginVersion"`
}

// Encode makes the file of the entry, in its version.
func (e Entry) Encode() []byte {
	var heartbeat *float64
	if !math.IsNaN(e.HeartbeatAt) {
		heartbeat = &e.HeartbeatAt
	}
	if e.V1 {
		f := fileV1{
			1, e.EndpointID, e.Name, e.PID, e.Hostname, e.Directory, e.ServerURL, e.InboxURL, e.InboxToken,
			nil, nil, e.Busy, e.QueuedCount, e.InboundPolicy, e.StartedAt, heartbeat, e.PluginVersion,
		}
		if e.SessionID != "" {
			f.ActiveID = &e.SessionID
		}
		if e.SessionID != "" || e.Title != "" {
			f.ActiveTitle = &e.Title
		}
		return encodeIndented(f, "  ")
	}
	return encodeIndented(fileV2{
		2, e.EndpointID, e.ProcessID, e.PID, e.SessionID, e.ParentSessionID, e.Title, e.Name, e.Hostname, e.Directory,
		e.Status, e.Transport, e.ServerURL, e.InboxURL, e.InboxToken, capabilities,
		timestamps{e.StartedAt, e.UpdatedAt, heartbeat}, policy{e.InboundPolicy, e.PeerPermissions}, e.PluginVersion,
		e.SessionID, e.Title, e.Busy, e.QueuedCount, e.InboundPolicy, e.StartedAt, heartbeat,
	}, "  ")
}

// FileName is the name of the entry's file in the registry.
func (e Entry) FileName() string {
	if e.V1 {
		return e.EndpointID + ".json"
	}
	return e.ProcessID + "." + Safe(e.EndpointID) + ".v2.json"
}

// Compat is the entry of version 1 that readers of version 1 see in place of e. They
// see its process, so startedAt is when that began, in Unix milliseconds.
func (e Entry) Compat(startedAt float64) Entry {
	e.V1 = true
	e.EndpointID = e.ProcessID
	e.ParentSessionID, e.Transport, e.PeerPermissions, e.UpdatedAt = "", Transport{}, "", 0
	e.StartedAt = startedAt
	return e
}
