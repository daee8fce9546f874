package auth

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"opencode-mesh/protocol/api"
)

// ErrBadProfile means that a credential file is there and cannot be used.
var ErrBadProfile = errors.New("the credential file is damaged")

// maxProfile is the largest credential file, in bytes.
const maxProfile = 64 << 10

// Profile is what a node or controller keeps of its login.
type Profile struct {
	Link       Link     `json:"link"`
	HubID      string   `json:"hub_id"`
	IdentityID string   `json:"identity_id"`
	Name       string   `json:"name"`
	Role       api.Role `json:"role"`
	// CAFile is the certificate file that https links are verified with; "" means
	// the system's.
	CAFile     string `json:"ca_file,omitempty"`
	Credential Secret `json:"credential"`
}

// profileFile is a Profile as it stands in its file, the credential in clear.
type profileFile struct {
	profileFields
	Credential string `json:"credential"`
}

// profileFields has the fields of Profile but none of its methods.
type profileFields Profile

// NewProfile makes the profile of a credential that the hub at link issued.
func NewProfile(link Link, caFile string, is api.Issued) Profile {
	return Profile{Link: link, HubID: is.HubID, IdentityID: is.IdentityID, Name: is.Name, Role: is.Role,
		CAFile: caFile, Credential: Secret(is.Credential)}
}

// validate reports the first thing that is missing or malformed, in words that
// hold no secret.
func (p Profile) validate() error {
	switch {
	case p.Link == Link{}:
		return errors.New("no link")
	case p.IdentityID == "":
		return errors.New("no identity_id")
	case p.HubID == "":
		return errors.New("no hub_id")
	case !api.ValidName(p.Name):
		return errors.New("no valid name")
	case !p.Role.Valid():
		return errors.New("no valid role")
	}
	if _, ok := HashSecret(p.Credential.Reveal()); !ok {
		return errors.New("no valid credential")
	}
	return nil
}

// SaveProfile writes p to path with mode 0600 in one durable step; directories
// that are missing are made with mode 0700.
func SaveProfile(path string, p Profile) error {
	if err := p.validate(); err != nil {
		return fmt.Errorf("credential not saved: %w", err)
	}
	data, err := json.MarshalIndent(profileFile{profileFields(p), p.Credential.Reveal()}, "", "  ")
	if err != nil {
		return fmt.Errorf("credential not saved: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("credential not saved: %w", err)
	}
	if err := writeFile(path, append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("credential not saved: %w", err)
	}
	return nil
}

// LoadProfile reads what SaveProfile wrote. A missing file gives fs.ErrNotExist,
// one that others may read ErrExposed, one that cannot be used ErrBadProfile.
func LoadProfile(path string) (Profile, error) {
	data, err := readSecretFile(path, maxProfile)
	if err != nil {
		return Profile{}, fmt.Errorf("credential not loaded: %w", err)
	}
	var f profileFile
	if err := json.Unmarshal(data, &f); err != nil {
		// The parser's words may quote the file, so they are not passed on.
		return Profile{}, fmt.Errorf("%w: %s is not in the form that this program writes", ErrBadProfile, path)
	}
	p := Profile(f.profileFields)
	p.Credential = Secret(f.Credential)
	if err := p.validate(); err != nil {
		return Profile{}, fmt.Errorf("%w: %s has %w", ErrBadProfile, path, err)
	}
	return p, nil
}
