package context_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/ocp"
	"opencode-mesh/test/fleet"
)

// await asks until ok is content with what was found. Nobody may answer for a while after a
// kill, so how a command ends matters only at the end.
func await(t *testing.T, what string, ask func() ([]ocp.Frame, fleet.Output), ok func([]ocp.Frame) bool) []ocp.Frame {
	t.Helper()
	for deadline := time.Now().Add(90 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		frames, out := ask()
		if out.Code == 0 && ok(frames) {
			return frames
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s was never found: %+v", what, out)
		}
	}
}

// asks is how a controller asks the mesh.
func asks(c *fleet.Ctl, goal string) func() ([]ocp.Frame, fleet.Output) {
	return func() (frames []ocp.Frame, out fleet.Output) {
		out = c.Run("context", "query", goal, "--json")
		var r api.ContextResult
		_ = json.Unmarshal([]byte(out.Stdout), &r) // what is no answer has no frames
		for _, c := range r.Frames {
			frames = append(frames, c.Frame)
		}
		return frames, out
	}
}

// owner is how who sits at the node asks it.
func owner(n *fleet.Node, goal string) func() ([]ocp.Frame, fleet.Output) {
	return func() (frames []ocp.Frame, out fleet.Output) {
		out = n.Run("ocp", "query", goal, "--json")
		for line := range strings.Lines(out.Stdout) {
			var leg api.ContextAnswerLeg
			_ = json.Unmarshal([]byte(line), &leg)
			frames = append(frames, leg.Result.Frames...)
		}
		return frames, out
	}
}

// uris are the sources of frames.
func uris(frames []ocp.Frame) (list []string) {
	for _, f := range frames {
		list = append(list, f.URI)
	}
	slices.Sort(list)
	return list
}

// from reports whether something of each source was found.
func from(sources ...string) func([]ocp.Frame) bool {
	return func(frames []ocp.Frame) bool {
		have := uris(frames)
		return !slices.ContainsFunc(sources, func(s string) bool { return !slices.Contains(have, s) })
	}
}

// of is the frame of a source.
func of(t *testing.T, frames []ocp.Frame, uri string) ocp.Frame {
	t.Helper()
	i := slices.IndexFunc(frames, func(f ocp.Frame) bool { return f.URI == uri })
	if i < 0 {
		t.Fatalf("nothing of %s in %v", uri, uris(frames))
	}
	return frames[i]
}

func sha(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// wantFrame checks what every frame owes: a cost by its bytes, and where it is from by the
// digest of its content. want is the provenance but for the digest.
func wantFrame(t *testing.T, f ocp.Frame, kind ocp.FrameKind, want ocp.Provenance) {
	t.Helper()
	want.Digest = sha(f.Content)
	if f.Kind != kind || int(f.TokenCost) != (len(f.Content)+3)/4 || f.Content == "" || len(f.Provenance) != 1 || f.Provenance[0] != want {
		t.Errorf("%s of %d bytes costs %d, from %+v; want %s from %+v", f.Kind, len(f.Content), f.TokenCost, f.Provenance, kind, want)
	}
}

// wantFile checks that a frame has the lines of a file that it says it has.
func wantFile(t *testing.T, f ocp.Frame, kind ocp.FrameKind, text string) {
	t.Helper()
	var from, to int
	if len(f.Provenance) == 1 {
		_, _ = fmt.Sscanf(f.Provenance[0].Range, "L%d-%d", &from, &to)
	}
	lines := strings.SplitAfter(text, "\n")
	if from < 1 || to < from || to > len(lines) {
		t.Fatalf("from %+v", f.Provenance)
	}
	if f.Content != strings.Join(lines[from-1:to], "") {
		t.Errorf("lines %d to %d are not %q", from, to, f.Content)
	}
	wantFrame(t, f, kind, ocp.Provenance{Type: "file", URI: f.URI, Range: f.Provenance[0].Range, By: "beta"})
}

// dispatched gives beta a task and returns its source.
func dispatched(t *testing.T, c *fleet.Ctl, text string) string {
	t.Helper()
	tasks, out := c.Dispatch("beta", "--", text)
	if out.Code != 0 || len(tasks) != 1 {
		t.Fatalf("dispatched: %+v", out)
	}
	return "task:" + tasks[0].Task
}

func TestWhatANodeDidIsFoundByWhomItConcernsThroughKillsOfNodeAndHub(t *testing.T) {
	f := fleet.New(t)
	desk, other := f.Ctl("desk"), f.Ctl("other")
	// The demo agent, whose results name two files.
	beta := f.Node("beta", fleet.Args("--agent", "command", "--", "sh", "-c",
		`"$0" demo-agent | sed 's/^artifacts: none$/artifacts: herd.txt, ledger.txt/'`, fleet.Bin(t, "meshnode")))
	desk.Online("beta")
	for _, c := range []*fleet.Ctl{desk, other} {
		if out := c.Run("context", "consent", "beta", "--scope", "s"); out.Code != 0 {
			t.Fatalf("consent: %+v", out)
		}
	}
	said := fleet.Shell(t, beta.Work, "set -e; meshnode opencomms create review; meshnode opencomms install-member --host opencode;"+
		"meshnode opencomms join review --as opencode --role Builder --prompt builds;"+
		"meshnode opencomms send review --to Builder -- Is the narwhal tank sealed?; echo all said")
	if !strings.HasSuffix(said, "all said\n") {
		t.Fatalf("a channel: %s", said)
	}

	own := dispatched(t, desk, "walrus census: the key is in the blue safe")
	foreign := dispatched(t, other, "walrus menu: no herring on Fridays")
	task := of(t, await(t, "desk's task", asks(desk, "walrus"), from(own)), own)
	wantFrame(t, task, ocp.KindEpisode, ocp.Provenance{Type: "episode", URI: own, By: "beta"})
	if task.Title != "walrus census: the key is in the blue safe (desk → beta, done)" {
		t.Errorf("the title is %q", task.Title)
	}
	if l := task.CitationLabel; !strings.HasPrefix(l, "Task desk → beta, 20") || !strings.HasSuffix(l, ": walrus census: the key is in the blue safe") {
		t.Errorf("the label is %q", l)
	}
	if !strings.Contains(task.Content, "blue safe") || !strings.Contains(task.Content, "Result (done): ") {
		t.Errorf("the content is %q", task.Content)
	}

	// Both are remembered; each controller sees its own.
	scopes := func() {
		t.Helper()
		await(t, "both tasks", owner(beta, "walrus"), from(own, foreign))
		if frames, out := asks(desk, "walrus")(); !slices.Equal(uris(frames), []string{own}) {
			t.Errorf("desk sees %v: %+v", uris(frames), out)
		}
		if frames, out := asks(other, "walrus")(); !slices.Equal(uris(frames), []string{foreign}) {
			t.Errorf("other sees %v: %+v", uris(frames), out)
		}
	}
	scopes()
	threads := await(t, "the thread", owner(beta, "narwhal"), func(frames []ocp.Frame) bool { return len(frames) > 0 })
	wantFrame(t, threads[0], ocp.KindMemory, ocp.Provenance{Type: "episode", By: "Operator"})
	if got := threads[0]; len(threads) != 1 || got.Title != "Is the narwhal tank sealed? (in channel review)" || !strings.Contains(got.Content, "tank sealed?") {
		t.Errorf("of the channel: %+v", threads)
	}
	if frames, out := asks(desk, "narwhal")(); len(frames) > 0 {
		t.Errorf("a controller sees a channel of the node: %+v", out)
	}

	// With both killed, the node alone has what it knew.
	beta.Kill()
	f.Hub.Kill()
	beta.Start()
	await(t, "both tasks without a hub", owner(beta, "walrus"), from(own, foreign))
	f.Hub.Start()
	desk.Online("beta")
	await(t, "desk's task after the kills", asks(desk, "walrus"), from(own))
	scopes()

	f.Hub.Kill()
	f.Hub.Start()
	desk.Online("beta")
	herd := "three bulls\nnine ocelots\n"
	ledger := strings.Repeat("an ocelot was weighed, and all was well\n", 1000)
	for name, text := range map[string]string{"herd.txt": herd, "ledger.txt": ledger} {
		if err := os.WriteFile(filepath.Join(beta.Work, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	late := dispatched(t, desk, "weigh every ocelot")
	frames := await(t, "the task after the hub's kill, with its files", asks(desk, "ocelot"), from(late, "file:herd.txt", "file:ledger.txt"))
	wantFile(t, of(t, frames, "file:herd.txt"), ocp.KindDoc, herd)
	wantFile(t, of(t, frames, "file:ledger.txt"), ocp.KindSnippet, ledger)
	if frames, out := asks(other, "ocelot")(); len(frames) > 0 {
		t.Errorf("another controller sees files of the task: %+v", out)
	}
}
