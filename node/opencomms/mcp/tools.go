package mcp

import (
	"context"
	"fmt"

	"opencode-mesh/node/mcp"
	"opencode-mesh/node/opencomms/engine"
	ocm "opencode-mesh/protocol/opencomms"
)

// tool is one of the tools (§6). An argument of another type than its own counts as the
// empty text if it is required, where the rules refuse it, and as not given otherwise –
// but not where that would send to others than was meant, or lift a bound: that one is
// strict and refused.
type tool struct {
	name  string
	about string
	args  []mcp.Argument
	// pinned says that an id that is in no channel may use it, if it is pinned.
	pinned bool
	admin  bool // offered with --admin only
	reads  bool // changes nothing
	call   func(ctx context.Context, c call) (reply, error)
}

// call is what a tool works on.
type call struct {
	*member
	engine.Caller
	mcp.Arguments
}

func (c call) channel() string { return c.Texts["channel"] }

// call does one call of a tool for the member.
func (m *member) call(ctx context.Context, t *tool, a mcp.Arguments) (reply, error) {
	if a.Wrong != "" {
		return reply{}, &engine.Refusal{Code: codeInvalidArgument, Message: a.Wrong}
	}
	caller, err := m.identify(ctx, t.pinned)
	if err != nil {
		return reply{}, err
	}
	return t.call(ctx, call{m, caller, a})
}

// Arguments that several tools have.
var (
	channelArg = mcp.Argument{Name: "channel", Kind: mcp.Text, Required: true, About: "Name of the channel."}
	roleArg    = mcp.Argument{Name: "role", Kind: mcp.Text, Required: true, About: "Your role in the channel, unique there: a letter, then letters, digits, blanks, - and _, at most 32."}
	promptArg  = mcp.Argument{Name: "role_prompt", Kind: mcp.Text, Required: true, About: "What you do in this role."}
	spawnArg   = mcp.Argument{Name: "spawn_push", Kind: mcp.Flag, Strict: true, About: "Not done by this server: your messages wait for opencomms_pull."}
	limitArg   = mcp.Argument{Name: "limit", Kind: mcp.Number, About: "How many messages: 1 to 100, else 20."}
)

var tools = []*tool{
	{
		name: "opencomms_create", about: "Make a channel and become its first member, who may remove others.",
		args: []mcp.Argument{
			channelArg, roleArg, promptArg,
			{Name: "max_members", Kind: mcp.Number, Strict: true, About: "2 to 32, else 8."},
			spawnArg,
			{Name: "rate_limit", Kind: mcp.Number, Strict: true, About: "Messages a minute of all members together: 1 to 1000, else 20."},
			{Name: "max_hops", Kind: mcp.Number, Strict: true, About: "Longest chain of replies: 1 to 50, else 4."},
			{Name: "budget_runtime_ms", Kind: mcp.Number, Strict: true, About: "The channel takes no messages when it is older, in milliseconds."},
			{Name: "budget_messages", Kind: mcp.Number, Strict: true, About: "The channel takes no messages after so many were delivered."},
		},
		pinned: true, call: create,
	},
	{
		name: "opencomms_join", about: "Become a member of a channel.",
		args: []mcp.Argument{channelArg, roleArg, promptArg, spawnArg}, pinned: true, call: join,
	},
	{
		name: "opencomms_send", about: "Send a message to one member of a channel, or to all others. Without to and broadcast, the only other member is meant.",
		args: []mcp.Argument{
			channelArg,
			{Name: "content", Kind: mcp.Text, Required: true, About: "The message, at most 100,000 characters."},
			{Name: "type", Kind: mcp.Text, Strict: true, About: "What it is; manual if not given.", Enum: []string{ocm.TypeReviewRequest, ocm.TypeReviewResponse, ocm.TypeManual}},
			{Name: "reply_to", Kind: mcp.Text, Strict: true, About: "The message_id that this answers."},
			{Name: "to", Kind: mcp.Text, Strict: true, About: "Role or session id of the recipient."},
			{Name: "broadcast", Kind: mcp.Flag, Strict: true, About: "To all other members."},
			{Name: "session_description", Kind: mcp.Text, About: "What the channel is about, if nobody said so yet; at most 140 characters."},
		},
		call: send,
	},
	{
		name: "opencomms_inbox", about: "Look at the messages that wait for you in all channels, without taking them.",
		args: []mcp.Argument{channelArg, limitArg}, reads: true, call: inbox,
	},
	{
		name: "opencomms_pull", about: "Take the messages that wait for you in all channels. They count as delivered then.",
		args: []mcp.Argument{channelArg}, call: pull,
	},
	{
		name: "opencomms_status", about: "Your channels, or one of them: members, what waits, limits.",
		args:  []mcp.Argument{{Name: "channel", Kind: mcp.Text, About: "Name of the channel; all of yours if not given."}},
		reads: true, call: status,
	},
	{
		name: "opencomms_history", about: "What was said in a channel, newest first.",
		args: []mcp.Argument{channelArg, limitArg}, reads: true, call: history,
	},
	{name: "opencomms_pause", about: "Stop a channel: nothing is sent or delivered until it goes on.", args: []mcp.Argument{channelArg}, call: pause},
	{name: "opencomms_resume", about: "Let a paused channel go on.", args: []mcp.Argument{channelArg}, call: resume},
	{name: "opencomms_disconnect", about: "Leave a channel. What waits for you is rejected.", args: []mcp.Argument{channelArg}, call: disconnect},
	{
		name: "opencomms_update_role", about: "Replace what you do in your role.",
		args: []mcp.Argument{channelArg, promptArg}, call: updateRole,
	},
	{
		name: "opencomms_kick", about: "Remove a member from a channel whose first member you are.",
		args: []mcp.Argument{
			channelArg,
			{Name: "target_session_id", Kind: mcp.Text, Strict: true, About: "Session id of the member; this or target_role."},
			{Name: "target_role", Kind: mcp.Text, Strict: true, About: "Role of the member."},
		},
		admin: true, call: kick,
	},
	{
		name: "opencomms_timer", about: "The chess clock of a channel, which runs for whoever is to answer.",
		args: []mcp.Argument{
			channelArg,
			{Name: "action", Kind: mcp.Text, Required: true, About: "What to do with it.", Enum: []string{
				engine.TimerStart, engine.TimerStop, engine.TimerSwitch, engine.TimerReset, engine.TimerStatus, engine.TimerSetLimit, engine.TimerClearLimit,
			}},
			{Name: "limit_ms", Kind: mcp.Number, Strict: true, About: "For set_limit, in milliseconds."},
			{Name: "to", Kind: mcp.Text, Strict: true, About: "Role or session id of a member, for switch and set_limit."},
		},
		call: timer,
	},
	{
		name: "opencomms_save_session", about: "Move a channel with its messages into an archive.",
		args: []mcp.Argument{channelArg, {Name: "summary", Kind: mcp.Text, About: "What came of it, at most 2,000 characters."}}, call: saveSession,
	},
	{
		name: "opencomms_resume_session", about: "Make a new channel that continues an archived one. Join it then.",
		args: []mcp.Argument{
			{Name: "channel", Kind: mcp.Text, Required: true, About: "Name or archive id of what was saved."},
			{Name: "new_name", Kind: mcp.Text, Strict: true, About: "Name of the new channel; the old one if not given."},
		},
		pinned: true, call: resumeSession,
	},
	{
		name: "opencomms_delete_session", about: "Remove a channel with its messages, or an archive, for good.",
		args: []mcp.Argument{
			{Name: "channel", Kind: mcp.Text, Required: true, About: "Name of the channel, or name or id of the archive."},
			{Name: "confirm", Kind: mcp.Flag, Required: true, About: "true, or nothing is removed."},
		},
		pinned: true, call: deleteSession,
	},
	{
		name: "opencomms_archive", about: "Archived channels of yours: the list, the summary of one or its messages.",
		args: []mcp.Argument{
			{Name: "mode", Kind: mcp.Text, About: "list if not given.", Enum: []string{archiveList, archiveSummary, archiveMessages}},
			{Name: "channel", Kind: mcp.Text, About: "Name or archive id, for summary and messages."},
			{Name: "limit", Kind: mcp.Number, About: "How many messages: 1 to 500, else 50."},
		},
		pinned: true, reads: true, call: archive,
	},
}

// noSpawn is said to who asked for spawn_push.
const noSpawn = " This server starts no sessions (spawn_push): take your messages with opencomms_pull."

func (c call) said(message string) string {
	if c.Flags["spawn_push"] {
		message += noSpawn
	}
	return message
}

func create(ctx context.Context, c call) (reply, error) {
	member := c.joining(c.Arguments)
	created, err := c.project.Create(ctx, engine.CreateRequest{
		Channel: c.channel(), Member: &member,
		MaxMembers: c.Count("max_members"), RateLimit: c.Count("rate_limit"), MaxHops: c.Count("max_hops"),
		Budgets: ocm.Budgets{MaxRuntime: c.Whole("budget_runtime_ms"), MaxDelivered: c.Count("budget_messages")},
	})
	if err != nil {
		return reply{}, err
	}
	return reply{true, c.said(fmt.Sprintf("You made the channel %s and are its %s.", created.Name, created.Role)), created}, nil
}

func join(ctx context.Context, c call) (reply, error) {
	joined, err := c.project.Join(ctx, engine.JoinRequest{Channel: c.channel(), Member: c.joining(c.Arguments)})
	if err != nil {
		return reply{}, err
	}
	return reply{true, c.said(fmt.Sprintf("You are the %s of this channel now.", joined.Role)), joined}, nil
}

func send(ctx context.Context, c call) (reply, error) {
	sent, err := c.project.Send(ctx, c.Caller, engine.SendRequest{
		Channel: c.channel(), Content: c.Texts["content"], Type: c.Texts["type"], ReplyTo: c.Texts["reply_to"],
		To: c.Texts["to"], Broadcast: c.Flags["broadcast"], Description: c.Texts["session_description"],
	})
	if err != nil {
		return reply{}, err
	}
	c.wakeOwners()
	return reply{true, "Sent to " + several(sent.Recipients) + ".", sent}, nil
}

func inbox(ctx context.Context, c call) (reply, error) {
	in, err := c.project.Inbox(ctx, c.Caller, c.channel(), c.Count("limit"))
	if err != nil {
		return reply{}, err
	}
	return reply{true, fmt.Sprintf("%d waiting.", in.Pending), shown(in.Messages, &in.Pending)}, nil
}

func pull(ctx context.Context, c call) (reply, error) {
	pulled, err := c.project.Pull(ctx, c.Caller)
	if err != nil {
		return reply{}, err
	}
	for i := range pulled.Messages {
		pulled.Messages[i].Channel = plain(pulled.Messages[i].Channel)
	}
	message := fmt.Sprintf("%d taken.", len(pulled.Messages))
	if pulled.Remaining > 0 {
		message += fmt.Sprintf(" %d more wait: pull again.", pulled.Remaining)
	}
	return reply{true, message, pulled}, nil
}

func status(ctx context.Context, c call) (reply, error) {
	s, err := c.project.Status(ctx, c.Caller, c.channel())
	if err != nil {
		return reply{}, err
	}
	return reply{true, fmt.Sprintf("%d channels.", len(s.Channels)), shownStatus(s)}, nil
}

func history(ctx context.Context, c call) (reply, error) {
	h, err := c.project.History(ctx, c.Caller, c.channel(), c.Count("limit"))
	if err != nil {
		return reply{}, err
	}
	return reply{true, fmt.Sprintf("%d messages, newest first.", len(h.Messages)), shown(h.Messages, nil)}, nil
}

func pause(ctx context.Context, c call) (reply, error) {
	return done(c.project.Pause(ctx, c.Caller, c.channel()))("The channel is paused.", "The channel was paused already.")
}

func resume(ctx context.Context, c call) (reply, error) {
	return done(c.project.Resume(ctx, c.Caller, c.channel()))("The channel goes on.", "The channel was not paused.")
}

// done says what a call did that has no data.
func done(changed bool, err error) func(did, was string) (reply, error) {
	return func(did, was string) (reply, error) {
		switch {
		case err != nil:
			return reply{}, err
		case changed:
			return reply{OK: true, Message: did}, nil
		}
		return reply{OK: true, Message: was}, nil
	}
}

func disconnect(ctx context.Context, c call) (reply, error) {
	left, err := c.project.Disconnect(ctx, c.Caller, c.channel())
	if err != nil {
		return reply{}, err
	}
	message := "You left the channel."
	if left.ChannelRemoved {
		message = "You left the channel, which is gone as you were the last."
	}
	return reply{OK: true, Message: message}, nil
}

func updateRole(ctx context.Context, c call) (reply, error) {
	role, err := c.project.UpdateRole(ctx, c.Caller, engine.UpdateRoleRequest{Channel: c.channel(), RolePrompt: c.Texts["role_prompt"]})
	if err != nil {
		return reply{}, err
	}
	return reply{OK: true, Message: "What the " + plain(role) + " does was replaced."}, nil
}

func kick(ctx context.Context, c call) (reply, error) {
	kicked, err := c.project.Kick(ctx, c.Caller, engine.KickRequest{
		Channel: c.channel(), TargetSession: c.Texts["target_session_id"], TargetRole: c.Texts["target_role"],
	})
	if err != nil {
		return reply{}, err
	}
	return reply{true, plain(kicked.Role) + " was removed.", kicked}, nil
}

func timer(ctx context.Context, c call) (reply, error) {
	view, err := c.project.Timer(ctx, c.Caller, engine.TimerRequest{
		Channel: c.channel(), Action: c.Texts["action"], Limit: c.Whole("limit_ms"), To: c.Texts["to"],
	})
	if err != nil {
		return reply{}, err
	}
	return reply{true, "The clock of the channel.", view}, nil
}

func saveSession(ctx context.Context, c call) (reply, error) {
	saved, err := c.project.SaveSession(ctx, c.Caller, engine.SaveRequest{Channel: c.channel(), Summary: c.Texts["summary"]})
	if err != nil {
		return reply{}, err
	}
	return reply{true, fmt.Sprintf("The channel is archived with %d messages.", saved.MessageCount), saved}, nil
}

func resumeSession(ctx context.Context, c call) (reply, error) {
	r, err := c.project.ResumeSession(ctx, c.Caller, c.channel(), engine.ResumeSessionRequest{NewName: c.Texts["new_name"]})
	if err != nil {
		return reply{}, err
	}
	return reply{true, "The channel " + plain(r.Name) + " continues the archive. Join it with opencomms_join.", r}, nil
}

func deleteSession(ctx context.Context, c call) (reply, error) {
	if _, err := c.project.DeleteSession(ctx, c.Caller, c.channel(), c.Flags["confirm"]); err != nil {
		return reply{}, err
	}
	return reply{OK: true, Message: "It is removed."}, nil
}

// Modes of opencomms_archive.
const (
	archiveList     = "list"
	archiveSummary  = "summary"
	archiveMessages = "messages"
)

func archive(ctx context.Context, c call) (reply, error) {
	switch mode := c.Texts["mode"]; mode {
	case "", archiveList:
		list, err := c.project.Archives(ctx, c.Caller)
		if err != nil {
			return reply{}, err
		}
		return reply{true, fmt.Sprintf("%d archives.", len(list)), map[string]any{"archives": shownArchives(list)}}, nil
	case archiveSummary:
		about, err := c.project.ArchiveContext(ctx, c.Caller, c.channel())
		if err != nil {
			return reply{}, err
		}
		return reply{true, "What the archive is about.", shownContext(about)}, nil
	case archiveMessages:
		m, err := c.project.ArchiveMessages(ctx, c.Caller, c.channel(), c.Count("limit"))
		if err != nil {
			return reply{}, err
		}
		return reply{true, fmt.Sprintf("%d of %d messages, newest first.", len(m.Messages), m.Archived), shownArchived(m.Messages)}, nil
	default:
		return reply{}, &engine.Refusal{Code: codeInvalidArgument, Message: "mode is list, summary or messages"}
	}
}
