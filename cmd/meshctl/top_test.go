package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/protocol/api"
)

func TestTopShowsNodesAndOpenTasksAsTheyAre(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "alpha", "beta")
	r := w.Start([]string{"top"}, onTerminal)
	r.Out.AwaitText(t, "2 of 2 nodes online, 0 tasks running")
	w.Want(0, []string{"dispatch", "beta", "--id", "t1", "--detach", "--", "hang"})
	r.Out.AwaitText(t, "1 tasks running")
	r.Out.Await(t, "the task", func(s string) bool { return strings.Contains(s, "running") && strings.Contains(s, "  t1 ") })
	res := r.Stop() // Ctrl-C is its normal end
	if res.Code != 0 || res.Err != "" {
		t.Errorf("exit code %d: %s", res.Code, res.Err)
	}
	if !strings.HasPrefix(res.Out, "\x1b[?1049h\x1b[?25l") || !strings.HasSuffix(res.Out, "\x1b[?25h\x1b[?1049l") {
		t.Errorf("the terminal is not as it was: %q", res.Out)
	}
}

func TestTopIsForTerminalsAndRefusesBeforeItTakesTheScreen(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	wantText(t, w.Want(cli.ExitUsage, []string{"top"}).Err, "needs a terminal", "--json")
	w.Want(cli.ExitUsage, []string{"top", "alpha"}, onTerminal)
	sh := stubHub(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
		_ = json.NewEncoder(w).Encode(api.ErrorBody{Error: api.Errorf(api.CodeRevoked, "gone")})
	})
	if res := sh.Want(cli.ExitNoAccess, []string{"top"}, onTerminal); res.Out != "" || !strings.Contains(res.Err, "revoked") {
		t.Errorf("got %q and %q", res.Out, res.Err)
	}
}

func TestTopGoesOnThroughAnAbsenceOfTheHubAndEndsWithARefusal(t *testing.T) {
	t.Parallel()
	var mode atomic.Value
	mode.Store("there")
	sh := stubHub(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case mode.Load() == "away":
			w.WriteHeader(http.StatusServiceUnavailable)
		case mode.Load() == "revoked":
			w.WriteHeader(http.StatusUnauthorized)
			_ = json.NewEncoder(w).Encode(api.ErrorBody{Error: api.Errorf(api.CodeRevoked, "gone")})
		case r.URL.Path == "/v1/tasks":
			_ = json.NewEncoder(w).Encode(api.TaskPage{})
		default:
			_ = json.NewEncoder(w).Encode(api.NodeList{Nodes: []api.Node{{Name: "alpha", State: api.NodeOnline, Queued: strings.Count(mode.Load().(string), "b")}}})
		}
	})
	r := sh.Start([]string{"top"}, onTerminal)
	r.Out.AwaitText(t, "0 queued")
	mode.Store("away")
	r.Out.AwaitText(t, "connection lost, this is ")
	mode.Store("back")
	r.Out.AwaitText(t, "1 queued")
	mode.Store("revoked")
	if res := r.Wait(); res.Code != cli.ExitNoAccess || !strings.Contains(res.Err, "revoked") || !strings.HasSuffix(res.Out, "\x1b[?1049l") {
		t.Errorf("exit code %d: %s", res.Code, res.Err)
	}
}

func TestTopFitsTheScreenAndShowsTheBusyFirst(t *testing.T) {
	fill := 85
	o := &overview{hub: "laptop", now: sight{at: time.Now()}}
	for i := range 50 {
		n := api.Node{Name: fmt.Sprintf("node-%02d", i), State: api.NodeOnline, Since: time.Now(), Agent: api.AgentStatus{Kind: "opencode", Health: "healthy \x1b[2J" + strings.Repeat("漢", 40)}}
		if i == 33 {
			n.Running, n.CtxPercent = 2, &fill
		} else if i < 10 {
			n.State = api.NodeOffline
		}
		o.now.nodes = append(o.now.nodes, n)
		o.now.tasks = append(o.now.tasks, task(fmt.Sprint("t", i), n.Name, api.StateRunning, "\x1b[31m"+strings.Repeat("long ", 60)))
	}
	for _, width := range []int{1, 20, 80, 200} {
		for _, height := range []int{1, 8, 24, 60} {
			o.style = style{colour: width == 80}
			s := newScreen(width, height)
			for range 2 {
				_, _ = s.Write([]byte(o.paint(width, height)))
			}
			if len(s.lines) > height {
				t.Errorf("%dx%d: %d lines:\n%s", width, height, len(s.lines), s)
			}
		}
	}
	s := newScreen(120, 24)
	_, _ = s.Write([]byte(o.paint(120, 24)))
	wantText(t, s.String(), "40 of 50 nodes online, 2 tasks running", "… and 42 more")
	if lines := strings.Split(s.String(), "\n"); !strings.HasPrefix(lines[3], "node-33 ") || !strings.Contains(lines[3], "85%") || !strings.HasPrefix(lines[4], "node-10 ") {
		t.Errorf("got\n%s", s)
	}
	o.now.nodes, o.now.tasks = o.now.nodes[:1], o.now.tasks[:3]
	s = newScreen(120, 24)
	_, _ = s.Write([]byte(o.paint(120, 24)))
	if got := s.String(); strings.Contains(got, "more") || strings.Count(got, "running") != 4 {
		t.Errorf("got\n%s", got)
	}
	o.trouble = errors.New("no\x1b[2J answer")
	if got := o.paint(120, 24); !strings.Contains(got, "still trying: no answer") {
		t.Errorf("got %q", got)
	}
}
