package api

import "time"

// Bounds of what a node shows of its OpenComms channels.
const (
	// MaxChannels is how many channels a node lists.
	MaxChannels = 256
	// MaxChannelMembers is how many members of a channel are listed.
	MaxChannelMembers = 32
	// DefaultChannelPage is how many messages a page has when the request names no
	// number.
	DefaultChannelPage = 50
	// MaxChannelPage is the most that may be asked for.
	MaxChannelPage = 200
	// MaxChannelContent is how much of a message's content is shown, in bytes.
	MaxChannelContent = 16 << 10
	// MaxChannelContents is after how many bytes of contents a page ends.
	MaxChannelContents = 512 << 10
	// MaxChannelText is the longest name, role or other word of a channel, in bytes; its
	// description may have four times as much.
	MaxChannelText = 128
	// MaxChannelList is after how many bytes of such texts a list of channels ends.
	MaxChannelList = 1 << 20
)

// Channel is an OpenComms channel of a node, as operators see it. Session ids, role
// prompts and directories are not part of it. Whatever has a name or a text in it is of
// others: data, and no instruction to anybody.
type Channel struct {
	// ID names the channel at its node, as long as it is there.
	ID string `json:"id"`
	// Project is the workspace that the channel belongs to, or the directory's name.
	Project     string          `json:"project"`
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	CreatedAt   time.Time       `json:"created_at"`
	Paused      bool            `json:"paused,omitempty"`
	MaxMembers  int             `json:"max_members"`
	Members     []ChannelMember `json:"members"` // in the order in which they came
	// Messages counts those that are kept, Waiting those of them that no member has
	// yet, Delivered what was ever delivered.
	Messages  int        `json:"messages"`
	Waiting   int        `json:"waiting"`
	Delivered int        `json:"delivered"`
	LastAt    *time.Time `json:"last_at"` // of the newest message, nil without one
	// Linked are the nodes with which the channel is linked.
	Linked []string `json:"linked,omitempty"`
}

// ChannelMember is one agent in a channel.
type ChannelMember struct {
	Role     string    `json:"role"`
	Host     string    `json:"host"`
	Mode     string    `json:"mode"` // how it gets its messages
	JoinedAt time.Time `json:"joined_at"`
	Stale    bool      `json:"stale,omitempty"` // its session is gone
	Waiting  int       `json:"waiting"`
}

// ChannelList is the answer to GET /v1/nodes/{node}/channels, and of the node to GET
// /v1/opencomms/channels: by project and name, the first MaxChannels.
type ChannelList struct {
	Channels []Channel `json:"channels"`
	// Problems say which projects could not be read, and why.
	Problems []ChannelProblem `json:"problems,omitempty"`
	// More says that there are more channels than are listed.
	More bool `json:"more,omitempty"`
}

// ChannelProblem is a project whose channels cannot be shown.
type ChannelProblem struct {
	Project string `json:"project"`
	Message string `json:"message"`
}

// ChannelMessage is a message in a channel. Content is what an agent or a person wrote.
type ChannelMessage struct {
	ID      string    `json:"id"`
	From    string    `json:"from"` // role
	To      string    `json:"to"`   // role
	Type    string    `json:"type"`
	Content string    `json:"content"`
	At      time.Time `json:"at"`
	Status  string    `json:"status"`
	Hops    int       `json:"hops"`
	ReplyTo string    `json:"reply_to,omitempty"` // id
	// Truncated says that Content is not the whole content.
	Truncated bool `json:"truncated,omitempty"`
}

// ChannelMessages is the answer to GET /v1/nodes/{node}/channels/{id}/messages, and of
// the node to the same inside the tunnel: newest first. Next is the `before` of the
// next page, "" at the end.
type ChannelMessages struct {
	Messages []ChannelMessage `json:"messages"`
	Next     string           `json:"next,omitempty"`
}
