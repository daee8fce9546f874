// Package pins reads the files .opencomms/pins/<member id>.json of a project. One
// says that a local operator let a member id be used by a host; a program that has
// the id in its environment may then come into channels with it. Pins are
// configuration: whoever can write them can also write the state file.
package pins

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"opencode-mesh/protocol/opencomms"
)

// maxPin bounds a pin file, in bytes.
const maxPin = 64 << 10

// The values of a pin's principal.
const (
	PrincipalMember   = "member"
	PrincipalOperator = "operator"
)

// ErrNone says that a member id has no pin, or a file that is none.
var ErrNone = errors.New("no pin")

// Pin is one pin file.
type Pin struct {
	MemberID  string `json:"member_id"`
	Host      string `json:"host"`
	SavedAt   int64  `json:"saved_at"`            // milliseconds since 1970
	Principal string `json:"principal,omitempty"` // "" is PrincipalMember
}

// Dir is the directory of a project's pins.
func Dir(project string) string { return filepath.Join(project, ".opencomms", "pins") }

// Path is where the pin of a member is.
func Path(project, member string) string { return filepath.Join(Dir(project), member+".json") }

// Load returns the pin of a member. A file that is missing, cannot be read as a
// pin or names another member is ErrNone; other errors are the file system's.
func Load(project, member string) (Pin, error) {
	if !opencomms.ValidMember(member) {
		return Pin{}, fmt.Errorf("%w: %q is no member id", ErrNone, member)
	}
	data, err := read(Path(project, member))
	if errors.Is(err, fs.ErrNotExist) {
		return Pin{}, fmt.Errorf("%w for %s", ErrNone, member)
	}
	if err != nil {
		return Pin{}, fmt.Errorf("read the pin of %s: %w", member, err)
	}
	// What is not used here may be of any type: other programs write pins too.
	var p struct {
		MemberID  string          `json:"member_id"`
		Host      string          `json:"host"`
		SavedAt   json.RawMessage `json:"saved_at"`
		Principal string          `json:"principal"`
	}
	if err := json.Unmarshal(data, &p); err != nil {
		return Pin{}, fmt.Errorf("%w for %s: its file cannot be read: %w", ErrNone, member, err)
	}
	if p.MemberID != member {
		return Pin{}, fmt.Errorf("%w for %s: its file names another member", ErrNone, member)
	}
	pin := Pin{MemberID: p.MemberID, Host: p.Host, Principal: p.Principal}
	_ = json.Unmarshal(p.SavedAt, &pin.SavedAt)
	return pin, nil
}

func read(path string) ([]byte, error) {
	// A pipe would block the open.
	if info, err := os.Stat(path); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, errors.New("it is no regular file")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxPin))
}
