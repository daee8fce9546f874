package mcp

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"

	"opencode-mesh/node/mcp"
	"opencode-mesh/node/opencomms"
	"opencode-mesh/node/opencomms/engine"
	"opencode-mesh/node/opencomms/pins"
	ocm "opencode-mesh/protocol/opencomms"
)

// defaultHost is the host of a member that neither a flag nor a pin names.
const defaultHost = "mcp"

// member is whom all calls act as.
type member struct {
	project *opencomms.Project
	id      string
	host    string
	log     *slog.Logger
	ctx     context.Context // ends with Close

	// waking starts with the first send and ends with Close: until then nothing
	// waits for a push member because of this one.
	waking sync.Once
	work   sync.WaitGroup
}

// wakeOwners has those woken who deliver to push members what was sent to them in a
// pause.
func (m *member) wakeOwners() {
	m.waking.Do(func() {
		m.work.Go(func() {
			if err := m.project.WakeOwners(m.ctx); err != nil {
				m.log.Error("owners of push members are not woken", "error", err)
			}
		})
	})
}

// identify checks the id anew for each call: a member that was removed has no access
// from then on (§7). It must be on the roster of a live channel or, if pinned is
// said, have been pinned by a local operator: for what members do that are in no
// channel, as to come into one or to go on with an archived one, of which the
// project knows who was in it.
func (m *member) identify(ctx context.Context, pinned bool) (engine.Caller, error) {
	c := engine.Caller{Session: m.id}
	switch {
	case m.id == "":
		return c, &engine.Refusal{Code: codeNoIdentity, Message: "this server has no member id: set OPENCOMMS_MEMBER_ID in its environment (meshnode opencomms install-member does)"}
	case strings.EqualFold(m.id, ocm.OperatorSession):
		return c, &engine.Refusal{Code: codeNoIdentity, Message: "OPENCOMMS_MEMBER_ID names the operator, who is no member: give the server a member id of its own"}
	}
	state, err := m.project.Read(ctx)
	if err != nil {
		return c, err
	}
	if isMember(state, m.id) {
		return c, nil
	}
	if pinned {
		_, err := pins.Load(m.project.Dir(), m.id)
		if err == nil || !errors.Is(err, pins.ErrNone) {
			return c, err
		}
		return c, &engine.Refusal{Code: codeUnknownIdentity, Message: "the member id of OPENCOMMS_MEMBER_ID is in no channel and has no pin in .opencomms/pins: a person pins it with meshnode opencomms install-member"}
	}
	return c, &engine.Refusal{Code: codeUnknownIdentity, Message: "you are in no channel of this project: come into one with opencomms_join or opencomms_create"}
}

func isMember(s *ocm.State, id string) bool {
	for _, c := range s.Channels.All() {
		for _, m := range c.Members {
			if m.SessionID == id {
				return true
			}
		}
	}
	return false
}

// joining is how the member comes into a channel. It reads its mail itself, so that
// nobody prompts it and its mail does not grow old (§9.6).
func (m *member) joining(a mcp.Arguments) engine.NewMember {
	host := m.host
	if pin, err := pins.Load(m.project.Dir(), m.id); host == "" && err == nil {
		host = pin.Host
	}
	if host == "" {
		host = defaultHost
	}
	return engine.NewMember{
		Session: m.id, Role: a.Texts["role"], RolePrompt: a.Texts["role_prompt"], Host: host,
		Surface: ocm.SurfaceMCP, Mode: ocm.ModePull, Policy: &ocm.StalePolicy{Mode: ocm.StaleNone},
	}
}
