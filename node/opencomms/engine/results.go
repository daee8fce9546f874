package engine

// Created answers a create.
type Created struct {
	ChannelID string `json:"channel_id"`
	Name      string `json:"name"`
	Role      string `json:"role,omitempty"` // of the first member
	SessionID string `json:"session_id,omitempty"`
}

// Joined answers a join.
type Joined struct {
	ChannelID string  `json:"channel_id"`
	Role      string  `json:"role"`
	SessionID string  `json:"session_id"`
	ParentID  *string `json:"parent_channel_id"` // of a channel that continues an archive
}

// Sent answers a send.
type Sent struct {
	MessageIDs []string `json:"message_ids"`
	Recipients []string `json:"recipients"` // session ids, in the same order
	Status     string   `json:"delivery_status"`
	// Description is the channel's, if this send gave it one.
	Description string `json:"session_description,omitempty"`
}

// Message is one message as reads show it. Content is what a peer wrote.
type Message struct {
	ID            string  `json:"message_id"`
	Channel       string  `json:"channel,omitempty"` // name; in an inbox only
	SenderRole    string  `json:"sender_role"`
	RecipientRole string  `json:"recipient_role,omitempty"` // not in an inbox
	Type          string  `json:"message_type"`
	Content       string  `json:"content"`
	Timestamp     int64   `json:"timestamp"` // ms
	ReplyTo       *string `json:"reply_to"`
	Hops          int     `json:"hop_count"`
	Status        string  `json:"delivery_status"`
}

// Inbox is what waits for a member, in all its channels.
type Inbox struct {
	Pending  int       `json:"pending"` // length of the queue, without regard to a limit
	Messages []Message `json:"messages"`
}

// History is what was said in a channel, newest first.
type History struct {
	Messages []Message `json:"messages"`
}

// Status is an overview of channels.
type Status struct {
	Channels        []ChannelStatus `json:"channels"`
	TotalMessages   int             `json:"total_messages"`   // in the whole file
	PendingMessages int             `json:"pending_messages"` // in the whole file
	Errors          []ErrorEntry    `json:"errors"`
}

// ErrorEntry is a line of the file's trouble list.
type ErrorEntry struct {
	At      int64  `json:"at"` // ms
	Message string `json:"message"`
}

// Budgets as results show them; null is no bound.
type Budgets struct {
	MaxRuntime   *int64 `json:"max_runtime_ms"`
	MaxDelivered *int   `json:"max_delivered_messages"`
}

// ChannelStatus is one channel of a Status.
type ChannelStatus struct {
	ID             string         `json:"id"`
	Name           string         `json:"name"`
	ProjectID      string         `json:"project_id"`
	Worktree       string         `json:"worktree"`
	CreatedAt      int64          `json:"created_at"` // ms
	Paused         bool           `json:"paused"`
	MaxMembers     int            `json:"max_members"`
	Budgets        Budgets        `json:"budgets"`
	DeliveredTotal int            `json:"delivered_total"`
	Members        []MemberStatus `json:"members"`
	// QueueLengths says how much of this channel's mail waits, by session id.
	QueueLengths  map[string]int `json:"queue_lengths"`
	LastMessageAt *int64         `json:"last_message_at"`
}

// MemberStatus is one member of a ChannelStatus.
type MemberStatus struct {
	SessionID string       `json:"session_id"`
	Role      string       `json:"role"`
	Stale     bool         `json:"stale"`
	JoinedAt  int64        `json:"joined_at"` // ms
	Host      string       `json:"host"`
	Surface   string       `json:"surface"`
	Mode      string       `json:"delivery_mode"`
	Endpoint  EndpointView `json:"endpoint_capabilities"`
}

// EndpointView is what a member's endpoint can do.
type EndpointView struct {
	Push           bool `json:"push"`
	Pull           bool `json:"pull"`
	Resume         bool `json:"resume"`
	QueueWhileBusy bool `json:"queue_while_busy"`
	Interrupt      bool `json:"interrupt"`
}

// Kicked answers a removal.
type Kicked struct {
	SessionID string   `json:"kicked_session_id"`
	Role      string   `json:"kicked_role"`
	Remaining []string `json:"remaining_session_ids"` // that are not stale; each has a notice queued
}

// Left answers a disconnect.
type Left struct {
	ChannelRemoved bool `json:"channel_removed"` // it was the last member
	Remaining      int  `json:"remaining_members"`
	Rejected       int  `json:"rejected_messages"` // that waited for it in this channel
}

// Resumed answers the resumption of an archive.
type Resumed struct {
	ChannelID   string   `json:"channel_id"`
	Name        string   `json:"name"`
	ParentID    string   `json:"parent_channel_id"`
	Members     []string `json:"members"` // none yet
	ArchiveName string   `json:"archive_name"`
}

// TimerView is the chess clock as it stands.
type TimerView struct {
	Changed      bool             `json:"changed"` // whether the action changed anything
	Active       *string          `json:"active_member_id"`
	ByMember     map[string]int64 `json:"elapsed_ms_by_member"`
	ByRole       map[string]int64 `json:"elapsed_ms_by_role"`
	Total        int64            `json:"total_ms"`
	Limit        *int64           `json:"limit_ms"`
	LimitMember  *string          `json:"limit_member_id"`
	LimitReached bool             `json:"limit_reached"`
}
