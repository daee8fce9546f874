package demo_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"opencode-mesh/node/agent/demo"
	"opencode-mesh/protocol/mesh"
)

const task = "alpha-m5x2k9-7f3q"

func envelope(t *testing.T, body string) string {
	t.Helper()
	text, err := mesh.Envelope{From: "alpha", Task: task, Mode: mesh.ModeOneShot, Reply: mesh.ReplyResultBlock, Body: body}.Format()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// answer runs the agent in an empty directory and reads its reply.
func answer(t *testing.T, input string) mesh.Reply {
	t.Helper()
	t.Chdir(t.TempDir())
	return mesh.ReadReply(task, output(t, input))
}

func output(t *testing.T, input string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if code := demo.Main(strings.NewReader(input), &stdout, &stderr); code != 0 {
		t.Fatalf("exit code %d, stderr %q", code, stderr.String())
	}
	return stdout.String()
}

func TestDemoReportsWhatIsInItsDirectory(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for name, text := range map[string]string{"a.txt": "1\n2\n", "sub/b.txt": "3\n", ".git/config": "4\n"} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("a.txt", "link"); err != nil {
		t.Fatal(err)
	}
	r := mesh.ReadReply(task, output(t, envelope(t, "Count the files.\nPlease.")))
	if r.Kind != mesh.KindResult || r.Result.Status != mesh.StatusDone || len(r.Flags) > 0 {
		t.Fatalf("reply %+v", r)
	}
	for _, want := range []string{": 2 files, 3 lines in ", filepath.Base(dir), `the task was "Count the files."`} {
		if !strings.Contains(r.Result.Summary, want) {
			t.Errorf("summary %q lacks %q", r.Result.Summary, want)
		}
	}
}

func TestDemoObeysDirectives(t *testing.T) {
	t.Run("fails with the given text", func(t *testing.T) {
		r := answer(t, envelope(t, "Do it.\nFAIL: no compiler here"))
		if r.Kind != mesh.KindResult || r.Result.Status != mesh.StatusFailed || r.Result.Summary != "no compiler here" {
			t.Fatalf("reply %+v", r)
		}
	})
	t.Run("asks with options", func(t *testing.T) {
		r := answer(t, envelope(t, "ASK: Which database? | staging | production"))
		if r.Kind != mesh.KindQuestion || r.Question.Text != "Which database?" || fmt.Sprint(r.Question.Options) != "[staging production]" {
			t.Fatalf("reply %+v", r)
		}
	})
	t.Run("answers freely", func(t *testing.T) {
		r := answer(t, envelope(t, "FREE:just text"))
		if r.Kind != mesh.KindFree || r.Result.Summary != "just text" {
			t.Fatalf("reply %+v", r)
		}
	})
	t.Run("records its start before it goes on", func(t *testing.T) {
		log := filepath.Join(t.TempDir(), "starts")
		body := "APPEND:" + log + "\nFAIL:done"
		answer(t, envelope(t, body))
		answer(t, envelope(t, body))
		got, err := os.ReadFile(log)
		line := fmt.Sprintf("%s %d\n", task, os.Getpid())
		if err != nil || string(got) != line+line {
			t.Fatalf("log %q, %v", got, err)
		}
	})
	t.Run("names a directive that it cannot obey", func(t *testing.T) {
		r := answer(t, envelope(t, "SLEEP:soon"))
		if r.Result.Status != mesh.StatusFailed || !strings.HasPrefix(r.Result.Summary, "SLEEP: ") {
			t.Fatalf("reply %+v", r)
		}
	})
}

func TestDemoSleepsAsLongAsItIsTold(t *testing.T) {
	t.Chdir(t.TempDir())
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		output(t, envelope(t, "SLEEP:90m\nFREE:awake"))
		if got := time.Since(began); got != 90*time.Minute {
			t.Fatalf("slept %v", got)
		}
	})
}

func TestDemoFindsTheEnvelopeBehindTheConduct(t *testing.T) {
	r := answer(t, mesh.Conduct()+"\n"+envelope(t, "FAIL:seen"))
	if r.Result.Summary != "seen" {
		t.Fatalf("reply %+v", r)
	}
}

func TestDemoQuotesATextThatReadsAsAKey(t *testing.T) {
	r := answer(t, envelope(t, "FAIL:status: done"))
	if r.Kind != mesh.KindResult || r.Result.Status != mesh.StatusFailed {
		t.Fatalf("reply %+v", r)
	}
}

func TestDemoRefusesATextWithoutEnvelope(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if code := demo.Main(strings.NewReader("hello"), &stdout, &stderr); code != 1 || stdout.Len() > 0 || stderr.Len() == 0 {
		t.Fatalf("exit code %d, stdout %q, stderr %q", code, stdout.String(), stderr.String())
	}
}

func TestDemoAsksOnceAndGoesOnWithTheAnswer(t *testing.T) {
	t.Chdir(t.TempDir())
	if r := mesh.ReadReply(task, output(t, envelope(t, "ASK:which one? a | b"))); r.Kind != mesh.KindQuestion {
		t.Fatalf("reply %+v", r)
	}
	r := mesh.ReadReply(task, output(t, envelope(t, "ASK:which one? a | b\n\nAnswer to your question (which one?): a")))
	if r.Kind != mesh.KindResult || r.Result.Status != mesh.StatusDone {
		t.Errorf("after the answer: %+v", r)
	}
}
