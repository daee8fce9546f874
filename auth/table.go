package auth

import (
	"container/list"
	"net/netip"
)

// maxTable is the default bound of every table keyed by what strangers choose:
// addresses and claimed names (field.md §3).
const maxTable = 10_000

// table is a map of at most max entries that forgets the one touched longest ago
// when a new one needs its place. Every operation takes constant time. It is not
// safe for concurrent use.
type table[K comparable, V any] struct {
	max   int
	order *list.List // of *tableEntry[K, V], most recently touched first
	byKey map[K]*list.Element
}

type tableEntry[K comparable, V any] struct {
	key   K
	value V
}

func newTable[K comparable, V any](limit int) *table[K, V] {
	return &table[K, V]{max: limit, order: list.New(), byKey: make(map[K]*list.Element)}
}

// touch returns the entry of key, made by fresh if there is none. The pointer
// stays usable after the entry was forgotten.
func (t *table[K, V]) touch(key K, fresh func() V) *V {
	if e, ok := t.byKey[key]; ok {
		t.order.MoveToFront(e)
		return &e.Value.(*tableEntry[K, V]).value
	}
	if len(t.byKey) >= t.max {
		oldest := t.order.Back()
		delete(t.byKey, oldest.Value.(*tableEntry[K, V]).key)
		t.order.Remove(oldest)
	}
	e := &tableEntry[K, V]{key: key, value: fresh()}
	t.byKey[key] = t.order.PushFront(e)
	return &e.value
}

// peek returns the entry of key without touching it, or nil.
func (t *table[K, V]) peek(key K) *V {
	if e, ok := t.byKey[key]; ok {
		return &e.Value.(*tableEntry[K, V]).value
	}
	return nil
}

func (t *table[K, V]) len() int { return len(t.byKey) }

// limitKey is what one party is taken for: an IPv4 address, or the /64 of an IPv6
// address, because one host can use all of its /64. Loopback addresses stand each
// for itself. The zero Addr (a socket that has no address) is a key too.
func limitKey(a netip.Addr) netip.Addr {
	a = a.Unmap().WithZone("")
	if !a.Is6() || a.IsLoopback() {
		return a
	}
	p, err := a.Prefix(64)
	if err != nil {
		return a // cannot happen: 64 fits every IPv6 address
	}
	return p.Addr()
}
