package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/node/opencomms"
	"opencode-mesh/node/opencomms/engine"
	"opencode-mesh/node/opencomms/pins"
	ocm "opencode-mesh/protocol/opencomms"
)

// memberFlags add what says who comes into a channel.
func memberFlags(cmd *cobra.Command) {
	asFlag(cmd, "the member: its id, or the host whose only installed member it is")
	cmd.Flags().String("role", "", "the member's role: letters, digits, blanks, - and _, at most 32")
	promptFlags(cmd)
	cmd.Flags().String("host", "", "the agent's program (default: as the member's pin says)")
	cmd.Flags().Bool("push", false, "mail is put into the member's session instead of fetched by it; for sessions that a plugin or node of opencode hosts")
}

func promptFlags(cmd *cobra.Command) {
	cmd.Flags().String("prompt", "", "role prompt: what this member is to do; it becomes an instruction of its agent")
	cmd.Flags().String("prompt-file", "", "file with the role prompt; - is stdin")
}

// prompt is the role prompt of the flags, "" if there is none.
func (m *Main) prompt(cmd *cobra.Command) (string, error) {
	text, _ := cmd.Flags().GetString("prompt")
	file, _ := cmd.Flags().GetString("prompt-file")
	switch {
	case text != "" && file != "":
		return "", cli.Usage("the role prompt is given twice, by --prompt and --prompt-file")
	case file == "-":
		return cli.Await(cmd.Context(), m.app, func() (string, error) { return readTyped(m.app.Stdin, "the role prompt") })
	case file != "":
		return m.typed(cmd, nil, "prompt-file", "the role prompt")
	}
	return text, nil
}

// newMember reads the flags of memberFlags.
func (m *Main) newMember(cmd *cobra.Command, p *opencomms.Project) (engine.NewMember, error) {
	as, _ := cmd.Flags().GetString("as")
	role, _ := cmd.Flags().GetString("role")
	host, _ := cmd.Flags().GetString("host")
	push, _ := cmd.Flags().GetBool("push")
	list, err := pins.List(p.Dir())
	if err != nil {
		return engine.NewMember{}, err
	}
	id, pinned := as, ""
	var ofHost []string
	for _, pin := range list {
		if pin.MemberID == as {
			pinned = pin.Host
		}
		if pin.Host == as {
			ofHost = append(ofHost, pin.MemberID)
		}
	}
	switch {
	case pinned != "":
	case len(ofHost) == 1:
		id, pinned = ofHost[0], as
	case len(ofHost) > 1:
		return engine.NewMember{}, cli.Usage("%s has several members: %s; say --as with one of them", as, strings.Join(ofHost, ", "))
	}
	if id == "" || !ocm.ValidMember(id) || id == ocm.OperatorSession {
		return engine.NewMember{}, cli.Usage("--as names the member: an id, or the host that install-member was run for")
	}
	text, err := m.prompt(cmd)
	if err != nil {
		return engine.NewMember{}, err
	}
	if host == "" {
		host = pinned
	}
	member := engine.NewMember{
		Session: id, Role: role, RolePrompt: text, Host: host,
		Surface: ocm.SurfaceMCP, Mode: ocm.ModePull, Policy: &ocm.StalePolicy{Mode: ocm.StaleNone},
	}
	if push {
		member.Surface, member.Mode, member.Policy, member.HostSession = ocm.SurfaceCLI, ocm.ModePush, nil, id
	}
	return member, nil
}

func (m *Main) ocmCreate() *cobra.Command {
	cmd := &cobra.Command{
		Use: "create CHANNEL", Short: "Make a channel, empty or with its first member", Args: oneChannel,
		Example: "  meshnode opencomms create review",
		Long: `Makes a channel. With --as, --role and a prompt it has a first member, who may remove others; without --as it is empty, and the first to join is that one.

A role prompt is an instruction of the member's agent: it comes from you, the operator.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return m.onProject(cmd, func(ctx context.Context, p *opencomms.Project) error {
				f := cmd.Flags()
				r := engine.CreateRequest{Channel: args[0]}
				r.MaxMembers, _ = f.GetInt("max-members")
				r.RateLimit, _ = f.GetInt("rate-limit")
				r.MaxHops, _ = f.GetInt("max-hops")
				r.Budgets.MaxDelivered, _ = f.GetInt("budget-messages")
				runtime, _ := f.GetDuration("budget-runtime")
				r.Budgets.MaxRuntime = runtime.Milliseconds()
				if as, _ := f.GetString("as"); as != "" {
					member, err := m.newMember(cmd, p)
					if err != nil {
						return err
					}
					r.Member = &member
				} else if f.Changed("role") || f.Changed("prompt") || f.Changed("prompt-file") {
					return cli.Usage("--role and a prompt are the first member's: say --as too")
				}
				created, err := p.Create(ctx, r)
				if err != nil {
					return err
				}
				return m.answer(cmd, created, func(w io.Writer) {
					fmt.Fprintf(w, "created channel %s", created.Name)
					if created.Role != "" {
						fmt.Fprintf(w, " with %s (%s)", created.Role, created.SessionID)
					}
					fmt.Fprintln(w)
				})
			})
		},
	}
	memberFlags(cmd)
	cmd.Flags().Int("max-members", 0, "how many members it takes, 2 to 32 (default 8)")
	cmd.Flags().Int("rate-limit", 0, "how many messages it takes in a minute, 1 to 1000 (default 20)")
	cmd.Flags().Int("max-hops", 0, "how long a chain of replies may be, 1 to 50 (default 4)")
	cmd.Flags().Int("budget-messages", 0, "end it after so many deliveries (default: never)")
	cmd.Flags().Duration("budget-runtime", 0, "end it after this time, 1m to 720h (default: never)")
	cli.JSONFlag(cmd)
	return cmd
}

func (m *Main) ocmJoin() *cobra.Command {
	cmd := &cobra.Command{
		Use: "join CHANNEL", Short: "Make an agent a member of a channel", Args: oneChannel,
		Example: "  meshnode opencomms join review --as opencode --role Builder --prompt 'Build the shop and ask for review.'",
		Long: `Makes an agent a member of a channel. --as names it by the host that install-member was run for, or by its id. An installed agent may also join by itself, with its tool opencomms_join.

A role prompt is an instruction of the member's agent: it comes from you, the operator.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return m.onProject(cmd, func(ctx context.Context, p *opencomms.Project) error {
				member, err := m.newMember(cmd, p)
				if err != nil {
					return err
				}
				joined, err := p.Join(ctx, engine.JoinRequest{Channel: args[0], Member: member})
				if err != nil {
					return err
				}
				return m.answer(cmd, joined, func(w io.Writer) {
					fmt.Fprintf(w, "%s is %s in %s\n", joined.SessionID, joined.Role, args[0])
				})
			})
		},
	}
	memberFlags(cmd)
	cli.JSONFlag(cmd)
	return cmd
}

// changed answers what has no result of its own.
type changed struct {
	Channel string `json:"channel"`
	Changed bool   `json:"changed"`
}

func (m *Main) ocmPause() *cobra.Command {
	return m.onOff("pause", "Stop a channel: it takes no message and delivers none", "paused", (*opencomms.Project).Pause)
}

func (m *Main) ocmResume() *cobra.Command {
	return m.onOff("resume", "Let a paused channel go on", "open", (*opencomms.Project).Resume)
}

func (m *Main) onOff(verb, short, now string, do func(*opencomms.Project, context.Context, engine.Caller, string) (bool, error)) *cobra.Command {
	cmd := &cobra.Command{
		Use: verb + " CHANNEL", Short: short, Example: "  meshnode opencomms " + verb + " review", Args: oneChannel,
		RunE: func(cmd *cobra.Command, args []string) error {
			return m.onProject(cmd, func(ctx context.Context, p *opencomms.Project) error {
				c, err := caller(ctx, cmd, p, args[0])
				if err != nil {
					return err
				}
				did, err := do(p, ctx, c, args[0])
				if err != nil {
					return err
				}
				return m.answer(cmd, changed{args[0], did}, func(w io.Writer) {
					was := ""
					if !did {
						was = " already"
					}
					fmt.Fprintf(w, "%s is %s%s\n", args[0], now, was)
				})
			})
		},
	}
	asFlag(cmd, asMember)
	cli.JSONFlag(cmd)
	return cmd
}

func (m *Main) ocmLeave() *cobra.Command {
	cmd := &cobra.Command{
		Use: "leave CHANNEL", Aliases: []string{"disconnect"}, Short: "Take a member out of a channel, as itself", Args: oneChannel,
		Example: "  meshnode opencomms leave review --as Builder",
		Long:    "Takes a member out of a channel, as if it left by itself. What waits for it there is rejected. The last member takes the channel with it.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := needsMember(cmd); err != nil {
				return err
			}
			return m.onProject(cmd, func(ctx context.Context, p *opencomms.Project) error {
				c, err := caller(ctx, cmd, p, args[0])
				if err != nil {
					return err
				}
				left, err := p.Disconnect(ctx, c, args[0])
				if err != nil {
					return err
				}
				return m.answer(cmd, left, func(w io.Writer) {
					fmt.Fprintf(w, "%s left %s, %s rejected", c.Session, args[0], count(left.Rejected, "message"))
					if left.ChannelRemoved {
						fmt.Fprint(w, "; it was the last, the channel is gone")
					}
					fmt.Fprintln(w)
				})
			})
		},
	}
	asFlag(cmd, "the member, a session id or a role")
	cli.JSONFlag(cmd)
	return cmd
}

// channelAndMember are the arguments of some commands.
func channelAndMember(_ *cobra.Command, args []string) error {
	if len(args) != 2 {
		return cli.Usage("a channel and a member (session id or role) are wanted; meshnode opencomms status lists them")
	}
	return nil
}

func (m *Main) ocmKick() *cobra.Command {
	cmd := &cobra.Command{
		Use: "kick CHANNEL MEMBER", Short: "Remove a member from a channel", Args: channelAndMember,
		Example: "  meshnode opencomms kick review Builder",
		Long:    "Removes a member from a channel. What waits for it there is rejected, and the others get a notice. As a member (--as) only the first one of the channel may.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return m.onProject(cmd, func(ctx context.Context, p *opencomms.Project) error {
				c, err := caller(ctx, cmd, p, args[0])
				if err != nil {
					return err
				}
				kicked, err := p.Kick(ctx, c, engine.KickRequest{Channel: args[0], TargetSession: args[1], TargetRole: args[1]})
				if err != nil {
					return err
				}
				return m.answer(cmd, kicked, func(w io.Writer) {
					fmt.Fprintf(w, "removed %s (%s) from %s\n", cli.Or(kicked.Role), cli.Or(kicked.SessionID), args[0])
				})
			})
		},
	}
	asFlag(cmd, asMember)
	cli.JSONFlag(cmd)
	return cmd
}

func (m *Main) ocmUpdateRole() *cobra.Command {
	cmd := &cobra.Command{
		Use: "update-role CHANNEL MEMBER", Short: "Replace the role prompt of a member", Args: channelAndMember,
		Example: "  meshnode opencomms update-role review Builder --prompt 'Build only what the tests ask for.'",
		Long:    "Replaces the role prompt of a member. It is an instruction of the member's agent: it comes from you, the operator.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return m.onProject(cmd, func(ctx context.Context, p *opencomms.Project) error {
				text, err := m.prompt(cmd)
				if err != nil {
					return err
				}
				role, err := p.UpdateRole(ctx, engine.Caller{Operator: true}, engine.UpdateRoleRequest{Channel: args[0], Member: args[1], RolePrompt: text})
				if err != nil {
					return err
				}
				return m.answer(cmd, changed{args[0], true}, func(w io.Writer) {
					fmt.Fprintf(w, "%s in %s has a new role prompt\n", cli.Or(role), args[0])
				})
			})
		},
	}
	promptFlags(cmd)
	cli.JSONFlag(cmd)
	return cmd
}

// timerActions are what the timer does, by what is typed for it.
var timerActions = map[string]string{
	"start": engine.TimerStart, "stop": engine.TimerStop, "switch": engine.TimerSwitch, "reset": engine.TimerReset,
	"status": engine.TimerStatus, "set-limit": engine.TimerSetLimit, "clear-limit": engine.TimerClearLimit,
}

func (m *Main) ocmTimer() *cobra.Command {
	cmd := &cobra.Command{
		Use: "timer CHANNEL [ACTION]", Short: "The chess clock of a channel", Example: "  meshnode opencomms timer review switch --to Builder",
		Long: `Shows whose turn it is and how long each member had it. Every message hands the clock to its recipient.

Actions: status (the default), start and stop, switch --to MEMBER, reset, set-limit --limit DURATION [--to MEMBER], clear-limit. A limit is only shown; it ends nothing.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 || len(args) > 2 {
				return cli.Usage("a channel is wanted, and perhaps an action")
			}
			if len(args) == 2 && timerActions[args[1]] == "" {
				return cli.Usage("the timer's actions are start, stop, switch, reset, status, set-limit and clear-limit, not %q", args[1])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return m.onProject(cmd, func(ctx context.Context, p *opencomms.Project) error {
				c, err := caller(ctx, cmd, p, args[0])
				if err != nil {
					return err
				}
				r := engine.TimerRequest{Channel: args[0], Action: engine.TimerStatus}
				if len(args) == 2 {
					r.Action = timerActions[args[1]]
				}
				limit, _ := cmd.Flags().GetDuration("limit")
				r.Limit = limit.Milliseconds()
				r.To, _ = cmd.Flags().GetString("to")
				v, err := p.Timer(ctx, c, r)
				if err != nil {
					return err
				}
				roles, err := rolesIn(ctx, p, args[0])
				if err != nil {
					return err
				}
				return m.answer(cmd, v, func(w io.Writer) { printTimer(w, v, roles) })
			})
		},
	}
	asFlag(cmd, asMember)
	cmd.Flags().String("to", "", "the member, a session id or a role")
	cmd.Flags().Duration("limit", 0, "the limit, such as 10m")
	cli.JSONFlag(cmd)
	return cmd
}

func printTimer(w io.Writer, v engine.TimerView, roles map[string]string) {
	span := func(ms int64) string { return (time.Duration(ms) * time.Millisecond).Round(time.Second).String() }
	active := "stopped"
	if v.Active != nil {
		active = "runs for " + cli.Or(roles[*v.Active])
	}
	fmt.Fprintf(w, "%s, %s in all\n", active, span(v.Total))
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, role := range slices.Sorted(maps.Keys(v.ByRole)) {
		fmt.Fprintf(tw, "  %s\t%s\n", cli.Or(role), span(v.ByRole[role]))
	}
	_ = tw.Flush()
	if v.Limit != nil {
		reached := ""
		if v.LimitReached {
			reached = ", reached"
		}
		fmt.Fprintf(w, "limit %s%s\n", span(*v.Limit), reached)
	}
}

// sure asks before something is deleted. Who cannot be asked must have said yes.
func (m *Main) sure(cmd *cobra.Command, what string) error {
	if yes, _ := cmd.Flags().GetBool("yes"); yes {
		return nil
	}
	if !m.app.StdinTerminal {
		return cli.Usage("this deletes %s for good: say --yes where nobody can be asked; nothing was done", what)
	}
	return m.app.Ask(cmd.Context(), "Delete "+what+" for good?")
}
