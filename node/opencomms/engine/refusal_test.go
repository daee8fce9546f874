package engine_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"opencode-mesh/node/opencomms/engine"
	"opencode-mesh/protocol/opencomms"
)

// A refusal case begins in a channel "review" of ses_a (A) and ses_b (B).
var refusals = map[engine.Code]map[string]func(w *world) error{
	engine.ChannelMissing: {
		"send":          func(w *world) error { return send(w, "nowhere", "x") },
		"join":          func(w *world) error { return join(w, "nowhere", pull(2)) },
		"no valid name": func(w *world) error { return send(w, "NO SUCH!", "x") },
		"operator's status": func(w *world) error {
			_, err := w.e.Status(w.s, operator, "nowhere")
			return err
		},
	},
	engine.NotMember: {
		"send":       func(w *world) error { return sendAs(w, "ses_z", engine.SendRequest{Content: "x"}) },
		"pause":      func(w *world) error { _, err := w.e.Pause(w.s, as("ses_z"), "review"); return err },
		"resume":     func(w *world) error { _, err := w.e.Resume(w.s, as("ses_z"), "review"); return err },
		"disconnect": func(w *world) error { _, err := w.e.Disconnect(w.s, as("ses_z"), "review"); return err },
		"kick": func(w *world) error {
			_, err := w.e.Kick(w.s, as("ses_z"), engine.KickRequest{Channel: "review", TargetRole: "B"})
			return err
		},
		"update role": func(w *world) error {
			_, err := w.e.UpdateRole(w.s, as("ses_z"), engine.UpdateRoleRequest{Channel: "review", RolePrompt: "x"})
			return err
		},
		"timer":   func(w *world) error { return timer(w, as("ses_z"), engine.TimerStatus, 0, "") },
		"inbox":   func(w *world) error { _, err := w.e.Inbox(w.s, as("ses_z"), "review", 0); return err },
		"history": func(w *world) error { _, err := w.e.History(w.s, as("ses_z"), "review", 0); return err },
		"status":  func(w *world) error { _, err := w.e.Status(w.s, as("ses_z"), ""); return err },
		"save": func(w *world) error {
			_, err := w.e.SaveSession(w.s, as("ses_z"), engine.SaveRequest{Channel: "review"})
			return err
		},
		"delete": func(w *world) error { _, err := w.e.DeleteSession(w.s, as("ses_z"), "review", true); return err },
		"relay": func(w *world) error {
			_, err := w.e.Relay(w.s, relayed(func(r *engine.RelayRequest) { r.From = "ses_z" }))
			return err
		},
		"somewhere":      func(w *world) error { return engine.MemberSomewhere(w.s, as("ses_z")) },
		"the operator's": func(w *world) error { return sendAs(w, "operator", engine.SendRequest{Content: "x"}) },
		"no session":     func(w *world) error { return sendAs(w, "", engine.SendRequest{Content: "x"}) },
	},
	engine.NotActive: {
		"send to a saved one": func(w *world) error { w.get("review").Lifecycle = "saved"; w.ready(); return send(w, "review", "x") },
		"join a deleted one": func(w *world) error {
			w.get("review").Lifecycle = "deleted"
			w.ready()
			return join(w, "review", pull(2))
		},
		"save what is saved": func(w *world) error {
			w.get("review").Lifecycle = "saved"
			w.ready()
			_, err := w.e.SaveSession(w.s, as("ses_a"), engine.SaveRequest{Channel: "review"})
			return err
		},
		"relay into a saved one": func(w *world) error {
			w.get("review").Lifecycle = "saved"
			w.ready()
			_, err := w.e.Relay(w.s, relayed())
			return err
		},
	},
	engine.NameRequired: {"create": func(w *world) error { return create(w, func(r *engine.CreateRequest) { r.Channel = " \ufeff\n" }) }},
	engine.NameTooLong: {"create": func(w *world) error {
		return create(w, func(r *engine.CreateRequest) { r.Channel = strings.Repeat("a", 65) })
	}},
	engine.InvalidName: {
		"begins with a dash": func(w *world) error { return create(w, func(r *engine.CreateRequest) { r.Channel = "-a" }) },
		"blank inside":       func(w *world) error { return create(w, func(r *engine.CreateRequest) { r.Channel = "a b" }) },
	},
	engine.SessionRequired: {
		"create": func(w *world) error { return create(w, func(r *engine.CreateRequest) { r.Member.Session = "" }) },
		"join":   func(w *world) error { return join(w, "review", engine.NewMember{Role: "C", RolePrompt: "x"}) },
	},
	engine.ProjectRequired: {
		"create": func(w *world) error { return create(w, func(r *engine.CreateRequest) { r.ProjectID = "" }) },
		"resume": func(w *world) error {
			a := archived(w)
			w.ready()
			_, err := w.e.ResumeSession(w.s, operator, a, engine.ResumeSessionRequest{Worktree: worktree})
			return err
		},
	},
	engine.WorktreeRequired: {
		"create": func(w *world) error { return create(w, func(r *engine.CreateRequest) { r.Worktree = "" }) },
		"resume": func(w *world) error {
			a := archived(w)
			w.ready()
			_, err := w.e.ResumeSession(w.s, operator, a, engine.ResumeSessionRequest{ProjectID: project})
			return err
		},
	},
	engine.RolePromptRequired: {
		"create": func(w *world) error { return create(w, func(r *engine.CreateRequest) { r.Member.RolePrompt = " " }) },
		"join":   func(w *world) error { m := pull(2); m.RolePrompt = "\n"; w.ready(); return join(w, "review", m) },
		"join an empty channel": func(w *world) error {
			_, err := w.e.Create(w.s, engine.CreateRequest{Channel: "empty", ProjectID: "local-project", Worktree: "/other"})
			w.must(err)
			m := pull(2)
			m.RolePrompt = ""
			w.ready()
			return join(w, "empty", m)
		},
		"update": func(w *world) error {
			_, err := w.e.UpdateRole(w.s, as("ses_a"), engine.UpdateRoleRequest{Channel: "review", RolePrompt: "\t"})
			return err
		},
	},
	engine.InvalidRole: {
		"the operator's": func(w *world) error { m := pull(2); m.Role = "operator"; return join(w, "review", m) },
		"create":         func(w *world) error { return create(w, func(r *engine.CreateRequest) { r.Member.Role = "7up" }) },
		"join": func(w *world) error {
			m := pull(2)
			m.Role = strings.Repeat("x", 33)
			w.ready()
			return join(w, "nowhere", m)
		},
	},
	engine.ChannelExists: {
		"create": func(w *world) error { return create(w, func(r *engine.CreateRequest) { r.Channel = " Review " }) },
		"resume of one that is there": func(w *world) error {
			_, err := w.e.ResumeSession(w.s, operator, &opencomms.Archive{ChannelID: w.get("review").ID, Name: "other"}, engine.ResumeSessionRequest{ProjectID: project, Worktree: worktree})
			return err
		},
	},
	engine.ProjectMismatch: {"join": func(w *world) error {
		_, err := w.e.Join(w.s, engine.JoinRequest{Channel: "review", ProjectID: "other", Worktree: worktree, Member: pull(2)})
		return err
	}},
	engine.WorktreeMismatch: {
		"join": func(w *world) error {
			_, err := w.e.Join(w.s, engine.JoinRequest{Channel: "review", ProjectID: project, Worktree: worktree + "/", Member: pull(2)})
			return err
		},
		"a sentinel does not help": func(w *world) error {
			_, err := w.e.Join(w.s, engine.JoinRequest{Channel: "review", ProjectID: "local-project", Worktree: "/x", Member: pull(2)})
			return err
		},
	},
	engine.AlreadyMember: {"join": func(w *world) error { return join(w, "review", pull(0)) }},
	engine.TwoRoles:      {"join": func(w *world) error { m := pull(0); m.Role = "C"; return join(w, "review", m) }},
	engine.ChannelFull:   {"join": func(w *world) error { w.get("review").MaxMembers = 2; w.ready(); return join(w, "review", pull(2)) }},
	engine.RoleTaken:     {"join": func(w *world) error { m := pull(2); m.Role = " a "; return join(w, "review", m) }},
	engine.NotCoordinator: {"kick": func(w *world) error {
		_, err := w.e.Kick(w.s, as("ses_b"), engine.KickRequest{Channel: "review", TargetRole: "A"})
		return err
	}},
	engine.TargetRequired: {
		"kick": func(w *world) error {
			_, err := w.e.Kick(w.s, as("ses_a"), engine.KickRequest{Channel: "review", TargetRole: " "})
			return err
		},
		"operator's disconnect": func(w *world) error { _, err := w.e.Disconnect(w.s, operator, "review"); return err },
		"operator's role prompt": func(w *world) error {
			_, err := w.e.UpdateRole(w.s, operator, engine.UpdateRoleRequest{Channel: "review", RolePrompt: "x"})
			return err
		},
		"operator's clock": func(w *world) error {
			w.must(timer(w, operator, engine.TimerStop, 0, ""))
			w.ready()
			return timer(w, operator, engine.TimerStart, 0, "")
		},
	},
	engine.KickSelf: {
		"by session": func(w *world) error {
			_, err := w.e.Kick(w.s, as("ses_a"), engine.KickRequest{Channel: "review", TargetSession: "SES_A"})
			return err
		},
		"by role": func(w *world) error {
			_, err := w.e.Kick(w.s, as("ses_a"), engine.KickRequest{Channel: "review", TargetRole: "a"})
			return err
		},
	},
	engine.TargetUnknown: {
		"kick": func(w *world) error {
			_, err := w.e.Kick(w.s, as("ses_a"), engine.KickRequest{Channel: "review", TargetRole: "C"})
			return err
		},
		"kick by the operator": func(w *world) error {
			_, err := w.e.Kick(w.s, operator, engine.KickRequest{Channel: "review", TargetSession: "C"})
			return err
		},
		"switch":    func(w *world) error { return timer(w, as("ses_a"), engine.TimerSwitch, 0, "A") },
		"set limit": func(w *world) error { return timer(w, as("ses_a"), engine.TimerSetLimit, 1, "C") },
		"notice":    func(w *world) error { _, err := w.e.Notice(w.s, "review", "ses_z", "ses_a", "x"); return err },
		"role of": func(w *world) error {
			_, err := w.e.UpdateRole(w.s, operator, engine.UpdateRoleRequest{Channel: "review", Member: "C", RolePrompt: "x"})
			return err
		},
	},
	engine.ConfirmRequired: {"delete": func(w *world) error { _, err := w.e.DeleteSession(w.s, as("ses_a"), "review", false); return err }},
	engine.ArchiveMissing:  {"": func(*world) error { return engine.NoArchive("review") }},
	engine.NotArchivedMember: {"resume": func(w *world) error {
		a := archived(w)
		w.ready()
		_, err := w.e.ResumeSession(w.s, as("ses_z"), a, engine.ResumeSessionRequest{ProjectID: project, Worktree: worktree})
		return err
	}},
	engine.NamesExhausted: {"resume": func(w *world) error {
		a := archived(w)
		for {
			w.ready()
			if _, err := w.e.ResumeSession(w.s, operator, a, engine.ResumeSessionRequest{ProjectID: project, Worktree: worktree}); err != nil {
				return err
			}
		}
	}},
	engine.InvalidTimerLimit:  {"set": func(w *world) error { return timer(w, as("ses_a"), engine.TimerSetLimit, 0, "") }},
	engine.UnknownTimerAction: {"": func(w *world) error { return timer(w, as("ses_a"), "spin", 0, "") }},

	engine.Paused: {
		"send":  func(w *world) error { pause(w); w.ready(); return send(w, "review", "x") },
		"relay": func(w *world) error { pause(w); w.ready(); _, err := w.e.Relay(w.s, relayed()); return err },
	},
	engine.RuntimeExhausted: {"send": func(w *world) error {
		w.get("review").Budgets.MaxRuntime = minute
		w.now += minute + 1
		w.ready()
		return send(w, "review", "x")
	}},
	engine.DeliveredExhausted: {"send": func(w *world) error {
		ch := w.get("review")
		ch.Budgets.MaxDelivered, ch.DeliveredTotal = 3, 3
		w.ready()
		return send(w, "review", "x")
	}},
	engine.ContentRequired: {
		"send":   func(w *world) error { return send(w, "review", " \u2003\ufeff") },
		"notice": func(w *world) error { _, err := w.e.Notice(w.s, "review", "ses_a", "operator", ""); return err },
	},
	engine.ContentTooLarge: {
		"one unit":        func(w *world) error { return send(w, "review", strings.Repeat("x", 100_001)) },
		"surrogate pairs": func(w *world) error { return send(w, "review", strings.Repeat("😀", 50_001)) },
	},
	engine.InvalidMessageType: {
		"system":  func(w *world) error { return sendAs(w, "ses_a", engine.SendRequest{Content: "x", Type: "system"}) },
		"unknown": func(w *world) error { return sendAs(w, "ses_a", engine.SendRequest{Content: "x", Type: "Manual"}) },
		"relay": func(w *world) error {
			_, err := w.e.Relay(w.s, relayed(func(r *engine.RelayRequest) { r.Type = "system" }))
			return err
		},
	},
	engine.RecipientUnknown: {
		"role":   func(w *world) error { return sendAs(w, "ses_a", engine.SendRequest{Content: "x", To: "C"}) },
		"itself": func(w *world) error { return sendAs(w, "ses_a", engine.SendRequest{Content: "x", To: "A"}) },
	},
	engine.RecipientStale: {
		"named": func(w *world) error {
			w.e.SetStale(w.s, "ses_b")
			w.ready()
			return sendAs(w, "ses_a", engine.SendRequest{Content: "x", To: "B"})
		},
		"the other": func(w *world) error { w.e.SetStale(w.s, "ses_b"); w.ready(); return send(w, "review", "x") },
		"the timer's": func(w *world) error {
			w.e.SetStale(w.s, "ses_b")
			w.ready()
			return timer(w, as("ses_a"), engine.TimerSwitch, 0, "B")
		},
	},
	engine.NoOtherMember: {
		"send": func(w *world) error { w.channel("lonely", 1); w.ready(); return send(w, "lonely", "x") },
		"broadcast": func(w *world) error {
			w.channel("lonely", 1)
			w.ready()
			return sendAs(w, "ses_a", engine.SendRequest{Channel: "lonely", Content: "x", Broadcast: true})
		},
		"switch": func(w *world) error {
			w.channel("lonely", 1)
			w.ready()
			_, err := w.e.Timer(w.s, as("ses_a"), engine.TimerRequest{Channel: "lonely", Action: engine.TimerSwitch})
			return err
		},
	},
	engine.AmbiguousRecipient: {
		"three members": func(w *world) error { w.must(join(w, "review", pull(2))); w.ready(); return send(w, "review", "x") },
		"one of them is stale": func(w *world) error {
			w.must(join(w, "review", pull(2)))
			w.e.SetStale(w.s, "ses_c")
			w.ready()
			return send(w, "review", "x")
		},
		"operator": func(w *world) error {
			_, err := w.e.Send(w.s, operator, engine.SendRequest{Channel: "review", Content: "x"})
			return err
		},
		"operator broadcasts": func(w *world) error {
			_, err := w.e.Send(w.s, operator, engine.SendRequest{Channel: "review", Content: "x", To: "A", Broadcast: true})
			return err
		},
		"relay": func(w *world) error {
			_, err := w.e.Relay(w.s, relayed(func(r *engine.RelayRequest) { r.To = "" }))
			return err
		},
		"switch": func(w *world) error {
			w.must(join(w, "review", pull(2)))
			w.ready()
			return timer(w, as("ses_a"), engine.TimerSwitch, 0, "")
		},
	},
	engine.NoLiveRecipient: {"broadcast": func(w *world) error {
		w.e.SetStale(w.s, "ses_b")
		w.ready()
		return sendAs(w, "ses_a", engine.SendRequest{Content: "x", Broadcast: true})
	}},
	engine.RateLimited: {
		"send": func(w *world) error {
			w.get("review").RateLimit = 1
			w.must(send(w, "review", "1"))
			w.ready()
			return send(w, "review", "2")
		},
		"relay": func(w *world) error {
			w.get("review").RateLimit = 1
			w.must(send(w, "review", "1"))
			w.ready()
			_, err := w.e.Relay(w.s, relayed())
			return err
		},
	},
	engine.Duplicate: {
		"send": func(w *world) error { w.must(send(w, "review", "1")); w.ready(); return send(w, "review", "1") },
		"relay": func(w *world) error {
			w.must(send(w, "review", "relayed"))
			w.ready()
			_, err := w.e.Relay(w.s, relayed())
			return err
		},
	},
	engine.HopLimit: {
		"send": func(w *world) error {
			row := w.send("1")
			row.Hops = 4
			w.ready()
			return sendAs(w, "ses_b", engine.SendRequest{Content: "x", ReplyTo: row.ID})
		},
		"relay": func(w *world) error {
			_, err := w.e.Relay(w.s, relayed(func(r *engine.RelayRequest) { r.Hops = 5 }))
			return err
		},
	},
	engine.MessageExists: {"relay": func(w *world) error {
		row := w.send("1")
		w.ready()
		_, err := w.e.Relay(w.s, relayed(func(r *engine.RelayRequest) { r.ID = row.ID }))
		return err
	}},
	engine.InvalidID: {
		"the operator's session": func(w *world) error { m := pull(2); m.Session = "Operator"; return join(w, "review", m) },
		"message": func(w *world) error {
			_, err := w.e.Relay(w.s, relayed(func(r *engine.RelayRequest) { r.ID = "ocm_X" }))
			return err
		},
		"none": func(w *world) error {
			_, err := w.e.Relay(w.s, relayed(func(r *engine.RelayRequest) { r.ID = "" }))
			return err
		},
		"correlation": func(w *world) error {
			_, err := w.e.Relay(w.s, relayed(func(r *engine.RelayRequest) { r.Correlation = id("ocm_", 1) }))
			return err
		},
		"root": func(w *world) error {
			_, err := w.e.Relay(w.s, relayed(func(r *engine.RelayRequest) { r.Root = "x" }))
			return err
		},
		"upper case": func(w *world) error {
			_, err := w.e.Relay(w.s, relayed(func(r *engine.RelayRequest) { r.ReplyTo = "ocm_" + strings.Repeat("A", 32) }))
			return err
		},
		"reply to a text": func(w *world) error {
			return sendAs(w, "ses_a", engine.SendRequest{Content: "x", ReplyTo: "the message\nbefore"})
		},
	},
}

func TestEveryRefusalHasItsCodeAndChangesNothing(t *testing.T) {
	for code, cases := range refusals {
		for name, run := range cases {
			t.Run(string(code)+"/"+name, func(t *testing.T) {
				w := newWorld(t)
				w.channel("review", 2)
				w.send("something before")
				w.now += 2 * minute // its rate window is over
				w.ready()
				w.refused(run(w), code)
				if after := encode(t, w.s); after != w.before {
					t.Errorf("it changed the state from\n%s\nto\n%s", w.before, after)
				}
			})
		}
	}
}

// ready is called when a case has prepared what it needs: from here on nothing may
// change.
func (w *world) ready() {
	w.t.Helper()
	w.before = encode(w.t, w.s)
}

func send(w *world, channel, content string) error {
	return sendAs(w, "ses_a", engine.SendRequest{Channel: channel, Content: content})
}

func sendAs(w *world, session string, r engine.SendRequest) error {
	if r.Channel == "" {
		r.Channel = "review"
	}
	_, err := w.e.Send(w.s, as(session), r)
	return err
}

func join(w *world, channel string, m engine.NewMember) error {
	_, err := w.e.Join(w.s, engine.JoinRequest{Channel: channel, ProjectID: project, Worktree: worktree, Member: m})
	return err
}

func create(w *world, change func(*engine.CreateRequest)) error {
	m := pull(0)
	r := engine.CreateRequest{Channel: "new", ProjectID: project, Worktree: worktree, Member: &m}
	change(&r)
	_, err := w.e.Create(w.s, r)
	return err
}

func timer(w *world, c engine.Caller, action string, limit int64, to string) error {
	_, err := w.e.Timer(w.s, c, engine.TimerRequest{Channel: "review", Action: action, Limit: limit, To: to})
	return err
}

func pause(w *world) {
	_, err := w.e.Pause(w.s, as("ses_a"), "review")
	w.must(err)
}

// archived saves the channel "review".
func archived(w *world) *opencomms.Archive {
	a, err := w.e.SaveSession(w.s, as("ses_a"), engine.SaveRequest{Channel: "review"})
	w.must(err)
	return a
}

// relayed is a message that came from another machine, from ses_a to ses_b.
func relayed(change ...func(*engine.RelayRequest)) engine.RelayRequest {
	r := engine.RelayRequest{Channel: "review", From: "ses_a", To: "ses_b", ID: id("ocm_", 1), Correlation: id("cor_", 1), Content: "relayed"}
	for _, f := range change {
		f(&r)
	}
	return r
}

func id(prefix string, n int) string { return fmt.Sprintf("%s%032x", prefix, n) }

func encode(t *testing.T, s *opencomms.State) string {
	t.Helper()
	data, err := s.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestEveryCodeHasACase(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "refusal.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	declared := map[engine.Code]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok {
			for _, v := range spec.Values {
				text, err := strconv.Unquote(v.(*ast.BasicLit).Value)
				if err != nil {
					t.Fatal(err)
				}
				declared[engine.Code(text)] = true
			}
		}
		return true
	})
	have := map[engine.Code]bool{}
	for code := range refusals {
		have[code] = true
	}
	if !reflect.DeepEqual(declared, have) {
		t.Fatalf("declared %v\ncases for %v", declared, have)
	}
}
