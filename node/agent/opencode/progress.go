package opencode

import (
	"strings"
	"sync"

	"opencode-mesh/node/agent"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
)

const (
	// maxGlance is the longest tool call or line that is shown, in bytes.
	maxGlance = 200
	// maxWritten is how much of the text under way is kept to find its last line, in
	// bytes.
	maxWritten = 4 << 10
	// maxKin is how many sub-agents' sessions of a turn are followed.
	maxKin = 256
)

// progress is what a running turn shows of itself: what the node notes, and what
// the turn's session and its sub-agents' do. Safe for concurrent use.
type progress struct {
	// mu guards the following fields. host is told under it, so that what is newest
	// is told last; Host.Progress does not block.
	mu      sync.Mutex
	host    agent.Host
	now     api.Activity
	told    api.Activity
	session string            // the turn's; "" while it has none
	kin     map[string]bool   // with the turn's own
	writer  map[string]string // the assistant's newest message, by session
	writing string            // the text part under way
	written string            // its end
	live    bool              // the stream is up
	models  models
}

func newProgress(host agent.Host) *progress {
	return &progress{host: host, kin: make(map[string]bool), writer: make(map[string]string)}
}

// note replaces what the node says.
func (p *progress) note(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now.Note = text
	p.tell()
}

// enter names the session of the turn.
func (p *progress) enter(session string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.session != session {
		p.session = session
		clear(p.kin)
		clear(p.writer)
		p.kin[session] = true
	}
}

// know takes the sizes of the models.
func (p *progress) know(m models) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.models = m
}

// ours reports whether a session is the turn's or a sub-agent's.
func (p *progress) ours(session string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.kin[session]
}

// blind says that the stream ended.
func (p *progress) blind() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.live = false
}

// sees reports whether the events show what the session does: the stream is up and
// told of a message in it.
func (p *progress) sees() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.live && p.writer[p.session] != ""
}

// see takes an event in, and reports whether it was of use here only.
func (p *progress) see(e event) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e.kind {
	case eventConnected:
		// What was missed is missing: the next message tells where things stand.
		p.live = true
		delete(p.writer, p.session)
		return false
	case eventChild:
		if p.kin[e.parent] && len(p.kin) < maxKin {
			p.kin[e.session] = true
		}
		return true
	case eventMessage, eventTool, eventText, eventDelta, eventStep:
	default:
		return false
	}
	if p.kin[e.session] {
		p.show(e)
		p.tell()
	}
	return true
}

// show changes the activity; the caller holds mu.
func (p *progress) show(e event) {
	switch e.kind {
	case eventMessage:
		p.writer[e.session] = e.message
		if e.session == p.session && e.tokens > 0 {
			m, _ := p.models.find(e.provider, e.model)
			p.now.Tokens = &api.Tokens{Total: e.tokens, Limit: m.context}
		}
	case eventStep:
		if e.session == p.session && e.tokens > 0 {
			t := api.Tokens{Total: e.tokens}
			if p.now.Tokens != nil {
				t.Limit = p.now.Tokens.Limit
			}
			p.now.Tokens = &t
		}
	case eventTool:
		p.now.Tool = glance(e.text)
	case eventText:
		// A user's message has texts too.
		if p.writer[e.session] == e.message {
			p.writing, p.written = e.part, e.text
			p.line()
		}
	case eventDelta:
		if p.writing == e.part {
			p.written += e.text
			p.line()
		}
	}
}

// line finds the last line of what is written; the caller holds mu.
func (p *progress) line() {
	if over := len(p.written) - maxWritten; over > 0 {
		p.written = p.written[over:]
	}
	text := strings.TrimSpace(p.written)
	if text = glance(text[strings.LastIndexByte(text, '\n')+1:]); text != "" {
		p.now.Line = text
	}
}

// tell hands the activity over when it changed; the caller holds mu.
func (p *progress) tell() {
	if p.now != p.told {
		p.told = p.now
		p.host.Progress(p.now)
	}
}

// glance makes a text fit for one short line.
func glance(s string) string {
	if len(s) > 4*maxGlance {
		s = cut(s, 4*maxGlance)
	}
	return cut(mesh.CleanLine(s), maxGlance)
}
