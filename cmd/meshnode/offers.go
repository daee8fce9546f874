package main

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/node/agent"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
)

// defaultWorkspace is the name of the current directory when no workspace is given.
const defaultWorkspace = "default"

// workspaces reads --workspace [NAME=]DIR. Every one must be there.
func workspaces(list []string) ([]agent.Workspace, error) {
	if len(list) == 0 {
		list = []string{defaultWorkspace + "=."}
	}
	out := make([]agent.Workspace, 0, len(list))
	for _, text := range list {
		w, err := workspace(text)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(out, func(o agent.Workspace) bool { return o.Name == w.Name }) {
			return nil, cli.Usage("two workspaces are called %s; name them: --workspace NAME=DIR", w.Name)
		}
		out = append(out, w)
	}
	return out, nil
}

func workspace(text string) (w agent.Workspace, err error) {
	name, dir, named := strings.Cut(text, "=")
	if !named || strings.ContainsAny(name, `/\`) { // a = further on is part of the path
		name, dir = "", text
	}
	if dir == "" {
		return w, cli.Usage("--workspace is [NAME=]DIR, not %q", text)
	}
	if w.Dir, err = filepath.Abs(dir); err != nil {
		return w, fmt.Errorf("workspace: %w", err)
	}
	if w.Name = name; w.Name == "" {
		w.Name = api.SuggestName(filepath.Base(w.Dir))
	}
	if len(w.Name) > api.MaxName || !mesh.ValidTaskID(w.Name) {
		return w, cli.Usage("the workspace %s needs a name of at most %d letters, digits, '.', '_' and '-': --workspace NAME=DIR", w.Dir, api.MaxName)
	}
	info, err := os.Stat(w.Dir)
	switch {
	case err != nil:
		return w, cli.Usage("workspace %s: %w", w.Name, err)
	case !info.IsDir():
		return w, cli.Usage("workspace %s: %s is not a directory", w.Name, w.Dir)
	}
	return w, nil
}

// services reads --service NAME=URL.
func services(list []string) (map[string]string, error) {
	out := make(map[string]string, len(list))
	for _, text := range list {
		name, address, _ := strings.Cut(text, "=")
		if !api.ValidName(name) {
			return nil, cli.Usage("--service is NAME=URL, with a name of %s", api.NameRule)
		}
		if _, twice := out[name]; twice {
			return nil, cli.Usage("the service %s is named twice", name)
		}
		// The words of url.Parse would repeat a password in it.
		u, err := url.Parse(address)
		known := err == nil && slices.Contains([]string{"http", "https", "tcp"}, u.Scheme)
		if !known || u.Hostname() == "" || u.Scheme == "tcp" && u.Port() == "" {
			return nil, cli.Usage("the address of service %s is http://HOST:PORT, https://HOST:PORT or tcp://HOST:PORT", name)
		}
		out[name] = address
	}
	return out, nil
}
