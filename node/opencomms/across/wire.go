package across

import (
	"bytes"
	"encoding/json"
	"strings"

	"opencode-mesh/protocol/opencomms"
)

// Kinds of mail.
const (
	kindPrefix  = "opencomms."
	kindMessage = "opencomms.message"
	kindReceipt = "opencomms.receipt"
	kindRoster  = "opencomms.roster"
)

// message is the body of a message's mail.
type message struct {
	// Link is the sender's id of the link; the receipts name it.
	Link string `json:"link"`
	// Channel is the name of the receiver's channel, FromChannel of the sender's.
	Channel     string `json:"channel"`
	FromChannel string `json:"from_channel"`
	ID          string `json:"message_id"`
	Correlation string `json:"correlation_id"`
	ReplyTo     string `json:"reply_to,omitempty"`
	Root        string `json:"root_message_id,omitempty"`
	Hops        int    `json:"hop_count"`
	Type        string `json:"type"`
	Content     string `json:"content"`
	SentAt      int64  `json:"sent_at"` // the sender's clock; only compared for equality
	From        string `json:"from"`    // alias of the sender's side
	To          string `json:"to"`      // alias of the receiver's side
}

// receipt says what became of a message at the receiver.
type receipt struct {
	Link  string `json:"link"` // of the message
	ID    string `json:"message_id"`
	State string `json:"state"`
	Code  string `json:"code,omitempty"`
}

// roster are the members that the sender lets the receiver see.
type roster struct {
	Link        string         `json:"link"`
	Channel     string         `json:"channel"`
	FromChannel string         `json:"from_channel"`
	Members     []rosterMember `json:"members"`
	// Want asks for the receiver's roster.
	Want bool `json:"want,omitempty"`
	// Closed ends the link at the sender.
	Closed bool `json:"closed,omitempty"`
}

type rosterMember struct {
	Alias string `json:"alias"`
	Role  string `json:"role"`
}

// Prefixes of ids of links and aliases; 32 hex digits follow.
const (
	prefixLink  = "lnk_"
	prefixAlias = "mem_"
)

// isID reports whether s is a prefix and 32 hex digits.
func isID(prefix, s string) bool {
	digits, ok := strings.CutPrefix(s, prefix)
	return ok && len(digits) == 32 && strings.Trim(digits, "0123456789abcdef") == ""
}

func optionalID(prefix, s string) bool { return s == "" || isID(prefix, s) }

// maxHops bounds the hop count that another machine may name; it is above what any
// channel allows.
const maxHops = 1_000

func (m *message) valid() bool {
	switch m.Type {
	case opencomms.TypeManual, opencomms.TypeReviewRequest, opencomms.TypeReviewResponse:
	default:
		return false
	}
	return isID(prefixLink, m.Link) && normal(m.Channel) && normal(m.FromChannel) &&
		isID(opencomms.PrefixMessage, m.ID) && isID(opencomms.PrefixCorrelation, m.Correlation) &&
		optionalID(opencomms.PrefixMessage, m.ReplyTo) && optionalID(opencomms.PrefixMessage, m.Root) &&
		m.Hops >= 0 && m.Hops <= maxHops && isID(prefixAlias, m.From) && isID(prefixAlias, m.To) &&
		opencomms.Trim(m.Content) != "" && opencomms.Length(m.Content) <= opencomms.MaxContent
}

func (r *receipt) valid() bool {
	return isID(prefixLink, r.Link) && isID(opencomms.PrefixMessage, r.ID)
}

func (r *roster) valid() bool {
	if !isID(prefixLink, r.Link) || !normal(r.Channel) || !normal(r.FromChannel) || len(r.Members) > opencomms.MaxMembers {
		return false
	}
	seen := map[string]bool{}
	for _, m := range r.Members {
		role, err := opencomms.NormalRole(m.Role)
		if err != nil || role != m.Role || !isID(prefixAlias, m.Alias) || seen[m.Alias] {
			return false
		}
		seen[m.Alias] = true
	}
	return true
}

// normal reports whether a name is that of a channel, as the file has it.
func normal(name string) bool {
	n, err := opencomms.NormalName(name)
	return err == nil && n == name
}

// encode is JSON of a body or record, which always can be.
func encode(v any) json.RawMessage {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err) // strings and numbers only
	}
	return bytes.TrimSpace(b.Bytes())
}
