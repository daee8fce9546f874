package opencode

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"opencode-mesh/protocol/mesh"
)

// Plugin implements agent.Prompter: by opencode's configuration for the directory,
// which the server tells, and by the files in the places where it looks for plugins.
// Those of a server on another machine are not seen.
func (a *Agent) Plugin(ctx context.Context, dir string, names []string) (string, error) {
	s, err := a.health.ready(ctx, probeTimeout)
	if err != nil {
		return "", err
	}
	all, err := s.client.plugins(ctx, dir)
	if err != nil {
		return "", err
	}
	homes := pluginHomes(dir, all.worktree)
	for _, name := range all.configured {
		if isNamed(below(name, append(homes, all.configDir)), names) {
			return mesh.CleanLine(cut(name, maxGlance)), nil
		}
	}
	places := []string{all.configDir}
	for _, home := range homes {
		places = append(places, filepath.Join(home, ".opencode"))
	}
	for _, place := range places {
		for _, sub := range []string{"plugin", "plugins"} {
			// A place that is not there, or not for us, loads nothing that we would see.
			files, _ := os.ReadDir(filepath.Join(place, sub))
			for _, f := range files {
				if isNamed(f.Name(), names) {
					return mesh.CleanLine(cut(filepath.Join(place, sub, f.Name()), maxGlance)), nil
				}
			}
		}
	}
	return "", nil
}

// pluginHomes are the directory and those above it that may have plugins of their own,
// up to the root of the worktree.
func pluginHomes(dir, worktree string) []string {
	homes := []string{dir}
	if rel, err := filepath.Rel(worktree, dir); worktree == "" || err != nil || !filepath.IsLocal(rel) || filepath.Dir(worktree) == worktree {
		return homes
	}
	for dir != worktree && filepath.Dir(dir) != dir {
		dir = filepath.Dir(dir)
		homes = append(homes, dir)
	}
	return homes
}

// below takes the home off the path of a plugin: a project may be called as a plugin
// is.
func below(name string, homes []string) string {
	name = filepath.ToSlash(strings.TrimPrefix(name, "file://"))
	for _, home := range homes {
		if rest, ok := strings.CutPrefix(name, filepath.ToSlash(home)+"/"); ok && home != "" {
			return rest
		}
	}
	return name
}

func isNamed(name string, names []string) bool {
	name = strings.ToLower(name)
	for _, n := range names {
		if strings.Contains(name, n) {
			return true
		}
	}
	return false
}
