package mcp

import (
	"errors"
	"strings"

	ocm "opencode-mesh/protocol/opencomms"

	"opencode-mesh/node/opencomms"
	"opencode-mesh/node/opencomms/engine"
	"opencode-mesh/node/opencomms/statefile"
	"opencode-mesh/protocol/mesh"
)

// Codes of refusals of this server, beside those of the rules.
const (
	codeInvalidArgument engine.Code = "invalid_argument"
	codeNoIdentity      engine.Code = "no_identity"
	codeUnknownIdentity engine.Code = "unknown_identity"
	codeStateUnusable   engine.Code = "state_unusable"
)

// MaxShown bounds the contents in the answer of a tool that only reads, in bytes.
// Messages beyond it are listed without theirs.
const MaxShown = 1 << 20

// maxLine bounds a name or line of others in a result, in UTF-16 units.
const maxLine = 500

// notShown stands for a content beyond MaxShown.
const notShown = "(not shown: the answer would be too large; ask for fewer messages with limit)"

// reply is the JSON in a result's text.
type reply struct {
	OK      bool   `json:"ok"`
	Message string `json:"message"`
	Data    any    `json:"data,omitempty"`
}

// refusalReply is the reply to what was not allowed. ok is false when err is a
// failure.
func refusalReply(err error) (r reply, ok bool) {
	var refused *engine.Refusal
	var corrupt *statefile.CorruptError
	var irregular *statefile.NotRegularError
	var legacy *statefile.LegacyError
	switch {
	case errors.As(err, &refused):
	case errors.As(err, &corrupt), errors.As(err, &irregular), errors.As(err, &legacy):
		// Only a person can mend it, whom only the agent can tell.
		refused = &engine.Refusal{Code: codeStateUnusable, Message: err.Error()}
	default:
		return reply{}, false
	}
	data := map[string]any{"code": refused.Code}
	if refused.Code == engine.InvalidMessageType {
		data["reason"] = refused.Code // the one that the original gives
	}
	return reply{Message: plain(refused.Message), Data: data}, true
}

// plain makes text of others one harmless line.
func plain(s string) string {
	s, _ = mesh.Defuse(mesh.CleanLine(ocm.Cut(ocm.Valid(s), maxLine)))
	return s
}

func plainPointer(s *string) *string {
	if s == nil {
		return nil
	}
	out := plain(*s)
	return &out
}

// fence puts content between the delimiters of peer content until room is used up.
type fence struct{ room int }

func newFence() *fence { return &fence{room: MaxShown} }

func (f *fence) put(content string) string {
	if f.room -= len(content); f.room < 0 {
		f.room = 0 // what is smaller and comes later is not shown either
		return notShown
	}
	return ocm.Fence(content)
}

// messages is the data of a tool that shows some.
type messages struct {
	Pending  *int             `json:"pending,omitempty"`
	Messages []engine.Message `json:"messages"`
	Notice   string           `json:"untrusted_notice,omitempty"`
}

func shown(list []engine.Message, pending *int) messages {
	f := newFence()
	out := messages{Pending: pending, Messages: make([]engine.Message, len(list)), Notice: notice(len(list))}
	for i, m := range list {
		m.Content, m.Channel = f.put(m.Content), plain(m.Channel)
		m.SenderRole, m.RecipientRole = plain(m.SenderRole), plain(m.RecipientRole)
		m.Type = plain(m.Type)
		m.ReplyTo = plainPointer(m.ReplyTo)
		out.Messages[i] = m
	}
	return out
}

func notice(n int) string {
	if n == 0 {
		return ""
	}
	return ocm.UntrustedNotice
}

// archivedMessages is shown for an archive.
type archivedMessages struct {
	Messages []opencomms.ArchivedMessage `json:"messages"`
	Notice   string                      `json:"untrusted_notice,omitempty"`
}

func shownArchived(list []opencomms.ArchivedMessage) archivedMessages {
	f := newFence()
	out := archivedMessages{Messages: make([]opencomms.ArchivedMessage, len(list)), Notice: notice(len(list))}
	for i, m := range list {
		m.Content, m.Type = f.put(m.Content), plain(m.Type)
		m.SenderRole, m.RecipientRole = plain(m.SenderRole), plain(m.RecipientRole)
		out.Messages[i] = m
	}
	return out
}

func shownArchives(list []opencomms.ArchiveSummary) []opencomms.ArchiveSummary {
	out := make([]opencomms.ArchiveSummary, len(list))
	for i, a := range list {
		a.Name, a.Summary = plain(a.Name), plain(a.Summary)
		a.Description, a.SavedByRole = plainPointer(a.Description), plainPointer(a.SavedByRole)
		out[i] = a
	}
	return out
}

// archiveContext is the text about an archive, which holds what members wrote.
type archiveContext struct {
	opencomms.ArchiveContext
	Notice string `json:"untrusted_notice"`
}

func shownContext(c opencomms.ArchiveContext) archiveContext {
	c.Context = ocm.Fence(c.Context)
	return archiveContext{c, ocm.UntrustedNotice}
}

// shownStatus cleans what a state file may name in any way.
func shownStatus(s engine.Status) engine.Status {
	for i := range s.Channels {
		c := &s.Channels[i]
		c.Name, c.ProjectID, c.Worktree = plain(c.Name), plain(c.ProjectID), plain(c.Worktree)
		for j := range c.Members {
			m := &c.Members[j]
			m.Role, m.Host, m.Surface, m.Mode = plain(m.Role), plain(m.Host), plain(m.Surface), plain(m.Mode)
		}
	}
	for i := range s.Errors {
		s.Errors[i].Message = plain(s.Errors[i].Message)
	}
	return s
}

// several joins names for a message.
func several(names []string) string { return plain(strings.Join(names, ", ")) }
