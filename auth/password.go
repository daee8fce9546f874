package auth

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/crypto/argon2"
)

// ErrEmptyPassword refuses a password of no bytes.
var ErrEmptyPassword = errors.New("the password is empty")

// ErrBadHash means that a stored password hash cannot be used: it is damaged, of
// another scheme, or asks for more work than a login may cost.
var ErrBadHash = errors.New("the stored password hash is not usable")

// Cost of a new hash (performance.md §3): about 20 ms of one core and 19 MiB.
const (
	hashTime    = 2         // passes
	hashMemory  = 19 * 1024 // KiB
	hashThreads = 1         // lanes
	hashSalt    = 16        // bytes
	hashKey     = 32        // bytes
)

// Bounds on the parameters of a stored hash. A tampered or foreign hash must
// neither stall the hub nor, with a short key, match anything.
const (
	maxHashTime    = 8
	maxHashMemory  = 256 * 1024 // KiB
	maxHashThreads = 8
	minHashSalt    = 8
	maxHashSalt    = 64
	minHashKey     = 16
	maxHashKey     = 64
	maxHashText    = 256 // bytes of the whole stored text
)

// passwordHash is a stored hash, taken apart.
type passwordHash struct {
	time, memory uint32
	threads      uint8
	salt, key    []byte
}

// HashPassword returns the argon2id hash of pw as a PHC string, which carries its
// own parameters and a random salt. Every byte of pw counts, whatever its length
// and content. It takes about 20 ms and 19 MiB; it is safe for concurrent use,
// but see Verifier for why that should be bounded.
func HashPassword(pw string) (string, error) {
	if pw == "" {
		return "", ErrEmptyPassword
	}
	h := passwordHash{time: hashTime, memory: hashMemory, threads: hashThreads, salt: make([]byte, hashSalt)}
	rand.Read(h.salt) // never fails
	h.key = h.derive(pw, hashKey)
	return h.String(), nil
}

// CheckPassword reports whether pw is the password that hash was made of. The
// comparison takes constant time. A hash that cannot be used gives ErrBadHash,
// never a match; an empty pw never matches.
func CheckPassword(hash, pw string) (ok bool, err error) {
	h, err := parseHash(hash)
	if err != nil {
		return false, err
	}
	if pw == "" {
		return false, nil
	}
	return subtle.ConstantTimeCompare(h.derive(pw, len(h.key)), h.key) == 1, nil
}

func (h passwordHash) derive(pw string, size int) []byte {
	return argon2.IDKey([]byte(pw), h.salt, h.time, h.memory, h.threads, uint32(size))
}

// String formats h as a PHC string.
func (h passwordHash) String() string {
	b64 := base64.RawStdEncoding
	return fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=%d$%s$%s", argon2.Version,
		h.memory, h.time, h.threads, b64.EncodeToString(h.salt), b64.EncodeToString(h.key))
}

// parseHash reads the one form that String writes and checks the bounds. Its
// errors hold no part of the text.
func parseHash(s string) (passwordHash, error) {
	bad := func(why string) (passwordHash, error) { return passwordHash{}, fmt.Errorf("%w: %s", ErrBadHash, why) }
	if len(s) > maxHashText {
		return bad("it is too long")
	}
	part := strings.Split(s, "$")
	if len(part) != 6 || part[0] != "" || part[1] != "argon2id" {
		return bad("it is not an argon2id hash in PHC form")
	}
	var h passwordHash
	var version int
	if _, err := fmt.Sscanf(part[2]+" "+part[3], "v=%d m=%d,t=%d,p=%d", &version, &h.memory, &h.time, &h.threads); err != nil {
		return bad("its parameters cannot be read")
	}
	var err error
	if h.salt, err = base64.RawStdEncoding.DecodeString(part[4]); err != nil {
		return bad("its salt cannot be read")
	}
	if h.key, err = base64.RawStdEncoding.DecodeString(part[5]); err != nil {
		return bad("its key cannot be read")
	}
	if h.String() != s {
		// Signs, leading zeros, another version, loose bits: not what we wrote.
		return bad("it is not in the form that this program writes")
	}
	switch {
	case h.time < 1 || h.time > maxHashTime,
		h.threads < 1 || h.threads > maxHashThreads,
		h.memory < 8*uint32(h.threads) || h.memory > maxHashMemory,
		len(h.salt) < minHashSalt || len(h.salt) > maxHashSalt,
		len(h.key) < minHashKey || len(h.key) > maxHashKey:
		return bad("its parameters are out of bounds")
	}
	return h, nil
}
