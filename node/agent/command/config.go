package command

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"opencode-mesh/protocol/api"
)

// Stdin says what a program gets on its standard input.
type Stdin string

// What a program may get.
const (
	// StdinEnvelope is the envelope, header included. It is the default.
	StdinEnvelope Stdin = "envelope"
	// StdinBody is the text behind the header only.
	StdinBody Stdin = "body"
)

// Defaults of a Config.
const (
	// DefaultOutputCap stops a program that floods, before it fills the disk.
	DefaultOutputCap = 64 << 20
	// DefaultKillGrace is how long a program may take to end when asked to.
	DefaultKillGrace = 5 * time.Second
)

// Config says what to run and how.
type Config struct {
	// Command is the program and its arguments. A program without a path separator
	// is looked up in PATH for every turn; a relative path is taken from the
	// directory that New is called in.
	Command []string
	// Stdin is what the program gets; "" means StdinEnvelope.
	Stdin Stdin
	// Conduct puts the receiver's conduct before the envelope.
	Conduct bool
	// RunsDir holds one directory per turn; made when missing, 0700.
	RunsDir string
	// ShimCommand starts a process that calls ShimMain with the arguments after
	// these, such as {"/usr/bin/meshnode", "shim"}.
	ShimCommand []string
	// MaxOutput is the largest reply kept with a result, in bytes; a longer one
	// becomes an artifact as well. 0 means api.MaxReply, which is also the largest.
	MaxOutput int64
	// OutputCap is how many bytes the program may write to its standard output
	// before it is stopped; 0 means DefaultOutputCap. Not below MaxOutput.
	OutputCap int64
	// KillGrace is how long a program may take to end by itself after a cancel or
	// deadline; 0 means DefaultKillGrace.
	KillGrace time.Duration
	// Env is the environment that programs get; nil means this process's. Variables
	// of the mesh are taken out of it.
	Env []string
	// PollInterval is how often to look where the system has no event; 0 means
	// 100 ms.
	PollInterval time.Duration
	// Log; nil means none.
	Log *slog.Logger
}

// Validate reports the first setting that cannot work.
func (c Config) Validate() error {
	switch {
	case len(c.Command) == 0 || c.Command[0] == "":
		return errors.New("command agent: no program given")
	case c.Stdin != "" && c.Stdin != StdinEnvelope && c.Stdin != StdinBody:
		return fmt.Errorf("command agent: stdin is %q and must be %q or %q", c.Stdin, StdinEnvelope, StdinBody)
	case c.Conduct && c.Stdin == StdinBody:
		return errors.New("command agent: the conduct goes before the envelope and cannot go with stdin body")
	case c.RunsDir == "":
		return errors.New("command agent: no directory for runs given")
	case len(c.ShimCommand) == 0 || c.ShimCommand[0] == "":
		return errors.New("command agent: no shim command given")
	case c.MaxOutput < 0 || c.MaxOutput > api.MaxReply:
		return fmt.Errorf("command agent: the largest reply must be between 1 and %d bytes", api.MaxReply)
	case c.OutputCap < 0:
		return errors.New("command agent: the output cap is negative")
	case c.KillGrace < 0 || c.PollInterval < 0:
		return errors.New("command agent: a duration is negative")
	}
	if c = c.withDefaults(); c.OutputCap < c.MaxOutput {
		return fmt.Errorf("command agent: the output cap of %d bytes is below the largest reply of %d", c.OutputCap, c.MaxOutput)
	}
	return nil
}

func (c Config) withDefaults() Config {
	if c.Stdin == "" {
		c.Stdin = StdinEnvelope
	}
	if c.MaxOutput == 0 {
		c.MaxOutput = api.MaxReply
	}
	if c.OutputCap == 0 {
		c.OutputCap = DefaultOutputCap
	}
	if c.KillGrace == 0 {
		c.KillGrace = DefaultKillGrace
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// resolved makes paths independent of the working directory.
func (c Config) resolved() (Config, error) {
	var err error
	if c.RunsDir, err = filepath.Abs(c.RunsDir); err != nil {
		return c, fmt.Errorf("command agent: runs directory: %w", err)
	}
	if strings.ContainsRune(filepath.ToSlash(c.Command[0]), '/') {
		program, err := filepath.Abs(c.Command[0])
		if err != nil {
			return c, fmt.Errorf("command agent: program: %w", err)
		}
		c.Command = append([]string{program}, c.Command[1:]...)
	}
	return c, nil
}
