package opencomms

import "encoding/json"

// The records of a state file, with their fields in the order in which the other
// programs write them. A default that a channel lacks in the file is written,
// although not all programs fill it in: without max_hops they would count with NaN.

var errorFields = []field[ErrorEntry]{
	numberOf("at", lazy, 0, func(e *ErrorEntry) *int64 { return &e.At }),
	textOf("message", lazy, func(e *ErrorEntry) *string { return &e.Message }),
}

var envelopeFields = []field[EnvelopeFields]{
	textOf("message_id", lazy, func(e *EnvelopeFields) *string { return &e.ID }),
	textOf("channel_id", must, func(e *EnvelopeFields) *string { return &e.ChannelID }),
	textOf("sender_session_id", lazy, func(e *EnvelopeFields) *string { return &e.Sender }),
	textOf("sender_role", lazy, func(e *EnvelopeFields) *string { return &e.SenderRole }),
	textOf("recipient_session_id", lazy, func(e *EnvelopeFields) *string { return &e.Recipient }),
	textOf("recipient_role", lazy, func(e *EnvelopeFields) *string { return &e.RecipientRole }),
	numberOf("timestamp", must, 0, func(e *EnvelopeFields) *int64 { return &e.Timestamp }),
	textOf("message_type", lazy, func(e *EnvelopeFields) *string { return &e.Type }),
	textOf("content", lazy, func(e *EnvelopeFields) *string { return &e.Content }),
	nullTextOf("reply_to", lazy, func(e *EnvelopeFields) *string { return &e.ReplyTo }),
	nullTextOf("root_message_id", filled, func(e *EnvelopeFields) *string { return &e.Root }),
	numberOf("hop_count", lazy, 0, func(e *EnvelopeFields) *int { return &e.Hops }),
	textOf("delivery_status", lazy, func(e *EnvelopeFields) *string { return &e.Status }),
	textOf("correlation_id", lazy, func(e *EnvelopeFields) *string { return &e.Correlation }),
	nullNumberOf("delivered_at", lazy, func(e *EnvelopeFields) *int64 { return &e.DeliveredAt }),
	numberOf("attempts", lazy, 0, func(e *EnvelopeFields) *int { return &e.Attempts }),
	nullTextOf("delivery_method", filled, func(e *EnvelopeFields) *string { return &e.Method }),
}

var policyFields = []field[StalePolicy]{
	textOf("mode", lazy, func(p *StalePolicy) *string { return &p.Mode }),
	nullNumberOf("window_ms", lazy, func(p *StalePolicy) *int64 { return &p.Window }),
}

var endpointFields = []field[EndpointCapabilities]{
	flagOf("push", lazy, func(c *EndpointCapabilities) *bool { return &c.Push }),
	flagOf("pull", lazy, func(c *EndpointCapabilities) *bool { return &c.Pull }),
	flagOf("resume", lazy, func(c *EndpointCapabilities) *bool { return &c.Resume }),
	flagOf("queue_while_busy", lazy, func(c *EndpointCapabilities) *bool { return &c.QueueWhileBusy }),
	flagOf("interrupt", lazy, func(c *EndpointCapabilities) *bool { return &c.Interrupt }),
}

var memberFields = []field[Member]{
	textOf("session_id", must, func(m *Member) *string { return &m.SessionID }),
	textOf("role", must, func(m *Member) *string { return &m.Role }),
	textOf("role_prompt", must, func(m *Member) *string { return &m.RolePrompt }),
	numberOf("joined_at", must, 0, func(m *Member) *int64 { return &m.JoinedAt }),
	flagOf("stale", lazy, func(m *Member) *bool { return &m.Stale }),
	nullNumberOf("stale_at", lazy, func(m *Member) *int64 { return &m.StaleAt }),
	textOf("host", mustV2, func(m *Member) *string { return &m.Host }),
	textOf("surface", mustV2, func(m *Member) *string { return &m.Surface }),
	textOf("delivery_mode", mustV2, func(m *Member) *string { return &m.Mode }),
	nullTextOf("host_session_id", lazy, func(m *Member) *string { return &m.HostSessionID }),
	pointerOf("stale_policy", optional, policyFields, func(m *Member) **StalePolicy { return &m.Policy }),
	rawOf("capabilities", func(m *Member) *json.RawMessage { return &m.Capabilities }),
	pointerOf("endpoint_capabilities", filled, endpointFields, func(m *Member) **EndpointCapabilities { return &m.Endpoint }),
}

var rateFields = []field[Rate]{
	numberOf("window_start", filled, 0, func(r *Rate) *int64 { return &r.WindowStart }),
	numberOf("count", lazy, 0, func(r *Rate) *int { return &r.Count }),
}

var budgetFields = []field[Budgets]{
	boundOf("max_runtime_ms", func(b *Budgets) *int64 { return &b.MaxRuntime }),
	boundOf("max_delivered_messages", func(b *Budgets) *int { return &b.MaxDelivered }),
}

var channelFields = []field[Channel]{
	textOf("id", must, func(c *Channel) *string { return &c.ID }),
	textOf("name", must, func(c *Channel) *string { return &c.Name }),
	textOf("project_id", must, func(c *Channel) *string { return &c.ProjectID }),
	textOf("worktree", must, func(c *Channel) *string { return &c.Worktree }),
	numberOf("created_at", lazy, 0, func(c *Channel) *int64 { return &c.CreatedAt }),
	flagOf("paused", filled, func(c *Channel) *bool { return &c.Paused }),
	nullNumberOf("paused_at", lazy, func(c *Channel) *int64 { return &c.PausedAt }),
	membersField,
	maxMembersField,
	nestedOf("rate", filled, rateFields, func(c *Channel) *Rate { return &c.Rate }),
	numbersOf("cooldown_until", filled, func(c *Channel) *Ordered[int64] { return &c.Cooldowns }),
	numbersOf("seen_content", filled, func(c *Channel) *Ordered[int64] { return &c.SeenContent }),
	correlationsField,
	numberOf("max_hops", filled, DefaultHops, func(c *Channel) *int { return &c.MaxHops }),
	numberOf("rate_limit", filled, DefaultRate, func(c *Channel) *int { return &c.RateLimit }),
	numberOf("delivery_cooldown_ms", filled, DefaultCooldown.Milliseconds(), func(c *Channel) *int64 { return &c.DeliveryCooldown }),
	numberOf("stale_event_ms", filled, DefaultStale.Milliseconds(), func(c *Channel) *int64 { return &c.StaleAfter }),
	timerField,
	nestedOf("budgets", filled, budgetFields, func(c *Channel) *Budgets { return &c.Budgets }),
	numberOf("delivered_total", filled, 0, func(c *Channel) *int { return &c.DeliveredTotal }),
	lifecycleField,
	nullTextOf("description", filled, func(c *Channel) *string { return &c.Description }),
	nullTextOf("parent_channel_id", filled, func(c *Channel) *string { return &c.ParentID }),
}

var (
	channelMembers   = bit(channelFields, "members")
	channelLifecycle = bit(channelFields, "lifecycle")
	channelDelivered = bit(channelFields, "delivered_total")
)

// defaultChannel has what a channel has of which the file says nothing.
func defaultChannel() *Channel {
	return &Channel{
		MaxMembers: DefaultMembers, MaxHops: DefaultHops, RateLimit: DefaultRate,
		DeliveryCooldown: DefaultCooldown.Milliseconds(), StaleAfter: DefaultStale.Milliseconds(),
		Lifecycle: LifecycleActive,
	}
}

var maxMembersField = field[Channel]{
	name: "max_members", rule: filled,
	read: func(s *scanner, c *Channel) bool {
		n, _, ok := readNumber(s)
		if !ok {
			c.MaxMembers = DefaultMembers
			return false
		}
		c.MaxMembers = int(max(MinMembers, min(MaxMembers, n)))
		return int64(c.MaxMembers) == n
	},
	write: func(dst []byte, c *Channel, _ string, _ int) []byte { return appendNumber(dst, int64(c.MaxMembers)) },
}

var lifecycleField = field[Channel]{
	name: "lifecycle", rule: filled,
	read: func(s *scanner, c *Channel) bool {
		c.Lifecycle, _ = readText(s)
		switch c.Lifecycle {
		case LifecycleActive, LifecycleSaved, LifecycleDeleted:
			return true
		}
		c.Lifecycle = LifecycleActive
		return false
	},
	write: func(dst []byte, c *Channel, _ string, _ int) []byte { return appendString(dst, c.Lifecycle) },
}

var correlationsField = field[Channel]{
	name: "processed_correlations", rule: filled,
	read: func(s *scanner, c *Channel) (ok bool) {
		c.ProcessedCorrelations, ok, _ = readStrings(s, nil)
		return ok
	},
	write: func(dst []byte, c *Channel, _ string, depth int) []byte {
		return appendStrings(dst, c.ProcessedCorrelations, depth)
	},
}

var membersField = field[Channel]{
	name: "members", rule: filled, // that there are any is looked at with the channel
	read: func(s *scanner, c *Channel) (ok bool) {
		c.Members, s.fault, ok = readMembers(s)
		return ok
	},
	write: func(dst []byte, c *Channel, _ string, depth int) []byte { return appendMembers(dst, c.Members, depth) },
}
