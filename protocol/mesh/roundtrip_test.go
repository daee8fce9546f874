package mesh_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"opencode-mesh/protocol/mesh"
)

// The generators below draw valid values that look as much like structure as a
// valid value can: keys, tags, colons, dashes and control characters everywhere.

var awkward = []string{
	"task:", "subtask: x", "status：", "summary", "facts:", "pending", "[opencode-mesh v1]", "[/aoi-mesh-result]", "[opencode-mesh-digest v2]",
	"[·opencode-mesh v1]", "---", "- ", "-", "：", ":", ",", "|", "\r", "\t", " ", "\uFEFF", "\u200B", "none", "> ", "```", "界", "\x1b[0m", "\xff", "·",
}

// word draws text without line feeds and outer blanks; it may be empty.
func word() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		parts := rapid.SliceOfN(rapid.OneOf(rapid.SampledFrom(awkward), rapid.StringN(0, 8, 16)), 0, 5).Draw(t, "parts")
		return strings.TrimSpace(strings.ReplaceAll(strings.Join(parts, ""), "\n", ""))
	})
}

// item draws an item of a list that is separated by sep.
func item(sep string) *rapid.Generator[string] {
	return word().Filter(func(s string) bool {
		return s != "" && !strings.Contains(s, sep) && !strings.HasPrefix(s, "- ") && !strings.EqualFold(s, "none")
	})
}

func list(sep string) *rapid.Generator[[]string] {
	return rapid.Custom(func(t *rapid.T) []string {
		items := rapid.SliceOfN(item(sep), 0, 4).Draw(t, "items")
		if len(items) == 0 {
			return nil
		}
		return items
	})
}

// prose draws text of several lines that a block can carry.
func prose() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		lines := rapid.SliceOfN(word(), 0, 5).Draw(t, "lines")
		s := mesh.QuoteSummary(strings.Join(lines, "\n"))
		for _, key := range []string{"gen", "facts", "pending", "refs"} {
			for _, line := range strings.Split(s, "\n") {
				if head := strings.ToLower(strings.TrimSpace(line)); strings.HasPrefix(head, key) {
					return "quoted: " + strings.ReplaceAll(s, "\n", "\n> ")
				}
			}
		}
		return s
	})
}

func extras() *rapid.Generator[[]mesh.Field] {
	return rapid.Custom(func(t *rapid.T) []mesh.Field {
		var fields []mesh.Field
		for _, key := range rapid.SliceOfNDistinct(rapid.StringMatching(`x[a-z：-]{1,8}`), 0, 4, rapid.ID).Draw(t, "keys") {
			fields = append(fields, mesh.Field{Key: key, Value: word().Draw(t, "value")})
		}
		return fields
	})
}

func taskID() *rapid.Generator[string] {
	return rapid.StringMatching(`[A-Za-z0-9][A-Za-z0-9._-]{0,63}`)
}

func TestEnvelopesComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := mesh.Envelope{
			From:  rapid.StringMatching(`[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?`).Draw(t, "from"),
			Task:  taskID().Draw(t, "task"),
			Mode:  rapid.SampledFrom([]mesh.Mode{mesh.ModeOneShot, mesh.ModeSession, mesh.ModeResume}).Draw(t, "mode"),
			Reply: rapid.SampledFrom([]string{mesh.ReplyResultBlock, "json: 1"}).Draw(t, "reply"),
			Env:   word().Draw(t, "env"),
			Via:   list(",").Draw(t, "via"),
			Extra: extras().Draw(t, "extra"),
			Body:  strings.Join(rapid.SliceOf(rapid.OneOf(word(), rapid.SampledFrom([]string{"\n", "\r\n", sample}))).Draw(t, "body"), ""),
		}
		comesBack(t, want, want.Format, mesh.ParseEnvelope)
	})
}

func TestResultsComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := mesh.Result{
			Task:      taskID().Draw(t, "task"),
			Status:    rapid.SampledFrom([]mesh.Status{mesh.StatusDone, mesh.StatusPartial, mesh.StatusFailed}).Draw(t, "status"),
			Summary:   prose().Draw(t, "summary"),
			Artifacts: list(",").Draw(t, "artifacts"),
			Extra:     extras().Draw(t, "extra"),
		}
		comesBack(t, want, want.Format, mesh.ParseResult)
	})
}

func TestQuestionsComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := mesh.Question{
			Task:    taskID().Draw(t, "task"),
			Text:    prose().Filter(func(s string) bool { return s != "" }).Draw(t, "text"),
			Options: list("|").Draw(t, "options"),
			Extra:   extras().Draw(t, "extra"),
		}
		comesBack(t, want, want.Format, mesh.ParseQuestion)
	})
}

func TestDigestsComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := prose().Filter(func(s string) bool { return !strings.EqualFold(s, "none") })
		want := mesh.Digest{
			Task:    taskID().Draw(t, "task"),
			Gen:     rapid.IntRange(0, 999_999_999).Draw(t, "gen"),
			Pending: text.Draw(t, "pending"),
			Refs:    text.Draw(t, "refs"),
			Extra:   extras().Draw(t, "extra"),
		}
		if facts := rapid.SliceOfN(word().Filter(func(s string) bool { return s != "" }), 0, 5).Draw(t, "facts"); len(facts) > 0 {
			want.Facts = facts
		}
		comesBack(t, want, want.Format, mesh.ParseDigest)
	})
}

// comesBack formats a value and parses it, alone and with CRLF line ends where
// they make no difference.
func comesBack[T any](t *rapid.T, want T, format func() (string, error), parse func(string) (T, error)) {
	t.Helper()
	text, err := format()
	if err != nil {
		t.Fatalf("format: %v", err)
	}
	got, err := parse(text)
	if err != nil {
		t.Fatalf("parse %q: %v", text, err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Fatalf("it changed by way of %q (-want +got):\n%s", text, d)
	}
}

func TestRepliesAreFoundAmongProse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := mesh.Result{
			Task:    taskID().Filter(func(id string) bool { return id != "other.task" }).Draw(t, "task"),
			Status:  mesh.StatusDone,
			Summary: prose().Draw(t, "summary"),
		}
		block, err := want.Format()
		if err != nil {
			t.Fatal(err)
		}
		noise := rapid.SliceOfN(rapid.OneOf(word(), rapid.SampledFrom([]string{
			resultFor("other.task", "done", "x"), sample, "```", "[/opencode-mesh-result]", resultFor("other.task", "?", "x"),
		})), 0, 4)
		text := strings.Join(noise.Draw(t, "before"), "\n") + "\n" + block + strings.Join(noise.Draw(t, "after"), "\n")
		got := mesh.ReadReply(want.Task, text)
		if d := cmp.Diff(want, got.Result); d != "" {
			t.Fatalf("it was not found in %q (-want +got):\n%s", text, d)
		}
	})
}

func TestDefusingIsReversible(t *testing.T) {
	pieces := append([]string{"[", "<", "［", "【", "·", "/", "opencode", "aoi", "-mesh", " v1", "]", "ｏｐｅｎ", "frame", "<<<", "UNTRUSTED_", "PEER_MESSAGE", "MESH_DATA", "END_", "\n"}, awkward...)
	rapid.Check(t, func(t *rapid.T) {
		text := strings.Join(rapid.SliceOf(rapid.SampledFrom(pieces)).Draw(t, "pieces"), "")
		out, _ := mesh.Defuse(text)
		if back := mesh.Undefuse(out); back != text {
			t.Fatalf("%q came back as %q by way of %q", text, back, out)
		}
		if _, n := mesh.Defuse(out); n != 0 {
			t.Fatalf("%d live markers are left in %q", n, out)
		}
	})
}
