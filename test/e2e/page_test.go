package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"opencode-mesh/protocol/api"
	"opencode-mesh/test/fleet"
	"opencode-mesh/test/stubllm"
)

// typed is a command of a page and what the page says it prints.
type typed struct {
	command string
	output  []string
}

// consoles reads the console blocks of a page.
func consoles(t *testing.T, page string) (all []typed) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(page)))
	if err != nil {
		t.Fatal(err)
	}
	inside := false
	for line := range strings.Lines(string(raw)) {
		line = strings.TrimRight(line, "\n")
		command, isCommand := strings.CutPrefix(line, "$ ")
		switch {
		case strings.HasPrefix(line, "```"):
			inside = line == "```console"
		case inside && isCommand:
			all = append(all, typed{command: command})
		case inside && len(all) > 0:
			last := &all[len(all)-1]
			last.output = append(last.output, line)
		}
	}
	return all
}

// ids are what a page shows of one run and what differs in the next.
var ids = regexp.MustCompile(`\b(?:sess?_\w+|(?:ocm|chn)_[0-9a-f]{32}|me-[0-9a-z]{8}-[0-9a-z]{4})\b`)

// passing is what is not compared: dates, times and durations, and which of the states
// of a task under way it is in.
var passing = regexp.MustCompile(`\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d|\b(?:\d+h)?(?:\d+m)?\d+(?:\.\d+)?(?:ms|s)\b|\b(?:offered|accepted|running)\b`)

// plain is a line without what differs from run to run, the blanks of columns included.
func plain(line string) string {
	line = ids.ReplaceAllString(line, "ID")
	line = passing.ReplaceAllString(line, "")
	return strings.Join(strings.Fields(line), " ")
}

// page runs the commands of a page one after the other.
type page struct {
	shell func(line string) string
	real  map[string]string // what an id of the page is in this run
}

// run runs a command and compares what it prints, the line "…" standing for any lines.
func (p *page) run(t *testing.T, c typed) {
	t.Helper()
	command := ids.ReplaceAllStringFunc(c.command, func(id string) string {
		if now, ok := p.real[id]; ok {
			return now
		}
		t.Errorf("%s: no output above shows %s", c.command, id)
		return id
	})
	got := strings.Split(strings.TrimRight(p.shell(command), "\n"), "\n")
	at := 0
	for i, want := range c.output {
		if want == "…" {
			continue
		}
		open := i > 0 && c.output[i-1] == "…"
		for open && at < len(got) && plain(got[at]) != plain(want) {
			at++
		}
		if at >= len(got) || plain(got[at]) != plain(want) {
			t.Fatalf("$ %s\nprinted\n%s\nand not, as the page says,\n%s\n(at %q)", command, strings.Join(got, "\n"), strings.Join(c.output, "\n"), want)
		}
		shown, now := ids.FindAllString(want, -1), ids.FindAllString(got[at], -1)
		for j, id := range shown {
			if known, ok := p.real[id]; ok && known != now[j] {
				t.Errorf("$ %s: %s is %s here and was %s above", command, id, now[j], known)
			}
			p.real[id] = now[j]
		}
		at++
	}
	if n := len(c.output); at < len(got) && (n == 0 || c.output[n-1] != "…") && got[at] != "" {
		t.Fatalf("$ %s\nprints more than the page says:\n%s", command, strings.Join(got[at:], "\n"))
	}
}

// TestTheExampleOfTheSessionsPageWorksAsPrinted runs every command of a console block.
func TestTheExampleOfTheSessionsPageWorksAsPrinted(t *testing.T) {
	t.Parallel()
	llm := stubllm.Start(t)
	server := served(t, llm)
	f := fleet.New(t)
	desktop := f.Node("desktop", using(server))
	ctl := f.Ctl("me")
	ctl.Healthy("desktop")
	result := func(status, summary, artifacts string) string {
		return fmt.Sprintf(`REPLY:[opencode-mesh-result v1]\ntask: {task}\nstatus: %s\nsummary: %s\nartifacts: %s\n[/opencode-mesh-result]`, status, summary, artifacts)
	}
	// What the agent does in the example; the newest direction that fits counts.
	for _, d := range []struct{ text, directives string }{
		{"build it", "USAGE:31800,200 " + result("done", "built with build.sh, the program is out/shop", "none")},
		{"run the tests", "USAGE:123800,200 " + result("done", "214 tests pass", "none")},
		{"Release the shop", `USAGE:124000,200 REPLY:[opencode-mesh-question v1]\ntask: {task}\nquestion: Which branch shall I release?\noptions: main | release/7\n[/opencode-mesh-question]`},
		{"release/7", "USAGE:124400,200 " + result("done", "released 7.0.1 from release/7", "none")},
		{"the report", "USAGE:19000,200 TOOL:mkdir -p out && echo 214 tests pass, 7.0.1 is out > out/report.txt\n" + result("done", "the report is written", "out/report.txt")},
	} {
		defer llm.Direct(has(d.text), d.directives)()
	}
	defer llm.Direct(condenses(""), "FACTS:build with build.sh, the program is out/shop | releases come from release/7")()
	defer llm.Direct(resumes(""), "USAGE:17800,200 "+acknowledged)()

	dir := t.TempDir()
	p := &page{shell: func(line string) string { return ctl.Shell(dir, line) }, real: map[string]string{}}
	commands := consoles(t, "docs/sessions.md")
	if len(commands) < 10 {
		t.Errorf("only %d commands are on the page", len(commands))
	}
	for _, c := range commands {
		p.run(t, c)
	}
	if n := ctl.Online("desktop"); n.State != api.NodeOnline || desktop.Ended() {
		t.Errorf("%+v", n)
	}
}
