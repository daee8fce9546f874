package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"opencode-mesh/node/internal/proc"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
)

// The files of a run directory. Those marked "per launch" have the number of the
// launch behind their name from the second on, so that a late shim whose launch
// was called off touches nothing of the one that runs.
const (
	fileOwner   = "owner"    // locked by the node that looks after the run
	fileJob     = "job"      // what to run; there before the first launch
	fileStdin   = "stdin"    // what the program reads
	fileClaim   = "started"  // per launch: who decided about it, see claim
	fileLock    = "lock"     // per launch: locked by its shim while that lives
	fileStdout  = "stdout"   // per launch: what the program wrote, up to the cap
	fileStderr  = "stderr"   // per launch: the end of what it wrote
	fileProgram = "program"  // the program as a process, see started
	fileExit    = "exit"     // how it ended; there once everything else is on disk
	fileShimLog = "shim.log" // what shims had to say
	tempSuffix  = ".tmp"
)

// maxLaunches bounds how often a run whose program never started is launched
// again. Every launch beyond the first costs a node crash at the wrong moment.
const maxLaunches = 100

// runDir is the directory of one turn: everything that is known about its run.
type runDir string

// dirName makes the name of a triple's run directory. Capitals are escaped, since
// some file systems hold "A" and "a" for the same, and so are the names that
// Windows keeps for devices.
func dirName(t api.Triple) (string, error) {
	if !mesh.ValidTaskID(t.Task) || t.Attempt < 1 || t.Turn < 1 {
		return "", fmt.Errorf("not a task, attempt and turn: %q, %d, %d", t.Task, t.Attempt, t.Turn)
	}
	var b strings.Builder
	device := isDeviceName(t.Task)
	for i := range len(t.Task) {
		if c := t.Task[i]; c >= 'A' && c <= 'Z' || i == 0 && device {
			fmt.Fprintf(&b, "%%%02x", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String() + "." + strconv.Itoa(t.Attempt) + "." + strconv.Itoa(t.Turn), nil
}

func isDeviceName(s string) bool {
	base, _, _ := strings.Cut(strings.ToLower(s), ".")
	if len(base) == 4 && base[3] >= '0' && base[3] <= '9' {
		return base[:3] == "com" || base[:3] == "lpt"
	}
	return slices.Contains([]string{"con", "prn", "aux", "nul"}, base)
}

func (d runDir) path(name string) string { return filepath.Join(string(d), name) }

// launchPath is the path of a file that every launch has its own of.
func (d runDir) launchPath(name string, launch int) string {
	if launch > 1 {
		name += "." + strconv.Itoa(launch)
	}
	return d.path(name)
}

// job is what a shim needs to know. The token travels in its environment.
type job struct {
	Path      string        `json:"path"`
	Args      []string      `json:"args"` // the program's name first
	Dir       string        `json:"dir"`
	OutputCap int64         `json:"output_cap"`
	KillGrace time.Duration `json:"kill_grace"`
}

// Who made a claim.
const (
	byShim = "shim" // it starts the program, or has
	byNode = "node" // the launch is called off and never starts it
)

// claim settles what becomes of a launch. Exactly one can be made for each.
type claim struct {
	By string  `json:"by"`
	ID proc.ID `json:"id"`
}

// started says which process the program is. Place is that of the launch's lock
// file: in a copy of the directory it is another, and the process is then that of
// the original, not to be touched.
type started struct {
	proc.ID
	Place string `json:"place,omitempty"`
}

// How a run ended.
const (
	endedAlone     = ""             // by itself
	endedStopped   = "stopped"      // after the shim was asked to end it
	endedFlooded   = "output_limit" // after more than OutputCap bytes
	endedUnstarted = "not_started"  // the program could not be started
)

// exit is how a run ended, written by its shim.
type exit struct {
	Reason string `json:"reason,omitempty"`
	Code   int    `json:"code"` // -1 if a signal ended it
	Signal string `json:"signal,omitempty"`
	// Message says why the program could not be started.
	Message string `json:"message,omitempty"`
	// OutputError says why output is missing, "" when all of it is there.
	OutputError string        `json:"output_error,omitempty"`
	Ran         time.Duration `json:"ran"`
}

// makeClaim claims a launch, durably. fs.ErrExist: somebody was faster.
func (d runDir) makeClaim(launch int, c claim) error {
	data, err := json.Marshal(c)
	if err != nil {
		return err
	}
	path := d.launchPath(fileClaim, launch)
	// A link to a complete file is as exclusive as O_EXCL and never half written.
	temp := path + "." + c.By + tempSuffix
	if err := writeSynced(temp, data, os.O_TRUNC); err != nil {
		return fmt.Errorf("claim: %w", err)
	}
	defer os.Remove(temp)
	if err = os.Link(temp, path); err != nil && !errors.Is(err, fs.ErrExist) {
		// Some file systems have no links.
		err = writeSynced(path, data, os.O_EXCL)
	}
	if err != nil {
		return fmt.Errorf("claim: %w", err)
	}
	return syncDir(string(d))
}

// progress is how far a run had come when somebody looked.
type progress struct {
	// prepared says that a launch may have been made.
	prepared bool
	// launch is the one whose shim claimed it, or the first that nobody claimed.
	launch  int
	claimed bool
	claim   claim
}

// look reads the claims. It cannot tell whether a shim lives.
func (d runDir) look() (progress, error) {
	var p progress
	if _, err := os.Stat(d.path(fileJob)); err == nil {
		p.prepared = true
	} else if !errors.Is(err, fs.ErrNotExist) {
		return p, fmt.Errorf("look at run: %w", err)
	}
	for p.launch = 1; p.launch <= maxLaunches; p.launch++ {
		data, err := os.ReadFile(d.launchPath(fileClaim, p.launch))
		if errors.Is(err, fs.ErrNotExist) {
			return p, nil
		}
		if err != nil {
			return p, fmt.Errorf("look at run: %w", err)
		}
		// A claim that cannot be read (a half written one, where there are no links)
		// counts as a shim's: the program may have started.
		p.claim = claim{By: byShim}
		if err := json.Unmarshal(data, &p.claim); err != nil || p.claim.By != byNode {
			p.claimed = true
			return p, nil
		}
	}
	return p, fmt.Errorf("launched %d times without a start", maxLaunches)
}

// readExit returns nil if the run has no end on record.
func (d runDir) readExit() (*exit, error) {
	var e exit
	if err := d.readJSON(fileExit, &e); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		return nil, err
	}
	return &e, nil
}

func (d runDir) readJSON(name string, v any) error {
	data, err := os.ReadFile(d.path(name))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	return nil
}

// replace puts a file in place whole, and syncs it. The directory entry is synced
// with syncDir.
func (d runDir) replace(name string, data []byte) error {
	temp := d.path(name + tempSuffix)
	if err := writeSynced(temp, data, os.O_TRUNC); err != nil {
		return err
	}
	return os.Rename(temp, d.path(name))
}

func writeSynced(path string, data []byte, flag int) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|flag, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// syncDir makes names in a directory durable. Windows does that by itself and
// cannot be asked to.
func syncDir(path string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
