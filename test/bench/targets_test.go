package bench

import (
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
)

// target is one row of the table in docs/performance.md that is about services. A
// gate must be met, an aim is what the work is after; both 0: the row only reports.
type target struct {
	metric, unit string
	gate, aim    float64
	atMost       bool // less is better
	needs        string
}

var targets = []target{
	{"small GET, 1 in flight, times plain-RP", "get1/plain", 0.60, 0.70, false, ""},
	{"small GET, 8 in flight, times plain-RP", "get8/plain", 0, 0, false, ""},
	{"small GET, 64 in flight, times plain-RP", "get64/plain", 0.70, 0.85, false, ""},
	{"small GET, 1 in flight, times direct", "get1/direct", 0, 0, false, ""},
	{"small GET, 64 in flight, times direct", "get64/direct", 0, 0, false, ""},
	{"small GET, 1 in flight, times frp", "get1/frp", 1.2, 1.35, false, "frps and frpc"},
	{"small GET, 64 in flight, times frp", "get64/frp", 3, 4.5, false, "frps and frpc"},
	{"raw TCP forward, 1 in flight, times chisel", "tcp1/chisel", 0.9, 1.1, false, "chisel"},
	{"raw TCP forward, 64 in flight, times chisel", "tcp64/chisel", 0.9, 1.1, false, "chisel"},
	{"raw TCP forward, 1 in flight, times direct", "tcp1/direct", 0, 0, false, ""},
	{"raw TCP forward, 64 in flight, times direct", "tcp64/direct", 0, 0, false, ""},
	{"download, 1 stream, times plain-RP", "down1/plain", 0.45, 0.58, false, ""},
	{"download, 1 stream, times chisel", "down1/chisel", 3, 4, false, "chisel"},
	{"download, 1 stream, times frp", "down1/frp", 2.5, 3.3, false, "frps and frpc"},
	{"download, 8 streams, times plain-RP", "down8/plain", 0, 0, false, ""},
	{"upload, 1 stream, times plain-RP", "up1/plain", 0.45, 0.58, false, ""},
	{"upload, 1 stream, times chisel", "up1/chisel", 2.5, 3, false, "chisel"},
	{"upload, 1 stream, times frp", "up1/frp", 1.2, 1.5, false, "frps and frpc"},
	{"upload, 8 streams, times plain-RP", "up8/plain", 0, 0, false, ""},
	{"p99 of a small GET beside 1 bulk and 1 stalled stream, ms", "beside-p99-ms", 8, 4, true, ""},
	{"the same through plain-RP, ms", "beside-plain-p99-ms", 0, 0, true, ""},
	{"64 stalled readers and 1 bulk: memory of the hub, MB", "stalled64-MB", 200, 130, true, "Linux"},
	{"64 stalled readers and 1 bulk: p99 of a small GET, ms", "stalled64-p99-ms", 0, 0, true, ""},
	{"100 Mb/s, 40 ms: p50 of a small GET, ms", "slow-idle-ms", 0, 0, true, ""},
	{"100 Mb/s, 40 ms: p50 beside a download, times idle", "slow-down/idle", 3, 2, true, ""},
	{"100 Mb/s, 40 ms: p50 beside an upload, times idle", "slow-up/idle", 3, 2, true, ""},
	{"idle raw stream, memory of the hub, KiB", "stream-hub-KiB", 0, 0, true, "Linux"},
	{"idle raw stream, memory of the node, KiB", "stream-node-KiB", 0, 0, true, "Linux"},
	{"small GET, 1 in flight, per second", "get1/s", 0, 0, false, ""},
	{"small GET, 64 in flight, per second", "get64/s", 0, 0, false, ""},
	{"download, 1 stream, MB/s", "down1-MB/s", 0, 0, false, ""},
	{"upload, 1 stream, MB/s", "up1-MB/s", 0, 0, false, ""},
}

// figures are what the rounds gave, by unit.
type figures map[string][]float64

func (f figures) add(unit string, value float64) { f[unit] = append(f[unit], value) }

// median is that of all rounds; false when nothing was measured.
func (f figures) median(unit string) (float64, bool) {
	v := slices.Sorted(slices.Values(f[unit]))
	if len(v) == 0 {
		return 0, false
	}
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2, true
}

// verdict compares a figure with its gate and aim, if they apply. What was not
// measured is never met.
func (t target) verdict(value float64, measured, gated bool) string {
	better := func(than float64) bool {
		if t.atMost {
			return value <= than
		}
		return value >= than
	}
	switch {
	case !measured && t.needs != "":
		return "not run: needs " + t.needs
	case !measured:
		return "not run"
	case t.gate == 0, !gated:
		return "report only"
	case !better(t.gate):
		return "GATE MISSED"
	case !better(t.aim):
		return "gate met"
	}
	return "aim met"
}

// table prints every row; gated says that the gates apply.
func (f figures) table(w io.Writer, heading string, gated bool) {
	fmt.Fprintf(w, "\n%s; %s/%s, %d CPUs, %s\n", heading, runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version())
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "METRIC\tMEASURED\tROUNDS\tGATE\tAIM\t")
	for _, t := range targets {
		value, ok := f.median(t.unit)
		shown, spread := "-", "-"
		if ok {
			shown = number(value)
			spread = number(slices.Min(f[t.unit])) + "–" + number(slices.Max(f[t.unit]))
		}
		gate, aim := "-", "-"
		if t.gate != 0 && gated {
			sign := "≥ "
			if t.atMost {
				sign = "≤ "
			}
			gate, aim = sign+number(t.gate), sign+number(t.aim)
		}
		fmt.Fprintln(tw, strings.Join([]string{t.metric, shown, spread, gate, aim, t.verdict(value, ok, gated)}, "\t"))
	}
	_ = tw.Flush()
}

// number shows three figures.
func number(v float64) string {
	if v == 0 {
		return "0"
	}
	digits := max(0, 2-int(math.Floor(math.Log10(math.Abs(v)))))
	return fmt.Sprintf("%.*f", min(digits, 3), v)
}

func TestAVerdictNeedsAFigureAndKnowsItsDirection(t *testing.T) {
	more := target{gate: 0.6, aim: 0.7, needs: "chisel"}
	less := target{gate: 8, aim: 4, atMost: true}
	for _, c := range []struct {
		t        target
		value    float64
		measured bool
		want     string
	}{
		{more, 0, false, "not run: needs chisel"},
		{less, 0, false, "not run"},
		{more, 0.59, true, "GATE MISSED"},
		{more, 0.6, true, "gate met"},
		{more, 0.7, true, "aim met"},
		{less, 8.1, true, "GATE MISSED"},
		{less, 8, true, "gate met"},
		{less, 4, true, "aim met"},
		{target{}, 1, true, "report only"},
	} {
		if got := c.t.verdict(c.value, c.measured, true); got != c.want {
			t.Errorf("%+v %v: %s, want %s", c.t, c.value, got, c.want)
		}
	}
	if got := more.verdict(0.1, true, false); got != "report only" {
		t.Errorf("without gates: %s", got)
	}
	f := figures{"odd": {3, 1, 2}, "even": {4, 1, 2, 3}}
	if odd, ok := f.median("odd"); !ok || odd != 2 {
		t.Error(odd, ok)
	}
	if even, ok := f.median("even"); !ok || even != 2.5 {
		t.Error(even, ok)
	}
	if _, ok := f.median("none"); ok {
		t.Error("a median of nothing")
	}
}
