package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"opencode-mesh/node/peers/files"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/ocp"
)

// maxConsentsFile is the largest file of consents, in bytes: more than
// api.MaxContextConsents take.
const maxConsentsFile = 8 << 20

// Path is the file of the consents in a node's data directory.
func Path(dataDir string) string { return filepath.Join(dataDir, "consents.json") }

// consents are the consents of the machine, on disk before they count. Safe for
// concurrent use.
type consents struct {
	path string

	mu  sync.Mutex // guards the following and the file
	all ocp.Consents
}

// openConsents reads the file. One that cannot be understood is set aside and means that
// nothing is consented to.
func openConsents(path string, log *slog.Logger) (*consents, error) {
	c := &consents{path: path}
	data, err := files.Read(files.OS{}, path, maxConsentsFile)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	damage := err
	if err == nil {
		damage = json.Unmarshal(data, &c.all)
	}
	switch {
	case damage == nil:
		return c, nil
	case err != nil && !errors.Is(err, files.ErrTooBig):
		return nil, fmt.Errorf("read the consents to context providers, %s: %w", path, err)
	}
	aside := path + ".damaged-" + time.Now().UTC().Format("20060102T150405.000")
	if err := (files.OS{}).Rename(path, aside); err != nil {
		return nil, fmt.Errorf("%s is damaged (%w) and cannot be set aside: %w", path, damage, err)
	}
	log.Error("the file of consents is damaged and was set aside: no context provider has consent any more; consent again with meshnode ocp consent",
		"file", path, "aside", aside, "err", damage)
	return c, nil
}

// permits tells whether a provider may have queries, as ocp.Consents.Permits does.
func (c *consents) permits(s ocp.Subject) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all.Permits(s)
}

// get returns the consent for a provider, whether or not it still fits.
func (c *consents) get(provider string) (ocp.Consent, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all.Get(provider)
}

func (c *consents) list() []ocp.Consent {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all.All()
}

// record stores a consent. It counts once it is on disk.
func (c *consents) record(consent ocp.Consent) error {
	return c.change(func(next *ocp.Consents) error {
		if _, had := next.Get(consent.Provider); !had && len(next.All()) >= api.MaxContextConsents {
			return api.Errorf(api.CodeQueueFull, "there are %d consents already: revoke those that are not needed", api.MaxContextConsents)
		}
		if err := next.Record(consent); err != nil {
			return api.Errorf(api.CodeBadRequest, "%v", err)
		}
		return nil
	})
}

// revoke forgets a consent; false if there was none. In this process it is gone whatever
// the disk does; an error says that it may come back with a restart.
func (c *consents) revoke(provider string) (bool, error) {
	had := false
	err := c.change(func(next *ocp.Consents) error {
		_, had = next.Revoke(provider)
		_, _ = c.all.Revoke(provider) // before the disk
		return nil
	})
	return had, err
}

// change stores a changed copy.
func (c *consents) change(do func(next *ocp.Consents) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var next ocp.Consents
	for _, consent := range c.all.All() {
		if err := next.Record(consent); err != nil {
			return err
		}
	}
	if err := do(&next); err != nil {
		return err
	}
	data, err := json.MarshalIndent(next, "", "  ")
	if err != nil {
		return err
	}
	if err := files.Replace(files.OS{}, c.path, append(data, '\n')); err != nil {
		return fmt.Errorf("store the consents: %w", err)
	}
	c.all = next
	return nil
}
