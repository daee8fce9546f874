package mesh_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"opencode-mesh/protocol/mesh"
)

const sampleQuestion = `[opencode-mesh-question v1]
task: alpha-m5x2k9-7f3q
question: Which database should the migration target?
options: staging | production
[/opencode-mesh-question]
`

func wantQuestion() mesh.Question {
	return mesh.Question{
		Task: "alpha-m5x2k9-7f3q", Text: "Which database should the migration target?",
		Options: []string{"staging", "production"},
	}
}

func TestParseQuestionReads(t *testing.T) {
	with := func(change func(*mesh.Question)) mesh.Question {
		q := mesh.Question{Task: "a-1", Text: "why?"}
		change(&q)
		return q
	}
	plain := with(func(*mesh.Question) {})
	wrap := func(lines string) string {
		return "[opencode-mesh-question v1]\n" + lines + "\n[/opencode-mesh-question]"
	}
	cases := []struct {
		name, text string
		want       mesh.Question
	}{
		{"the sample", sampleQuestion, wantQuestion()},
		{"mixed families and CRLF", "[aoi-mesh-question v1]\r\ntask: a-1\r\nquestion: why?\r\n[/opencode-mesh-question]\r\n", plain},
		{"empty options", wrap("task: a-1\nquestion: why?\noptions:"), plain},
		{"options that say none", wrap("task: a-1\nquestion: why?\noptions: none"), plain},
		{"options with empty items", wrap("task: a-1\nquestion: why?\noptions: | a, b || c |"), with(func(q *mesh.Question) { q.Options = []string{"a, b", "c"} })},
		{"options as a list", wrap("task: a-1\nquestion: why?\noptions:\n- a\n- b: c"), with(func(q *mesh.Question) { q.Options = []string{"a", "b: c"} })},
		{"none among other options", wrap("task: a-1\nquestion: why?\noptions: all | none"), with(func(q *mesh.Question) { q.Options = []string{"all", "none"} })},
		{"several lines", wrap("options: a\nquestion:\n1. why?\r\n2. status: what?\nsummary: x\ntask: a-1"),
			with(func(q *mesh.Question) { q.Text, q.Options = "1. why?\n2. status: what?\nsummary: x", []string{"a"} })},
		{"unknown keys", wrap("urgent: yes\ntask: a-1\nquestion: why?"), with(func(q *mesh.Question) { q.Extra = []mesh.Field{{Key: "urgent", Value: "yes"}} })},
		{"a missing closing tag", "[opencode-mesh-question v1]\ntask: a-1\nquestion: why?", with(func(q *mesh.Question) { q.Unterminated = true })},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := mesh.ParseQuestion(c.text)
			if err != nil {
				t.Fatalf("ParseQuestion: %v", err)
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("question (-want +got):\n%s", d)
			}
		})
	}
}

func TestParseQuestionRefuses(t *testing.T) {
	cases := []struct {
		name, text string
		code       mesh.Code
		line       int
	}{
		{"a result", sampleResult, mesh.CodeNoMarker, 1},
		{"v3", "[aoi-mesh-question v3.1]\n", mesh.CodeUnsupportedVersion, 1},
		{"no task", "[opencode-mesh-question v1]\nquestion: why?\n[/opencode-mesh-question]", mesh.CodeMissingKey, 3},
		{"a bad task id", "[opencode-mesh-question v1]\ntask: a b\nquestion: why?\n[/opencode-mesh-question]", mesh.CodeBadValue, 2},
		{"no question", "[opencode-mesh-question v1]\ntask: a-1\noptions: a\n[/opencode-mesh-question]", mesh.CodeMissingKey, 4},
		{"an empty question", "[opencode-mesh-question v1]\ntask: a-1\nquestion:\n\noptions: a\n[/opencode-mesh-question]", mesh.CodeMissingKey, 3},
		{"text after", sampleQuestion + "x", mesh.CodeMalformed, 6},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := mesh.ParseQuestion(c.text)
			wantSyntaxError(t, err, c.code, c.line)
		})
	}
}

func TestFormatQuestionWritesTheSample(t *testing.T) {
	got, err := wantQuestion().Format()
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(sampleQuestion, got); d != "" {
		t.Errorf("text (-want +got):\n%s", d)
	}
}

func TestFormatQuestionRefusesWhatWouldNotParseBack(t *testing.T) {
	cases := []struct {
		name   string
		change func(*mesh.Question)
		code   mesh.Code
		line   int
	}{
		{"a bad task id", func(q *mesh.Question) { q.Task = "" }, mesh.CodeBadValue, 0},
		{"an empty question", func(q *mesh.Question) { q.Text = "" }, mesh.CodeMissingKey, 0},
		{"a line that reads as a key", func(q *mesh.Question) { q.Text = "why?\noptions: a" }, mesh.CodeBadValue, 2},
		{"a line that reads as a tag", func(q *mesh.Question) { q.Text = "why?\n[opencode-mesh v1]" }, mesh.CodeBadValue, 2},
		{"an option with a bar", func(q *mesh.Question) { q.Options = []string{"a|b"} }, mesh.CodeBadValue, 0},
		{"an empty option", func(q *mesh.Question) { q.Options = []string{""} }, mesh.CodeBadValue, 0},
		{"an option of two lines", func(q *mesh.Question) { q.Options = []string{"a\nb"} }, mesh.CodeBadValue, 0},
		{"a known key as an unknown one", func(q *mesh.Question) { q.Extra = []mesh.Field{{Key: "Question"}} }, mesh.CodeBadValue, 0},
		{"a text over 1 MiB", func(q *mesh.Question) { q.Text = strings.Repeat("x", mesh.MaxTextBytes) }, mesh.CodeTooLarge, 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			q := wantQuestion()
			c.change(&q)
			_, err := q.Format()
			wantSyntaxError(t, err, c.code, c.line)
		})
	}
}
