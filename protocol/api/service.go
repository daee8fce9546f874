package api

// Headers of requests to /v1/nodes/{node}/services/{service}/….
const (
	// HeaderAuthorization carries the mesh's credential, as "Bearer …", so that
	// Authorization belongs to the service.
	HeaderAuthorization = "Mesh-Authorization"
	// HeaderHost is the Host that the service shall see, where a proxy before the hub
	// goes by the real one.
	HeaderHost = "Mesh-Host"
)

// UpgradeStream is the protocol to which a request upgrades that wants a raw stream
// to a service of the kind ServiceTCP.
const UpgradeStream = "mesh-stream"

// The kinds of service.
const (
	ServiceHTTP = "http"
	ServiceTCP  = "tcp"
)

// ServiceInfo is a service as controllers see it.
type ServiceInfo struct {
	Name string `json:"name"`
	Kind string `json:"kind"` // ServiceHTTP or ServiceTCP
}

// ServiceList is the answer to GET /v1/nodes/{node}/services.
type ServiceList struct {
	Services []ServiceInfo `json:"services"`
}
