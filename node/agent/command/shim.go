package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"opencode-mesh/node/internal/proc"
)

// What a shim exits with. Nodes go by the files; this is for the curious.
const (
	shimOK     = 0 // the run's end is on record
	shimFailed = 1
	shimUsage  = 2
	shimLost   = 3 // somebody else claimed the launch, nothing was started
)

const (
	// stderrTail is how much of a program's error output is kept at least, in bytes.
	stderrTail = 64 << 10
	// drainTime is how long output is still read after the program ended, for what
	// it left behind holding the pipe.
	drainTime = 2 * time.Second
	// groupPoll is how often a shim that ends a group looks whether it is empty. No
	// system has an event for that.
	groupPoll = 20 * time.Millisecond
	// killTime is how long a shim waits for a killed group to be empty.
	killTime = time.Second
)

// ShimMain is the shim's main function; its arguments are the run directory and
// the launch. It returns the exit code when the program has ended. It takes over
// the signals of the process and is called once, on its own in the process.
func ShimMain(args []string) int {
	// The kernel ends the program when the thread that started it ends (see
	// proc.Group), so this goroutine keeps its thread to the end.
	runtime.LockOSThread()
	stop := make(chan os.Signal, 1)
	// Caught and not ignored: programs would inherit that a signal is ignored.
	signal.Notify(stop, syscall.SIGTERM, os.Interrupt)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)

	if len(args) != 2 {
		fmt.Fprintln(os.Stderr, "shim: started by meshnode only, with a run directory and a launch")
		return shimUsage
	}
	launch, err := strconv.Atoi(args[1])
	if err != nil || launch < 1 {
		fmt.Fprintf(os.Stderr, "shim: no launch: %q\n", args[1])
		return shimUsage
	}
	s := shim{dir: runDir(args[0]), launch: launch, stop: stop}
	if err := s.run(); err != nil {
		fmt.Fprintf(os.Stderr, "shim: launch %d: %v\n", launch, err)
		if errors.Is(err, proc.ErrLocked) || errors.Is(err, fs.ErrExist) {
			return shimLost
		}
		return shimFailed
	}
	return shimOK
}

// shim supervises one launch.
type shim struct {
	dir    runDir
	launch int
	stop   chan os.Signal
	job    job
	files  struct{ stdin, stdout, stderr, exit *os.File }
}

// run takes the lock, opens everything that could fail, claims the launch and only
// then starts the program. An error means that the end is not on record.
func (s *shim) run() error {
	if err := s.dir.readJSON(fileJob, &s.job); err != nil {
		return err
	}
	// Held to the end, so that nodes can tell whether this process lives. Before the
	// claim: a claim without this lock is a dead shim's.
	lock, err := proc.TryLock(s.dir.launchPath(fileLock, s.launch))
	if err != nil {
		return err
	}
	defer lock.Release()
	if err := s.open(); err != nil {
		return err
	}
	self, err := proc.Identify(os.Getpid())
	if err != nil {
		return err
	}
	if err := proc.Contain(); err != nil {
		fmt.Fprintf(os.Stderr, "shim: the program may outlive its shim: %v\n", err)
	}
	if err := s.dir.makeClaim(s.launch, claim{By: byShim, ID: self}); err != nil {
		return err
	}
	end := s.supervise()
	return s.record(end)
}

func (s *shim) open() (err error) {
	if s.files.stdin, err = os.Open(s.dir.path(fileStdin)); err != nil {
		return err
	}
	create := func(name string) *os.File {
		if err != nil {
			return nil
		}
		var f *os.File
		f, err = os.OpenFile(s.dir.launchPath(name, s.launch), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
		return f
	}
	s.files.stdout, s.files.stderr = create(fileStdout), create(fileStderr)
	s.files.exit = create(fileExit + tempSuffix)
	if err != nil {
		return err
	}
	// Room for the record of the end is taken now: the program may fill the disk.
	_, err = s.files.exit.Write(padded(nil))
	return err
}

// supervise starts the program and returns how it ended.
func (s *shim) supervise() exit {
	flooded := make(chan struct{}, 1)
	out := &spool{f: s.files.stdout, left: s.job.OutputCap, full: func() { flooded <- struct{}{} }}
	cmd := &exec.Cmd{
		Path:   s.job.Path,
		Args:   s.job.Args,
		Dir:    s.job.Dir,
		Stdin:  s.files.stdin,
		Stdout: out,
		Stderr: &tail{f: s.files.stderr, size: stderrTail},
		// Something that the program left running may hold its pipes for ever.
		WaitDelay: drainTime,
	}
	proc.Group(cmd)
	select {
	case <-s.stop:
		return exit{Reason: endedStopped, Code: -1}
	default:
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return exit{Reason: endedUnstarted, Code: -1, Message: err.Error()}
	}
	s.noteProgram(cmd.Process.Pid)

	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait() // the state says everything
	}()
	reason := s.attend(cmd.Process.Pid, done, flooded)

	end := exit{Reason: reason, Code: cmd.ProcessState.ExitCode(), Ran: time.Since(began)}
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		end.Signal = ws.Signal().String()
	}
	if err := out.finish(); err != nil {
		end.OutputError = err.Error()
	}
	return end
}

// attend waits for the program's end and ends its group when told to. It returns
// why the program ended.
func (s *shim) attend(leader int, done, flooded <-chan struct{}) (reason string) {
	var (
		killAt time.Time
		grace  <-chan time.Time
	)
	end := func(why string) {
		if reason == endedAlone {
			reason = why
			killAt = time.Now().Add(s.job.KillGrace)
			grace = time.After(s.job.KillGrace)
			proc.TerminateGroup(leader)
		}
	}
	for {
		select {
		case <-s.stop:
			end(endedStopped)
		case <-flooded:
			end(endedFlooded)
		case <-grace:
			proc.KillGroup(leader)
		case <-done:
			if reason != endedAlone {
				endGroup(leader, killAt)
			}
			return reason
		}
	}
}

// endGroup ends what is left of a group whose leader is gone: it has the rest of
// the grace for that, since a shell that dies at once may have children that need
// the time.
func endGroup(leader int, killAt time.Time) {
	tick := time.NewTicker(groupPoll)
	defer tick.Stop()
	for proc.GroupAlive(leader) {
		<-tick.C
		switch late := time.Since(killAt); {
		case late >= killTime:
			return
		case late >= 0:
			proc.KillGroup(leader)
		}
	}
}

// noteProgram records who the program is, for a node that finds its shim dead. It
// is of no use after a reboot and therefore not synced.
func (s *shim) noteProgram(pid int) {
	id, err := proc.Identify(pid)
	if err != nil {
		return // it ended already
	}
	data, err := json.Marshal(started{ID: id, Place: proc.Place(s.dir.launchPath(fileLock, s.launch))})
	if err == nil {
		temp := s.dir.path(fileProgram + tempSuffix)
		if err = os.WriteFile(temp, data, 0o600); err == nil {
			err = os.Rename(temp, s.dir.path(fileProgram))
		}
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "shim: the program is not on record: %v\n", err)
	}
}

// record makes the end durable. The output is on disk by now.
func (s *shim) record(end exit) error {
	data, err := json.Marshal(end)
	if err != nil {
		return err
	}
	if _, err := s.files.exit.WriteAt(padded(data), 0); err != nil {
		return fmt.Errorf("record the end: %w", err)
	}
	if err := errors.Join(s.files.exit.Sync(), s.files.exit.Close()); err != nil {
		return fmt.Errorf("record the end: %w", err)
	}
	if err := os.Rename(s.dir.launchPath(fileExit+tempSuffix, s.launch), s.dir.path(fileExit)); err != nil {
		return fmt.Errorf("record the end: %w", err)
	}
	return syncDir(string(s.dir))
}

// exitRecordSize is the size of the record of a run's end, filled up with blanks.
const exitRecordSize = 4 << 10

func padded(data []byte) []byte {
	for len(data) < exitRecordSize {
		data = append(data, ' ')
	}
	return data
}
