package engine

import (
	"errors"
	"strings"
	"time"

	"opencode-mesh/protocol/opencomms"
)

// find returns the channel that is meant by name.
func find(s *opencomms.State, name string) (*opencomms.Channel, error) {
	normal, err := opencomms.NormalName(name)
	if err == nil {
		if ch, ok := s.Channels.Get(normal); ok {
			return ch, nil
		}
	}
	return nil, refuse(ChannelMissing, "there is no channel %q in this project: check the name and the project directory, and create a channel only when you are asked to", opencomms.Cut(name, opencomms.MaxChannelName))
}

// member returns the member of ch with that session id, or nil.
func member(ch *opencomms.Channel, session string) *opencomms.Member {
	for _, m := range ch.Members {
		if m.SessionID == session {
			return m
		}
	}
	return nil
}

// Find returns the channel that is meant by name, or nil.
func Find(s *opencomms.State, name string) *opencomms.Channel {
	ch, _ := find(s, name)
	return ch
}

// Member returns the member of a channel with that session id, or nil.
func Member(ch *opencomms.Channel, session string) *opencomms.Member { return member(ch, session) }

// match returns the one of members that a caller means by a session id or a role,
// whatever their case; a session id comes first. It is nil if there is none.
func match(members []*opencomms.Member, wanted string) *opencomms.Member {
	if m := bySession(members, wanted); m != nil {
		return m
	}
	return byRole(members, wanted)
}

func bySession(members []*opencomms.Member, id string) *opencomms.Member {
	id = strings.ToLower(opencomms.Trim(id))
	for _, m := range members {
		if id != "" && strings.ToLower(m.SessionID) == id {
			return m
		}
	}
	return nil
}

func byRole(members []*opencomms.Member, role string) *opencomms.Member {
	role = strings.ToLower(opencomms.Trim(role))
	for _, m := range members {
		if role != "" && strings.ToLower(m.Role) == role {
			return m
		}
	}
	return nil
}

// others are the members of ch but that session.
func others(ch *opencomms.Channel, session string) []*opencomms.Member {
	out := make([]*opencomms.Member, 0, len(ch.Members))
	for _, m := range ch.Members {
		if m.SessionID != session {
			out = append(out, m)
		}
	}
	return out
}

// roster names members in the text of a refusal.
func roster(members []*opencomms.Member) string {
	names := make([]string, len(members))
	for i, m := range members {
		names[i] = m.Role + " (" + m.SessionID + ")"
	}
	if len(names) == 0 {
		return "nobody"
	}
	return strings.Join(names, ", ")
}

// enter returns a channel and the caller's membership in it, which is nil for an
// operator.
func enter(s *opencomms.State, c Caller, channel string) (*opencomms.Channel, *opencomms.Member, error) {
	ch, err := find(s, channel)
	if err != nil {
		return nil, nil, err
	}
	if c.Operator {
		return ch, nil, nil
	}
	m := member(ch, c.Session)
	if m == nil {
		return nil, nil, notMember(ch)
	}
	return ch, m, nil
}

func notMember(ch *opencomms.Channel) error {
	return refuse(NotMember, "this session is not a member of channel %q", ch.Name)
}

// active refuses what only an active channel takes.
func active(ch *opencomms.Channel) error {
	switch ch.Lifecycle {
	case opencomms.LifecycleSaved:
		return refuse(NotActive, "channel %q is saved; resume its session first", ch.Name)
	case opencomms.LifecycleDeleted:
		return refuse(NotActive, "channel %q was deleted", ch.Name)
	}
	return nil
}

// IsMember reports whether a session is a member of any channel.
func IsMember(s *opencomms.State, session string) bool {
	for _, ch := range s.Channels.All() {
		if member(ch, session) != nil {
			return true
		}
	}
	return false
}

// MemberSomewhere refuses callers that are members of no channel.
func MemberSomewhere(s *opencomms.State, c Caller) error {
	if c.Operator || IsMember(s, c.Session) {
		return nil
	}
	return refuse(NotMember, "this session is not a member of any channel in this project: join or create one first")
}

// anyProject are project ids that stand for "some local project" and match every
// other; the worktree is what keeps projects apart.
var anyProject = map[string]bool{"local-project": true, "gui-local-project": true, "cli-local-project": true}

// Create makes a channel, empty or with its first member.
func (e Engine) Create(s *opencomms.State, r CreateRequest) (Created, error) {
	name, err := channelName(r.Channel)
	if err != nil {
		return Created{}, err
	}
	if r.Member != nil {
		if err := sessionID(r.Member.Session); err != nil {
			return Created{}, err
		}
	}
	if r.ProjectID == "" {
		return Created{}, refuse(ProjectRequired, "a channel needs a project id")
	}
	if r.Worktree == "" {
		return Created{}, refuse(WorktreeRequired, "a channel needs a worktree")
	}
	var first *opencomms.Member
	if r.Member != nil {
		if err := rolePrompt(r.Member.RolePrompt); err != nil {
			return Created{}, err
		}
		role, err := roleName(r.Member.Role)
		if err != nil {
			return Created{}, err
		}
		first = e.newMember(*r.Member, role)
	}
	if _, ok := s.Channels.Get(name); ok {
		return Created{}, refuse(ChannelExists, "there is a channel %q already: join it, or choose another name", name)
	}

	ch := e.newChannel(name, r.ProjectID, r.Worktree)
	ch.MaxMembers = within(r.MaxMembers, opencomms.DefaultMembers, opencomms.MinMembers, opencomms.MaxMembers)
	ch.RateLimit = within(r.RateLimit, opencomms.DefaultRate, opencomms.MinRate, opencomms.MaxRate)
	ch.MaxHops = within(r.MaxHops, opencomms.DefaultHops, opencomms.MinMaxHops, opencomms.MaxMaxHops)
	ch.Budgets = budgets(r.Budgets)
	created := Created{ChannelID: ch.ID, Name: name}
	if first != nil {
		ch.Members = append(ch.Members, first)
		created.Role, created.SessionID = first.Role, first.SessionID
	}
	s.Channels.Set(name, ch)
	return created, nil
}

// newChannel is an empty channel with the defaults of every rule. Each field is
// set: not all of them are filled in by whoever reads the file next.
func (e Engine) newChannel(name, project, worktree string) *opencomms.Channel {
	now := e.now()
	return &opencomms.Channel{
		ID:               opencomms.NewID(opencomms.PrefixChannel),
		Name:             name,
		ProjectID:        project,
		Worktree:         worktree,
		CreatedAt:        now,
		MaxMembers:       opencomms.DefaultMembers,
		Rate:             opencomms.Rate{WindowStart: now},
		MaxHops:          opencomms.DefaultHops,
		RateLimit:        opencomms.DefaultRate,
		DeliveryCooldown: millis(opencomms.DefaultCooldown),
		StaleAfter:       millis(opencomms.DefaultStale),
		Lifecycle:        opencomms.LifecycleActive,
	}
}

// Join makes a session a member of a channel. A member is never replaced.
func (e Engine) Join(s *opencomms.State, r JoinRequest) (Joined, error) {
	role, err := roleName(r.Member.Role)
	if err != nil {
		return Joined{}, err
	}
	ch, err := find(s, r.Channel)
	if err != nil {
		return Joined{}, err
	}
	if err := active(ch); err != nil {
		return Joined{}, err
	}
	if err := sessionID(r.Member.Session); err != nil {
		return Joined{}, err
	}
	// Whoever comes first into an empty channel gives it its identity.
	project, worktree := ch.ProjectID, ch.Worktree
	if len(ch.Members) == 0 {
		worktree = r.Worktree
		if !anyProject[r.ProjectID] {
			project = r.ProjectID
		}
	}
	if project != r.ProjectID && !anyProject[project] && !anyProject[r.ProjectID] {
		return Joined{}, refuse(ProjectMismatch, "channel %q belongs to another project (%s)", ch.Name, project)
	}
	if worktree != r.Worktree {
		return Joined{}, refuse(WorktreeMismatch, "channel %q belongs to another worktree (%s)", ch.Name, worktree)
	}
	if m := member(ch, r.Member.Session); m != nil {
		if m.Role == role {
			return Joined{}, refuse(AlreadyMember, "this session is %s on channel %q already", m.Role, ch.Name)
		}
		return Joined{}, refuse(TwoRoles, "this session is %s on channel %q; one session has one role there", m.Role, ch.Name)
	}
	if len(ch.Members) >= ch.MaxMembers {
		return Joined{}, refuse(ChannelFull, "channel %q is full (%d of %d members); somebody has to leave first", ch.Name, len(ch.Members), ch.MaxMembers)
	}
	for _, m := range ch.Members {
		if strings.EqualFold(m.Role, role) {
			return Joined{}, refuse(RoleTaken, "the role %s on channel %q is held by session %s; choose another, or have that member removed", m.Role, ch.Name, m.SessionID)
		}
	}
	if err := rolePrompt(r.Member.RolePrompt); err != nil {
		return Joined{}, err
	}
	ch.ProjectID, ch.Worktree = project, worktree
	ch.Members = append(ch.Members, e.newMember(r.Member, role))
	return Joined{ChannelID: ch.ID, Role: role, SessionID: r.Member.Session, ParentID: orNull(ch.ParentID)}, nil
}

func (e Engine) newMember(n NewMember, role string) *opencomms.Member {
	m := &opencomms.Member{
		SessionID:     n.Session,
		Role:          role,
		RolePrompt:    n.RolePrompt,
		JoinedAt:      e.now(),
		Host:          orElse(n.Host, "generic"),
		Surface:       orElse(n.Surface, opencomms.SurfaceCLI),
		Mode:          orElse(n.Mode, opencomms.ModePush),
		HostSessionID: n.HostSession,
		Policy:        &opencomms.StalePolicy{Mode: opencomms.StaleWindow, Window: millis(opencomms.DefaultStale)},
	}
	if n.Policy != nil {
		policy := *n.Policy
		m.Policy = &policy
	}
	endpoint := opencomms.DerivedEndpoint(m.Mode)
	if n.Endpoint != nil {
		endpoint = *n.Endpoint
	}
	m.Endpoint = &endpoint
	return m
}

func channelName(name string) (string, error) {
	normal, err := opencomms.NormalName(name)
	switch {
	case errors.Is(err, opencomms.ErrNameEmpty):
		return "", refuse(NameRequired, "%s", err)
	case errors.Is(err, opencomms.ErrNameLong):
		return "", refuse(NameTooLong, "%s", err)
	case err != nil:
		return "", refuse(InvalidName, "%s", err)
	}
	return normal, nil
}

// sessionID and roleName keep what stands for the person at the machine from being
// taken by an agent.
func sessionID(id string) error {
	switch {
	case opencomms.Trim(id) == "":
		return refuse(SessionRequired, "a member needs a session id")
	case strings.EqualFold(opencomms.Trim(id), opencomms.OperatorSession):
		return refuse(InvalidID, "the session id %q stands for the person at the machine", opencomms.OperatorSession)
	}
	return nil
}

func roleName(role string) (string, error) {
	normal, err := opencomms.NormalRole(role)
	if err != nil {
		return "", refuse(InvalidRole, "%s", err)
	}
	if strings.EqualFold(normal, opencomms.OperatorRole) {
		return "", refuse(InvalidRole, "the role %q stands for the person at the machine", opencomms.OperatorRole)
	}
	return normal, nil
}

func rolePrompt(text string) error {
	if opencomms.Trim(text) == "" {
		return refuse(RolePromptRequired, "a member needs a role prompt")
	}
	return nil
}

// budgets brings budgets into their range; zero stays no bound.
func budgets(b opencomms.Budgets) opencomms.Budgets {
	return opencomms.Budgets{
		MaxRuntime:   within(b.MaxRuntime, 0, millis(opencomms.MinBudgetRuntime), millis(opencomms.MaxBudgetRuntime)),
		MaxDelivered: within(b.MaxDelivered, 0, opencomms.MinBudgetMessages, opencomms.MaxBudgetMessages),
	}
}

// within is the default for zero, and otherwise v brought into its range.
func within[N int | int64](v, byDefault, least, most N) N {
	if v == 0 {
		return byDefault
	}
	return max(least, min(most, v))
}

func millis(d time.Duration) int64 { return d.Milliseconds() }

func orElse(s, byDefault string) string {
	if s == "" {
		return byDefault
	}
	return s
}

// orNull is what JSON shows as null when it is zero.
func orNull[V comparable](v V) *V {
	var zero V
	if v == zero {
		return nil
	}
	return &v
}
