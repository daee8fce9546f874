package proc

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

// Handle refers to one process. Not for concurrent use, except that Wait may be
// called while another goroutine ends the process.
type Handle struct {
	h        windows.Handle
	interval time.Duration
}

// access is what a Handle needs: to wait, to read times and to end.
const access = windows.SYNCHRONIZE | windows.PROCESS_QUERY_LIMITED_INFORMATION | windows.PROCESS_TERMINATE

// Identify returns the identity of the process that has pid now, or ErrGone.
func Identify(pid int) (ID, error) {
	h, err := windows.OpenProcess(windows.PROCESS_QUERY_LIMITED_INFORMATION, false, uint32(pid))
	if err != nil {
		return ID{}, gone(pid, err)
	}
	defer windows.CloseHandle(h)
	start, err := startOf(h)
	if err != nil {
		return ID{}, fmt.Errorf("look at process %d: %w", pid, err)
	}
	return ID{PID: pid, Start: start}, nil
}

// Open returns a handle on the process with this identity, or ErrGone. interval
// is how often Wait looks at its context; 0 means DefaultPoll.
func Open(id ID, interval time.Duration) (*Handle, error) {
	if !id.Valid() {
		return nil, ErrGone
	}
	h, err := windows.OpenProcess(access, false, uint32(id.PID))
	if err != nil {
		return nil, gone(id.PID, err)
	}
	if start, err := startOf(h); err != nil || start != id.Start {
		windows.CloseHandle(h)
		return nil, ErrGone
	}
	return &Handle{h, interval}, nil
}

// OpenChild returns a handle on a child that was started and not yet waited for,
// and takes over the waiting: cmd.Wait must not be called any more.
func OpenChild(cmd *exec.Cmd, interval time.Duration) *Handle {
	h := &Handle{interval: interval}
	self := windows.CurrentProcess()
	// Both errors leave a handle that nothing can be waited for with; that needs a
	// process without room for one more handle.
	_ = cmd.Process.WithHandle(func(child uintptr) {
		_ = windows.DuplicateHandle(self, windows.Handle(child), self, &h.h, 0, false, windows.DUPLICATE_SAME_ACCESS)
	})
	_ = cmd.Process.Release()
	return h
}

// Wait returns nil once the process ended, or the cause of ctx.
func (h *Handle) Wait(ctx context.Context) error {
	return poll(ctx, h.interval, func() bool {
		event, err := windows.WaitForSingleObject(h.h, 0)
		return err != nil || event == windows.WAIT_OBJECT_0
	})
}

// Terminate ends the process: there is no request to end that all programs
// understand. What it contained (Contain) ends with it.
func (h *Handle) Terminate() error { return h.Kill() }

// Kill ends the process; nil if it is gone.
func (h *Handle) Kill() error {
	if err := windows.TerminateProcess(h.h, 1); err != nil && !errors.Is(err, windows.ERROR_ACCESS_DENIED) {
		return fmt.Errorf("end process: %w", err)
	}
	return nil
}

// Close frees the handle. Idempotent.
func (h *Handle) Close() {
	if h.h != 0 {
		windows.CloseHandle(h.h)
		h.h = 0
	}
}

func gone(pid int, err error) error {
	if errors.Is(err, windows.ERROR_INVALID_PARAMETER) {
		return ErrGone
	}
	return fmt.Errorf("open process %d: %w", pid, err)
}

func startOf(h windows.Handle) (string, error) {
	var created, exited, kernel, user windows.Filetime
	if err := windows.GetProcessTimes(h, &created, &exited, &kernel, &user); err != nil {
		return "", err
	}
	return strconv.FormatInt(created.Nanoseconds(), 10), nil
}

// Detach lets cmd live on without its parent, and without a console window.
func Detach(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{
		CreationFlags: windows.CREATE_NEW_PROCESS_GROUP | windows.CREATE_NO_WINDOW,
	}
}

// Contain puts this process into a job that ends everything in it, whatever it
// was started by, when this process ends.
func Contain() error {
	job, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return fmt.Errorf("make job: %w", err)
	}
	info := windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION{
		BasicLimitInformation: windows.JOBOBJECT_BASIC_LIMIT_INFORMATION{
			LimitFlags: windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE,
		},
	}
	if _, err := windows.SetInformationJobObject(job, windows.JobObjectExtendedLimitInformation,
		uintptr(unsafe.Pointer(&info)), uint32(unsafe.Sizeof(info))); err != nil {
		windows.CloseHandle(job)
		return fmt.Errorf("set up job: %w", err)
	}
	// The handle stays open for as long as this process lives: closing it is what
	// ends the job.
	if err := windows.AssignProcessToJobObject(job, windows.CurrentProcess()); err != nil {
		windows.CloseHandle(job)
		return fmt.Errorf("enter job: %w", err)
	}
	return nil
}

// Group separates cmd from this process's console signals.
func Group(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{CreationFlags: windows.CREATE_NEW_PROCESS_GROUP}
}

// TerminateGroup ends the leader; its descendants end with the job of Contain.
func TerminateGroup(leader int) { KillGroup(leader) }

// KillGroup ends the leader; its descendants end with the job of Contain.
func KillGroup(leader int) {
	h, err := windows.OpenProcess(windows.PROCESS_TERMINATE, false, uint32(leader))
	if err != nil {
		return
	}
	defer windows.CloseHandle(h)
	_ = windows.TerminateProcess(h, 1)
}

// GroupAlive is false: there are no groups to look into.
func GroupAlive(int) bool { return false }

// KillLeftovers ends leader if it still is the process that it was. Normally the
// job of Contain has ended it with its owner.
func KillLeftovers(_, leader ID, limit time.Duration) error {
	h, err := Open(leader, 0)
	if err != nil {
		return nil
	}
	defer h.Close()
	if err := h.Kill(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return h.Wait(ctx)
}
