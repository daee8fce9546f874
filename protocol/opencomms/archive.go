package opencomms

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
)

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

var archiveFields = []field[Archive]{
	{
		name: "schema", rule: must, want: strconv.Itoa(ArchiveSchema),
		read: func(s *scanner, _ *Archive) bool {
			f, err := strconv.ParseFloat(s.value(), 64)
			return err == nil && f == ArchiveSchema
		},
		write: func(dst []byte, _ *Archive, _ string, _ int) []byte { return appendNumber(dst, ArchiveSchema) },
	},
	textOf("channel_id", must, func(a *Archive) *string { return &a.ChannelID }),
	textOf("name", must, func(a *Archive) *string { return &a.Name }),
	nullTextOf("parent_channel_id", filled, func(a *Archive) *string { return &a.ParentID }),
	nullTextOf("description", filled, func(a *Archive) *string { return &a.Description }),
	textOf("summary", filled, func(a *Archive) *string { return &a.Summary }),
	{
		name: "members", rule: must, want: "list",
		read: func(s *scanner, a *Archive) (ok bool) {
			a.Members, ok = readRecords(s, "members", func() (*Member, *InvalidError) {
				m := &Member{}
				m.kept.text, _, _ = readRecord(s, memberFields, m)
				return m, nil
			})
			return ok
		},
		write: func(dst []byte, a *Archive, _ string, depth int) []byte { return appendMembers(dst, a.Members, depth) },
	},
	nestedOf("budgets", filled, budgetFields, func(a *Archive) *Budgets { return &a.Budgets }),
	numberOf("created_at", filled, 0, func(a *Archive) *int64 { return &a.CreatedAt }),
	numberOf("saved_at", must, 0, func(a *Archive) *int64 { return &a.SavedAt }),
	nullTextOf("saved_by", filled, func(a *Archive) *string { return &a.SavedBy }),
	nullTextOf("saved_by_role", filled, func(a *Archive) *string { return &a.SavedByRole }),
	{
		name: "message_count", rule: filled,
		read:  func(s *scanner, _ *Archive) bool { s.value(); return true },
		write: func(dst []byte, a *Archive, _ string, _ int) []byte { return appendNumber(dst, int64(len(a.Messages))) },
	},
	{
		name: "messages", rule: must, want: "list",
		read: func(s *scanner, a *Archive) (ok bool) {
			a.Messages, ok = readRecords(s, "messages", func() (*Envelope, *InvalidError) {
				e := &Envelope{}
				return e, e.read(s)
			})
			return ok
		},
		write: func(dst []byte, a *Archive, _ string, depth int) []byte {
			dst = append(dst, '[')
			for i, e := range a.Messages {
				if i > 0 {
					dst = append(dst, ',')
				}
				dst = appendEnvelope(appendLine(dst, depth+1), e)
			}
			return appendClose(dst, len(a.Messages) == 0, depth, ']')
		},
	},
	nullTextOf("final_state_note", filled, func(a *Archive) *string { return &a.FinalNote }),
}

// readRecords reads a list of records. The first that is none, or breaks a rule, is
// the scanner's fault.
func readRecords[T any](s *scanner, name string, read func() (*T, *InvalidError)) (list []*T, ok bool) {
	if s.kind() != '[' {
		s.value()
		return nil, false
	}
	for ok := s.enter('[', ']'); ok; ok = s.more(']') {
		var err *InvalidError
		if s.kind() == '{' {
			var v *T
			v, err = read()
			list = append(list, v)
		} else {
			s.value()
			err = &InvalidError{"", "is no object"}
		}
		if err != nil && s.fault == nil {
			s.fault = err.under(name + quoteIndex(len(list)))
		}
	}
	return list, true
}

// ValidArchiveID reports whether id may name an archive's file.
func ValidArchiveID(id string) bool {
	rest, ok := strings.CutPrefix(id, PrefixChannel)
	if !ok || rest == "" || len(rest) > 64 {
		return false
	}
	for i := 0; i < len(rest); i++ {
		if c := rest[i]; !isLetter(c) && !isDigit(c) && c != '_' && c != '-' {
			return false
		}
	}
	return true
}

// DecodeArchive reads an archive. It fails with *InvalidError where the programs
// that share the file would not take it.
func DecodeArchive(data []byte) (*Archive, error) {
	s := newScanner(data, SchemaVersion)
	a := &Archive{}
	text, bad, _ := readRecord(s, archiveFields, a)
	s.end()
	switch {
	case s.err != nil:
		return nil, s.err
	case s.fault != nil:
		return nil, s.fault
	}
	if err := missing(s, archiveFields, bad); err != nil {
		return nil, err
	}
	a.kept.text = text
	return a, nil
}

// Encode writes the archive as its file. It fails with *InvalidError where
// DecodeArchive would, or the id is none that may name a file.
func (a *Archive) Encode() ([]byte, error) {
	if !ValidArchiveID(a.ChannelID) {
		return nil, &InvalidError{"channel_id", "is no id of a channel"}
	}
	for i, m := range a.Members {
		if err := m.check(); err != nil {
			return nil, err.under("members" + quoteIndex(i))
		}
	}
	for i, e := range a.Messages {
		if e == nil {
			return nil, &InvalidError{"messages" + quoteIndex(i), "no message"}
		}
	}
	text := appendRecord(nil, archiveFields, a, a.kept.text, 0)
	// Members stood deeper in the state file than they do here.
	var b bytes.Buffer
	if err := json.Indent(&b, text, "", "  "); err != nil {
		return nil, &InvalidError{"", err.Error()}
	}
	return b.Bytes(), nil
}
