package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/hub/client/forward"
	"opencode-mesh/protocol/mesh"
)

// trafficView shows on stderr what a forward does: on a terminal its counters in one
// line that is written over, everywhere what goes wrong.
type trafficView struct {
	app      *cli.App
	counters bool
	traffic  *forward.Traffic

	mu    sync.Mutex // guards the following field, and the order of what is written
	shown bool       // the counters stand in the last line
}

// run shows the counters until ctx ends.
func (v *trafficView) run(ctx context.Context) {
	if !v.counters {
		return
	}
	tick := time.NewTicker(countersEvery)
	defer tick.Stop()
	var last forward.Counts
	for first := true; ; first = false {
		if now := v.traffic.Counts(); first || now != last {
			last = now
			v.show(now)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			v.show(v.traffic.Counts())
			fmt.Fprintln(v.app.Stderr)
			return
		}
	}
}

// report says that requests fail, or work again.
func (v *trafficView) report(err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.shown {
		fmt.Fprint(v.app.Stderr, "\r\x1b[K")
		v.shown = false
	}
	if err == nil {
		fmt.Fprintln(v.app.Stderr, "it works again")
		return
	}
	fmt.Fprintln(v.app.Stderr, mesh.CleanLine(err.Error()))
}

func (v *trafficView) show(c forward.Counts) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.shown = true
	fmt.Fprintf(v.app.Stderr, "\r\x1b[K%d open, %d connections, %s sent, %s received", c.Open, c.Total, bytesText(c.In), bytesText(c.Out))
}

// bytesText shows a size.
func bytesText(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	size, i := float64(n), 0
	for size >= 1024 && i < len(units)-1 {
		size, i = size/1024, i+1
	}
	if i == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", size, units[i])
}
