package memory

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"opencode-mesh/protocol/ocp"
)

// newIndex opens an index that the end of the test closes.
func newIndex(t testing.TB, cfg Config) *Index {
	t.Helper()
	if cfg.Path == "" {
		cfg.Path = filepath.Join(t.TempDir(), "memory")
	}
	x, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := x.Close(); err != nil {
			t.Error("close:", err)
		}
	})
	return x
}

func put(t testing.TB, x *Index, items ...Item) {
	t.Helper()
	if err := x.Put(context.Background(), items); err != nil {
		t.Fatal(err)
	}
}

func ask(t testing.TB, x *Index, q ocp.Query, s Scope) ocp.Result {
	t.Helper()
	if q.MaxFrames == 0 {
		q.MaxFrames = 20
	}
	if q.MaxTokens == 0 {
		q.MaxTokens = 10_000
	}
	res, err := x.Query(context.Background(), q, s)
	if err != nil {
		t.Fatal(err)
	}
	if err := res.Audit(q); err != nil {
		t.Fatal(err)
	}
	for i := range res.Frames {
		f := &res.Frames[i]
		if err := errors.Join(f.Check(), f.CheckExact()); err != nil {
			t.Fatal(err)
		}
	}
	return res
}

func ids(res ocp.Result) (list []string) {
	for _, f := range res.Frames {
		list = append(list, f.ID)
	}
	return list
}

func day(n int) time.Time { return time.Date(2026, 3, n, 12, 0, 0, 0, time.UTC) }

func item(id, content string) Item {
	return Item{
		ID: id, Kind: ocp.KindEpisode, Title: "What " + id + " did", Label: "Task of alpha", Content: content,
		Controller: "idA", Target: "idB", At: day(1),
	}
}

func TestTheBestMatchComesFirstAndWhatHasNoWordOfTheGoalIsNotThere(t *testing.T) {
	x := newIndex(t, Config{})
	put(t, x,
		item("one", "The importer reads CSV files and was ported to the new parser."),
		item("two", "Release builds are made with make release; the importer is not part of them."),
		item("three", "Nothing of this concerns the dashboard."),
	)
	res := ask(t, x, ocp.Query{Goal: "porting the importers' parser for CSV"}, Scope{All: true})
	if got := ids(res); !slices.Equal(got, []string{"one", "two"}) {
		t.Fatalf("got %v", got)
	}
	if res.Truncated || res.DroppedEstimate != nil {
		t.Errorf("everything was returned, yet it says truncated")
	}
}

func TestIdentifiersAreFoundByTheirParts(t *testing.T) {
	x := newIndex(t, Config{})
	put(t, x, item("one", "func parseConfigFile(name string) error"), item("two", "the HTTPServer listens"), item("three", "任务已经完成"))
	for goal, want := range map[string]string{"config parser": "one", "server listening": "two", "完成任务": "three", "parseconfigfile": "one"} {
		if got := ids(ask(t, x, ocp.Query{Goal: goal}, Scope{All: true})); !slices.Equal(got, []string{want}) {
			t.Errorf("%s: got %v, want %s", goal, got, want)
		}
	}
}

func TestPuttingAnItemAgainReplacesItAndDeletingForgetsIt(t *testing.T) {
	x := newIndex(t, Config{})
	put(t, x, item("one", "walrus"), item("two", "walrus"))
	put(t, x, item("one", "penguin"))
	if got := ids(ask(t, x, ocp.Query{Goal: "walrus"}, Scope{All: true})); !slices.Equal(got, []string{"two"}) {
		t.Errorf("replaced: got %v", got)
	}
	if err := x.Delete(context.Background(), "two", "never there"); err != nil {
		t.Fatal(err)
	}
	if got := ids(ask(t, x, ocp.Query{Goal: "walrus"}, Scope{All: true})); got != nil {
		t.Errorf("deleted: got %v", got)
	}
	if n := x.Count(); n != 1 {
		t.Errorf("%d items, want 1", n)
	}
}

func TestKindsAreAHardFilter(t *testing.T) {
	x := newIndex(t, Config{})
	for i, k := range Kinds() {
		it := item(fmt.Sprint("item", i), "walrus")
		it.Kind = k
		put(t, x, it)
	}
	res := ask(t, x, ocp.Query{Goal: "walrus", Kinds: []ocp.FrameKind{ocp.KindFact, ocp.KindDoc}}, Scope{All: true})
	if len(res.Frames) != 2 || res.Truncated {
		t.Fatalf("got %v, truncated %v", ids(res), res.Truncated)
	}
	for _, f := range res.Frames {
		if f.Kind != ocp.KindFact && f.Kind != ocp.KindDoc {
			t.Errorf("a frame of kind %s", f.Kind)
		}
	}
	if got := ask(t, x, ocp.Query{Goal: "walrus", Kinds: []ocp.FrameKind{ocp.KindSymbol}}, Scope{All: true}); len(got.Frames) != 0 {
		t.Errorf("there is no symbol, yet %v", ids(got))
	}
}

func TestAsOfReturnsWhatWasKnownAndHeldThen(t *testing.T) {
	x := newIndex(t, Config{})
	it := item("one", "walrus")
	it.At, it.ValidFrom, it.ValidTo = day(5), day(3), day(10)
	put(t, x, it)
	for _, c := range []struct {
		asOf string
		want bool
	}{
		{"2026-03-02T12:00:00Z", false},
		{"2026-03-04T12:00:00Z", false}, // held, but nobody had recorded it
		{"2026-03-05T12:00:00Z", true},
		{"2026-03-05T11:59:59.999Z", false},
		{"2026-03-10T11:59:59.999Z", true},
		{"2026-03-10T12:00:00Z", false}, // the end is not included
		{"2026-03-10T13:00:00+02:00", true},
	} {
		if got := len(ask(t, x, ocp.Query{Goal: "walrus", AsOf: c.asOf}, Scope{All: true}).Frames) == 1; got != c.want {
			t.Errorf("as of %s: %v, want %v", c.asOf, got, c.want)
		}
	}
	if _, err := x.Query(context.Background(), ocp.Query{Goal: "walrus", AsOf: "yesterday", MaxFrames: 1, MaxTokens: 1}, Scope{All: true}); err == nil || !strings.Contains(err.Error(), "as_of") {
		t.Errorf("a time that is none: %v", err)
	}
}

func TestFramesOfAKindAreFoundHoweverManyOthersAreBetter(t *testing.T) {
	x := newIndex(t, Config{})
	var items []Item
	for i := range 900 {
		items = append(items, item(fmt.Sprint("better", i), "walrus walrus walrus"))
	}
	for i := range 3 {
		it := item(fmt.Sprint("fact", i), "walrus, and "+strings.Repeat("much that is of something else ", 20))
		it.Kind, it.At = ocp.KindFact, day(2)
		items = append(items, it)
	}
	put(t, x, items...)
	facts := ocp.Query{Goal: "walrus", Kinds: []ocp.FrameKind{ocp.KindFact}, MaxFrames: 3}
	res := ask(t, x, facts, Scope{All: true})
	if got := ids(res); !slices.Equal(got, []string{"fact0", "fact1", "fact2"}) || res.Truncated {
		t.Errorf("got %v, truncated %v", got, res.Truncated)
	}
	facts.MaxFrames = 2
	if res = ask(t, x, facts, Scope{All: true}); len(res.Frames) != 2 || *res.DroppedEstimate != 1 {
		t.Errorf("got %v, %v dropped", ids(res), *res.DroppedEstimate)
	}
	many := ask(t, x, ocp.Query{Goal: "walrus", Kinds: []ocp.FrameKind{ocp.KindEpisode}, MaxFrames: 10}, Scope{All: true})
	// The best are all of this kind, so all are taken for such.
	if len(many.Frames) != 10 || *many.DroppedEstimate != 893 {
		t.Errorf("%d frames, %v dropped", len(many.Frames), *many.DroppedEstimate)
	}
}

func TestWhatDoesNotHoldAnyMoreComesAfterWhatDoes(t *testing.T) {
	x := newIndex(t, Config{})
	old, now := item("old", "walrus release"), item("now", "walrus release")
	old.At, old.ValidTo = day(9), day(10)
	put(t, x, old, now)
	if got := ids(ask(t, x, ocp.Query{Goal: "walrus"}, Scope{All: true})); !slices.Equal(got, []string{"now", "old"}) {
		t.Errorf("got %v", got)
	}
}

func TestAnchorsRaiseWhatNamesThem(t *testing.T) {
	x := newIndex(t, Config{})
	plain, path, base, text := item("plain", "walrus walrus"), item("path", "walrus and more words"), item("base", "walrus and more words"), item("text", "nothing but Flush() in it")
	path.Paths = []string{"node/ocp/memory.go"}
	base.Paths = []string{"other/memory.go"}
	put(t, x, plain, path, base, text)
	if got := ids(ask(t, x, ocp.Query{Goal: "walrus"}, Scope{All: true})); got[0] != "plain" {
		t.Fatalf("without anchors: %v", got)
	}
	for _, anchor := range []string{"node/ocp/memory.go", "/home/u/proj/node/ocp/memory.go", `node\ocp\memory.go`} {
		got := ids(ask(t, x, ocp.Query{Goal: "walrus", Anchors: []string{anchor}}, Scope{All: true}))
		if got[0] != "path" {
			t.Errorf("%s: %v", anchor, got)
		}
	}
	got := ids(ask(t, x, ocp.Query{Goal: "walrus", Anchors: []string{"flush"}}, Scope{All: true}))
	if !slices.Contains(got, "text") {
		t.Errorf("a symbol: %v", got)
	}
}

func TestAnAskerWithoutScopeGetsNothing(t *testing.T) {
	x := newIndex(t, Config{})
	orphan := item("two", "walrus")
	orphan.Controller = ""
	put(t, x, item("one", "walrus"), orphan)
	for _, s := range []Scope{{}, {Controller: "idC"}, {Controller: "idB"}, {Controller: all}} {
		if res := ask(t, x, ocp.Query{Goal: "walrus", Anchors: []string{"one"}}, s); len(res.Frames) != 0 || res.Truncated {
			t.Errorf("%+v: %v, truncated %v", s, ids(res), res.Truncated)
		}
	}
}

func TestAFrameThatIsTooLargeIsCutToTheLinesThatMatter(t *testing.T) {
	x := newIndex(t, Config{})
	var lines []string
	for i := range 400 {
		lines = append(lines, fmt.Sprintf("line %d says nothing at all", i+1))
	}
	lines[250] = "here the walrus is told of"
	it := item("one", strings.Join(lines, "\n")+"\n")
	it.Kind = ocp.KindDoc
	it.Provenance = []ocp.Provenance{{Type: "file", URI: "file:a.txt", Range: "L11-410", Digest: ocp.Digest(it.Content)}}
	put(t, x, it)
	res := ask(t, x, ocp.Query{Goal: "walrus", MaxTokens: 60}, Scope{All: true})
	if len(res.Frames) != 1 || !res.Truncated {
		t.Fatalf("got %v, truncated %v", ids(res), res.Truncated)
	}
	f := res.Frames[0]
	if !strings.Contains(f.Content, "walrus") || !strings.Contains(f.Title, "of 400") || !strings.Contains(f.CitationLabel, "of 400") {
		t.Errorf("cut to %q with title %q", f.Content, f.Title)
	}
	p := f.Provenance[0]
	first := firstLine(p.Range) - 11
	n := strings.Count(f.Content, "\n")
	if want := strings.Join(lines[first:first+n], "\n") + "\n"; f.Content != want {
		t.Errorf("the range %s is not where the content is", p.Range)
	}
	if p.Digest != ocp.Digest(f.Content) {
		t.Errorf("the digest is not that of the range")
	}
	if res = ask(t, x, ocp.Query{Goal: "walrus", MaxTokens: 10}, Scope{All: true}); len(res.Frames) != 0 || !res.Truncated || *res.DroppedEstimate != 1 {
		t.Errorf("without room: %v, truncated %v", ids(res), res.Truncated)
	}
}

func TestWhatCouldNotBeCitedIsNotTaken(t *testing.T) {
	x := newIndex(t, Config{})
	for name, change := range map[string]func(*Item){
		"no id": func(it *Item) { it.ID = "" }, "no kind": func(it *Item) { it.Kind = "thing" },
		"no title": func(it *Item) { it.Title = " \n" }, "no label": func(it *Item) { it.Label = "" },
	} {
		it := item("one", "walrus")
		change(&it)
		if err := x.Put(context.Background(), []Item{item("two", "walrus"), it}); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	if n := x.Count(); n != 0 {
		t.Errorf("%d items were put with one that could not be", n)
	}
}

func TestContentIsBoundedAndValid(t *testing.T) {
	x := newIndex(t, Config{})
	put(t, x, item("one", "walrus \xff\xfe"+strings.Repeat("é", MaxContent)))
	f := ask(t, x, ocp.Query{Goal: "walrus"}, Scope{All: true}).Frames[0]
	if len(f.Content) > MaxContent || ocp.Clean(f.Content) != f.Content || !strings.HasPrefix(f.Content, "walrus \uFFFDé") {
		t.Errorf("%d bytes, begins with %q", len(f.Content), f.Content[:12])
	}
}

func TestTheOldestLeaveWhenThereAreTooMany(t *testing.T) {
	x := newIndex(t, Config{MaxItems: 10})
	for i := range 15 {
		it := item(fmt.Sprintf("item%02d", i), "walrus")
		it.At = day(1).Add(time.Duration((i*7)%15) * time.Hour)
		put(t, x, it)
		if n := x.Count(); n > 10 {
			t.Fatalf("%d items", n)
		}
	}
	res := ask(t, x, ocp.Query{Goal: "walrus"}, Scope{All: true})
	for _, f := range res.Frames {
		if f.RecordedAt < stamp(day(1).Add(4*time.Hour)) {
			t.Errorf("%s of %s is still there", f.ID, f.RecordedAt)
		}
	}
}

func TestWhatIsThereIsStillThereAfterARestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "memory")
	x := newIndex(t, Config{Path: dir})
	if err := x.put(context.Background(), []Item{item("one", "walrus")}, &note{"cursor", []byte("c1")}); err != nil {
		t.Fatal(err)
	}
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := x.Query(context.Background(), ocp.Query{Goal: "walrus"}, Scope{All: true}); !errors.Is(err, ErrClosed) {
		t.Errorf("a closed index: %v", err)
	}
	x = newIndex(t, Config{Path: dir})
	if got := ids(ask(t, x, ocp.Query{Goal: "walrus"}, Scope{All: true})); !slices.Equal(got, []string{"one"}) {
		t.Errorf("got %v", got)
	}
	if c, err := x.noted(context.Background(), "cursor"); string(c) != "c1" {
		t.Errorf("cursor %q, %v", c, err)
	}
}

func TestADamagedIndexIsMadeAnewAndSaysSo(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, file string, data []byte) []byte{
		"a flipped bit": func(t *testing.T, file string, data []byte) []byte {
			if strings.HasSuffix(file, segmentExt) {
				data[len(data)/2] ^= 4
			}
			return data
		},
		"cut off": func(t *testing.T, _ string, data []byte) []byte { return data[:len(data)/3] },
		"emptied": func(*testing.T, string, []byte) []byte { return nil },
		"rubbish": func(_ *testing.T, _ string, data []byte) []byte { return bytes.Repeat([]byte("rubbish"), len(data)/7) },
		"a layout": func(_ *testing.T, file string, data []byte) []byte {
			if filepath.Base(file) == layoutFile {
				return []byte("0")
			}
			return data
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "memory")
			x := newIndex(t, Config{Path: dir})
			put(t, x, item("one", "walrus"), item("two", "penguin"))
			if err := x.Close(); err != nil {
				t.Fatal(err)
			}
			err := filepath.WalkDir(dir, func(file string, d os.DirEntry, err error) error {
				if err != nil || d.IsDir() {
					return err
				}
				data, err := os.ReadFile(file)
				if err != nil {
					return err
				}
				return os.WriteFile(file, damage(t, file, data), 0o600)
			})
			if err != nil {
				t.Fatal(err)
			}
			var log bytes.Buffer
			x = newIndex(t, Config{Path: dir, Log: slog.New(slog.NewTextHandler(&log, nil))})
			if n := x.Count(); n != 0 {
				t.Errorf("%d items", n)
			}
			if !strings.Contains(log.String(), "made anew") {
				t.Errorf("the log says nothing: %s", log.String())
			}
			put(t, x, item("one", "walrus"))
			if got := ids(ask(t, x, ocp.Query{Goal: "walrus"}, Scope{All: true})); !slices.Equal(got, []string{"one"}) {
				t.Errorf("filled again: %v", got)
			}
		})
	}
}

func TestManyPutAndAskAtOnceAndCloseWaits(t *testing.T) {
	x := newIndex(t, Config{})
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range 20 {
				err := x.Put(context.Background(), []Item{item(fmt.Sprintf("w%d-%d", w, i%7), "walrus penguin")})
				if err != nil && !errors.Is(err, ErrClosed) {
					t.Error(err)
				}
			}
		})
		wg.Go(func() {
			for range 50 {
				_, err := x.Query(context.Background(), ocp.Query{Goal: "walrus", MaxFrames: 5, MaxTokens: 500}, Scope{All: true})
				if err != nil && !errors.Is(err, ErrClosed) {
					t.Error(err)
				}
			}
		})
	}
	if err := x.Delete(context.Background(), "w0-0"); err != nil {
		t.Error(err)
	}
	if err := x.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
}

func TestAFrameOfOneTokenTooManyIsLeftOut(t *testing.T) {
	x := newIndex(t, Config{})
	put(t, x, item("one", strings.Repeat("walrus wal", 4))) // 10 tokens
	for tokens, want := range map[uint32]int{9: 0, 10: 1} {
		if res := ask(t, x, ocp.Query{Goal: "walrus", MaxTokens: tokens}, Scope{All: true}); len(res.Frames) != want {
			t.Errorf("within %d tokens: %d frames, want %d", tokens, len(res.Frames), want)
		}
	}
}
