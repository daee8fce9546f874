package opencode

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"opencode-mesh/protocol/api"
)

const (
	// restartMin and restartMax bound the pause before a server that ended is
	// started again; it doubles with each start that did not last.
	restartMin = 500 * time.Millisecond
	restartMax = 30 * time.Second
	// lasting is how long a server must have run for the pause to be reset.
	lasting = time.Minute
	// listenLimit is how long a server may take until it listens.
	listenLimit = 2 * time.Minute
	// guardMargin is how much longer than its own limits a guard may take to end.
	guardMargin = 5 * time.Second
)

// colours matches the terminal codes in the server's error output.
var colours = regexp.MustCompile(`\x1b\[[0-9;]*m`)

// supervisor keeps one server running, each start of it under a new guard.
type supervisor struct {
	cfg    Config
	log    *slog.Logger
	health *health
}

func newSupervisor(cfg Config, h *health) *supervisor {
	return &supervisor{cfg: cfg, log: cfg.Log, health: h}
}

// patience is how long a guard may take to end its server.
func (s *supervisor) patience() time.Duration { return 2*s.cfg.StopGrace + killLimit + guardMargin }

// run starts servers until ctx ends, and returns when the last one has ended.
func (s *supervisor) run(ctx context.Context) {
	pause := restartMin
	for {
		began := time.Now()
		err := s.once(ctx)
		if ctx.Err() != nil {
			s.health.down(api.HealthUnreachable, "the node is stopping")
			return
		}
		if time.Since(began) > lasting {
			pause = restartMin
		}
		s.log.Error("opencode server ended", "error", err, "restart_in", pause)
		s.health.down(api.HealthUnreachable, err.Error())
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, restartMax)
	}
}

// once runs one server to its end. While another one's tree is not gone it starts
// none: a turn may be taken up only then.
func (s *supervisor) once(ctx context.Context) error {
	if err := os.MkdirAll(s.cfg.DataDir, 0o700); err != nil {
		return fmt.Errorf("make data directory: %w", err)
	}
	if err := reap(ctx, s.cfg.DataDir, s.patience()); err != nil {
		return err
	}
	bin, err := s.binary()
	if err != nil {
		return err
	}
	spec := guardSpec{
		Bin: bin, Dir: s.cfg.Workspaces[0].Dir, Record: filepath.Join(s.cfg.DataDir, recordFile), Marker: newMarker(),
		Username: defaultUsername, Password: rand.Text(), Grace: s.cfg.StopGrace,
	}
	spec.Env = serverEnv(s.environ(), s.cfg.DataDir, spec.Username, spec.Password, s.cfg.PermissionRules)
	return s.guarded(ctx, spec)
}

// environ is the environment that the server's derives from.
func (s *supervisor) environ() []string {
	if s.cfg.Env != nil {
		return s.cfg.Env
	}
	return os.Environ()
}

// binary finds opencode anew at each start, so that it may be installed later.
func (s *supervisor) binary() (string, error) {
	bin, err := exec.LookPath(s.cfg.Bin)
	if err != nil {
		return "", fmt.Errorf("opencode is not installed or not on PATH (npm install -g opencode-ai, or name the binary): %w", err)
	}
	return filepath.Abs(bin)
}

// guarded starts a guard and follows it to its end. When ctx ends, the guard's
// input is closed, which is its signal.
func (s *supervisor) guarded(ctx context.Context, spec guardSpec) error {
	line, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("encode guard instructions: %w", err)
	}
	cmd := exec.Command(s.cfg.GuardCommand[0], s.cfg.GuardCommand[1:]...)
	cmd.Env = withoutMesh(os.Environ())
	ownSession(cmd)
	said := &tail{}
	cmd.Stderr = said
	cmd.WaitDelay = time.Second
	in, err := cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("start guard: %w", err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("start guard: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start guard: %w", err)
	}
	reports := make(chan guardReport)
	go func() {
		defer close(reports)
		readReports(out, reports)
	}()
	if _, err := in.Write(append(line, '\n')); err != nil {
		s.log.Warn("guard takes no instructions", "error", err)
	}
	why := s.attend(ctx, reports, spec)

	s.health.down(api.HealthUnreachable, "the server is being ended")

	// The guard ends its server now; one that does not end is killed, and the
	// record tells the next start what is left.
	_ = in.Close()
	stuck := time.AfterFunc(s.patience(), func() { _ = cmd.Process.Kill() })
	for range reports {
	}
	err = cmd.Wait()
	stuck.Stop()
	if why == nil {
		why = errors.New("the guard ended")
		if err != nil {
			why = fmt.Errorf("the guard ended: %w", err)
		}
		if text := said.String(); text != "" {
			why = fmt.Errorf("%w: %s", why, text)
		}
	}
	return why
}

// attend follows a guard's reports until the server has ended, does not listen in
// time, or ctx ends.
func (s *supervisor) attend(ctx context.Context, reports <-chan guardReport, spec guardSpec) error {
	late := time.NewTimer(listenLimit)
	defer late.Stop()
	var root process
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-late.C:
			return fmt.Errorf("opencode serve did not listen within %v", listenLimit)
		case r, ok := <-reports:
			switch {
			case !ok:
				return nil
			case r.Server != nil:
				root = *r.Server
			case r.Ended != "":
				return errors.New(r.Ended)
			case r.URL != "":
				late.Stop()
				at, err := parseEndpoint(r.URL, spec.Username, spec.Password)
				if err != nil {
					return err
				}
				s.health.up(at, func() int64 { return residentSize(root) })
			}
		}
	}
}

func readReports(out io.Reader, to chan<- guardReport) {
	lines := bufio.NewReader(out)
	for {
		line, err := readLine(lines)
		if err != nil {
			return
		}
		var r guardReport
		if json.Unmarshal(line, &r) == nil {
			to <- r
		}
	}
}

// withoutMesh drops the variables that are the mesh's own: they hold secrets.
func withoutMesh(env []string) []string {
	out := make([]string, 0, len(env))
	for _, v := range env {
		if !strings.HasPrefix(strings.ToUpper(v), "MESH") {
			out = append(out, v)
		}
	}
	return out
}

// serverEnv derives the server's environment. What a node needs is set by
// variables, which leave the user's configuration as it is: a database of its own
// (two servers on one do not see each other's turns), no automatic compaction (it
// adds turns), a client name under which the blocking question tool is not
// offered, and to ask for what the node's rules want to be asked for.
func serverEnv(env []string, dataDir, username, password string, rules []PermissionRule) []string {
	const permission = "OPENCODE_PERMISSION"
	given := ""
	for _, v := range env {
		if value, ok := strings.CutPrefix(v, permission+"="); ok {
			given = value
		}
	}
	set := map[string]string{
		"OPENCODE_SERVER_USERNAME":     username,
		"OPENCODE_SERVER_PASSWORD":     password,
		"OPENCODE_DB":                  filepath.Join(dataDir, "opencode.db"),
		"OPENCODE_DISABLE_AUTOCOMPACT": "1",
		"OPENCODE_DISABLE_AUTOUPDATE":  "1",
		"OPENCODE_CLIENT":              "mesh",
		permission:                     rulesFor(given, rules),
	}
	drop := map[string]bool{markerVariable: true, "OPENCODE_ENABLE_QUESTION_TOOL": true}
	var out []string
	for _, v := range withoutMesh(env) {
		name, _, _ := strings.Cut(v, "=")
		if _, ours := set[name]; !ours && !drop[name] {
			out = append(out, v)
		}
	}
	for name, value := range set {
		out = append(out, name+"="+value)
	}
	return out
}
