package opencomms

import "errors"

// ArchiveSchema is the version of the archives that this package reads and writes.
const ArchiveSchema = 1

// Archive is a saved session: a channel that was moved out of the state file into
// one of its own, archives/<channel id>.json.
type Archive struct {
	ChannelID   string
	Name        string
	ParentID    string // parent_channel_id
	Description string
	Summary     string // at most MaxSummary UTF-16 units
	Members     []*Member
	Budgets     Budgets
	CreatedAt   int64
	SavedAt     int64
	SavedBy     string // session id
	SavedByRole string
	Messages    []*Envelope // oldest first, at most MaxMessages
	FinalNote   string      // final_state_note: the beginning of the last message

	kept kept
}

// ValidArchiveID reports whether id may name an archive's file.
func ValidArchiveID(id string) bool { return false }

// DecodeArchive reads an archive. It fails with *InvalidError.
func DecodeArchive(data []byte) (*Archive, error) { return nil, errors.New("not yet") }

// Encode writes the archive. It fails with *InvalidError.
func (a *Archive) Encode() ([]byte, error) { return nil, errors.New("not yet") }
