package api

import (
	"bytes"
	"encoding/json"
)

// Headers of requests to /v1/nodes/{node}/services/{service}/… and of their answers
// (docs/services.md). None of them reaches a service, and none that a service sends
// is passed on.
const (
	// HeaderAuthorization carries the mesh's credential, as "Bearer …", so that
	// Authorization belongs to the service.
	HeaderAuthorization = "Mesh-Authorization"
	// HeaderHost is the Host that the service shall see, where a proxy before the hub
	// goes by the real one. It counts beside HeaderAuthorization only.
	HeaderHost = "Mesh-Host"
	// HeaderOriginal begins the names under which headers of a service's answer
	// travel that the hub replaced or took out, towards a client that authenticated by
	// HeaderAuthorization: what a browser must not be given by the hub's own origin.
	HeaderOriginal = "Mesh-Original-"
)

// UpgradeStream is the protocol to which a request upgrades that wants a raw stream
// to a service of the kind ServiceTCP; package hub/framed says how its bytes travel.
const UpgradeStream = "mesh-stream"

// The kinds of service.
const (
	// ServiceHTTP speaks HTTP/1.1 on the stream; the node adds TLS where its URL is
	// https://.
	ServiceHTTP = "http"
	// ServiceTCP is a stream of bytes that the hub does not look into.
	ServiceTCP = "tcp"
)

// ServiceOpencode is the name of the node's own opencode server.
const ServiceOpencode = "opencode"

// Service is a local server of a node that is reachable through the hub. It travels
// in a Hello and a NodeReport. Hubs keep Username and Password in memory only: they
// are not stored, logged or listed.
type Service struct {
	Name string `json:"name"`
	Kind string `json:"kind"` // ServiceHTTP or ServiceTCP
	// Filter asks the hub to keep keys back and to refuse what is not meant for
	// strangers, as for the API of opencode (docs/services.md).
	Filter bool `json:"filter,omitempty"`
	// Username and Password are what the hub adds to every request (HTTP Basic);
	// Password "": nothing.
	Username string `json:"username,omitempty"`
	Password string `json:"password,omitempty"`
}

// UnmarshalJSON also takes a plain name, as older nodes said it and older hubs have
// stored it: an HTTP service without a password.
func (s *Service) UnmarshalJSON(b []byte) error {
	*s = Service{}
	if b = bytes.TrimSpace(b); len(b) > 0 && b[0] == '"' {
		s.Kind = ServiceHTTP
		return json.Unmarshal(b, &s.Name)
	}
	type plain Service
	return json.Unmarshal(b, (*plain)(s))
}

// ServiceInfo is a service as controllers see it.
type ServiceInfo struct {
	Name string `json:"name"`
	Kind string `json:"kind"` // ServiceHTTP or ServiceTCP
	// Filter says that keys are kept back and some calls refused.
	Filter bool `json:"filter,omitempty"`
	// Policy is the node's, when it lets nothing be changed by this service: hold or
	// refuse.
	Policy string `json:"policy,omitempty"`
}

// ServiceList is the answer to GET /v1/nodes/{node}/services.
type ServiceList struct {
	Services []ServiceInfo `json:"services"`
}

// Handover is the answer to POST /v1/nodes/{node}/services/{service}/handover: a URL
// that lets a browser in, once, within HandoverLimit.
type Handover struct {
	URL string `json:"url"`
}
