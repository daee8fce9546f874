package engine

import (
	"cmp"
	"fmt"
	"slices"

	"opencode-mesh/protocol/opencomms"
)

// SaveSession takes a channel with its messages out of the state and returns the
// archive that it becomes. The caller writes the archive before it saves the
// state: a channel that is in both is still whole, one that is in neither is lost.
func (e Engine) SaveSession(s *opencomms.State, c Caller, r SaveRequest) (*opencomms.Archive, error) {
	ch, m, err := enter(s, c, r.Channel)
	if err != nil {
		return nil, err
	}
	if err := active(ch); err != nil {
		return nil, err
	}
	a := &opencomms.Archive{
		ChannelID:   ch.ID,
		Name:        ch.Name,
		ParentID:    ch.ParentID,
		Description: ch.Description,
		Summary:     opencomms.Cut(opencomms.Trim(r.Summary), opencomms.MaxSummary),
		Budgets:     ch.Budgets,
		CreatedAt:   ch.CreatedAt,
		SavedAt:     e.now(),
	}
	if m != nil {
		a.SavedBy, a.SavedByRole = m.SessionID, m.Role
	}
	for _, m := range ch.Members {
		a.Members = append(a.Members, m.Clone())
	}
	for _, row := range s.Messages.All() {
		if row.ChannelID == ch.ID {
			a.Messages = append(a.Messages, row)
		}
	}
	slices.SortStableFunc(a.Messages, func(a, b *opencomms.Envelope) int { return cmp.Compare(a.Timestamp, b.Timestamp) })
	a.Messages = a.Messages[max(0, len(a.Messages)-opencomms.MaxMessages):]
	if n := len(a.Messages); n > 0 {
		a.FinalNote = opencomms.Cut(a.Messages[n-1].Content, opencomms.MaxFinalNote)
	}
	if a.Summary == "" {
		a.Summary = fmt.Sprintf("Channel %q was archived. %s", ch.Name, orElse(ch.Description, "It had no description."))
	}
	discard(s, ch)
	return a, nil
}

// ResumeSession makes a new, empty channel that continues an archived one. A
// caller has to have been a member of that.
func (e Engine) ResumeSession(s *opencomms.State, c Caller, a *opencomms.Archive, r ResumeSessionRequest) (Resumed, error) {
	if err := MayRead(a, c); err != nil {
		return Resumed{}, err
	}
	if r.ProjectID == "" {
		return Resumed{}, refuse(ProjectRequired, "a channel needs a project id")
	}
	if r.Worktree == "" {
		return Resumed{}, refuse(WorktreeRequired, "a channel needs a worktree")
	}
	if ch := channelByID(s, a.ChannelID); ch != nil {
		// Its saving was cut off, or somebody put the channel back.
		return Resumed{}, refuse(ChannelExists, "channel %q is not only archived but also there: use it", ch.Name)
	}
	base, err := channelName(orElse(opencomms.Trim(r.NewName), a.Name))
	if err != nil {
		return Resumed{}, err
	}
	name := base
	for rung := 2; ; rung++ {
		if _, ok := s.Channels.Get(name); !ok {
			break
		}
		if rung > opencomms.MaxResumes {
			return Resumed{}, refuse(NamesExhausted, "the name %q and those with -r2 to -r%d are taken: choose another", base, opencomms.MaxResumes)
		}
		if name, err = channelName(fmt.Sprintf("%s-r%d", base, rung)); err != nil {
			return Resumed{}, err
		}
	}
	ch := e.newChannel(name, r.ProjectID, r.Worktree)
	ch.Description, ch.ParentID, ch.Budgets = a.Description, a.ChannelID, budgets(a.Budgets)
	s.Channels.Set(name, ch)
	return Resumed{ChannelID: ch.ID, Name: name, ParentID: a.ChannelID, Members: []string{}, ArchiveName: a.Name}, nil
}

// MayRead refuses callers that were no members of an archived channel.
func MayRead(a *opencomms.Archive, c Caller) error {
	if c.Operator || slices.ContainsFunc(a.Members, func(m *opencomms.Member) bool { return m.SessionID == c.Session }) {
		return nil
	}
	return refuse(NotArchivedMember, "only those who were members of %q may use its archive", a.Name)
}

// NoArchive is the refusal of an archive that is not there.
func NoArchive(name string) error {
	return refuse(ArchiveMissing, "there is no saved session %q", opencomms.Cut(name, opencomms.MaxChannelName))
}

// Confirmed refuses what is for good and was not confirmed.
func Confirmed(confirm bool) error {
	if confirm {
		return nil
	}
	return refuse(ConfirmRequired, "this deletes the channel, its messages and its archive for good: confirm it")
}

// DeleteSession removes a channel with its messages from the state and returns its
// id. Its archive, if there is one, is the caller's to remove.
func (e Engine) DeleteSession(s *opencomms.State, c Caller, channel string, confirm bool) (string, error) {
	if err := Confirmed(confirm); err != nil {
		return "", err
	}
	ch, _, err := enter(s, c, channel)
	if err != nil {
		return "", err
	}
	discard(s, ch)
	return ch.ID, nil
}

// discard removes a channel, its messages and every reference to them.
func discard(s *opencomms.State, ch *opencomms.Channel) {
	doomed := map[string]bool{}
	for id, row := range s.Messages.All() {
		if row.ChannelID == ch.ID {
			doomed[id] = true
		}
	}
	forget(s, doomed)
	s.Channels.Delete(ch.Name)
}
