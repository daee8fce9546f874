package auth

import (
	"net/http"
	"net/url"
)

// Sizes are the entries of the tables of addresses and names.
func (l *Limiter) Sizes() (addresses, names int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.addresses.len(), l.names.len()
}

// Remembered is how many addresses a Verifier counts tries of.
func (v *Verifier) Remembered() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.tries.len()
}

// HashWork is what checking a stored hash would cost: passes and KiB.
func HashWork(hash string) (passes, memory uint32, err error) {
	h, err := parseHash(hash)
	return h.time, h.memory, err
}

// ProxyFrom is how a client for l finds its proxy.
func (l Link) ProxyFrom(env func(*http.Request) (*url.URL, error)) func(*http.Request) (*url.URL, error) {
	return l.proxyFrom(env)
}

const (
	MaxHashTime   = maxHashTime
	MaxHashMemory = maxHashMemory
	MaxTable      = maxTable
	MaxSANs       = maxSANs
)

// Recheck gives an idle Verifier another Check.
func Recheck(v *Verifier, check func(hash, pw string) (bool, error)) *Verifier {
	v.check = check
	return v
}
