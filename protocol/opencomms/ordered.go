package opencomms

import "iter"

// Ordered is a map that keeps the order in which keys were added, as objects do
// in the program that shares the file: the order decides between messages of the
// same time. The zero value is empty and ready. It is not safe for concurrent use.
type Ordered[V any] struct {
	slots []slot[V]
	index map[string]int // key → place in slots
	gone  int            // deleted slots
	walks int            // All that run: the slots stay where they are
}

// compactFrom is the number of deleted slots from which they are given up, once
// they are more than those in use.
const compactFrom = 32

type slot[V any] struct {
	key  string
	val  V
	live bool
}

// Len is the number of keys.
func (o *Ordered[V]) Len() int { return len(o.index) }

// Get returns the value of key.
func (o *Ordered[V]) Get(key string) (V, bool) {
	i, ok := o.index[key]
	if !ok {
		var zero V
		return zero, false
	}
	return o.slots[i].val, true
}

// Set gives key a value. A key that is there keeps its place; a new one is last.
func (o *Ordered[V]) Set(key string, v V) {
	if i, ok := o.index[key]; ok {
		o.slots[i].val = v
		return
	}
	if o.index == nil {
		o.index = make(map[string]int)
	}
	if o.gone >= compactFrom && o.gone > len(o.index) && o.walks == 0 {
		o.compact()
	}
	o.index[key] = len(o.slots)
	o.slots = append(o.slots, slot[V]{key: key, val: v, live: true})
}

func (o *Ordered[V]) compact() {
	live := o.slots[:0]
	for _, s := range o.slots {
		if s.live {
			o.index[s.key] = len(live)
			live = append(live, s)
		}
	}
	clear(o.slots[len(live):])
	o.slots, o.gone = live, 0
}

// Delete removes key, if it is there. It may be called while All runs.
func (o *Ordered[V]) Delete(key string) {
	i, ok := o.index[key]
	if !ok {
		return
	}
	delete(o.index, key)
	o.slots[i] = slot[V]{}
	o.gone++
}

// All yields keys and values in order. Keys that are added while it runs are not
// seen.
func (o *Ordered[V]) All() iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		o.walks++
		defer func() { o.walks-- }()
		for i := range o.slots {
			if s := o.slots[i]; s.live && !yield(s.key, s.val) {
				return
			}
		}
	}
}
