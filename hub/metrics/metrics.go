// Package metrics counts what a hub does, for Prometheus. Every label comes from
// a closed set (states, codes, route patterns), so the number of series is
// bounded whatever clients send.
package metrics

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"opencode-mesh/protocol/api"
)

// Metrics is the hub's set. Safe for concurrent use. It is the relay's Observer.
type Metrics struct {
	reg        *prometheus.Registry
	settled    *prometheus.CounterVec
	offers     *prometheus.CounterVec
	late       *prometheus.CounterVec
	logins     *prometheus.CounterVec
	requests   *prometheus.CounterVec
	seconds    *prometheus.HistogramVec
	mailTaken  prometheus.Counter
	mailEnded  *prometheus.CounterVec
	cuts       *prometheus.CounterVec
	superseded prometheus.Counter
	forked     prometheus.Counter
	taskTime   prometheus.Histogram
}

// Gauges are read when somebody scrapes.
type Gauges struct {
	NodesOnline func() float64
	OpenTasks   func() map[api.State]int
	// MailWaiting counts mails on their way and receipts for their senders.
	MailWaiting func() (mails, receipts float64)
	Subscribers func() float64
	Writable    func() float64
}

// New registers the hub's metrics in a registry of their own.
func New(version string, g Gauges) *Metrics {
	m := &Metrics{
		reg: prometheus.NewRegistry(),
		settled: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "mesh_tasks_settled_total", Help: "Tasks that reached their end, by state and by the mesh's code if it was the cause."}, []string{"state", "code"}),
		offers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "mesh_offers_total", Help: "Offers to nodes by outcome."}, []string{"result"}),
		late: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "mesh_late_results_total", Help: "Results that came after their task had ended."}, []string{"reason"}),
		logins: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "mesh_logins_refused_total", Help: "Refused logins and joins by reason."}, []string{"reason"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "mesh_http_requests_total", Help: "Requests by route pattern and status."}, []string{"route", "method", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "mesh_http_request_seconds", Help: "Duration of requests that are not streams.", Buckets: prometheus.ExponentialBuckets(0.0005, 4, 8)}, []string{"route"}),
		mailTaken: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "mesh_mail_taken_total", Help: "Mails of nodes that the hub took."}),
		mailEnded: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "mesh_mail_ended_total", Help: "Mails that were delivered or returned."}, []string{"state"}),
		cuts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "mesh_event_streams_cut_total", Help: "Event streams that were ended because their client did not keep up, by reason."}, []string{"reason"}),
		superseded: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "mesh_nodes_superseded_total", Help: "Connections that took the name of another process's over."}),
		forked: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "mesh_journals_forked_total", Help: "Copied or restored node directories that were noticed."}),
		taskTime: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "mesh_task_seconds", Help: "Time from creation to the end of a task.", Buckets: prometheus.ExponentialBuckets(0.01, 4, 10)}),
	}
	m.reg.MustRegister(m.settled, m.offers, m.late, m.logins, m.requests, m.seconds, m.mailTaken, m.mailEnded, m.cuts, m.superseded, m.forked, m.taskTime,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "mesh_nodes_online", Help: "Nodes with an open tunnel."}, g.NodesOnline),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "mesh_mail_waiting", Help: "Mails that wait for their target."}, func() float64 {
			n, _ := g.MailWaiting()
			return n
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "mesh_mail_receipts_waiting", Help: "Ended mails whose sender does not know it yet."}, func() float64 {
			_, n := g.MailWaiting()
			return n
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "mesh_event_subscribers", Help: "Open event streams."}, g.Subscribers),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "mesh_store_writable", Help: "1 when the store takes changes."}, g.Writable),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "mesh_build_info", Help: "Always 1.", ConstLabels: prometheus.Labels{"version": version}}, func() float64 { return 1 }),
		openTasks{g.OpenTasks})
	return m
}

// openTasks is one gauge per state.
type openTasks struct{ read func() map[api.State]int }

var openDesc = prometheus.NewDesc("mesh_tasks_open", "Tasks that have not ended, by state.", []string{"state"}, nil)

func (o openTasks) Describe(ch chan<- *prometheus.Desc) { ch <- openDesc }

func (o openTasks) Collect(ch chan<- prometheus.Metric) {
	for s, n := range o.read() {
		ch <- prometheus.MustNewConstMetric(openDesc, prometheus.GaugeValue, float64(n), string(s))
	}
}

// Handler serves the metrics.
func (m *Metrics) Handler() http.Handler { return promhttp.HandlerFor(m.reg, promhttp.HandlerOpts{}) }

// taskCodes bounds the code label; what a node makes up counts as other.
var taskCodes = map[string]bool{"": true, api.TaskDeadline: true, api.TaskInterrupted: true, api.TaskNodeLost: true, api.TaskJournalLost: true,
	api.TaskTooOld: true, api.TaskResultRejected: true, api.TaskTargetReplaced: true, api.TaskTargetRevoked: true, api.TaskControllerGone: true,
	api.TaskRefused: true, api.TaskHeldTooLong: true, api.TaskAgentUnavailable: true, api.TaskNotStarted: true, api.TaskExitCode: true,
	api.TaskOutputLimit: true, api.TaskBadWorkspace: true, api.TaskConflict: true}

// Settled implements relay.Observer.
func (m *Metrics) Settled(s api.State, code string, d time.Duration) {
	if !taskCodes[code] {
		code = "other"
	}
	m.settled.WithLabelValues(string(s), code).Inc()
	m.taskTime.Observe(d.Seconds())
}

// Offered implements relay.Observer.
func (m *Metrics) Offered(result string) {
	if _, ok := api.Codes()[api.Code(result)]; !ok && result != "taken" && result != "lost" {
		result = "other"
	}
	m.offers.WithLabelValues(result).Inc()
}

// LateResult implements relay.Observer.
func (m *Metrics) LateResult(reason string) { m.late.WithLabelValues(reason).Inc() }

// MailTaken implements mail.Observer.
func (m *Metrics) MailTaken() { m.mailTaken.Inc() }

// MailEnded implements mail.Observer.
func (m *Metrics) MailEnded(state string) { m.mailEnded.WithLabelValues(state).Inc() }

// LoginRefused counts a refused login; reason is from the closed set of access.
func (m *Metrics) LoginRefused(reason string) { m.logins.WithLabelValues(reason).Inc() }

// StreamCut counts an event stream whose client did not keep up: "lagged" when too many
// events waited for it, "stalled" when one could not be written in time.
func (m *Metrics) StreamCut(reason string) { m.cuts.WithLabelValues(reason).Inc() }

// Superseded counts a name that was taken over by another process.
func (m *Metrics) Superseded() { m.superseded.Inc() }

// Forked counts a copied or restored node directory.
func (m *Metrics) Forked() { m.forked.Inc() }

// Request counts a finished request; stream leaves the duration out.
func (m *Metrics) Request(route, method string, code int, d time.Duration, stream bool) {
	m.requests.WithLabelValues(route, method, strconv.Itoa(code)).Inc()
	if !stream {
		m.seconds.WithLabelValues(route).Observe(d.Seconds())
	}
}
