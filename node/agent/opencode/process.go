package opencode

import (
	"context"
	"errors"
	"os"
	"time"
)

// markerVariable carries the random marker of a supervised server in its
// environment. Whatever the server starts inherits it, so that a process that
// left the tree (its parent died) is still recognised.
const markerVariable = "OPENCODE_MESH_SERVER"

// killPause is the time between two rounds of killing a tree.
const killPause = 20 * time.Millisecond

// process is one process at one time. A pid alone is used again; with the start
// time it is not.
type process struct {
	PID   int    `json:"pid"`
	Start string `json:"start"`

	parent int
	zombie bool
}

// alive reports whether this very process still runs. One that has ended and was
// not waited for does not.
func (p process) alive() bool {
	if p.PID <= 0 {
		return false
	}
	now, ok := lookup(p.PID)
	return ok && now.Start == p.Start && !now.zombie
}

// signal sends sig to this very process; nil if it is gone.
func (p process) signal(sig os.Signal) error {
	// On Linux the handle is a pidfd: what is signalled is what is looked up.
	h, err := os.FindProcess(p.PID)
	if err != nil {
		return nil
	}
	defer func() { _ = h.Release() }()
	if !p.alive() {
		return nil
	}
	if err := h.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// family returns those of roots that run, all their descendants, and every
// process that carries the marker, except this one.
func family(roots []process, marker string) ([]process, error) {
	all, err := processes()
	if err != nil {
		return nil, err
	}
	in := make(map[int]bool)
	for _, r := range roots {
		for _, p := range all {
			if p.PID == r.PID && p.Start == r.Start {
				in[p.PID] = true
			}
		}
	}
	if marker != "" {
		for _, p := range all {
			if !in[p.PID] && !p.zombie && carries(p.PID, markerVariable+"="+marker) {
				in[p.PID] = true
			}
		}
	}
	for grown := true; grown; {
		grown = false
		for _, p := range all {
			if !in[p.PID] && in[p.parent] {
				in[p.PID], grown = true, true
			}
		}
	}
	var out []process
	for _, p := range all {
		if in[p.PID] && !p.zombie && p.PID != os.Getpid() {
			out = append(out, p)
		}
	}
	return out, nil
}

// killFamily kills a family until nothing of it runs. Members that were seen once
// are killed even after they left the tree.
func killFamily(ctx context.Context, roots []process, marker string) error {
	seen := make(map[process]bool)
	for _, r := range roots {
		seen[process{PID: r.PID, Start: r.Start}] = true
	}
	for {
		known := make([]process, 0, len(seen))
		for p := range seen {
			known = append(known, p)
		}
		rest, err := family(known, marker)
		if err != nil {
			return err
		}
		if len(rest) == 0 {
			return nil
		}
		for _, p := range rest {
			seen[process{PID: p.PID, Start: p.Start}] = true
			// A process that may not be killed shows in the next round.
			_ = p.signal(os.Kill)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(killPause):
		}
	}
}

// gone waits until none of ps runs.
func gone(ctx context.Context, ps ...process) error {
	for {
		left := false
		for _, p := range ps {
			left = left || p.alive()
		}
		if !left {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(killPause):
		}
	}
}
