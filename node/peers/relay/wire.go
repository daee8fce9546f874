package relay

import (
	"encoding/json"
	"strings"
	"unicode/utf8"

	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
	"opencode-mesh/protocol/peers"
)

// Kinds of mail.
const (
	kindPrefix  = "peers."
	kindMessage = "peers.message"
	kindFinal   = "peers.final"
)

// message is the body of a peers.message. From and To are endpoints on their own nodes.
type message struct {
	ID        string   `json:"id"`
	From      string   `json:"from"`
	FromName  string   `json:"from_name"`
	Directory string   `json:"directory"`
	To        string   `json:"to"`
	Text      string   `json:"text"`
	Via       []string `json:"via"` // every endpoint that it passed on the sender's machine
}

// final is the body of a peers.final: what became of a message.
type final struct {
	ID     string `json:"id"`
	From   string `json:"from"` // as in the message
	To     string `json:"to"`
	Status string `json:"status"`
	Why    string `json:"why,omitempty"` // for people
}

func (m *message) valid() bool {
	ok := len(m.Text) <= maxText && len(m.Via) <= peers.MaxVia && len(m.FromName) <= maxWord && len(m.Directory) <= maxWord
	for _, id := range append([]string{m.ID, m.From, m.To}, m.Via...) {
		ok = ok && validID(id)
	}
	return ok
}

func (f *final) valid() bool {
	return validID(f.ID) && validID(f.From) && validID(f.To) && peers.Final(f.Status) && len(f.Why) <= maxWord
}

// validID reports whether something may be an endpoint or the id of a message.
func validID(s string) bool {
	return s != "" && len(s) <= maxWord && utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// word makes a name or title of others fit for the registry: one line, harmless, short.
func word(s string) string {
	s = peers.Cut(mesh.CleanLine(peers.Cut(s, maxWord)), api.MaxPeerText)
	s, _ = mesh.Defuse(s)
	return s
}

// nameEnd is how much of an id tells agents of one name from each other, in bytes.
const nameEnd = 4

// proxyName and proxyDirectory are how an agent of another node is shown here. Such a
// directory is not absolute, so that the policy "auto" never holds across machines.
func proxyName(node, name, id string) string {
	if name = word(name); name == "" {
		name = peers.Cut(word(id), 24)
	}
	return node + "/" + name
}

func proxyDirectory(node, dir string) string {
	s, _ := mesh.Defuse(peers.Cut(mesh.CleanLine(peers.Cut(dir, maxWord)), 4*api.MaxPeerText))
	return node + ":" + strings.TrimPrefix(s, node+":") // a desk has just the node
}

// encode makes the JSON of a type of ours, which always marshals.
func encode(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic("relay: " + err.Error())
	}
	return b
}
