package pins

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strings"
)

// hostName is what a member's host may be called: a word.
var hostName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)

// ValidHost reports whether an agent's program may be called that.
func ValidHost(name string) bool { return hostName.MatchString(name) }

// MaxListed is how many pins of a project are listed.
const MaxListed = 1000

// List returns the pins of a project, by member id. Files that are no pins, or
// cannot be read, are left out; a project without pins has an empty list.
func List(project string) ([]Pin, error) {
	entries, err := os.ReadDir(Dir(project))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list pins: %w", err)
	}
	var out []Pin
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), ".json")
		if !ok || len(out) == MaxListed {
			continue
		}
		if p, err := Load(project, id); err == nil {
			out = append(out, p)
		}
	}
	return out, nil
}
