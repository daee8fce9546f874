package proc

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// status is what the kernel says about a process.
type status struct {
	start  string
	zombie bool
}

// stateZombie is SZOMB of <sys/proc.h>.
const stateZombie = 5

func inspect(pid int) (status, error) {
	kp, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if err != nil {
		if unix.Kill(pid, 0) == unix.ESRCH {
			return status{}, ErrGone
		}
		return status{}, fmt.Errorf("look at process %d: %w", pid, err)
	}
	t := kp.Proc.P_starttime
	return status{
		start:  fmt.Sprintf("%d.%06d", t.Sec, t.Usec),
		zombie: kp.Proc.P_stat == stateZombie,
	}, nil
}

// groupOf reports 1 while leader lives. Once it is gone nothing here proves that
// a group of its number is still its own, so what it left is left alone.
func groupOf(_, leader ID) (int, error) {
	now, err := Identify(leader.PID)
	if err != nil || now != leader || !leader.Valid() {
		return 0, nil
	}
	return 1, nil
}

// groupLives is not told apart from having members.
func groupLives(int) bool { return true }
