package main

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/cmd/internal/clitest"
	"opencode-mesh/protocol/api"
)

// screen is a terminal, as far as the table needs one: lines that break at the
// width, movement up, erasure. Colours are dropped.
type screen struct {
	width, height int
	lines         [][]rune // a wide character is followed by a 0
	row, col      int
}

func newScreen(width, height int) *screen {
	return &screen{width: width, height: height, lines: [][]rune{nil}}
}

// Write implements io.Writer.
func (s *screen) Write(p []byte) (int, error) {
	text := []rune(string(p))
	for i := 0; i < len(text); i++ {
		switch r := text[i]; r {
		case '\n':
			s.row, s.col = s.row+1, 0
			for s.row >= len(s.lines) {
				s.lines = append(s.lines, nil)
			}
		case '\r':
			s.col = 0
		case '\x1b':
			j := i + 2
			for text[j] < '@' {
				j++
			}
			s.control(string(text[i+2:j]), text[j])
			i = j
		default:
			s.put(r)
		}
	}
	return len(p), nil
}

func (s *screen) control(arg string, final rune) {
	n, _ := strconv.Atoi(arg)
	switch final {
	case 'A':
		s.row = max(s.row-n, 0, len(s.lines)-s.height)
	case 'K':
		s.lines[s.row] = s.lines[s.row][:min(s.col, len(s.lines[s.row]))]
	case 'J':
		s.control("", 'K')
		s.lines = s.lines[:s.row+1]
	case 'H':
		s.row, s.col = max(0, len(s.lines)-s.height), 0
	case 'm', 'h', 'l': // colours, modes
	default:
		panic(fmt.Sprintf("a terminal that cannot do %q %q", arg, final))
	}
}

func (s *screen) put(r rune) {
	if s.col+cells(r) > s.width {
		_, _ = s.Write([]byte("\n"))
	}
	line := s.lines[s.row]
	for len(line) <= s.col+cells(r)-1 {
		line = append(line, ' ')
	}
	line[s.col] = r
	if cells(r) == 2 {
		line[s.col+1] = 0
	}
	s.lines[s.row] = line
	s.col += cells(r)
}

// resize breaks the lines anew, as terminals do that reflow.
func (s *screen) resize(width int) {
	old := s.lines
	*s = *newScreen(width, s.height)
	for i, line := range old {
		if i > 0 {
			_, _ = s.Write([]byte("\n"))
		}
		_, _ = s.Write([]byte(strings.ReplaceAll(string(line), "\x00", "")))
	}
}

func (s *screen) String() string {
	var out []string
	for _, line := range s.lines {
		out = append(out, strings.TrimRight(strings.ReplaceAll(string(line), "\x00", ""), " "))
	}
	return strings.TrimRight(strings.Join(out, "\n"), "\n")
}

// pictured is a picture on a screen.
func pictured(s *screen, colour bool, tasks ...api.Task) *picture {
	app := &cli.App{Stdout: s, Stderr: s, StdoutTerminal: true, Size: func() (int, int) { return s.width, s.height }}
	p := &picture{m: NewMain(app), style: style{colour}, start: time.Now(), tasks: map[string]api.Task{}}
	for _, t := range tasks {
		p.order = append(p.order, t.Task)
		p.tasks[t.Task] = t
	}
	return p
}

func task(id, target string, state api.State, summary string) api.Task {
	created := time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC)
	t := api.Task{Task: id, Target: target, State: state, Summary: summary, CreatedAt: created}
	if state.Settled() {
		ended := created.Add(12 * time.Second)
		t.EndedAt = &ended
	}
	return t
}

func TestTheTableIsPaintedOverItself(t *testing.T) {
	s := newScreen(60, 24)
	_, _ = s.Write([]byte("$ meshctl\n"))
	p := pictured(s, true, task("t1", "alpha", api.StateRunning, ""), task("t2", "beta", api.StateDone, "all well"))
	for range 3 {
		p.draw()
	}
	want := "$ meshctl\n⠙ alpha          running       0s\n• beta           done         12s  all well"
	if got := s.String(); strings.Replace(got, string(spinner[0]), string(spinner[1]), 1) != want {
		t.Fatalf("got\n%s", got)
	}
	fill := 85
	done := task("t1", "alpha", api.StateFailed, "broken")
	done.CtxPercent = &fill
	p.tasks["t1"] = done
	p.draw()
	wantText(t, s.String(), "• alpha          failed       12s  ctx 85%  broken")
	p.erase()
	if got := s.String(); got != "$ meshctl" {
		t.Errorf("after erasure:\n%s", got)
	}
}

func TestRowsFitTheTerminalWhateverTheySay(t *testing.T) {
	for _, width := range []int{1, 2, 5, 16, 17, 30, 40, 41, 60, 200} {
		for _, summary := range []string{"", "short", strings.Repeat("long ", 50), strings.Repeat("漢字", 60), "e\u0301a\u0301", "🙂🙂🙂🙂🙂🙂🙂🙂🙂🙂🙂🙂🙂🙂🙂🙂🙂🙂🙂", "\x1b[2J\x07\r\nx"} {
			s := newScreen(width, 24)
			fill := 100
			row := task("t1", strings.Repeat("n", 32), api.StateQuestion, summary)
			row.CtxPercent = &fill
			p := pictured(s, true, row)
			p.draw()
			p.draw()
			if got := s.String(); strings.Contains(got, "\n") {
				t.Errorf("width %d, %q: more than a line:\n%s", width, summary, got)
			}
			if len(p.drawn) != 1 || p.drawn[0] > max(width-1, 0) {
				t.Errorf("width %d, %q: %v cells", width, summary, p.drawn)
			}
		}
	}
}

func TestTheTableSurvivesAResize(t *testing.T) {
	for _, to := range []int{30, 47, 79, 120} {
		s := newScreen(80, 24)
		_, _ = s.Write([]byte("$ meshctl\n"))
		p := pictured(s, false, task("t1", "alpha", api.StateDone, strings.Repeat("x", 200)), task("t2", "beta", api.StateDone, "短い要約、それだけ。"+strings.Repeat("要約", 30)))
		p.draw()
		s.resize(to)
		p.draw()
		if got := strings.Split(s.String(), "\n"); len(got) != 3 || got[0] != "$ meshctl" || !strings.HasPrefix(got[1], "• alpha") || !strings.HasPrefix(got[2], "• beta") {
			t.Errorf("80 to %d:\n%s", to, s)
		}
	}
}

func TestManyTargetsShowThoseThatGoOnAndSumUpTheRest(t *testing.T) {
	s := newScreen(60, 10)
	var tasks []api.Task
	for i := range 100 {
		state := api.StateDone
		if i%20 == 7 {
			state = api.StateRunning
		} else if i%10 == 3 {
			state = api.StateFailed
		}
		tasks = append(tasks, task(fmt.Sprint("t", i), fmt.Sprint("node-", i), state, ""))
	}
	p := pictured(s, false, tasks...)
	for range 3 {
		p.draw()
	}
	lines := strings.Split(s.String(), "\n")
	if len(lines) != 9 {
		t.Fatalf("%d lines:\n%s", len(lines), s)
	}
	wantText(t, s.String(), "node-7 ", "node-27", "node-47", "node-67", "node-87", "… and 92 more: 10 failed, 82 done")
}

func TestColoursFollowStateAndFill(t *testing.T) {
	s := style{colour: true}
	for state, code := range map[api.State]string{
		api.StateDone: "\x1b[32m", api.StateFailed: "\x1b[31m", api.StatePartial: "\x1b[33m", api.StateUnknown: "\x1b[33m", api.StateRunning: "running",
	} {
		if got := s.state(state); !strings.HasPrefix(got, code) {
			t.Errorf("%s: %q", state, got)
		}
	}
	for percent, code := range map[int]string{0: "ctx", 59: "ctx", 60: "\x1b[33m", 79: "\x1b[33m", 80: "\x1b[31m", 100: "\x1b[31m"} {
		if got := s.ctx(&percent); !strings.HasPrefix(got, code) {
			t.Errorf("%d%%: %q", percent, got)
		}
	}
	if got := s.ctx(nil); got != "-" {
		t.Errorf("unknown fill: %q", got)
	}
}

func TestOnATerminalTheTableMakesRoomForTheResults(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "alpha")
	run := func(env ...string) (raw, left string) {
		raw = w.Want(0, []string{"dispatch", "alpha", "--", "do it well"}, onTerminal, func(app *cli.App) { app.Env = append(app.Env, env...) }).Out
		s := newScreen(80, 24)
		_, _ = s.Write([]byte(raw))
		return raw, s.String()
	}
	raw, left := run()
	if lines := strings.Split(left, "\n"); len(lines) != 3 || !strings.HasPrefix(left, "alpha  done") || lines[1] != "  it well" {
		t.Errorf("left on the screen:\n%s", left)
	}
	wantText(t, raw, "\x1b[32mdone\x1b[0m", "\x1b[33mctx 65%\x1b[0m")
	t.Run("without colours if NO_COLOR says so", func(t *testing.T) {
		if raw, _ := run("NO_COLOR=1"); strings.Contains(raw, "\x1b[32m") || strings.Contains(raw, "\x1b[0m") {
			t.Errorf("got %q", raw)
		}
		if raw, _ := run("NO_COLOR="); !strings.Contains(raw, "\x1b[32m") {
			t.Errorf("an empty NO_COLOR counts: %q", raw)
		}
	})
}

func TestNoticesStandAboveTheTable(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "alpha")
	s := clitest.NewBuffer()
	r := w.Start([]string{"dispatch", "alpha", "--id", "t1", "--", "hang"}, onTerminal, func(app *cli.App) { app.Stdout, app.Stderr = s, s })
	s.AwaitText(t, "running")
	w.hub.Restart()
	s.AwaitText(t, "still trying")
	s.AwaitText(t, "the hub is back")
	r.Interrupt()
	if res := r.Wait(); res.Code != cli.ExitWaiting {
		t.Errorf("exit code %d", res.Code)
	}
	picture := newScreen(200, 24)
	_, _ = picture.Write([]byte(s.String()))
	if got := picture.String(); !strings.Contains(got, "still trying") || !strings.Contains(got, "still running: t1") || strings.Contains(got, "⠋") {
		t.Errorf("left on the screen:\n%s", got)
	}
}
