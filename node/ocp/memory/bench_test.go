package memory

import (
	"context"
	"fmt"
	"math"
	"math/rand"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"opencode-mesh/protocol/ocp"
)

// benchItems is how many items the benchmark remembers.
const benchItems = 100_000

// corpus makes texts whose words are as unevenly common as those of English and code.
type corpus struct {
	r     *rand.Rand
	zipf  *rand.Zipf
	vocab []string
}

const commonWords = "the of and to a in is that it was for on are as with be this at by or from an not have has but they which one you had " +
	"were all we when there can been their if will would so no what up out about into than them only some could time then now such like " +
	"over even most made after also did many off must well back through much where your way down should because long each just those"

func newCorpus(seed int64) *corpus {
	c := &corpus{r: rand.New(rand.NewSource(seed)), vocab: strings.Fields(commonWords)}
	syllables := strings.Fields("con ter ma ti ra ver lo re in de per tion ing ser val bu fer par se get set lock node hub task file read write sync list map key log run fig test err han dle ro ute que ue pa th")
	names := rand.New(rand.NewSource(7))
	seen := map[string]bool{}
	for len(c.vocab) < 60_000 {
		var w strings.Builder
		for range 2 + names.Intn(3) {
			w.WriteString(syllables[names.Intn(len(syllables))])
		}
		if !seen[w.String()] {
			seen[w.String()] = true
			c.vocab = append(c.vocab, w.String())
		}
	}
	c.zipf = rand.NewZipf(c.r, 1.07, 2.7, uint64(len(c.vocab)-1))
	return c
}

// rare is a word such as a text is about.
func (c *corpus) rare() string { return c.vocab[100+c.r.Intn(8000)] }

func (c *corpus) item(i int) Item {
	topics := []string{c.rare(), c.rare(), c.rare()}
	path := fmt.Sprintf("internal/%s/%s_%s.go", c.rare(), topics[0], c.rare())
	var b strings.Builder
	for range min(max(int(math.Exp(c.r.NormFloat64()*0.8+math.Log(90))), 10), 900) {
		switch x := c.r.Intn(100); {
		case x < 4:
			b.WriteString(topics[c.r.Intn(3)])
		case x < 6:
			w := c.rare()
			b.WriteString(topics[c.r.Intn(3)] + strings.ToUpper(w[:1]) + w[1:] + "()")
		case x < 7:
			b.WriteString(path)
		case x < 8:
			fmt.Fprint(&b, c.r.Intn(100_000))
		default:
			b.WriteString(c.vocab[c.zipf.Uint64()])
		}
		b.WriteString([]string{" ", " ", " ", " ", " ", " ", " ", " ", " ", " ", " ", " ", " ", ".\n"}[c.r.Intn(14)])
	}
	return Item{
		ID: fmt.Sprint("item", i), Kind: Kinds()[i%5], Title: "How " + topics[0] + " and " + topics[1] + " go together", Label: "Task of alpha",
		Content: b.String(), Paths: []string{path}, Controller: fmt.Sprint("id", i%7), Target: "idB", At: day(1).Add(time.Duration(i) * time.Minute),
	}
}

// goal is a sentence of 5 to 15 words.
func (c *corpus) goal() string {
	w := make([]string, 5+c.r.Intn(11))
	for i := range w {
		if w[i] = c.vocab[c.zipf.Uint64()]; c.r.Intn(3) == 0 {
			w[i] = c.rare()
		}
	}
	return strings.Join(w, " ")
}

// resident is the memory of this process that is its own, and with the files that it has
// mapped, in MiB; 0 where the system does not tell.
func resident() (own, all float64) {
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		var kb float64
		if n, _ := fmt.Sscanf(line, "RssAnon: %f kB", &kb); n == 1 {
			own = kb / 1024
		}
		if n, _ := fmt.Sscanf(line, "VmRSS: %f kB", &kb); n == 1 {
			all = kb / 1024
		}
	}
	return own, all
}

// BenchmarkQuery asks 100,000 items with sentences of 5 to 15 words.
func BenchmarkQuery(b *testing.B) {
	x := newIndex(b, Config{Path: b.TempDir()})
	c := newCorpus(1)
	began := time.Now()
	for i := 0; i < benchItems; i += maxBatch {
		items := make([]Item, maxBatch)
		for j := range items {
			items[j] = c.item(i + j)
		}
		put(b, x, items...)
	}
	b.Logf("%d items put in %v", x.Count(), time.Since(began).Round(time.Second))
	runtime.GC()
	for _, bench := range []struct {
		name  string
		query ocp.Query
		scope Scope
	}{
		{"everything", ocp.Query{}, Scope{All: true}},
		{"one controller", ocp.Query{}, Scope{Controller: "id3"}},
		{"anchors", ocp.Query{Anchors: []string{"internal/readset/main.go", "setread"}}, Scope{All: true}},
		{"kind and time", ocp.Query{Kinds: []ocp.FrameKind{ocp.KindFact}, AsOf: "2026-04-10T00:00:00Z"}, Scope{All: true}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			const callers = 2
			goals := newCorpus(99)
			list := make([]string, 512)
			for i := range list {
				list[i] = goals.goal()
			}
			var mu sync.Mutex
			var took []time.Duration
			var wg sync.WaitGroup
			frames := 0
			b.ResetTimer()
			for w := range callers {
				wg.Go(func() {
					for i := w; i < b.N; i += callers {
						q := bench.query
						q.Goal, q.MaxFrames, q.MaxTokens = list[i%len(list)], 8, 4096
						start := time.Now()
						res, err := x.Query(context.Background(), q, bench.scope)
						d := time.Since(start)
						if err != nil {
							b.Error(err)
							return
						}
						mu.Lock()
						took = append(took, d)
						frames += len(res.Frames)
						mu.Unlock()
					}
				})
			}
			wg.Wait()
			slices.Sort(took)
			ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
			b.ReportMetric(ms(took[len(took)/2]), "p50-ms")
			b.ReportMetric(ms(took[len(took)*99/100]), "p99-ms")
			b.ReportMetric(float64(len(took))/b.Elapsed().Seconds(), "queries/s")
			b.ReportMetric(float64(frames)/float64(len(took)), "frames/query")
			own, all := resident()
			b.ReportMetric(own, "own-MiB")
			b.ReportMetric(all, "resident-MiB")
		})
	}
}
