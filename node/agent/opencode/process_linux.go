package opencode

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// bootID tells the start times of two boots apart, which count from zero.
var bootID = sync.OnceValue(func() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
})

// lookup returns the process that has a pid now.
func lookup(pid int) (process, bool) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return process{}, false
	}
	// The name stands in brackets and may hold anything.
	end := bytes.LastIndexByte(stat, ')')
	if end < 0 {
		return process{}, false
	}
	const state, parent, start = 0, 1, 19 // counted from the field after the name
	fields := strings.Fields(string(stat[end+1:]))
	if len(fields) <= start {
		return process{}, false
	}
	ppid, err := strconv.Atoi(fields[parent])
	if err != nil {
		return process{}, false
	}
	return process{PID: pid, Start: bootID() + ":" + fields[start], parent: ppid,
		zombie: fields[state] == "Z" || fields[state] == "X"}, true
}

// processes lists all processes.
func processes() ([]process, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	defer func() { _ = dir.Close() }()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var out []process
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if p, ok := lookup(pid); ok {
			out = append(out, p)
		}
	}
	return out, nil
}

// carries reports whether a process was started with a variable.
func carries(pid int, variable string) bool {
	env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return false // gone, or another user's
	}
	for v := range bytes.SplitSeq(env, []byte{0}) {
		if string(v) == variable {
			return true
		}
	}
	return false
}

// residentSize is the memory of a family, in bytes.
func residentSize(root process) int64 {
	all, err := family([]process{root}, "")
	if err != nil {
		return 0
	}
	var sum int64
	for _, p := range all {
		statm, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID) + "/statm")
		if err != nil {
			continue
		}
		if fields := strings.Fields(string(statm)); len(fields) > 1 {
			pages, err := strconv.ParseInt(fields[1], 10, 64)
			if err == nil {
				sum += pages * int64(os.Getpagesize())
			}
		}
	}
	return sum
}

// ownSession lets a guard survive what ends its node's terminal or group.
func ownSession(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }

// bound lets the server die with the thread that started it, hence with a guard
// that is killed.
func bound(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// terminate asks a process to end.
func terminate(p process) error { return p.signal(syscall.SIGTERM) }

// enclose has nothing to do here: a guard knows its family by other means.
func enclose() error { return nil }
