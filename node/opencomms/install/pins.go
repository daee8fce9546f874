package install

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"opencode-mesh/protocol/opencomms"
)

const (
	// stateDir is the directory of a project that holds everything of OpenComms.
	stateDir = ".opencomms"
	pinsDir  = "pins"
	// maxPin is how large the file of a pin may be, in bytes.
	maxPin = 64 << 10
	// MaxPins is how many pins of a project are read.
	MaxPins = 1000
)

// Pin ties an identity to an agent's program: which member an agent is comes from
// it and from the program's environment, never from what the agent says. It is
// configuration of this machine, no secret.
type Pin struct {
	MemberID string `json:"member_id"`
	Host     string `json:"host"`
	SavedAt  int64  `json:"saved_at"` // ms
	// Principal is "member" or "operator"; "" is member.
	Principal string `json:"principal,omitempty"`
}

// PinFile is where the pin of a member stands.
func PinFile(project, member string) string {
	return filepath.Join(project, stateDir, pinsDir, member+".json")
}

// Pins are the pins of a project by member id. Files that are no pins are left out:
// the id must be one and be the name of its file.
func Pins(project string) ([]Pin, error) {
	entries, err := os.ReadDir(filepath.Join(project, stateDir, pinsDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read pins: %w", err)
	}
	var out []Pin
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), ".json")
		if !ok || !e.Type().IsRegular() || !opencomms.ValidMember(id) || len(out) == MaxPins {
			continue
		}
		data, err := readFile(PinFile(project, id), maxPin)
		if err != nil {
			continue // removed, or not ours to read
		}
		var p Pin
		if json.Unmarshal(data, &p) == nil && p.MemberID == id {
			out = append(out, p)
		}
	}
	return out, nil
}

// pinOf is the pin of a member.
func pinOf(pins []Pin, id string) (Pin, bool) {
	i := slices.IndexFunc(pins, func(p Pin) bool { return p.MemberID == id })
	if i < 0 {
		return Pin{}, false
	}
	return pins[i], true
}

// ofHost are the ids of the members that are pinned for a host.
func ofHost(pins []Pin, host string) (ids []string) {
	for _, p := range pins {
		if p.Host == host {
			ids = append(ids, p.MemberID)
		}
	}
	return ids
}

// savePin writes a pin; who else has an account on the machine cannot read it.
func savePin(project string, p Pin) error {
	data, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return fmt.Errorf("save pin: %w", err)
	}
	file := PinFile(project, p.MemberID)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return fmt.Errorf("save pin: %w", err)
	}
	return replaceFile(file, data, 0o600)
}
