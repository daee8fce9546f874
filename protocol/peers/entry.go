package peers

// Transport is where a process takes requests.
type Transport struct {
	Type string `json:"type"` // "unix", else host and port count
	Path string `json:"path,omitempty"`
	Host string `json:"host,omitempty"`
	Port int    `json:"port,omitempty"`
}

// Entry is a line of the registry, of either version, as readers see it.
type Entry struct {
	V1              bool
	EndpointID      string // version 1: the instance id
	ProcessID       string
	PID             int
	SessionID       string
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
	// StartedAt and HeartbeatAt are Unix milliseconds; an entry without a heartbeat has
	// NaN there and never goes stale.
	StartedAt   float64
	UpdatedAt   float64
	HeartbeatAt float64
}
