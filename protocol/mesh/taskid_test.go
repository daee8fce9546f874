package mesh_test

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"opencode-mesh/protocol/mesh"
)

func TestNewIDHasTheForm(t *testing.T) {
	id := mesh.NewID("alpha")
	if !regexp.MustCompile(`^alpha-[0-9a-z]{8,9}-[0-9a-z]{4}$`).MatchString(id) {
		t.Errorf("got %q", id)
	}
	if !mesh.ValidTaskID(id) {
		t.Errorf("%q is not valid", id)
	}
}

func TestNewIDIsMillisecondsAndRandomness(t *testing.T) {
	// 1795996800123 is mx2i4g3f in base 36; the seed gives 36^3*10 + 11.
	g := mesh.NewIDGenerator("build-box", mesh.IDConfig{
		Now:  func() time.Time { return time.UnixMilli(1795996800123) },
		Rand: bytes.NewReader([]byte{0x8b, 0x1e, 0x07, 0, 0, 0, 0, 0}), // little endian 466571
	})
	mesh.WithFreshSpace(g)
	if got, want := g.New(), "build-box-mx2i4g3f-a00b"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestIDsAreUniqueInTheProcess(t *testing.T) {
	const each, workers = 2000, 4
	var mu sync.Mutex
	seen := make(map[string]bool)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			// A generator of the same name each, with a clock that stands still and
			// randomness that is none.
			g := mesh.NewIDGenerator("same", mesh.IDConfig{Now: func() time.Time { return time.UnixMilli(1) }, Rand: zeros{}})
			ids := make([]string, each)
			for i := range ids {
				ids[i] = g.New()
			}
			mu.Lock()
			defer mu.Unlock()
			for _, id := range ids {
				if seen[id] {
					t.Errorf("%s was minted twice", id)
				}
				seen[id] = true
			}
		})
	}
	wg.Wait()
	if len(seen) != each*workers {
		t.Errorf("%d ids", len(seen))
	}
}

func TestIDsAreUniqueWhenTheClockStepsBack(t *testing.T) {
	var now time.Time
	cfg := mesh.IDConfig{Now: func() time.Time { return now }, Rand: zeros{}}
	name := strings.Repeat("n", 60)
	a, b := mesh.NewIDGenerator(name, cfg), mesh.NewIDGenerator(name, cfg)
	mesh.WithFreshSpace(a, b)
	seen := make(map[string]bool)
	for _, ms := range []int64{5_000_000, 5_000_001, 1_400_000, 1_400_001, -5_000_000, 1 << 42, 1 << 62, 5_000_000} {
		now = time.UnixMilli(ms)
		for range 300 {
			for _, id := range []string{a.New(), b.New()} {
				if seen[id] {
					t.Fatalf("%s was minted twice", id)
				}
				if !mesh.ValidTaskID(id) {
					t.Fatalf("%s is not valid", id)
				}
				seen[id] = true
			}
		}
	}
}

func TestIDsAreUniqueWithoutRandomness(t *testing.T) {
	g := mesh.NewIDGenerator("n", mesh.IDConfig{Now: func() time.Time { return time.UnixMilli(36 * 36) }, Rand: broken{}})
	mesh.WithFreshSpace(g)
	if first, second := g.New(), g.New(); first != "n-100-0000" || second != "n-100-0001" {
		t.Errorf("got %s and %s", first, second)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("no randomness") }

var _ io.Reader = broken{}

func TestNewIDFitsAnyName(t *testing.T) {
	for name, prefix := range map[string]string{
		"":                        "node-",
		"--":                      "node-",
		"Büro Süd/1":              "B-ro-S-d-1-",
		".hidden":                 "hidden-",
		strings.Repeat("x", 200):  strings.Repeat("x", 48) + "-",
		"a\n[opencode-mesh v1]\n": "a--opencode-mesh-v1---",
	} {
		id := mesh.NewID(name)
		if !strings.HasPrefix(id, prefix) || !mesh.ValidTaskID(id) {
			t.Errorf("NewID(%q) = %q", name, id)
		}
	}
}

func TestValidTaskID(t *testing.T) {
	rule := regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
	ids := []string{"", "a", "-a", ".", "..", "_a", "a.", "a..b", "a/b", "a b", "a\n", "é", "[opencode-mesh v1]", "alpha-m5x2k9-7f3q", strings.Repeat("a", 64), strings.Repeat("a", 65)}
	for c := range 256 {
		ids = append(ids, "a"+string([]byte{byte(c)}), string([]byte{byte(c)}))
	}
	for _, id := range ids {
		if got, want := mesh.ValidTaskID(id), rule.MatchString(id); got != want {
			t.Errorf("ValidTaskID(%q) = %v", id, got)
		}
	}
}
