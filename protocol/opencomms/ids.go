package opencomms

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
)

// Prefixes of ids, for NewID.
const (
	PrefixMessage     = "ocm_"
	PrefixChannel     = "chn_"
	PrefixCorrelation = "cor_"
	PrefixMember      = "sess_"
)

// NewID returns a new random id: the prefix and the 32 hex digits of a UUID of
// version 4; behind PrefixMember 24 hex digits.
func NewID(prefix string) string {
	var b [16]byte
	// crypto/rand does not fail; it ends the process if the system has no randomness.
	_, _ = rand.Read(b[:])
	if prefix == PrefixMember {
		return prefix + hex.EncodeToString(b[:12])
	}
	b[6] = b[6]&0x0F | 0x40
	b[8] = b[8]&0x3F | 0x80
	return prefix + hex.EncodeToString(b[:])
}

// ContentHash is by what a repeated content is known: the first 32 hex digits of
// the SHA-256 of its exact UTF-8.
func ContentHash(content string) string {
	sum := sha256.Sum256([]byte(Valid(content)))
	return hex.EncodeToString(sum[:16])
}

// SeenKey is the key of Channel.SeenContent for what a session sends.
func SeenKey(session, content string) string { return session + ":" + ContentHash(content) }
