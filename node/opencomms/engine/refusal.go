package engine

import (
	"errors"
	"fmt"
)

// Code says why something was refused. The set is closed; docs/opencomms.md
// lists it.
type Code string

// Codes of what concerns a channel and its members.
const (
	ChannelMissing     Code = "channel_missing"
	NotMember          Code = "not_member"
	NotActive          Code = "not_active"
	NameRequired       Code = "name_required"
	NameTooLong        Code = "name_too_long"
	InvalidName        Code = "invalid_name"
	SessionRequired    Code = "session_required"
	ProjectRequired    Code = "project_required"
	WorktreeRequired   Code = "worktree_required"
	RolePromptRequired Code = "role_prompt_required"
	InvalidRole        Code = "invalid_role"
	ChannelExists      Code = "channel_exists"
	ProjectMismatch    Code = "project_mismatch"
	WorktreeMismatch   Code = "worktree_mismatch"
	AlreadyMember      Code = "already_member"
	TwoRoles           Code = "two_roles"
	ChannelFull        Code = "channel_full"
	RoleTaken          Code = "role_taken"
	NotCoordinator     Code = "not_coordinator"
	KickSelf           Code = "kick_self"
	TargetRequired     Code = "target_required"
	TargetUnknown      Code = "target_unknown"
	ConfirmRequired    Code = "confirm_required"
	ArchiveMissing     Code = "archive_missing"
	NotArchivedMember  Code = "not_archived_member"
	NamesExhausted     Code = "names_exhausted"
	InvalidTimerLimit  Code = "invalid_timer_limit"
	UnknownTimerAction Code = "unknown_timer_action"
)

// Codes of what concerns a message.
const (
	Paused             Code = "paused"
	RuntimeExhausted   Code = "runtime_exhausted"
	DeliveredExhausted Code = "messages_exhausted"
	ContentRequired    Code = "content_required"
	ContentTooLarge    Code = "content_too_large"
	InvalidMessageType Code = "invalid_message_type"
	RecipientUnknown   Code = "recipient_unknown"
	RecipientStale     Code = "recipient_stale"
	NoOtherMember      Code = "no_other_member"
	AmbiguousRecipient Code = "ambiguous_recipient"
	NoLiveRecipient    Code = "no_live_recipient"
	RateLimited        Code = "rate_limited"
	Duplicate          Code = "duplicate"
	HopLimit           Code = "hop_limit"
	MessageExists      Code = "message_exists"
	InvalidID          Code = "invalid_id"
)

// Refusal is the error of what the rules do not allow. Its message is for
// people and models, and may hold names that members chose.
type Refusal struct {
	Code    Code
	Message string
}

// Error is the message.
func (r *Refusal) Error() string { return r.Message }

// CodeOf returns the code of a refusal in err, or "".
func CodeOf(err error) Code {
	var r *Refusal
	if errors.As(err, &r) {
		return r.Code
	}
	return ""
}

func refuse(code Code, format string, args ...any) error {
	return &Refusal{Code: code, Message: fmt.Sprintf(format, args...)}
}
