package memory

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	index "github.com/blevesearch/bleve_index_api"

	"opencode-mesh/node/agent"
	"opencode-mesh/node/opencomms"
	"opencode-mesh/node/opencomms/engine"
	"opencode-mesh/node/opencomms/statefile"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/ocp"
	ocm "opencode-mesh/protocol/opencomms"
)

// feed is a hub with a list of items; a cursor is a place in it.
type feed struct {
	items []api.MemoryItem
	page  int // items on a page
	asked []string
	fail  error
}

func (f *feed) Call(_ context.Context, _, path string, _, out any) error {
	if f.fail != nil {
		return f.fail
	}
	u, err := url.Parse(path)
	if err != nil {
		return err
	}
	cursor := u.Query().Get("after")
	f.asked = append(f.asked, cursor)
	at := 0
	if cursor != "" {
		if at, err = strconv.Atoi(strings.TrimPrefix(cursor, "at")); err != nil {
			return api.Errorf(api.CodeBadRequest, "no cursor")
		}
	}
	end := min(len(f.items), at+f.page)
	*out.(*api.MemoryPage) = api.MemoryPage{Items: f.items[min(at, end):end], Next: fmt.Sprint("at", end), More: end < len(f.items)}
	return nil
}

var alice, beta = api.Party{ID: "idA", Name: "alice"}, api.Party{ID: "idB", Name: "beta"}

func result(task, text string) api.MemoryItem {
	return api.MemoryItem{Result: &api.MemoryResult{
		Task: task, Controller: alice, Target: beta, State: api.StateDone, Attempt: 1, CreatedAt: day(1), EndedAt: day(2), Text: text, Summary: "walrus counted",
	}}
}

func facts(generation int, fact string) api.MemoryItem {
	return api.MemoryItem{Digest: &api.MemoryDigest{Controller: alice, Target: beta, Digest: api.Digest{Generation: generation, Task: "c1", At: day(3), Facts: []string{fact}, Pending: "none", Refs: "out/plan.md"}}}
}

func round(t *testing.T, s *Syncer) {
	t.Helper()
	s.round(context.Background())
	if p := s.problem; p != "" {
		t.Fatal(p)
	}
}

func TestWhatTheHubTellsIsRememberedForWhomItConcerns(t *testing.T) {
	x := newIndex(t, Config{})
	hub := &feed{page: 1, items: []api.MemoryItem{facts(1, "the walrus is fed with make feed"), result("t1", "Count the walruses\nthen stop"), result("t2", "Feed them")}}
	s := NewSyncer(SyncConfig{Index: x})
	s.Attach(hub, "idB")
	round(t, s)
	res := ask(t, x, ocp.Query{Goal: "walrus"}, Scope{Controller: "idA"})
	if len(res.Frames) != 3 {
		t.Fatalf("got %v", ids(res))
	}
	for _, f := range res.Frames {
		switch f.ID {
		case "result/t1":
			if f.Kind != ocp.KindEpisode || f.Title != "Count the walruses (alice → beta, done)" {
				t.Errorf("a result: %s %q", f.Kind, f.Title)
			}
		case "digest/idA/idB//1":
			if f.Kind != ocp.KindFact || !strings.Contains(f.Content, "make feed") || strings.Contains(f.Content, "none") {
				t.Errorf("a digest: %s %q", f.Kind, f.Content)
			}
		}
		for _, id := range []string{"t1", "t2", "idA", "idB"} {
			if strings.Contains(f.Title+f.CitationLabel, id) {
				t.Errorf("a bare id for people: %q, %q", f.Title, f.CitationLabel)
			}
		}
	}
	if res := ask(t, x, ocp.Query{Goal: "walrus"}, Scope{Controller: "idB"}); len(res.Frames) != 0 {
		t.Errorf("the target dispatched nothing: %v", ids(res))
	}
}

func TestWhatATaskWasGivenAsContextIsNotRememberedWithIt(t *testing.T) {
	quote, _ := ocp.Compose([]ocp.Cited{{Node: "gamma", Provider: "memory", Frame: ocp.Frame{
		ID: "q", Kind: ocp.KindFact, Title: "Of otters", CitationLabel: "Digest of otters", Content: "the otter sleeps", TokenCost: 4,
	}}}, "0123456789abcdef0123456789abcdef")
	for name, c := range map[string]struct{ text, subject, task string }{
		"below its words":  {"Count the walruses\n\nthen stop\n\n" + quote, "Count the walruses", "Task: Count the walruses\n\nthen stop\n\nResult"},
		"twice":            {"Count the walruses\n\n" + quote + "\n\n" + quote, "Count the walruses", "Task: Count the walruses\n\nResult"},
		"and nothing else": {quote, "walrus counted", "Result"},
		"none":             {"Count the walruses\n\nthen stop", "Count the walruses", "Task: Count the walruses\n\nthen stop\n\nResult"},
	} {
		t.Run(name, func(t *testing.T) {
			x := newIndex(t, Config{})
			s := NewSyncer(SyncConfig{Index: x})
			done := result("t1", c.text)
			done.Result.Reply = "I was given this:\n" + quote + "\nand the walrus is fine." // an answer that repeats it
			s.Attach(&feed{page: 1, items: []api.MemoryItem{done}}, "idB")
			round(t, s)
			if res := ask(t, x, ocp.Query{Goal: "otter"}, Scope{All: true}); len(res.Frames) != 0 {
				t.Errorf("what was quoted is remembered of the task: %q", res.Frames[0].Content)
			}
			res := ask(t, x, ocp.Query{Goal: "walrus"}, Scope{All: true})
			if len(res.Frames) != 1 || res.Frames[0].Title != c.subject+" (alice → beta, done)" || !strings.HasPrefix(res.Frames[0].Content, c.task) ||
				!strings.HasSuffix(res.Frames[0].Content, "I was given this:\n\n\nand the walrus is fine.\n") {
				t.Errorf("found %+v", res.Frames)
			}
		})
	}
}

func TestTheFeedIsFollowedFromWhereItWasLeftAlsoAfterARestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "memory")
	x := newIndex(t, Config{Path: dir})
	hub := &feed{page: 2, items: []api.MemoryItem{result("t1", "one"), result("t2", "two"), result("t3", "three")}}
	s := NewSyncer(SyncConfig{Index: x})
	s.Attach(hub, "idB")
	round(t, s)
	hub.items = append(hub.items, result("t4", "four"))
	hub.asked = nil
	round(t, s)
	if !slices.Equal(hub.asked, []string{"at3"}) || x.Count() != 4 {
		t.Errorf("asked %v, %d items", hub.asked, x.Count())
	}
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	x = newIndex(t, Config{Path: dir})
	s = NewSyncer(SyncConfig{Index: x})
	s.Attach(hub, "idB")
	hub.items = append(hub.items, result("t5", "five"))
	hub.asked = nil
	round(t, s)
	if !slices.Equal(hub.asked, []string{"at4"}) || x.Count() != 5 {
		t.Errorf("after a restart: asked %v, %d items", hub.asked, x.Count())
	}
}

func TestWhatTheHubDoesNotHaveAnyMoreIsForgottenWithTheNextSweep(t *testing.T) {
	x := newIndex(t, Config{})
	hub := &feed{page: 2, items: []api.MemoryItem{facts(1, "one"), facts(2, "two"), result("t1", "one"), result("t2", "two")}}
	dir := t.TempDir()
	channelIn(t, dir, "release", "Is the walrus fed?") // which the hub never had
	s := NewSyncer(SyncConfig{Index: x, Workspaces: []agent.Workspace{{Name: "main", Dir: dir}}})
	s.Attach(hub, "idB")
	round(t, s)
	hub.items = []api.MemoryItem{facts(2, "two"), result("t2", "two")}
	if err := x.put(context.Background(), nil, &note{sweptNote, []byte(time.Now().Add(-sweepEvery).UTC().Format(time.RFC3339))}); err != nil {
		t.Fatal(err)
	}
	round(t, s)
	have, err := x.ids(context.Background(), "")
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(have)
	var live []string
	for _, id := range have {
		_ = x.look(context.Background(), func(r index.IndexReader) error {
			if raw, err := stored(r, id); err == nil && raw != nil {
				live = append(live, id)
			}
			return nil
		})
	}
	if len(live) != 3 || !slices.Equal(live[:2], []string{"digest/idA/idB//2", "result/t2"}) || !strings.HasPrefix(live[2], "thread/main/") {
		t.Errorf("got %v", live)
	}
}

func TestADigestThatWasClearedIsForgottenAtOnce(t *testing.T) {
	x := newIndex(t, Config{})
	hub := &feed{page: 9, items: []api.MemoryItem{facts(1, "one")}}
	s := NewSyncer(SyncConfig{Index: x})
	s.Attach(hub, "idB")
	round(t, s)
	gone := facts(1, "")
	gone.Digest.Gone = true
	hub.items = append(hub.items, gone)
	round(t, s)
	if n := x.Count(); n != 0 {
		t.Errorf("%d items", n)
	}
}

func TestAHubThatFailsOrForgotTheCursorLosesNothing(t *testing.T) {
	x := newIndex(t, Config{})
	hub := &feed{page: 1, items: []api.MemoryItem{result("t1", "one")}}
	s := NewSyncer(SyncConfig{Index: x})
	s.Attach(hub, "idB")
	round(t, s)
	hub.fail = errors.New("the tunnel broke")
	s.round(context.Background())
	if s.problem == "" || x.Count() != 1 {
		t.Errorf("problem %q, %d items", s.problem, x.Count())
	}
	hub.fail = nil
	if err := x.put(context.Background(), nil, &note{cursorNote, []byte("rubbish")}); err != nil {
		t.Fatal(err)
	}
	hub.items = append(hub.items, result("t2", "two"))
	round(t, s)
	if n := x.Count(); n != 2 {
		t.Errorf("%d items", n)
	}
}

func TestFilesAreRememberedWhileTheyAreWhatTheTaskLeft(t *testing.T) {
	x := newIndex(t, Config{})
	dir := t.TempDir()
	long := strings.Repeat("a line of walrus\n", 2000)
	outside := filepath.Join(t.TempDir(), "secret")
	for name, text := range map[string]string{
		filepath.Join(dir, "a.md"): "# Walrus\nfed\n", filepath.Join(dir, "long.txt"): long, filepath.Join(dir, "changed.md"): "another's walrus",
		filepath.Join(dir, "binary"): "walrus\x00\xff", outside: "walrus secret",
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	sum := func(text string) string { return strings.TrimPrefix(ocp.Digest(text), "sha256:") }
	it := result("t1", "penguin")
	it.Result.Summary = "penguin"
	it.Result.Artifacts = []api.Artifact{
		{Path: "a.md", SHA256: sum("# Walrus\nfed\n")}, {Path: "long.txt", SHA256: sum(long)}, {Path: "changed.md", SHA256: sum("what the task left")},
		{Path: "binary", SHA256: sum("walrus\x00\xff")}, {Path: "../" + filepath.Base(filepath.Dir(outside)) + "/secret", SHA256: sum("walrus secret")},
		{Path: outside, SHA256: sum("walrus secret")}, {Path: "not there", SHA256: sum("")},
	}
	s := NewSyncer(SyncConfig{Index: x, Workspaces: []agent.Workspace{{Name: "main", Dir: dir}}})
	s.Attach(&feed{page: 9, items: []api.MemoryItem{it}}, "idB")
	round(t, s)
	res := ask(t, x, ocp.Query{Goal: "walrus"}, Scope{Controller: "idA"})
	if len(res.Frames) != 2 {
		t.Fatalf("got %v", ids(res))
	}
	for _, f := range res.Frames {
		p := f.Provenance[0]
		if p.Type != "file" || p.Digest != ocp.Digest(f.Content) {
			t.Errorf("provenance %+v", p)
		}
		switch p.URI {
		case "file:a.md":
			if f.Kind != ocp.KindDoc || p.Range != "L1-2" {
				t.Errorf("a.md: %s %s", f.Kind, p.Range)
			}
		case "file:long.txt":
			if f.Kind != ocp.KindSnippet || len(f.Content) > MaxContent || !strings.Contains(f.Title, "of 2000") {
				t.Errorf("long.txt: %s, %d bytes, %q", f.Kind, len(f.Content), f.Title)
			}
		default:
			t.Errorf("%s is remembered", p.URI)
		}
	}
}

func TestThreadsOfChannelsAreRememberedForThisMachineAndForgottenWithTheChannel(t *testing.T) {
	x := newIndex(t, Config{})
	dir, ctx := t.TempDir(), context.Background()
	s := NewSyncer(SyncConfig{Index: x, Workspaces: []agent.Workspace{{Name: "main", Dir: dir}}})
	round(t, s)
	p, err := opencomms.Open(dir, opencomms.Options{})
	if err != nil {
		t.Fatal(err)
	}
	lead := engine.Caller{Session: "s1"}
	if _, err := p.Create(ctx, engine.CreateRequest{Channel: "release", Member: &engine.NewMember{Role: "lead", RolePrompt: "leads", Session: "s1"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Join(ctx, engine.JoinRequest{Channel: "release", Member: engine.NewMember{Role: "dev", RolePrompt: "develops", Session: "s2"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Send(ctx, lead, engine.SendRequest{Channel: "release", To: "dev", Content: "Is the walrus fed?"}); err != nil {
		t.Fatal(err)
	}
	round(t, s)
	res := ask(t, x, ocp.Query{Goal: "walrus"}, Scope{All: true})
	if len(res.Frames) != 1 {
		t.Fatalf("got %v", ids(res))
	}
	if f := res.Frames[0]; f.Kind != ocp.KindMemory || f.Content != "lead: Is the walrus fed?\n" || f.Title != "Is the walrus fed? (in channel release)" {
		t.Errorf("%s %q %q", f.Kind, f.Title, f.Content)
	}
	if res := ask(t, x, ocp.Query{Goal: "walrus"}, Scope{Controller: "idA"}); len(res.Frames) != 0 {
		t.Errorf("a controller sees %v", ids(res))
	}
	if err := os.Remove(statefile.Open(dir, statefile.Options{}).Path()); err != nil {
		t.Fatal(err)
	}
	round(t, s)
	if n := x.Count(); n != 0 {
		t.Errorf("%d threads of a channel that is gone", n)
	}
}

// channelIn makes a channel with one message in a workspace, and returns its project.
func channelIn(t *testing.T, dir, channel, message string) *opencomms.Project {
	t.Helper()
	p, err := opencomms.Open(dir, opencomms.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, lead := context.Background(), engine.Caller{Session: "s1"}
	_, errCreate := p.Create(ctx, engine.CreateRequest{Channel: channel, Member: &engine.NewMember{Role: "lead", RolePrompt: "leads", Session: "s1"}})
	_, errJoin := p.Join(ctx, engine.JoinRequest{Channel: channel, Member: engine.NewMember{Role: "dev", RolePrompt: "develops", Session: "s2"}})
	_, errSend := p.Send(ctx, lead, engine.SendRequest{Channel: channel, To: "dev", Content: message})
	if err := errors.Join(errCreate, errJoin, errSend); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestAThreadIsRememberedWhenItsChannelWasSaved(t *testing.T) {
	x := newIndex(t, Config{})
	dir, ctx := t.TempDir(), context.Background()
	s := NewSyncer(SyncConfig{Index: x, Workspaces: []agent.Workspace{{Name: "main", Dir: dir}}})
	p := channelIn(t, dir, "release", "Is the walrus fed?")
	round(t, s)
	before := ids(ask(t, x, ocp.Query{Goal: "walrus"}, Scope{All: true}))
	if _, err := p.SaveSession(ctx, engine.Caller{Session: "s1"}, engine.SaveRequest{Channel: "release", Summary: "done"}); err != nil {
		t.Fatal(err)
	}
	round(t, s)
	if got := ids(ask(t, x, ocp.Query{Goal: "walrus"}, Scope{All: true})); len(got) != 1 || !slices.Equal(got, before) {
		t.Errorf("once it was saved: %v, before: %v", got, before)
	}
	if err := os.RemoveAll(opencomms.ArchivesDir(dir)); err != nil {
		t.Fatal(err)
	}
	round(t, s)
	if n := x.Count(); n != 0 {
		t.Errorf("%d threads of a channel that is gone", n)
	}
}

func TestThreadsOfAWorkspaceThatIsNotTheNodesAnyMoreAreForgotten(t *testing.T) {
	x := newIndex(t, Config{})
	one, two := t.TempDir(), t.TempDir()
	channelIn(t, one, "release", "Is the walrus fed?")
	channelIn(t, two, "release", "Is the penguin fed?")
	both := []agent.Workspace{{Name: "main", Dir: one}, {Name: "mainland", Dir: two}}
	round(t, NewSyncer(SyncConfig{Index: x, Workspaces: both}))
	if n := x.Count(); n != 2 {
		t.Fatalf("%d threads", n)
	}
	round(t, NewSyncer(SyncConfig{Index: x, Workspaces: both[:1]}))
	if got := ids(ask(t, x, ocp.Query{Goal: "walrus penguin"}, Scope{All: true})); len(got) != 1 || !strings.HasPrefix(got[0], "thread/main/") {
		t.Errorf("got %v", got)
	}
}

func TestThreadsComeBackAfterTheIndexWasMadeAnew(t *testing.T) {
	x := newIndex(t, Config{})
	dir := t.TempDir()
	channelIn(t, dir, "release", "Is the walrus fed?")
	s := NewSyncer(SyncConfig{Index: x, Workspaces: []agent.Workspace{{Name: "main", Dir: dir}}})
	s.Attach(&feed{page: 9}, "idB")
	round(t, s)
	have, err := x.ids(context.Background(), "")
	if err != nil || len(have) != 1 {
		t.Fatalf("%v %v", have, err)
	}
	// As it is after that: nothing is there, nor how far the feed was read.
	if err := errors.Join(x.Delete(context.Background(), have...), x.put(context.Background(), nil, &note{cursorNote, nil})); err != nil {
		t.Fatal(err)
	}
	round(t, s) // a sweep
	round(t, s)
	if n := x.Count(); n != 1 {
		t.Errorf("%d threads", n)
	}
}

func TestIdsOfAnyLengthStopNoSource(t *testing.T) {
	long := strings.Repeat("ü/", 400)
	root := &ocm.Envelope{EnvelopeFields: ocm.EnvelopeFields{ID: long, SenderRole: "lead", Content: "walrus"}}
	for _, it := range []Item{
		threadItem(long, "release", long, root, []*ocm.Envelope{root}),
		resultItem(&api.MemoryResult{Task: long, Controller: alice, Target: beta}),
		digestItem(&api.MemoryDigest{Controller: api.Party{ID: long}, Target: api.Party{ID: long}, Workspace: long}),
		fileItem(&api.MemoryResult{Task: long, Controller: alice, Target: beta}, long, long, "walrus"),
	} {
		if _, err := tidy(it); err != nil {
			t.Errorf("%.20s…, %d bytes: %v", it.ID, len(it.ID), err)
		}
	}
	if a, b := brief(long+"a"), brief(long+"b"); a == b || brief("ws") != "ws" {
		t.Errorf("%q %q", a, b)
	}
}
