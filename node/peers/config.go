package peers

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"opencode-mesh/protocol/peers"
)

// What Config.Show may be.
const (
	ShowOff   = "off"   // no agent of this machine
	ShowNames = "names" // those whose name matches one of Config.ShowNames
	ShowAll   = "all"
)

// What becomes of what a session asks leave for in a turn that a peer's message began.
const (
	PermissionsAllow = "allow" // once, but nothing protected
	PermissionsAsk   = "ask"   // left to the user
	PermissionsDeny  = "deny"
)

// Config says how a node takes part. Node and DataDir are required.
type Config struct {
	// Node is the node's name: that of its desk, and what other machines show.
	Node string
	// DataDir is the node's own directory, where the desk's name is kept.
	DataDir string
	// Show says which agents of this machine other machines see: ShowOff, ShowNames or
	// ShowAll; "": ShowOff. Sessions of the node's own opencode are published iff it is
	// not ShowOff.
	Show string
	// ShowNames are the globs of ShowNames, as path.Match has them.
	ShowNames []string
	// StorageDir is the directory that all peers of the machine share; "": the
	// original's.
	StorageDir string
	// RuntimeDir is where the Unix socket is; "": the original's.
	RuntimeDir string
	// Policy is what becomes of messages for this node's endpoints that name no policy
	// of their own; "": accept.
	Policy string
	// Permissions is for turns that messages of this machine began; "": allow, as the
	// original has it. PermissionsRemote is for those of other machines; "": ask.
	Permissions, PermissionsRemote string
	// Options are the original's; the zero value: peers.DefaultOptions.
	Options peers.Options
	// Version is the program's, for the registry.
	Version string
	// Log gets what an operator should see; nil: discarded.
	Log *slog.Logger

	now func() time.Time
}

// withDefaults returns a checked copy with the zero values filled in.
func (c Config) withDefaults() (Config, error) {
	if c.Options == (peers.Options{}) {
		c.Options = peers.DefaultOptions()
	}
	for v, value := range map[*string]string{
		&c.Show: ShowOff, &c.Policy: peers.PolicyAccept, &c.Permissions: PermissionsAllow, &c.PermissionsRemote: PermissionsAsk,
	} {
		if *v == "" {
			*v = value
		}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.now == nil {
		c.now = time.Now
	}
	if c.Node == "" || c.DataDir == "" {
		return c, errors.New("peers config: no node or no data directory")
	}
	if err := c.Check(); err != nil {
		return c, fmt.Errorf("peers config: %w", err)
	}
	var err error
	if c.StorageDir == "" {
		if c.StorageDir, err = storageDir(); err != nil {
			return c, fmt.Errorf("peers config: %w", err)
		}
	}
	if c.RuntimeDir == "" {
		c.RuntimeDir = runtimeDir()
	}
	return c, nil
}

// Check says what is wrong with what a person chose, in words for people.
func (c Config) Check() error {
	switch {
	case c.Show != "" && c.Show != ShowOff && c.Show != ShowNames && c.Show != ShowAll:
		return fmt.Errorf("what other machines see is off, names or all, not %q", c.Show)
	case c.Show == ShowNames && len(c.ShowNames) == 0:
		return errors.New("names shows the agents with certain names: say which")
	case c.Show != ShowNames && len(c.ShowNames) > 0:
		return errors.New("names of agents go with names, not with off or all")
	case !slices.Contains([]string{"", peers.PolicyAccept, peers.PolicyAuto, peers.PolicyHold, peers.PolicyRefuse}, c.Policy):
		return fmt.Errorf("the policy is accept, auto, hold or refuse, not %q", c.Policy)
	}
	for _, p := range []string{c.Permissions, c.PermissionsRemote} {
		if !slices.Contains([]string{"", PermissionsAllow, PermissionsAsk, PermissionsDeny}, p) {
			return fmt.Errorf("permissions are ask, allow or deny, not %q", p)
		}
	}
	for _, glob := range c.ShowNames {
		if _, err := path.Match(glob, ""); err != nil || glob == "" {
			return fmt.Errorf("%q is no pattern of names", glob)
		}
	}
	if c.Options != (peers.Options{}) && c.Options.Stale <= c.Options.Heartbeat {
		return errors.New("staleMs is more than heartbeatMs, or every peer counts as gone between two heartbeats")
	}
	return nil
}

// Shows reports whether other machines may see an agent of this name.
func (c Config) Shows(name string) bool {
	switch c.Show {
	case ShowAll:
		return true
	case ShowNames:
		for _, glob := range c.ShowNames {
			if ok, err := path.Match(glob, name); ok && err == nil {
				return true
			}
		}
	}
	return false
}

// product is the original's name of its directories.
const product = "opencode-plugin-peers"

// storageDir is the original's, which is the same on every system.
func storageDir() (string, error) {
	if data := os.Getenv("XDG_DATA_HOME"); strings.TrimSpace(data) != "" {
		return filepath.Join(data, product), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("find the directory of peers (or name it): %w", err)
	}
	return filepath.Join(home, ".local", "share", product), nil
}

// runtimeDir is the original's.
func runtimeDir() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, product)
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("ocp-%d", os.Getuid()))
}
