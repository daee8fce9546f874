package opencomms

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	opencomms "opencode-mesh/node/opencomms"
	"opencode-mesh/node/opencomms/across"
	"opencode-mesh/node/opencomms/engine"
	"opencode-mesh/node/opencomms/statefile"
	ocm "opencode-mesh/protocol/opencomms"
	"opencode-mesh/test/fleet"
)

// patience bounds every wait; only a hang reaches it.
const patience = 4 * time.Minute

// machine is a node with a project that has the channel "review" with one member.
type machine struct {
	t       *testing.T
	node    *fleet.Node
	dir     string
	project *opencomms.Project
	session string
	role    string
}

// newMachine starts a node and makes its project.
func newMachine(t *testing.T, f *fleet.Fleet, name, session, role string) *machine {
	t.Helper()
	m := &machine{t: t, node: f.Node(name, f.Demo()), dir: t.TempDir(), session: session, role: role}
	p, err := opencomms.Open(m.dir, opencomms.Options{})
	if err != nil {
		t.Fatal(err)
	}
	m.project = p
	_, err = p.Create(t.Context(), engine.CreateRequest{Channel: "review", RateLimit: 1000, MaxHops: 4, Member: &engine.NewMember{
		Session: session, Role: role, RolePrompt: "Work.", Host: "test", Surface: ocm.SurfaceMCP, Mode: ocm.ModePull,
		Policy: &ocm.StalePolicy{Mode: ocm.StaleNone},
	}})
	if err != nil {
		t.Fatal(err)
	}
	m.up()
	return m
}

// up waits until the node answers.
func (m *machine) up() {
	m.t.Helper()
	eventually(m.t, m.node.Name, func() bool { return m.node.Run("status").Code == 0 })
}

// kill kills the node. A lock that it leaves in the project counts as dead at once, not
// after 15 s.
func (m *machine) kill() {
	m.t.Helper()
	m.node.Kill()
	long := time.Now().Add(-time.Hour)
	_ = os.Chtimes(filepath.Join(m.dir, statefile.Dir, ".state.lock"), long, long) // if there is one
}

// ocm runs a command of meshnode opencomms.
func (m *machine) ocm(args ...string) string {
	m.t.Helper()
	args = append([]string{"opencomms", "--project", m.dir}, args...)
	out := m.node.Run(args...)
	if out.Code != 0 {
		m.t.Fatalf("meshnode %s: %d %s", strings.Join(args, " "), out.Code, out.Stderr)
	}
	return out.Stdout
}

// across is how the node's links are.
func (m *machine) across() across.Status {
	m.t.Helper()
	var s struct{ Across across.Status }
	if err := json.Unmarshal([]byte(m.ocm("status", "--json")), &s); err != nil {
		m.t.Fatal(err)
	}
	return s.Across
}

// state reads the file.
func (m *machine) state() *ocm.State {
	m.t.Helper()
	s, err := m.project.Read(context.Background())
	if err != nil {
		m.t.Fatal(err)
	}
	return s
}

// row is a message of the file, nil if it is not there.
func (m *machine) row(id string) *ocm.Envelope {
	row, _ := m.state().Messages.Get(id)
	return row
}

// awaitMember waits until the channel has a member of a role.
func (m *machine) awaitMember(role string) *ocm.Member {
	m.t.Helper()
	var found *ocm.Member
	eventually(m.t, role+" in the channel", func() bool {
		for _, member := range engine.Find(m.state(), "review").Members {
			if member.Role == role {
				found = member
			}
		}
		return found != nil
	})
	return found
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// message is a row as the tool opencomms_inbox shows it.
type message struct {
	ID      string  `json:"message_id"`
	From    string  `json:"sender_role"`
	Content string  `json:"content"`
	ReplyTo *string `json:"reply_to"`
	Hops    int     `json:"hop_count"`
}

// await waits until a member has mail, looks at it and pulls it.
func (m *member) await(t *testing.T, n int) []message {
	t.Helper()
	var in struct{ Messages []message }
	eventually(t, "mail", func() bool {
		if err := m.tool("opencomms_inbox", map[string]any{"channel": "review"}, &in); err != nil {
			t.Fatal(err)
		}
		return len(in.Messages) >= n
	})
	var got []message
	for len(got) < n {
		var pulled struct {
			IDs []string `json:"message_ids"`
		}
		if err := m.tool("opencomms_pull", map[string]any{"channel": "review"}, &pulled); err != nil {
			t.Fatal(err)
		}
		for _, id := range pulled.IDs {
			i := slices.IndexFunc(in.Messages, func(m message) bool { return m.ID == id })
			if i < 0 {
				t.Fatalf("pulled %s, which was not in the inbox", id)
			}
			got = append(got, in.Messages[i])
		}
		if len(pulled.IDs) == 0 {
			time.Sleep(50 * time.Millisecond) // the pause after a delivery
		}
	}
	return got
}

// reply answers a message.
func (m *member) reply(t *testing.T, to, content string) string {
	t.Helper()
	var sent struct {
		MessageIDs []string `json:"message_ids"`
	}
	if err := m.tool("opencomms_send", map[string]any{"channel": "review", "content": content, "reply_to": to}, &sent); err != nil {
		t.Fatal(err)
	}
	return sent.MessageIDs[0]
}

func (m *member) ask(t *testing.T, content string) string {
	t.Helper()
	id, err := m.send("review", content)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// Three machines, each linked with the others, whose members all send to all, while hub
// and nodes are killed: every file has every message once, in the order of its sender.
func TestThreeMachinesLoseAndDoubleNothingWhileEverythingIsKilled(t *testing.T) {
	f := fleet.New(t)
	all := []*machine{
		newMachine(t, f, "alpha", "sess_a", "Builder"), newMachine(t, f, "beta", "sess_b", "Reviewer"), newMachine(t, f, "gamma", "sess_c", "Tester"),
	}
	for _, m := range all {
		for _, other := range all {
			if m != other {
				m.ocm("link", "review", "--node", other.node.Name)
			}
		}
	}
	for _, m := range all {
		eventually(t, "the others in the channel of "+m.node.Name, func() bool { return len(engine.Find(m.state(), "review").Members) == len(all) })
	}
	sent := map[string][]string{} // contents by role
	for round := range killRounds {
		for _, m := range all {
			text := fmt.Sprint(m.role, " says ", round)
			_, err := m.project.Send(t.Context(), engine.Caller{Session: m.session}, engine.SendRequest{Channel: "review", Content: text, Broadcast: true})
			if err != nil {
				t.Fatal(err)
			}
			sent[m.role] = append(sent[m.role], text)
		}
		switch victim := round % 4; victim {
		case 3:
			f.Hub.Kill()
			f.Hub.Start()
		default:
			all[victim].kill()
			all[victim].node.Start()
		}
	}
	for _, m := range all {
		for _, other := range all {
			if m == other {
				continue
			}
			from := other.role + "-" + other.node.Name
			var got []string
			eventually(t, "the messages of "+from+" at "+m.node.Name, func() bool {
				got = nil
				for _, row := range m.state().Messages.All() {
					if row.SenderRole == from && row.Recipient == m.session {
						got = append(got, row.Content)
					}
				}
				return len(got) >= killRounds
			})
			if !slices.Equal(got, sent[other.role]) {
				t.Errorf("%s has of %s: %q", m.node.Name, from, got)
			}
		}
		for _, row := range m.state().Messages.All() {
			if row.Type == ocm.TypeSystem {
				t.Errorf("%s has the notice %q", m.node.Name, row.Content)
			}
		}
	}
}

// What a person sees and types: offers, links, their end, and a channel whose node does
// not run.
func TestThePersonSeesAndEndsALink(t *testing.T) {
	f := fleet.New(t)
	alpha := newMachine(t, f, "alpha", "sess_builder", "Builder")
	beta := newMachine(t, f, "beta", "sess_reviewer", "Reviewer")
	alpha.ocm("link", "review", "--node", "beta")
	beta.ocm("link", "review", "--node", "alpha")
	alpha.awaitMember("Reviewer-beta")
	beta.awaitMember("Builder-alpha")
	if out := alpha.ocm("links"); !strings.Contains(out, "review") || !strings.Contains(out, "open") || !strings.Contains(out, alpha.dir) {
		t.Errorf("links says %q", out)
	}
	sent, err := alpha.project.Send(t.Context(), engine.Caller{Session: alpha.session}, engine.SendRequest{Channel: "review", To: "Reviewer-beta", Content: "hello"})
	if err != nil {
		t.Fatal(err)
	}
	id := sent.MessageIDs[0]
	eventually(t, "the message", func() bool { return beta.row(id) != nil })
	if _, err := beta.project.Pull(t.Context(), engine.Caller{Session: beta.session}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "its end", func() bool { return strings.Contains(alpha.ocm("status", "review"), id+" to Reviewer-beta: delivered") })
	if out := alpha.ocm("status"); !strings.Contains(out, "review is linked with review of beta: open\n  shows them Builder\n  Reviewer-beta stands for their Reviewer\n") {
		t.Errorf("status says %q", out)
	}
	if out := fleet.Shell(t, alpha.dir, "meshnode opencomms send review --to Reviewer-beta -- hello"); !strings.Contains(out, "say --as with a member of this one") {
		t.Errorf("the operator is told %q", out)
	}
	if out := alpha.ocm("unlink", "review", "--node", "beta"); !strings.Contains(out, "no longer linked with review of beta") {
		t.Errorf("unlink says %q", out)
	}
	for _, m := range []*machine{alpha, beta} {
		eventually(t, "the proxies gone", func() bool { return len(engine.Find(m.state(), "review").Members) == 1 })
	}
	eventually(t, "the link gone", func() bool { return len(alpha.across().Links) == 0 })
	alpha.ocm("link", "review", "--node", "beta")
	alpha.awaitMember("Reviewer-beta")
	alpha.node.Stop()
	if out := alpha.ocm("status"); !strings.Contains(out, "review has members of other machines, and no node runs that carries their mail") {
		t.Errorf("status without a node says %q", out)
	}
	if out := alpha.node.Run("opencomms", "links"); out.Code == 0 || !strings.Contains(out.Stderr, "no node runs") {
		t.Errorf("links without a node: %d %s", out.Code, out.Stderr)
	}
}

// Two machines and a hub, a channel across them, question and answer between two MCP
// members, with kills of everything in the middle.
func TestQuestionAndAnswerCrossMachinesThroughKills(t *testing.T) {
	f := fleet.New(t)
	alpha := newMachine(t, f, "alpha", "sess_builder", "Builder")
	beta := newMachine(t, f, "beta", "sess_reviewer", "Reviewer")

	if out := alpha.ocm("link", "review", "--node", "beta"); !strings.Contains(out, "meshnode opencomms link review --node alpha") {
		t.Fatalf("link says %q", out)
	}
	eventually(t, "the offer at beta", func() bool { return len(beta.across().Offers) == 1 })
	if out := beta.ocm("status"); !strings.Contains(out, "alpha offers channel review with Builder: meshnode opencomms link review --node alpha") {
		t.Errorf("status says %q", out)
	}
	beta.ocm("link", "review", "--node", "alpha")
	proxy := alpha.awaitMember("Reviewer-beta")
	if proxy.Surface != ocm.SurfaceAPI || proxy.Mode != ocm.ModePull || proxy.Policy == nil || proxy.Policy.Mode != ocm.StaleNone || proxy.Host != across.Host {
		t.Errorf("the proxy is %+v", proxy)
	}
	beta.awaitMember("Builder-alpha")

	builder, reviewer := startMember(t, alpha.dir, alpha.session), startMember(t, beta.dir, beta.session)
	// The hub dies with the question under way.
	f.Hub.Kill()
	question := builder.ask(t, "Is it ready?")
	eventually(t, "the question taken out of the file", func() bool { return alpha.row(question).Status == ocm.StatusDelivered })
	f.Hub.Start()
	got := reviewer.await(t, 1)
	if got[0].ID != question || got[0].From != "Builder-alpha" || got[0].Hops != 0 || !strings.Contains(got[0].Content, "\nIs it ready?\n") {
		t.Fatalf("beta got %+v", got)
	}
	// Both nodes die with the answer under way.
	beta.kill()
	answer := reviewer.reply(t, question, "Yes.")
	beta.node.Start()
	alpha.kill()
	alpha.node.Start()
	back := builder.await(t, 1)
	if back[0].ID != answer || back[0].ReplyTo == nil || *back[0].ReplyTo != question || back[0].Hops != 1 || back[0].From != "Reviewer-beta" {
		t.Fatalf("alpha got %+v", back)
	}
	a, b := alpha.row(question), beta.row(question)
	c, d := alpha.row(answer), beta.row(answer)
	for _, row := range []*ocm.Envelope{b, c, d} {
		if row.Correlation != a.Correlation {
			t.Errorf("correlation %s, not %s", row.Correlation, a.Correlation)
		}
	}
	if c.Root != question || d.Root != question || a.Type != b.Type {
		t.Errorf("root %s and %s", c.Root, d.Root)
	}
	final := func(m *machine, id string) string {
		for _, msg := range m.across().Messages {
			if msg.ID == id {
				return msg.State
			}
		}
		return ""
	}
	eventually(t, "both final states", func() bool {
		return final(alpha, question) == ocm.StatusDelivered && final(beta, answer) == ocm.StatusDelivered
	})
	// Each is there once.
	if n, m := alpha.state().Messages.Len(), beta.state().Messages.Len(); n != 2 || m != 2 {
		t.Errorf("%d messages at alpha, %d at beta", n, m)
	}
}
