package opencode

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"opencode-mesh/node/agent"
	"opencode-mesh/protocol/api"
)

// maxRepeats is how often a prompt that left no trace is sent again. It has the
// same ids each time.
const maxRepeats = 2

// checkpoint is what a turn has on record at its host.
type checkpoint struct {
	// Session and Message are on record before the prompt is sent.
	Session string `json:"session"`
	Message string `json:"message"`
	// Seen is on record once the server showed the message.
	Seen bool `json:"seen,omitempty"`
	// Resumes counts how often the message was sent again after it was seen.
	Resumes int `json:"resumes,omitempty"`
	// New and Replaced say how the session came to be.
	New      bool `json:"new,omitempty"`
	Replaced bool `json:"replaced,omitempty"`
	// Stale are what waited for a human before the prompt, left by an earlier turn.
	Stale []string `json:"stale,omitempty"`
	// Answers are answers to what the turn asks, by question, until opencode has them;
	// Flags is what came of the earlier ones.
	Answers map[string]string `json:"answers,omitempty"`
	Flags   []api.Flag        `json:"flags,omitempty"`
}

// run is one turn on its way. It belongs to the goroutine of Run; what events
// bring goes through signs.
type run struct {
	cfg   Config
	rest  *health
	lanes *lanes
	turn  agent.Turn
	host  agent.Host
	log   *slog.Logger
	signs *signs

	progress *progress
	asking   *asking        // the question that is put to the controller now
	work     sync.WaitGroup // what waits for its answer

	cp      checkpoint // as the host has it, but for fields not saved yet
	dirty   bool       // cp is not on record as it is
	earlier bool       // an earlier process may have sent the prompt

	session string
	dir     string // of the session, as the server spells it
	lane    string // the session whose lane is taken
	leave   []func()

	prompt prompt
	models models

	number    int             // of the server that was used last
	restarted bool            // the turn was cut off by the end of its server
	sent      int             // prompts sent by this process
	began     time.Time       // when the agent began to run, for all that is known
	stalled   time.Time       // since when the session is idle without an answer
	ignore    string          // the newest answer when the turn was resumed
	aborted   time.Time       // since when the newest answer is seen aborted
	rejected  bool            // a permission was: opencode may have ended the turn for it
	kin       map[string]bool // whether other sessions belong to this turn
	flags     map[api.Flag]bool
	note      string
	lasting   bool      // note tells what happened, not what is the matter now
	failing   time.Time // since when the server does not answer; zero while it does
}

// errReplaced says that the session was gone before it took the prompt.
var errReplaced = errors.New("the session is gone")

// Run implements agent.Agent.
func (a *Agent) Run(ctx context.Context, turn agent.Turn, host agent.Host) (api.Outcome, error) {
	r := &run{
		cfg: a.cfg, rest: a.health, lanes: a.lanes, turn: turn, host: host, signs: newSigns(),
		log:   a.cfg.Log.With("task", turn.Task, "attempt", turn.Attempt, "turn", turn.Turn),
		flags: make(map[api.Flag]bool), kin: make(map[string]bool), progress: newProgress(host),
	}
	defer func() {
		r.withdraw()
		r.work.Wait()
		for _, leave := range r.leave {
			leave()
		}
	}()
	if err := r.recall(); err != nil {
		return api.Outcome{}, err
	}
	out, err := r.through(ctx)
	switch {
	case err == nil:
		return r.complete(*out), nil
	case ctx.Err() != nil:
		return r.cutShort(context.Cause(ctx))
	}
	return api.Outcome{}, fmt.Errorf("opencode: %w", err)
}

// recall takes up what an earlier process recorded.
func (r *run) recall() error {
	if !r.turn.Resumed || len(r.turn.Checkpoint) == 0 {
		return nil
	}
	if err := json.Unmarshal(r.turn.Checkpoint, &r.cp); err != nil {
		return fmt.Errorf("opencode: checkpoint cannot be read: %w", err)
	}
	r.earlier = r.cp.Message != ""
	for _, f := range r.cp.Flags {
		r.flags[f] = true
	}
	r.session = r.cp.Session
	// The server that this node supervised ended with it; a given one may still be
	// at work.
	r.restarted = r.earlier && r.cfg.URL == ""
	if r.earlier {
		r.began = time.Now()
	}
	return nil
}

// through brings the turn to its outcome, over as many servers as it takes.
func (r *run) through(ctx context.Context) (*api.Outcome, error) {
	key := r.turn.Session.Key
	if key == "" {
		key = r.turn.HubID + "\x00" + r.turn.Task
	}
	if err := r.enterLane(ctx, "key\x00"+key); err != nil {
		return nil, err
	}
	for {
		wait := r.cfg.ReadyWait
		if r.begun() {
			wait = 0 // what may run is waited for, until the deadline
		}
		if _, up := r.rest.endpoint(); !up {
			r.tell("waiting for the opencode server")
		}
		s, err := r.rest.ready(ctx, wait)
		if err != nil {
			return nil, err
		}
		if r.number != 0 && r.number != s.number && r.begun() {
			r.restarted = true
		}
		r.number = s.number
		out, err := r.on(ctx, s.client)
		switch {
		case err == nil:
			return out, nil
		case errors.Is(err, errReplaced):
			continue
		case ctx.Err() != nil || final(err):
			return nil, err
		}
		if r.failing.IsZero() {
			r.failing = time.Now()
			r.log.Warn("opencode server does not answer as it should", "error", err)
			r.tell("the opencode server cannot be reached")
		}
		if !r.begun() && time.Since(r.failing) > r.cfg.ReadyWait {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(r.cfg.PollInterval):
		}
	}
}

// hostError is a failure of the host's records: the turn must not go on.
type hostError struct{ err error }

func (e *hostError) Error() string { return "record the turn: " + e.err.Error() }
func (e *hostError) Unwrap() error { return e.err }

// final reports whether trying again is no use.
func final(err error) bool {
	var h *hostError
	return errors.As(err, &h)
}

// begun says that the prompt may have been sent.
func (r *run) begun() bool { return r.cp.Message != "" }

// on drives the turn on one server until it has an outcome or the server fails.
func (r *run) on(ctx context.Context, c client) (*api.Outcome, error) {
	if r.turn.Kind == api.TurnDelete {
		return r.erase(ctx, c)
	}
	if out, err := r.enter(ctx, c); out != nil || err != nil {
		return out, err
	}
	if r.begun() {
		r.learn(ctx, c)
	}
	stop := r.follow(ctx, c)
	defer stop()
	r.stalled = time.Time{}
	checked := false // whether this server was seen to have the message
	for {
		out, err := r.look(ctx, c, &checked)
		if out != nil || err != nil {
			return out, err
		}
		r.failing = time.Time{}
		timer := time.NewTimer(r.cfg.PollInterval)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil, context.Cause(ctx)
		case <-r.signs.changed:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// look reads the state of session and turn and does what is due.
func (r *run) look(ctx context.Context, c client, checked *bool) (*api.Outcome, error) {
	statuses, err := c.statuses(ctx, r.dir)
	if err != nil {
		return nil, err
	}
	now, busy := statuses[r.session]
	if !busy {
		r.withdraw() // whoever asked has ended
	}
	if !*checked && r.begun() {
		if *checked, err = c.stored(ctx, r.session, r.cp.Message); err != nil {
			return nil, err
		}
	}
	if !*checked {
		return r.unseen(ctx, c, busy)
	}
	r.saw(ctx)
	if busy {
		r.stalled = time.Time{}
		switch {
		case now.retry:
			r.tell(fmt.Sprintf("the provider is asked again (attempt %d): %s", now.attempt, firstLine(now.message)))
		case r.asking == nil && !r.lasting:
			r.tell("")
		}
		r.peek(ctx, c)
		return nil, r.attend(ctx, c)
	}
	turn, err := c.answers(ctx, r.session, r.cp.Message)
	if errors.Is(err, errTooLarge) {
		return r.failed(api.TaskOutputLimit, "the session's messages are larger than what a node reads"), nil
	}
	if err != nil {
		return nil, err
	}
	return r.judge(ctx, c, turn)
}

// peek looks at the session's newest message for what events do not show.
func (r *run) peek(ctx context.Context, c client) {
	if r.progress.sees() {
		return
	}
	shown, err := c.newest(ctx, r.session)
	if err != nil {
		r.log.Debug("progress could not be read", "error", err)
		return
	}
	for _, e := range shown {
		r.progress.see(e)
	}
}

// unseen handles a turn whose message the server does not have.
func (r *run) unseen(ctx context.Context, c client, busy bool) (*api.Outcome, error) {
	switch {
	case r.cp.Seen:
		return r.interrupted("the message is gone from its session"), nil
	case r.sent == 0 && busy:
		// Somebody types in this session. A prompt now would enter that turn.
		r.tell(sessionInUse)
		return nil, nil
	case r.sent == 0:
		return r.send(ctx, c)
	case busy:
		r.stalled = time.Time{}
		return nil, nil
	case !r.stuck():
		return nil, nil
	case r.signs.fault() != "" || r.sent > maxRepeats:
		return r.notStarted(ctx, c), nil
	}
	return r.send(ctx, c)
}

// stuck reports whether the session has been idle without an answer for long
// enough to act on it.
func (r *run) stuck() bool {
	if r.stalled.IsZero() {
		r.stalled = time.Now()
	}
	return time.Since(r.stalled) >= r.cfg.StallAfter
}

// saw records that the message is stored. Nothing hangs on it at once, so a
// failure is made good with the next look.
func (r *run) saw(ctx context.Context) {
	if r.began.IsZero() {
		r.began = time.Now()
	}
	if !r.cp.Seen {
		r.cp.Seen, r.dirty = true, true
	}
	r.settle(ctx)
}

// settle puts on record what need not be there at once.
func (r *run) settle(ctx context.Context) {
	if !r.dirty {
		return
	}
	if err := r.save(ctx); err != nil {
		r.log.Warn("how far the turn is could not be recorded", "error", err)
	}
}

// save puts the checkpoint on record.
func (r *run) save(ctx context.Context) error {
	b, err := json.Marshal(r.cp)
	if err != nil {
		return &hostError{err}
	}
	if err := r.host.Checkpoint(ctx, b); err != nil {
		return &hostError{err}
	}
	r.dirty = false
	return nil
}

// judge decides on a turn that is stored while its session is idle.
func (r *run) judge(ctx context.Context, c client, turn answers) (*api.Outcome, error) {
	var last answer
	if n := len(turn.list); n > 0 {
		last = turn.list[n-1]
		r.learn(ctx, c)
	}
	switch {
	case last.id == "" || last.id == r.ignore:
		// Not answered, or not again.
	case last.fault != nil && !last.aborted():
		return r.providerFailed(turn, *last.fault), nil
	case last.finished():
		return r.answered(turn), nil
	case last.aborted() && !r.cutOff() && !r.unexplained():
		return nil, nil
	case last.aborted() && !r.cutOff():
		return r.partly(turn, r.interrupted("the turn was aborted in opencode")), nil
	}
	if r.rejected && last.finish == finishToolCalls && last.id != r.ignore {
		// It rejected what else waited in the session without a word, and stopped there.
		// The message sent again makes the model go on with what it has been told.
		r.rejected, r.ignore = false, last.id
		return r.send(ctx, c)
	}
	if !r.cutOff() && !r.stuck() {
		return nil, nil
	}
	if len(turn.list) == 0 && r.signs.fault() != "" {
		return r.notStarted(ctx, c), nil
	}
	if r.cp.Resumes >= api.MaxResumes {
		if len(turn.list) == 0 {
			return r.notStarted(ctx, c), nil
		}
		r.halt(ctx, c)
		return r.partly(turn, r.interrupted("the turn stopped half way and could not be resumed")), nil
	}
	r.cp.Resumes++
	r.restarted, r.ignore = false, last.id
	r.log.Info("turn resumed", "session", r.session, "times", r.cp.Resumes)
	r.mention("the turn is resumed")
	return r.send(ctx, c)
}

// learn reads the models' sizes if no prompt was made here. Without them the
// outcome lacks a limit, no more.
func (r *run) learn(ctx context.Context, c client) {
	if len(r.models.list) > 0 {
		return
	}
	all, err := c.models(ctx, r.dir)
	if err != nil {
		r.log.Debug("models could not be read", "error", err)
		return
	}
	r.models = all
	r.progress.know(all)
}

// unexplained reports whether an abort has stood for so long that no event will say
// that it was the server's end and not somebody's will.
func (r *run) unexplained() bool {
	if r.aborted.IsZero() {
		r.aborted = time.Now()
	}
	return time.Since(r.aborted) >= abortReason
}

// cutOff says that the turn was ended by its server's end, not by anybody's will.
func (r *run) cutOff() bool { return r.restarted || r.signs.wasDisposed() }

// notStarted gives a prompt up that nothing answered, and makes sure that nothing
// will.
func (r *run) notStarted(ctx context.Context, c client) *api.Outcome {
	r.halt(ctx, c)
	why := "opencode took the prompt but did not run it"
	if text := r.signs.fault(); text != "" {
		why = "opencode did not run the prompt: " + text
	}
	return r.failed(api.TaskNotStarted, why)
}

// halt stops what might still start in the session.
func (r *run) halt(ctx context.Context, c client) {
	if err := c.abort(ctx, r.session); err != nil {
		r.log.Warn("abort failed", "session", r.session, "error", err)
	}
}

// tell says what is the matter now, each note once.
func (r *run) tell(note string) { r.say(note, false) }

// mention says what happened; it stands until there is something else to say.
func (r *run) mention(note string) { r.say(note, true) }

func (r *run) say(note string, lasting bool) {
	if note != r.note {
		r.note = note
		r.progress.note(note)
	}
	r.lasting = lasting
}

// flagged adds a flag that must survive this process.
func (r *run) flagged(f api.Flag) {
	if !r.flags[f] {
		r.flags[f] = true
		r.cp.Flags, r.dirty = append(r.cp.Flags, f), true
	}
}

// enterLane waits for a lane and keeps it until the end of Run.
func (r *run) enterLane(ctx context.Context, name string) error {
	leave, err := r.lanes.enter(ctx, name)
	if err != nil {
		return err
	}
	r.leave = append(r.leave, leave)
	return nil
}

// flagList is the flags in a fixed order.
func (r *run) flagList() []api.Flag { return slices.Sorted(maps.Keys(r.flags)) }
