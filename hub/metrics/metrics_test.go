package metrics_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"opencode-mesh/hub/metrics"
	"opencode-mesh/protocol/api"
)

func newMetrics() *metrics.Metrics {
	return metrics.New("1.2.3", metrics.Gauges{
		NodesOnline: func() float64 { return 3 },
		OpenTasks:   func() map[api.State]int { return map[api.State]int{api.StateQueued: 2} },
		MailWaiting: func() (float64, float64) { return 4, 5 },
		Subscribers: func() float64 { return 1 },
		Writable:    func() float64 { return 0 },
	})
}

// scrape reads the metrics as a scraper does.
func scrape(t *testing.T, m *metrics.Metrics) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	b, err := io.ReadAll(w.Body)
	if err != nil || w.Code != http.StatusOK {
		t.Fatalf("%d, %v", w.Code, err)
	}
	return string(b)
}

func want(t *testing.T, text string, lines ...string) {
	t.Helper()
	for _, l := range lines {
		if !strings.Contains(text, "\n"+l+"\n") {
			t.Errorf("no line %q", l)
		}
	}
}

func TestGaugesAreReadWhenSomebodyScrapes(t *testing.T) {
	want(t, scrape(t, newMetrics()),
		"mesh_nodes_online 3", "mesh_event_subscribers 1", "mesh_store_writable 0",
		"mesh_mail_waiting 4", "mesh_mail_receipts_waiting 5", `mesh_tasks_open{state="queued"} 2`, `mesh_build_info{version="1.2.3"} 1`)
}

func TestEventsAreCounted(t *testing.T) {
	m := newMetrics()
	m.Settled(api.StateFailed, api.TaskDeadline, 3*time.Second)
	m.Settled(api.StateDone, "", time.Second)
	m.Offered("taken")
	m.Offered("lost")
	m.Offered(string(api.CodeNodeFull))
	m.LateResult("after_end")
	m.LoginRefused("password")
	m.Superseded()
	m.Forked()
	m.Request("/v1/tasks", http.MethodGet, 200, time.Millisecond, false)
	m.Request("/v1/events", http.MethodGet, 200, time.Hour, true)
	text := scrape(t, m)
	want(t, text,
		`mesh_tasks_settled_total{code="deadline",state="failed"} 1`, `mesh_tasks_settled_total{code="",state="done"} 1`, "mesh_task_seconds_count 2",
		`mesh_offers_total{result="taken"} 1`, `mesh_offers_total{result="lost"} 1`, `mesh_offers_total{result="node_full"} 1`,
		`mesh_late_results_total{reason="after_end"} 1`, `mesh_logins_refused_total{reason="password"} 1`,
		"mesh_nodes_superseded_total 1", "mesh_journals_forked_total 1",
		`mesh_http_requests_total{code="200",method="GET",route="/v1/events"} 1`, `mesh_http_request_seconds_count{route="/v1/tasks"} 1`)
	if strings.Contains(text, `mesh_http_request_seconds_count{route="/v1/events"}`) {
		t.Error("a stream counts as a slow request")
	}
}

func TestWhatNodesMakeUpBecomesNoLabel(t *testing.T) {
	m := newMetrics()
	for _, made := range []string{"made-up", "\x1b[2J", strings.Repeat("x", 100)} {
		m.Settled(api.StateFailed, made, time.Second)
		m.Offered(made)
	}
	want(t, scrape(t, m), `mesh_tasks_settled_total{code="other",state="failed"} 3`, `mesh_offers_total{result="other"} 3`)
}

func TestEveryCodeOfATaskIsALabelOfItsOwn(t *testing.T) {
	m := newMetrics()
	codes := []string{
		api.TaskDeadline, api.TaskInterrupted, api.TaskNodeLost, api.TaskJournalLost, api.TaskTooOld, api.TaskResultRejected,
		api.TaskTargetReplaced, api.TaskTargetRevoked, api.TaskControllerGone, api.TaskRefused, api.TaskHeldTooLong,
		api.TaskAgentUnavailable, api.TaskNotStarted, api.TaskExitCode, api.TaskOutputLimit, api.TaskBadWorkspace, api.TaskConflict,
	}
	for _, c := range codes {
		m.Settled(api.StateFailed, c, 0)
	}
	text := scrape(t, m)
	for _, c := range codes {
		want(t, text, `mesh_tasks_settled_total{code="`+c+`",state="failed"} 1`)
	}
}

func TestMailIsCountedWhenItIsTakenAndWhenItEnds(t *testing.T) {
	m := newMetrics()
	m.MailTaken()
	m.MailTaken()
	m.MailEnded(api.MailDelivered)
	m.MailEnded(api.MailReturned)
	want(t, scrape(t, m), "mesh_mail_taken_total 2", `mesh_mail_ended_total{state="delivered"} 1`, `mesh_mail_ended_total{state="returned"} 1`)
}
