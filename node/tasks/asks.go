package tasks

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/go-chi/chi/v5"

	"opencode-mesh/node/agent"
	"opencode-mesh/protocol/api"
)

const (
	// maxAsks is how many questions of one turn may wait at once.
	maxAsks = 16
	// maxAnswers is how many answers of one turn are remembered, for repeats.
	maxAnswers = 64
	// askGrace is how much longer than the hub a node waits for the end of a question:
	// the hub's own time-out is an answer too and has to get here.
	askGrace = time.Minute
	// askTimeout bounds one request about a question.
	askTimeout = 10 * time.Second
	// maxAskID, maxAskText, maxAskOptions and maxAskOption bound what an agent asks, in
	// bytes and in number.
	maxAskID      = 256
	maxAskText    = 64 << 10
	maxAskOptions = 32
	maxAskOption  = 512
)

// asks puts the questions of running turns to the hub and brings the answers back.
// A question is told at once, on each new connection, and in between with growing
// pauses until the hub has it; one that ends without an answer that came from the
// hub is withdrawn in the same way, as long as its turn lasts. Nothing of it is on
// disk: a turn that is taken up again asks again under the same id.
type asks struct {
	cfg     Config
	log     *slog.Logger
	journal *journal

	ctx    context.Context // ends the requests under way
	cancel context.CancelFunc
	wg     sync.WaitGroup // one goroutine per question

	mu     sync.Mutex // guards the following fields, and those of inquiry and ask
	hub    Hub
	gen    int // of hub
	turns  map[api.Triple]*inquiry
	closed bool
}

// inquiry is all that one turn asks.
type inquiry struct {
	triple  api.Triple
	turn    *turn           // nil before begin
	open    map[string]*ask // the newest of each id, by the agent's id
	live    int             // those that wait, or of which the hub has to hear the end
	answers map[string]string
	order   []string // of answers, oldest first
	ended   bool     // the turn is over
}

// ask is one question.
type ask struct {
	id      string
	asked   api.Asked
	wake    chan struct{}   // room for one; tells its goroutine of a change
	before  <-chan struct{} // closed when all is told of an earlier one of this id; nil: there is none
	told    chan struct{}   // closed when there is nothing to tell any more
	done    chan struct{}   // closed with over
	waiters int             // calls that wait for the answer

	tries int       // requests that carried the question
	gen   int       // the connection on which the hub took it last
	known bool      // the hub took it: the turn's clock is held
	due   time.Time // when nobody waits any longer
	limit *time.Timer

	over   bool
	answer string
	err    error // why there is no answer
	gone   bool  // the hub has to hear that nothing is asked any more
}

func newAsks(j *journal, cfg Config) *asks {
	q := &asks{cfg: cfg, log: cfg.Log, journal: j, turns: make(map[api.Triple]*inquiry)}
	q.ctx, q.cancel = context.WithCancel(context.Background())
	return q
}

// connect sets the hub; nil takes it away. What the hub may not know is told now.
func (q *asks) connect(hub Hub) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.hub = hub
	q.gen++
	for _, s := range q.turns {
		for _, a := range s.open {
			signal(a.wake)
		}
	}
}

// inquiry returns that of a triple, a new one if need be. Callers hold mu.
func (q *asks) inquiry(t api.Triple) *inquiry {
	s := q.turns[t]
	if s == nil {
		s = &inquiry{triple: t, open: make(map[string]*ask), answers: make(map[string]string)}
		q.turns[t] = s
	}
	return s
}

// begin lets a turn ask.
func (q *asks) begin(t *turn) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.inquiry(t.rec.Triple).turn = t
}

// end closes what a turn asked. Its result tells the hub that nothing is asked any
// more; a withdrawal that waits is tried once more at most.
func (q *asks) end(t *turn) {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := q.turns[t.rec.Triple]
	if s == nil {
		return
	}
	delete(q.turns, t.rec.Triple)
	s.ended = true
	for _, a := range s.open {
		q.finish(s, a, "", errEnded)
		signal(a.wake)
	}
}

// close ends all requests and returns when they have. Whoever waits for an answer
// must have been told to stop before.
func (q *asks) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.cancel()
	q.wg.Wait()
}

// ask is agent.Host.Ask of a turn.
func (q *asks) ask(ctx context.Context, t *turn, id string, asked api.Asked) (string, error) {
	if id == "" || len(id) > maxAskID {
		return "", fmt.Errorf("the id of a question has %d bytes, 1 to %d are allowed", len(id), maxAskID)
	}
	q.mu.Lock()
	s := q.turns[t.rec.Triple]
	if s == nil || s.turn != t || q.closed {
		q.mu.Unlock()
		return "", errEnded
	}
	if text, ok := s.answers[id]; ok {
		q.mu.Unlock()
		return text, nil
	}
	a, err := q.open(s, id, asked)
	if err != nil {
		q.mu.Unlock()
		return "", err
	}
	a.waiters++
	q.mu.Unlock()

	select {
	case <-a.done:
	case <-ctx.Done():
		q.leave(s, a, context.Cause(ctx))
		return "", context.Cause(ctx)
	case <-t.ctx.Done():
		q.leave(s, a, context.Cause(t.ctx))
		return "", context.Cause(t.ctx)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return a.answer, a.err
}

// open returns the question of an id, which may wait already. Callers hold mu.
func (q *asks) open(s *inquiry, id string, asked api.Asked) (*ask, error) {
	former := s.open[id]
	if former != nil && !former.over {
		return former, nil
	}
	if s.live >= maxAsks {
		q.log.Warn("a turn asks too much at once", "task", s.triple.Task, "waiting", s.live)
		return nil, fmt.Errorf("%w: %d other questions of the task wait already", agent.ErrNoAnswer, s.live)
	}
	a := &ask{
		id: id, asked: fitAsked(asked),
		wake: make(chan struct{}, 1), told: make(chan struct{}), done: make(chan struct{}),
	}
	if former != nil {
		a.before = former.told
	}
	s.open[id] = a
	s.live++
	wait := q.patience(s)
	a.due = time.Now().Add(wait)
	a.limit = time.AfterFunc(wait, func() { q.expire(s, a) })
	q.wg.Go(func() {
		defer close(a.told)
		if a.before != nil {
			<-a.before // the end of the one must not be taken for that of the other
		}
		q.tell(s, a)
	})
	return a, nil
}

// patience is how long a question may wait.
func (q *asks) patience(s *inquiry) time.Duration {
	wait := time.Duration(s.turn.rec.QuestionMS) * time.Millisecond
	if wait <= 0 {
		wait = api.DefaultQuestionTimeout
	}
	return wait + askGrace
}

// leave is for a caller that does not wait any more.
func (q *asks) leave(s *inquiry, a *ask, cause error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if a.waiters--; a.waiters == 0 {
		q.finish(s, a, "", cause)
	}
}

// expire ends a question whose time is over.
func (q *asks) expire(s *inquiry, a *ask) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !time.Now().Before(a.due) {
		q.finish(s, a, "", agent.ErrNoAnswer)
	}
}

// finish ends a question, once, with its answer or with the reason why there is
// none; then it is withdrawn, unless the node is stopping: the next process asks it
// again. Callers hold mu.
func (q *asks) finish(s *inquiry, a *ask, answer string, err error) {
	if a.over {
		return
	}
	a.over, a.answer, a.err = true, answer, err
	a.limit.Stop()
	if a.known {
		s.turn.clock.release()
	}
	if err == nil {
		s.remember(a.id, answer)
	} else {
		a.gone = a.tries > 0 && !errors.Is(context.Cause(s.turn.ctx), agent.ErrStopping)
	}
	close(a.done)
	signal(a.wake)
}

// remember keeps an answer for repeats of the question or the answer.
func (s *inquiry) remember(id, text string) {
	if len(s.order) == maxAnswers {
		delete(s.answers, s.order[0])
		s.order = s.order[1:]
	}
	s.answers[id] = text
	s.order = append(s.order, id)
}

// tell tells the hub of a question, and of its end when that is due.
func (q *asks) tell(s *inquiry, a *ask) {
	for tries := 0; ; {
		hub, gen, asked, over := q.next(s, a)
		if over {
			return
		}
		var again <-chan time.Time
		if hub != nil {
			err := q.put(hub, s.triple, a.id, asked)
			if q.heard(s, a, gen, asked != nil, err) {
				continue
			}
			again = time.After(backoff(q.cfg, tries, err))
			tries++
		}
		select {
		case <-a.wake:
			tries = 0
		case <-again:
		case <-q.ctx.Done():
			return
		}
	}
}

// next says what the hub has to hear now: asked is nil for a withdrawal, hub is nil
// when there is nothing to say or nobody to hear it. over: nothing will follow.
func (q *asks) next(s *inquiry, a *ask) (hub Hub, gen int, asked *api.Asked, over bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case a.over && (!a.gone || s.ended && q.hub == nil):
		s.live--
		if s.open[a.id] == a {
			delete(s.open, a.id)
		}
		return nil, 0, nil, true
	case a.over:
		return q.hub, q.gen, nil, false
	case q.hub == nil || a.gen == q.gen:
		return nil, 0, nil, false
	}
	a.tries++
	return q.hub, q.gen, &a.asked, false
}

// put makes one request.
func (q *asks) put(hub Hub, t api.Triple, id string, asked *api.Asked) error {
	msg := api.Ask{Triple: t, Question: id, Asked: asked}
	msg.JournalID, msg.Epoch = q.journal.identity()
	ctx, cancel := context.WithTimeout(q.ctx, askTimeout)
	defer cancel()
	err := hub.Call(ctx, http.MethodPut, "/v1/tasks/"+t.Task+"/question", &msg, nil)
	if err != nil {
		q.log.Debug("question not told", "task", t.Task, "question", id, "withdrawn", asked == nil, "err", err)
	}
	return err
}

// heard notes what the hub said to a question (asked) or a withdrawal. It reports
// false when that has to be repeated after a while.
func (q *asks) heard(s *inquiry, a *ask, gen int, asked bool, err error) bool {
	var refused *api.Error
	final := err == nil || errors.As(err, &refused) && !retryable(refused) && refused.Code != api.CodeJournalMismatch
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case !asked && !final && !s.ended:
		return false
	case !asked:
		a.gone = false
	case a.over:
		// It was answered while it was told once more: the hub may have taken it for a
		// new question.
		a.gone = a.gone || a.err == nil && a.tries > 1
	case !final:
		return false
	case err == nil && !a.known:
		a.known, a.gen = true, gen
		s.turn.clock.hold()
		wait := q.patience(s)
		a.due = time.Now().Add(wait)
		a.limit.Reset(wait)
	case err == nil, a.known:
		a.gen = gen
	default:
		q.finish(s, a, "", fmt.Errorf("%w: the hub does not take the question: %s", agent.ErrNoAnswer, refused.Message))
		a.gone = false
	}
	return true
}

// reply takes an answer from the hub. early says that turns of an earlier process
// may not have begun in this one.
func (q *asks) reply(rp *api.Reply, early bool) error {
	interrupted := early && q.journal.interrupted(rp.Triple)
	q.mu.Lock()
	defer q.mu.Unlock()
	s := q.turns[rp.Triple]
	if s == nil && interrupted {
		s = q.inquiry(rp.Triple)
	}
	if s == nil {
		return api.Errorf(api.CodeQuestionGone, "this turn of task %s does not run here", rp.Task)
	}
	if text, ok := s.answers[rp.Question]; ok {
		if text != rp.Text {
			return api.Errorf(api.CodeAlreadyAnswered, "task %s has another answer to that", rp.Task)
		}
		return nil
	}
	a := s.open[rp.Question]
	switch {
	case a != nil && !a.over:
		q.finish(s, a, rp.Text, nil)
	case a == nil && (s.turn == nil || s.turn.rec.resumed):
		// It was asked by an earlier process, and this one is about to ask it again.
		s.remember(rp.Question, rp.Text)
	default:
		return api.Errorf(api.CodeQuestionGone, "task %s does not ask that any more", rp.Task)
	}
	return nil
}

// fitAsked cuts what an agent asks to its limits.
func fitAsked(asked api.Asked) api.Asked {
	out := api.Asked{Kind: asked.Kind, Text: cutString(asked.Text, maxAskText)}
	for _, o := range asked.Options[:min(len(asked.Options), maxAskOptions)] {
		out.Options = append(out.Options, cutString(o, maxAskOption))
	}
	return out
}

// postAnswer is POST /v1/tasks/{id}/answer: the answer to a question of a running
// turn.
func (r *Runner) postAnswer(w http.ResponseWriter, req *http.Request) error {
	var rp api.Reply
	if err := readBody(w, req, &rp); err != nil {
		return err
	}
	if err := checkTriple(rp.Triple, chi.URLParam(req, "id")); err != nil {
		return err
	}
	switch {
	case rp.Question == "" || len(rp.Question) > maxAskID:
		return api.Errorf(api.CodeBadRequest, "the answer names no question")
	case len(rp.Text) > api.MaxAnswer:
		return api.Errorf(api.CodeTooLarge, "the answer is larger than %d bytes", api.MaxAnswer)
	}
	if err := r.current(rp.JournalID, rp.Epoch); err != nil {
		return err
	}
	r.mu.Lock()
	err := r.asks.reply(&rp, !r.started)
	r.mu.Unlock()
	if err != nil {
		return err
	}
	WriteJSON(w, http.StatusOK, api.Receipt{Triple: rp.Triple, State: api.StateRunning})
	return nil
}

// interrupted reports whether an earlier process had a turn running that this one
// takes up.
func (j *journal) interrupted(t api.Triple) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	kn := j.find(t)
	return kn != nil && kn.rec != nil && kn.rec.resumed && kn.rec.shown == api.StateRunning
}
