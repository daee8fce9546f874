package opencode

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/windows"
)

// startTime is when a process was created, in a form that compares equal only for
// the same process; "" when it cannot be asked.
func startTime(pid int) string {
	h, err := windows.OpenProcess(windows.PROCESS_QUERY_LIMITED_INFORMATION, false, uint32(pid))
	if err != nil {
		return ""
	}
	defer func() { _ = windows.CloseHandle(h) }()
	var created, exited, kernel, user windows.Filetime
	if err := windows.GetProcessTimes(h, &created, &exited, &kernel, &user); err != nil {
		return ""
	}
	var code uint32
	// A process that has ended keeps its pid while somebody holds a handle.
	const stillActive = 259
	if err := windows.GetExitCodeProcess(h, &code); err != nil || code != stillActive {
		return ""
	}
	return strconv.FormatInt(created.Nanoseconds(), 10)
}

// lookup returns the process that has a pid now.
func lookup(pid int) (process, bool) {
	start := startTime(pid)
	return process{PID: pid, Start: start}, start != ""
}

// processes lists all processes that this user may ask about.
func processes() ([]process, error) {
	snapshot, err := windows.CreateToolhelp32Snapshot(windows.TH32CS_SNAPPROCESS, 0)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	defer func() { _ = windows.CloseHandle(snapshot) }()
	var entry windows.ProcessEntry32
	entry.Size = uint32(unsafe.Sizeof(entry))
	var out []process
	for err = windows.Process32First(snapshot, &entry); err == nil; err = windows.Process32Next(snapshot, &entry) {
		if p, ok := lookup(int(entry.ProcessID)); ok {
			p.parent = int(entry.ParentProcessID)
			out = append(out, p)
		}
	}
	if !errors.Is(err, windows.ERROR_NO_MORE_FILES) {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	return adopted(out), nil
}

// adopted forgets the parents that are not: the pid of a parent that has ended may
// belong to a younger process by now.
func adopted(list []process) []process {
	started := make(map[int]int64, len(list))
	for _, p := range list {
		// Written by startTime; a number.
		started[p.PID], _ = strconv.ParseInt(p.Start, 10, 64)
	}
	for i, p := range list {
		if started[p.parent] > started[p.PID] {
			list[i].parent = 0
		}
	}
	return list
}

// carries is not known here: only processes still in the tree are found, but see
// enclose.
func carries(int, string) bool { return false }

// residentSize is not measured here.
func residentSize(process) int64 { return 0 }

// ownSession lets a guard survive what ends its node's console.
func ownSession(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{CreationFlags: windows.CREATE_NEW_PROCESS_GROUP | windows.CREATE_NO_WINDOW}
}

// bound does nothing here: enclose ties the server to the guard.
func bound(*exec.Cmd) {}

// terminate ends a process: there is no way to ask.
func terminate(p process) error { return p.signal(os.Kill) }

// enclose puts this process into a job that ends, with everything started from
// it, when this process does.
func enclose() error {
	job, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return fmt.Errorf("create job: %w", err)
	}
	info := windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION{}
	info.BasicLimitInformation.LimitFlags = windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE
	if _, err := windows.SetInformationJobObject(job, windows.JobObjectExtendedLimitInformation,
		uintptr(unsafe.Pointer(&info)), uint32(unsafe.Sizeof(info))); err != nil {
		return fmt.Errorf("limit job: %w", err)
	}
	if err := windows.AssignProcessToJobObject(job, windows.CurrentProcess()); err != nil {
		return fmt.Errorf("enter job: %w", err)
	}
	return nil // the handle stays open until this process ends
}
