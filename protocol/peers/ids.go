package peers

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
	"strings"
)

// EndpointID is the address of a session. It depends on the session's id alone.
func EndpointID(session string) string { return "session-" + digest(24, "session-v1", session) }

// WorkspaceID is the address that an older version gave to an absolute directory. It is
// only where messages may still lie.
func WorkspaceID(directory string) string {
	return "workspace-" + digest(24, "workspace-v1", filepath.Clean(directory))
}

// ProxyID is the address under which a node publishes the endpoint of another node
// (semantics 19).
func ProxyID(node, endpoint string) string {
	return "session-" + digest(24, "mesh-proxy", node, endpoint)
}

// PromptID is the id of the message that a session of opencode gets for a message of a
// peer. The same message has the same id again after a crash.
func PromptID(session, from, message string) string {
	return "msg_" + digest(26, "peer-message-v2", session, from, message)
}

// RecordName is the name of a message's file in a spool.
func RecordName(from, message string) string { return digest(64, from, message) + ".json" }

// digest is the start of the SHA-256 of some words with NULs between them, in n hex
// digits.
func digest(n int, words ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(words, "\x00")))
	return hex.EncodeToString(sum[:])[:n]
}

// NewProcessID makes the id that groups the endpoints of one process in listings: 8 hex
// digits of chance.
func NewProcessID() string { return random(4) }

// NewToken makes the secret of a process: 48 hex digits of chance.
func NewToken() string { return random(24) }

// NewMessageID makes the id of a message: 16 hex digits of chance.
func NewMessageID() string { return random(8) }

func random(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
