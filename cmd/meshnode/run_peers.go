package main

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"opencode-mesh/node/peers"
	protocol "opencode-mesh/protocol/peers"
)

// peersFlags say how the node takes part in opencode-plugin-peers.
func peersFlags(f *pflag.FlagSet) {
	f.String("peers", peers.ShowOff, "which agents of this machine (opencode-plugin-peers) other machines see: off, names or all")
	f.StringArray("peers-name", nil, "pattern of names for --peers names (repeatable)")
	f.Bool("no-peers", false, "take no part in opencode-plugin-peers: nothing is published here, and no agent of another machine is seen")
	f.String("peers-dir", "", "directory that the peers of this machine share (default: opencode-plugin-peers in $XDG_DATA_HOME or ~/.local/share)")
	f.String("peers-policy", protocol.PolicyAccept, "messages of peers to sessions of this node: accept, auto: from the same directory only, hold: wait for meshnode peers inbox, or refuse")
	f.String("peers-permissions", peers.PermissionsAllow, "what a session asks leave for because of a message of this machine: ask, allow or deny")
	f.String("peers-permissions-remote", peers.PermissionsAsk, "the same for messages of other machines")
	f.StringArray("peers-option", nil, "option of opencode-plugin-peers that is a number, as KEY=VALUE (repeatable): "+strings.Join(protocol.OptionNames(), ", "))
}

// peersConfig reads them.
func peersConfig(f *pflag.FlagSet) (off bool, c peers.Config, err error) {
	off, _ = f.GetBool("no-peers")
	c.Show, _ = f.GetString("peers")
	c.ShowNames, _ = f.GetStringArray("peers-name")
	c.StorageDir, _ = f.GetString("peers-dir")
	c.Policy, _ = f.GetString("peers-policy")
	c.Permissions, _ = f.GetString("peers-permissions")
	c.PermissionsRemote, _ = f.GetString("peers-permissions-remote")
	for _, name := range []string{"peers", "peers-dir", "peers-policy", "peers-permissions", "peers-permissions-remote"} {
		if value, _ := f.GetString(name); value == "" && f.Changed(name) {
			return off, c, fmt.Errorf("--%s is empty", name)
		}
		if off && f.Changed(name) {
			return off, c, fmt.Errorf("--%s says how the node takes part, and --no-peers that it does not", name)
		}
	}
	options, _ := f.GetStringArray("peers-option")
	if off && len(options)+len(c.ShowNames) > 0 {
		return off, c, fmt.Errorf("--peers-option and --peers-name say how the node takes part, and --no-peers that it does not")
	}
	if c.StorageDir != "" {
		// The registry is shared with processes that run elsewhere.
		if c.StorageDir, err = filepath.Abs(c.StorageDir); err != nil {
			return off, c, fmt.Errorf("--peers-dir: %w", err)
		}
	}
	c.Options = protocol.DefaultOptions()
	for _, option := range options {
		key, value, ok := strings.Cut(option, "=")
		if !ok {
			return off, c, fmt.Errorf("--peers-option is KEY=VALUE, not %q", option)
		}
		if err := c.Options.Set(key, value); err != nil {
			return off, c, fmt.Errorf("--peers-option: %w", err)
		}
	}
	if err := c.Check(); err != nil {
		return off, c, fmt.Errorf("--peers: %w", err)
	}
	return off, c, nil
}
