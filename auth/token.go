package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"strings"
)

// SecretPrefix begins every secret that the hub issues, so that people and
// scanners recognise one that got where it should not be.
const SecretPrefix = "mesh_"

// secretBytes is the random part of a secret. With 256 bits there is nothing to
// guess, so a plain hash is enough and no request pays for a slow one.
const secretBytes = 32

// NewSecret returns a new secret of 256 random bits and the hash of it that is to
// be stored. Its characters need no quoting in headers, files and shells.
func NewSecret() (secret string, hash [32]byte) {
	var b [secretBytes]byte
	rand.Read(b[:]) // never fails
	secret = SecretPrefix + base64.RawURLEncoding.EncodeToString(b[:])
	return secret, sha256.Sum256([]byte(secret))
}

// HashSecret returns the hash by which a secret is looked up, and false for a text
// that NewSecret cannot have made.
func HashSecret(secret string) (hash [32]byte, ok bool) {
	text, ok := strings.CutPrefix(secret, SecretPrefix)
	if !ok || len(text) != base64.RawURLEncoding.EncodedLen(secretBytes) || strings.ContainsAny(text, "\r\n") {
		return hash, false
	}
	if _, err := base64.RawURLEncoding.Strict().DecodeString(text); err != nil {
		return hash, false
	}
	return sha256.Sum256([]byte(secret)), true
}

// EqualHash compares two hashes in constant time.
func EqualHash(a, b [32]byte) bool { return subtle.ConstantTimeCompare(a[:], b[:]) == 1 }

// NewID returns prefix followed by 26 random characters of a–z and 2–7 (about 130
// bits), for identities and whatever else needs an id that never repeats. An id is
// no secret.
func NewID(prefix string) string { return prefix + strings.ToLower(rand.Text()) }
