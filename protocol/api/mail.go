package api

import (
	"encoding/json"
	"strings"
	"time"
)

// Mail is what one node sends another through the hub and what is no task: it never
// touches the agent by itself (semantics 18, 19). The hub keeps and orders it and
// does not look into Body.
type Mail struct {
	// ID is "mail_" and 32 hex digits of chance, chosen by the sender: the identity of
	// the mail for ever, among those of its sender.
	ID string `json:"id"`
	// Kind says what Body is, such as "opencomms.message": words of a-z, 0-9, '_' and
	// '-' with dots between them. The receiver decides which kinds it knows.
	Kind string `json:"kind"`
	// From is the sender's name, FromID its identity. The hub sets both; what a sender
	// wrote there is overwritten.
	From   string `json:"from,omitempty"`
	FromID string `json:"from_id,omitempty"`
	// To is the name of the node that gets it: whoever has the name then.
	To string `json:"to"`
	// ToID is the identity that the sender takes the name for; if another has it, the
	// mail is returned with MailTargetReplaced. "": whoever has the name.
	ToID string `json:"to_id,omitempty"`
	// Lane is a text of the sender's. Mails of one From, To and Lane arrive in the order
	// in which they were sent.
	Lane string `json:"lane,omitempty"`
	// Body is JSON of at most MaxMailBody bytes.
	Body json.RawMessage `json:"body"`
	// SentMS is the hub's time at which the sender first offered the mail, in Unix
	// milliseconds, as far as the sender knows; 0: now. The age of a mail counts from
	// there however often it is sent again. A receiver compares it with other stamps of
	// the same hub only.
	SentMS int64 `json:"sent_ms,omitempty"`
}

// Limits of mail.
const (
	// MaxMailBody is the largest Mail.Body, in bytes.
	MaxMailBody = 1 << 20
	// MaxMailKind is the longest Mail.Kind, in bytes.
	MaxMailKind = 64
	// MaxMailLane is the longest Mail.Lane, in bytes.
	MaxMailLane = 128
	// MaxMailToID is the longest Mail.ToID, in bytes.
	MaxMailToID = 128
	// MaxMailPerTarget is how many mails may wait at the hub for one node; the next is
	// refused with CodeQueueFull and waits at its sender.
	MaxMailPerTarget = 1000
	// MaxMailBytesPerTarget is how many bytes may wait at the hub for one node.
	MaxMailBytesPerTarget = 64 << 20
	// MaxMailPerPair is how many mails of one sender may wait at the hub for one node, so
	// that no sender keeps others from it.
	MaxMailPerPair = MaxMailPerTarget / 4
	// MaxMailBytesPerPair is how many bytes of one sender may wait at the hub for one
	// node.
	MaxMailBytesPerPair = MaxMailBytesPerTarget / 4
	// MaxMailPerSender is how many mails and receipts of one sender the hub keeps.
	MaxMailPerSender = 10000
	// MaxMailBytes is how many bytes of mail the hub keeps in all.
	MaxMailBytes = 512 << 20
	// MailOverhead is what a mail counts beside its body, in bytes.
	MailOverhead = 1 << 10
	// MaxMailReceipts is how many receipts one request holds.
	MaxMailReceipts = 100
	// MailAge is how long a mail may be on its way, by the hub's clock, before it is
	// returned.
	MailAge = 7 * 24 * time.Hour
	// MailReceiptAge is how long the hub keeps a receipt for a sender that is away,
	// counted like MailAge.
	MailReceiptAge = 30 * 24 * time.Hour
	// MailWindow is how long a receiver remembers ids, by the stamps of the hub: as long
	// as the sender may send again, and a day (semantics 18).
	MailWindow = MailAge + 24*time.Hour
)

// States of a mail as receipts tell them.
const (
	MailQueued    = "queued"    // on the hub's disk, on its way
	MailDelivered = "delivered" // on the receiver's disk
	MailReturned  = "returned"  // it will not be delivered any more
)

// Why a mail was returned, beside the codes of refusals.
const (
	// MailExpired: it was on its way for MailAge.
	MailExpired = "expired"
	// MailTargetRevoked: no node has the name any more.
	MailTargetRevoked = "target_revoked"
	// MailTargetReplaced: another identity than Mail.ToID has the name.
	MailTargetReplaced = "target_replaced"
)

// MailReceipt tells a sender what became of a mail.
type MailReceipt struct {
	ID    string `json:"id"`
	State string `json:"state"`
	// Code and Message say why it was returned: MailExpired, MailTargetRevoked,
	// MailTargetReplaced, or the Code of a refusal.
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
	// MayHaveArrived is set when a returned mail was sent to its target and no answer
	// came, or when the hub cannot tell: it may have been received all the same.
	MayHaveArrived bool `json:"may_have_arrived,omitempty"`
}

// MailReceipts is the body of POST /v1/mail/receipts on the node's side of the
// tunnel, MailSettled its answer: the ids that need no receipt any more, because it is
// on the sender's disk or the sender does not know the mail. The hub tells the others
// again later.
type MailReceipts struct {
	Receipts []MailReceipt `json:"receipts"`
}

// MailSettled answers MailReceipts.
type MailSettled struct {
	IDs []string `json:"ids"`
}

// MailQuery is the body of POST /v1/mail/known on the hub's side: the ids of the
// sender's own mails without a receipt, at most MaxReconcile.
type MailQuery struct {
	IDs []string `json:"ids"`
}

// MailKnown answers a MailQuery.
type MailKnown struct {
	// Unknown are the ids that the hub does not have: it never had them, or was restored
	// to a time before. They are to be sent again.
	Unknown []string `json:"unknown"`
	// NowMS is the hub's time, for Mail.SentMS.
	NowMS int64 `json:"now_ms"`
}

// ValidMailID reports whether s has the form of Mail.ID.
func ValidMailID(s string) bool {
	hex, ok := strings.CutPrefix(s, "mail_")
	if !ok || len(hex) != 32 {
		return false
	}
	for i := range len(hex) {
		if c := hex[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// Check reports what is wrong with a mail, as an *Error.
func (m *Mail) Check() error {
	switch {
	case !ValidMailID(m.ID):
		return Errorf(CodeBadRequest, "the id of a mail is mail_ and 32 hex digits")
	case !validKind(m.Kind):
		return Errorf(CodeBadRequest, "the kind of a mail is words of a-z, 0-9, '_' and '-' with dots between them, at most %d bytes", MaxMailKind)
	case !ValidName(m.To):
		return Errorf(CodeBadRequest, "the target of a mail is the name of a node: %s", NameRule)
	case len(m.Lane) > MaxMailLane || strings.ContainsFunc(m.Lane, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\uFFFD' }):
		return Errorf(CodeBadRequest, "the lane of a mail is at most %d bytes without control characters", MaxMailLane)
	case len(m.ToID) > MaxMailToID || strings.ContainsFunc(m.ToID, func(r rune) bool { return r <= ' ' || r >= 0x7f }):
		return Errorf(CodeBadRequest, "the identity of a mail's target is at most %d printable characters", MaxMailToID)
	case len(m.Body) > MaxMailBody:
		return Errorf(CodeTooLarge, "the body of a mail is at most %d bytes", MaxMailBody)
	case !json.Valid(m.Body):
		return Errorf(CodeBadRequest, "the body of a mail is JSON")
	case m.SentMS < 0:
		return Errorf(CodeBadRequest, "the time of a mail is negative")
	}
	return nil
}

func validKind(s string) bool {
	if s == "" || len(s) > MaxMailKind {
		return false
	}
	for word := range strings.SplitSeq(s, ".") {
		if word == "" {
			return false
		}
		for i := range len(word) {
			if c := word[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' && c != '-' {
				return false
			}
		}
	}
	return true
}
