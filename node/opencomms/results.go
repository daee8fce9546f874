package opencomms

// Pulled is what a member took out of its queues, in all its channels.
type Pulled struct {
	Messages        []PulledMessage `json:"messages"`
	UntrustedNotice string          `json:"untrusted_notice"`
	MessageIDs      []string        `json:"message_ids,omitempty"`
	// Remaining is how much waits that did not fit, see MaxPull.
	Remaining int `json:"remaining,omitempty"`
}

// PulledMessage is one message, framed as data of an untrusted peer.
type PulledMessage struct {
	Channel   string `json:"channel"` // name
	MessageID string `json:"message_id"`
	Framed    string `json:"framed"`
}

// Saved answers the archiving of a channel.
type Saved struct {
	ArchiveID    string `json:"archive_id"` // the channel's id
	MessageCount int    `json:"message_count"`
}

// ArchiveSummary is one line of the list of archives.
type ArchiveSummary struct {
	ChannelID    string  `json:"channel_id"`
	Name         string  `json:"name"`
	Description  *string `json:"description"`
	Summary      string  `json:"summary"`
	SavedAt      int64   `json:"saved_at"` // ms
	SavedByRole  *string `json:"saved_by_role"`
	MemberCount  int     `json:"member_count"`
	MessageCount int     `json:"message_count"`
	ParentID     *string `json:"parent_channel_id"`
}

// ArchiveContext is what an agent needs to know of an archive to go on.
type ArchiveContext struct {
	Context   string `json:"compact_context"`
	ArchiveID string `json:"archive_id"`
}

// ArchivedMessage is one message of an archive.
type ArchivedMessage struct {
	ID            string `json:"message_id"`
	SenderRole    string `json:"sender_role"`
	RecipientRole string `json:"recipient_role"`
	Type          string `json:"message_type"`
	Content       string `json:"content"`
	Timestamp     int64  `json:"timestamp"` // ms
	Hops          int    `json:"hop_count"`
	Status        string `json:"delivery_status"`
}

// ArchiveMessages are messages of an archive, newest first.
type ArchiveMessages struct {
	Messages []ArchivedMessage `json:"messages"`
	Archived int               `json:"-"` // how many the archive has
}
