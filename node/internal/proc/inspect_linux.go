package proc

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// status is what the kernel says about a process.
type status struct {
	start          string
	ticks          uint64 // of start, since boot
	group, session int
	zombie         bool
}

// bootID tells boots apart, because start times count from the boot.
var bootID = sync.OnceValue(func() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
})

func inspect(pid int) (status, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ESRCH):
		return status{}, ErrGone
	case err != nil:
		return status{}, fmt.Errorf("look at process %d: %w", pid, err)
	}
	st, ok := parseStat(string(b))
	if !ok {
		return status{}, fmt.Errorf("look at process %d: unreadable status", pid)
	}
	return st, nil
}

// parseStat reads a line of /proc/<pid>/stat. The command's name stands in
// parentheses and may hold anything, so fields count from the last ')'.
func parseStat(line string) (status, bool) {
	i := strings.LastIndexByte(line, ')')
	if i < 0 {
		return status{}, false
	}
	f := strings.Fields(line[i+1:])
	const state, group, session, start = 0, 2, 3, 19
	if len(f) <= start {
		return status{}, false
	}
	st := status{zombie: f[state] == "Z" || f[state] == "X"}
	var errs [3]error
	st.group, errs[0] = strconv.Atoi(f[group])
	st.session, errs[1] = strconv.Atoi(f[session])
	st.ticks, errs[2] = strconv.ParseUint(f[start], 10, 64)
	st.start = bootID() + "/" + f[start]
	return st, errors.Join(errs[:]...) == nil
}

// groupLives looks for a member that is not a zombie: an init that is slow to
// collect orphans would make a dead group look alive.
func groupLives(group int) bool {
	n, err := count(func(st status) bool { return st.group == group })
	return err != nil || n > 0
}

// count counts the live processes that match.
func count(match func(status) bool) (int, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return 0, fmt.Errorf("list processes: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return 0, fmt.Errorf("list processes: %w", err)
	}
	n := 0
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		st, err := inspect(pid)
		if err == nil && !st.zombie && match(st) {
			n++
		}
	}
	return n, nil
}

// groupOf counts the live members of the group that leader began in the session
// of owner. Both may be gone; that no stranger is counted follows from two
// numbers that would have had to come back together, in this boot and later.
func groupOf(owner, leader ID) (int, error) {
	boot, start, ok := strings.Cut(leader.Start, "/")
	if !ok || boot != bootID() || !leader.Valid() || !owner.Valid() {
		return 0, nil
	}
	since, err := strconv.ParseUint(start, 10, 64)
	if err != nil {
		return 0, nil
	}
	// A process that has one of the numbers now and is another one means that the
	// kernel had given the number up, which it does for empty groups and sessions.
	for _, id := range []ID{owner, leader} {
		if now, err := Identify(id.PID); err == nil && now != id {
			return 0, nil
		}
	}
	return count(func(st status) bool {
		return st.group == leader.PID && st.session == owner.PID && st.ticks >= since
	})
}
