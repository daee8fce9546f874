package mesh

import (
	"crypto/rand"
	"encoding/binary"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"
)

// TaskID is a task's id: <name>-<milliseconds in base 36>-<4 of [0-9a-z]> when
// minted here, or whatever ValidTaskID accepts when a person gives it.
type TaskID = string

const (
	// MaxTaskIDBytes is the longest task id. Ids become file and directory names.
	MaxTaskIDBytes = 64
	// maxTimeDigits bounds the time part; eight digits last until 2059.
	maxTimeDigits = 10
	randomDigits  = 4
	// maxIDNameBytes is what is left for the name in a minted id.
	maxIDNameBytes = MaxTaskIDBytes - maxTimeDigits - randomDigits - 2

	base36 = 36
	// suffixes is how many random parts there are.
	suffixes = base36 * base36 * base36 * base36
	// maxMillis keeps the time part within nine digits (the year 5188), so that
	// running ahead of the clock cannot make an id too long.
	maxMillis = 101559956668415

	taskIDRule = "1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-', beginning with a letter or digit"
)

// ValidTaskID reports whether id may name a task: ^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$.
func ValidTaskID(id string) bool {
	if len(id) == 0 || len(id) > MaxTaskIDBytes || !isAlnum(id[0]) {
		return false
	}
	for i := 1; i < len(id); i++ {
		if c := id[i]; !isAlnum(c) && c != '.' && c != '_' && c != '-' {
			return false
		}
	}
	return true
}

func isAlnum(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

// IDConfig configures an IDGenerator.
type IDConfig struct {
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// Rand gives the random part; nil means crypto/rand. A failing reader costs
	// unpredictability, never uniqueness.
	Rand io.Reader
}

// IDGenerator mints task ids for one name. No two generators of a process, of
// whatever names, ever mint the same id, also when the clock stands still or
// steps back. Safe for concurrent use.
type IDGenerator struct {
	name  string
	now   func() time.Time
	rand  io.Reader
	space *idSpace
}

// NewIDGenerator makes a generator for a name. Characters that an id must not
// hold become '-', and a name of more than 48 bytes is cut.
func NewIDGenerator(name string, cfg IDConfig) *IDGenerator {
	g := &IDGenerator{name: idName(name), now: cfg.Now, rand: cfg.Rand, space: &processSpace}
	if g.now == nil {
		g.now = time.Now
	}
	if g.rand == nil {
		g.rand = rand.Reader
	}
	return g
}

// New mints an id. It is always a ValidTaskID.
func (g *IDGenerator) New() TaskID {
	var seed [8]byte
	// A short read leaves zeros, and the space finds a free suffix from there.
	_, _ = io.ReadFull(g.rand, seed[:])
	ms, suffix := g.space.take(g.now().UnixMilli(), uint32(binary.LittleEndian.Uint64(seed[:])%suffixes))

	id := make([]byte, 0, MaxTaskIDBytes)
	id = append(id, g.name...)
	id = append(id, '-')
	id = strconv.AppendInt(id, ms, base36)
	id = append(id, '-', 0, 0, 0, 0)
	for i := range randomDigits {
		id[len(id)-1-i] = "0123456789abcdefghijklmnopqrstuvwxyz"[suffix%base36]
		suffix /= base36
	}
	return string(id)
}

// NewID mints an id for name with the system's clock and randomness.
func NewID(name string) TaskID { return NewIDGenerator(name, IDConfig{}).New() }

// idName makes s fit to begin a task id.
func idName(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < 0x80 && (isAlnum(byte(r)) || r == '.' || r == '_' || r == '-') {
			return r
		}
		return '-'
	}, s)
	s = strings.TrimLeft(s, "-._")
	if len(s) > maxIDNameBytes {
		s = s[:maxIDNameBytes]
	}
	if s == "" {
		return "node"
	}
	return s
}

// processSpace is shared by all generators of the process.
var processSpace idSpace

// perMilli is how many ids share one millisecond; after that the time part runs
// ahead of the clock. It bounds what must be remembered.
const perMilli = 64

// idSpace hands out pairs of time and suffix, each once. The time never goes
// back (nor before 1970), so only the suffixes of the current millisecond need to be known.
type idSpace struct {
	mu   sync.Mutex
	ms   int64
	used [perMilli]uint32
	n    int
}

// take returns the wanted pair, or the nearest free one.
func (s *idSpace) take(now int64, suffix uint32) (int64, uint32) {
	now = min(now, maxMillis)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case now > s.ms:
		s.ms, s.n = now, 0
	case s.n == perMilli:
		s.ms, s.n = s.ms+1, 0
	}
	for s.isUsed(suffix) {
		suffix = (suffix + 1) % suffixes
	}
	s.used[s.n] = suffix
	s.n++
	return s.ms, suffix
}

func (s *idSpace) isUsed(suffix uint32) bool {
	for _, u := range s.used[:s.n] {
		if u == suffix {
			return true
		}
	}
	return false
}
