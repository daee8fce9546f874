package opencode

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
)

// v1Config is what of GET /config matters to a node.
type v1Config struct {
	Model      string                     `json:"model"`
	Provider   map[string]json.RawMessage `json:"provider"`
	Permission json.RawMessage            `json:"permission"`
	Plugin     []json.RawMessage          `json:"plugin"`
	Compaction struct {
		Auto *bool `json:"auto"`
	} `json:"compaction"`
}

// v1Provider is a provider and the sizes of its models.
type v1Provider struct {
	ID     string `json:"id"`
	Models map[string]struct {
		Limit struct {
			Context float64 `json:"context"`
		} `json:"limit"`
	} `json:"models"`
}

func (c *v1Client) config(ctx context.Context, dir string) (v1Config, error) {
	var cfg v1Config
	_, err := c.t.do(ctx, call{method: http.MethodGet, path: "/config", dir: dir, out: &cfg})
	return cfg, err
}

func (c *v1Client) models(ctx context.Context, dir string) (models, error) {
	cfg, err := c.config(ctx, dir)
	if err != nil {
		return models{}, err
	}
	// The answer holds the providers' keys: nothing of it but names and limits may
	// leave this function.
	var all struct {
		Providers []v1Provider      `json:"providers"`
		Default   map[string]string `json:"default"`
	}
	if _, err := c.t.do(ctx, call{method: http.MethodGet, path: "/config/providers", dir: dir, out: &all}); err != nil {
		return models{}, err
	}
	var out models
	for _, p := range all.Providers {
		for id, m := range p.Models {
			out.list = append(out.list, model{provider: p.ID, id: id, context: int64(m.Limit.Context)})
		}
	}
	if provider, id, ok := splitModel(cfg.Model); ok {
		out.preferred = &model{provider: provider, id: id}
		return out, nil
	}
	// Without a configured model opencode takes a provider of the configuration if
	// there is one, else the first that it has a login for.
	order := slices.Clone(all.Providers)
	slices.SortStableFunc(order, func(a, b v1Provider) int { return rank(cfg, a.ID) - rank(cfg, b.ID) })
	for _, p := range order {
		if id := all.Default[p.ID]; id != "" {
			out.preferred = &model{provider: p.ID, id: id}
			break
		}
	}
	return out, nil
}

func (c *v1Client) plugins(ctx context.Context, dir string) (plugins, error) {
	cfg, err := c.config(ctx, dir)
	if err != nil {
		return plugins{}, err
	}
	var paths struct {
		Config   string `json:"config"`
		Worktree string `json:"worktree"`
	}
	if _, err := c.t.do(ctx, call{method: http.MethodGet, path: "/path", dir: dir, out: &paths}); err != nil {
		return plugins{}, err
	}
	out := plugins{configDir: paths.Config, worktree: paths.Worktree}
	for _, raw := range cfg.Plugin {
		// An entry is a name, or a list of a name and its options.
		var name string
		var list []json.RawMessage
		if json.Unmarshal(raw, &list) == nil && len(list) > 0 {
			raw = list[0]
		}
		if json.Unmarshal(raw, &name) == nil {
			out.configured = append(out.configured, name)
		}
	}
	return out, nil
}

// rank orders providers: configured ones first, opencode's own free models last.
func rank(cfg v1Config, provider string) int {
	if _, ok := cfg.Provider[provider]; ok {
		return 0
	}
	if provider == "opencode" {
		return 2
	}
	return 1
}

// splitModel reads "provider/model"; the model's id may hold slashes.
func splitModel(s string) (provider, id string, ok bool) {
	provider, id, ok = strings.Cut(s, "/")
	return provider, id, ok && provider != "" && id != ""
}

func (c *v1Client) warnings(ctx context.Context, dir string) ([]string, error) {
	cfg, err := c.config(ctx, dir)
	if err != nil {
		return nil, err
	}
	var out []string
	if c.t.at.password == "" {
		out = append(out, "the opencode server has no password: any local user or web page can use it (set OPENCODE_SERVER_PASSWORD)")
	}
	if cfg.Compaction.Auto == nil || *cfg.Compaction.Auto {
		out = append(out, "auto-compaction is on at the opencode server and may add turns of its own (start it with OPENCODE_DISABLE_AUTOCOMPACT=1)")
	}
	var permission map[string]json.RawMessage
	// A permission that is one word for everything is not an object.
	if json.Unmarshal(cfg.Permission, &permission) != nil || string(permission["question"]) != `"deny"` {
		out = append(out, `the question tool may be on at the opencode server; the node answers what it asks (set permission.question to "deny")`)
	}
	return out, nil
}
