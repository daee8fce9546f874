package opencode

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"opencode-mesh/node/agent"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
)

const (
	// maxDetail is how much is shown of one thing that is known of a tool call, in
	// bytes; a command that is cut says so.
	maxDetail = 4 << 10
	// maxDetails is how many such things, and how many patterns, are shown.
	maxDetails = 16
	// maxParts is how many questions of one ask are put to the controller.
	maxParts = 16

	// declined is what a session is told that asks for a human when nobody answers.
	declined = "Nobody is here to decide this: the task runs unattended. Do without, or choose what is safest and say so in the summary."
	// deniedHere is what it is told when the node's policy denies.
	deniedHere = "This machine's policy denies it. Do without, or choose what is safest and say so in the summary."
	// rejected is what it is told when the controller rejects without a word.
	rejected = "The controller rejected this. Do without, or choose what is safest and say so in the summary."
	// tooMany answers the questions beyond maxParts.
	tooMany = "Too many questions at once: ask again what you still need to know."
)

// errWithdrawn ends a question whose asker is gone or has its answer.
var errWithdrawn = errors.New("nobody asks that any more")

// asking is the question that is put to the controller now. Several that wait are
// put one after the other: a person answers one at a time.
type asking struct {
	id   string // of the question, as the host knows it
	of   string // of the ask
	stop context.CancelCauseFunc
	done chan answeredAsk // cap 1
}

type answeredAsk struct {
	text string
	err  error
}

// attend does what is due about everything that this turn's session, or a
// sub-agent's, asks a human.
func (r *run) attend(ctx context.Context, c client) error {
	asks, err := r.ownAsks(ctx, c)
	if err != nil {
		return err
	}
	r.hear(asks)
	r.settle(ctx)
	undecided := make(map[string]bool) // by session
	var rejections []ask
	for _, a := range asks {
		switch text, decided := r.verdict(a); {
		case !decided:
			undecided[a.session] = true
			r.put(ctx, a)
		case a.question:
			err = errors.Join(err, r.inform(ctx, c, a))
		case isRejection(text):
			rejections = append(rejections, a)
		default:
			err = errors.Join(err, r.permit(ctx, c, a, text))
		}
	}
	// A rejection takes all that waits in its session with it, and then opencode ends
	// the turn: what may still be allowed comes first.
	for _, a := range rejections {
		if !undecided[a.session] {
			text, _ := r.verdict(a)
			err = errors.Join(err, r.permit(ctx, c, a, text))
		}
	}
	r.settle(ctx)
	return err
}

// ownAsks lists what this turn asks a human.
func (r *run) ownAsks(ctx context.Context, c client) ([]ask, error) {
	all, err := c.asks(ctx, r.dir)
	if err != nil {
		return nil, err
	}
	var out []ask
	for _, a := range all {
		if slices.Contains(r.cp.Stale, a.id) {
			continue
		}
		ours, err := r.isKin(ctx, c, a.session)
		if err != nil {
			return nil, err
		}
		if ours {
			out = append(out, a)
		}
	}
	return out, nil
}

// hear takes the answer to the question that is put now, and withdraws it when what
// asked it is gone: it was answered in opencode, or its server ended.
func (r *run) hear(asks []ask) {
	if r.asking == nil {
		return
	}
	if !slices.ContainsFunc(asks, func(a ask) bool { return a.id == r.asking.of }) {
		r.withdraw()
		return
	}
	select {
	case got := <-r.asking.done:
		id := r.asking.id
		permission := slices.ContainsFunc(asks, func(a ask) bool { return a.id == r.asking.of && !a.question })
		r.withdraw()
		if got.err != nil {
			if !errors.Is(got.err, agent.ErrNoAnswer) {
				r.log.Warn("a question could not be asked", "question", id, "error", got.err)
			}
			got.text = declined
			if permission {
				got.text = api.PermitReject + " " + declined
			} else {
				r.flagged(api.FlagAssumed)
			}
		}
		if r.cp.Answers == nil {
			r.cp.Answers = make(map[string]string)
		}
		r.cp.Answers[id], r.dirty = got.text, true
	default:
	}
}

// withdraw ends the question that is put now.
func (r *run) withdraw() {
	if r.asking != nil {
		r.asking.stop(errWithdrawn)
		r.asking = nil
		r.tell("")
	}
}

// verdict is what an ask is answered with, if that is known: of a permission a word
// as a controller says it.
func (r *run) verdict(a ask) (string, bool) {
	if a.question {
		for i := range min(len(a.parts), maxParts) {
			if !r.hasAnswer(partID(a, i)) {
				return "", false
			}
		}
		return "", true
	}
	if text, ok := r.cp.Answers[a.id]; ok {
		return text, true
	}
	switch r.cfg.decide(a) {
	case PermissionAllow:
		return api.PermitOnce, true
	case PermissionDeny:
		return api.PermitReject + " " + deniedHere, true
	}
	return "", false
}

// partID names one of an ask's questions at the host.
func partID(a ask, i int) string {
	if len(a.parts) == 1 {
		return a.id
	}
	return fmt.Sprintf("%s/%d", a.id, i+1)
}

// put puts an ask, or the next part of it, to the controller if nothing else is put.
func (r *run) put(ctx context.Context, a ask) {
	if r.asking != nil {
		return
	}
	id, asked := a.id, a.permissionAsked(r.session)
	if a.question {
		i := 0
		for r.hasAnswer(partID(a, i)) {
			i++
		}
		id, asked = partID(a, i), a.parts[i].asked()
	}
	ctx, stop := context.WithCancelCause(ctx)
	now := &asking{id: id, of: a.id, stop: stop, done: make(chan answeredAsk, 1)}
	r.asking = now
	r.log.Info("the controller is asked", "session", a.session, "question", id, "kind", asked.Kind)
	r.tell("waits for an answer: " + a.what())
	r.work.Go(func() {
		text, err := r.host.Ask(ctx, id, asked)
		now.done <- answeredAsk{text, err}
		r.signs.hasten()
	})
}

func (r *run) hasAnswer(id string) bool {
	_, ok := r.cp.Answers[id]
	return ok
}

// what names an ask on one line.
func (a ask) what() string {
	if !a.question {
		return glance(a.permission + " " + strings.Join(a.patterns, ", "))
	}
	if len(a.parts) == 0 {
		return "a question"
	}
	return glance(a.parts[0].text)
}

// permissionAsked is a permission in words. All of it comes from the agent.
func (a ask) permissionAsked(session string) api.Asked {
	who := "opencode"
	if a.session != session {
		who = "a sub-agent of opencode"
	}
	lines := []string{who + " asks for the permission " + a.what()}
	for _, d := range a.details[:min(len(a.details), maxDetails)] {
		lines = append(lines, clean(d))
	}
	if len(a.always) > 0 {
		always := strings.Join(a.always[:min(len(a.always), maxDetails)], ", ")
		lines = append(lines, fmt.Sprintf("%q allows in this workspace, until opencode ends: %s", api.PermitAlways, clean(always)))
	}
	return api.Asked{Kind: api.QuestionPermission, Text: strings.Join(lines, "\n"),
		Options: []string{api.PermitOnce, api.PermitAlways, api.PermitReject}}
}

// asked is a question in words.
func (p part) asked() api.Asked {
	out := api.Asked{Kind: api.QuestionText, Text: clean(p.text)}
	for _, o := range p.options {
		out.Options = append(out.Options, mesh.CleanLine(o))
	}
	return out
}

// clean keeps the lines of a text, and nothing else that a terminal would act upon.
func clean(s string) string {
	kept := cut(s, maxDetail)
	lines := strings.Split(kept, "\n")
	for i := range lines {
		lines[i] = mesh.CleanLine(lines[i])
	}
	out := strings.TrimSpace(strings.Join(lines, "\n  "))
	if over := len(s) - len(kept); over > 0 {
		out += fmt.Sprintf(" … and %d bytes more", over)
	}
	return out
}

// isRejection reports whether an answer to a permission is a no. Whatever is not
// one of the options is taken for a message that says no.
func isRejection(text string) bool {
	reply, _ := permitted(text)
	return reply == api.PermitReject
}

// permitted reads the answer to a permission.
func permitted(text string) (reply, message string) {
	text = strings.TrimSpace(text)
	word, rest, _ := strings.Cut(text, " ")
	switch word = strings.ToLower(word); {
	case (word == api.PermitOnce || word == api.PermitAlways) && rest == "":
		return word, ""
	case word == api.PermitReject:
		text = strings.TrimSpace(rest)
	}
	if text == "" {
		text = rejected
	}
	return api.PermitReject, text
}

// permit answers a permission.
func (r *run) permit(ctx context.Context, c client, a ask, text string) error {
	reply, message := permitted(text)
	if err := c.permit(ctx, r.dir, a.id, reply, message); err != nil {
		return unlessGone(err)
	}
	delete(r.cp.Answers, a.id)
	r.log.Info("a permission was answered", "session", a.session, "what", a.what(), "reply", reply)
	if reply == api.PermitReject {
		r.flagged(api.FlagPermissionRejected)
		r.rejected = r.rejected || a.session == r.session
		r.mention("a permission was rejected: " + a.what())
	}
	return nil
}

// inform answers a question, all parts of it.
func (r *run) inform(ctx context.Context, c client, a ask) error {
	answers := make([][]string, len(a.parts))
	for i, p := range a.parts {
		answers[i] = []string{tooMany}
		if i < maxParts {
			answers[i] = p.choose(r.cp.Answers[partID(a, i)])
		}
	}
	if err := c.inform(ctx, r.dir, a.id, answers); err != nil {
		return unlessGone(err)
	}
	for i := range a.parts {
		delete(r.cp.Answers, partID(a, i))
	}
	return nil
}

// unlessGone drops the error that somebody else was faster.
func unlessGone(err error) error {
	if errors.Is(err, errNotFound) {
		return nil
	}
	return err
}

// choose reads an answer: one of the options, several of them with commas if that
// may be, or free text.
func (p part) choose(text string) []string {
	label := func(s string) (string, bool) {
		i := slices.IndexFunc(p.options, func(o string) bool {
			return strings.EqualFold(mesh.CleanLine(o), strings.TrimSpace(s))
		})
		if i < 0 {
			return "", false
		}
		return p.options[i], true
	}
	if one, ok := label(text); ok {
		return []string{one}
	}
	var list []string
	for s := range strings.SplitSeq(text, ",") {
		one, ok := label(s)
		if !ok || !p.several {
			return []string{text}
		}
		list = append(list, one)
	}
	return list
}
