package tasks

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/go-chi/chi/v5"

	"opencode-mesh/node/agent"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
)

// Routes adds what the hub calls inside the tunnel: offers, withdrawals, the answers
// to what running turns ask, the reconciliation after a hello, and the files that
// results name.
func (r *Runner) Routes(mux chi.Router) {
	mux.Put("/v1/tasks/{id}", r.handle(r.putTask))
	mux.Delete("/v1/tasks/{id}", r.handle(r.deleteTask))
	mux.Post("/v1/tasks/{id}/answer", r.handle(r.postAnswer))
	mux.Post("/v1/reconcile", r.handle(r.postReconcile))
	mux.Get("/v1/artifacts", r.handle(r.getArtifact))
	mux.Head("/v1/artifacts", r.handle(r.getArtifact))
}

// handle turns a returned error into the answer.
func (r *Runner) handle(fn func(w http.ResponseWriter, req *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		if err := fn(w, req); err != nil {
			r.fail(w, req, err)
		}
	}
}

// fail answers an error. What is not meant for the hub is only logged.
func (r *Runner) fail(w http.ResponseWriter, req *http.Request, err error) {
	var e *api.Error
	if !errors.As(err, &e) {
		r.log.Error("request of the hub failed", "path", req.URL.Path, "err", err)
		e = api.Errorf(api.CodeInternal, "the node failed; its log says more")
	}
	WriteError(w, e)
}

// WriteError answers in the one error shape of every interface.
func WriteError(w http.ResponseWriter, e *api.Error) {
	if e.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int((e.RetryAfter+time.Second-1)/time.Second)))
	}
	WriteJSON(w, e.Code.Status(), api.ErrorBody{Error: e})
}

// WriteJSON answers with a JSON body. A write error means that the caller is gone.
func WriteJSON(w http.ResponseWriter, status int, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(data)
}

// readBody reads a JSON body of at most api.MaxTunnelBody. Fields that are not
// known are ignored: the protocol grows by adding.
func readBody(w http.ResponseWriter, req *http.Request, v any) error {
	var data bytes.Buffer
	if n := req.ContentLength; n > 0 && n <= api.MaxTunnelBody {
		data.Grow(int(n) + bytes.MinRead) // read in one go
	}
	_, err := data.ReadFrom(http.MaxBytesReader(w, req.Body, api.MaxTunnelBody))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return api.Errorf(api.CodeTooLarge, "the body is larger than %d bytes", tooLarge.Limit)
	case err != nil:
		return api.Errorf(api.CodeBadRequest, "the body did not arrive whole")
	}
	if err := json.Unmarshal(data.Bytes(), v); err != nil {
		return api.Errorf(api.CodeBadRequest, "the body is not the JSON that is expected here: %v", err)
	}
	return nil
}

// putTask is PUT /v1/tasks/{id}: an offer.
func (r *Runner) putTask(w http.ResponseWriter, req *http.Request) error {
	var o api.Offer
	if err := readBody(w, req, &o); err != nil {
		return err
	}
	if err := checkOffer(&o, chi.URLParam(req, "id")); err != nil {
		return err
	}
	if operation(o.Kind) && !r.cfg.Agent.HasSessions() {
		return api.Errorf(api.CodeNotSupported, "the %s agent of this node has no sessions", r.cfg.Agent.Kind())
	}
	if o.HubID != r.cfg.HubID {
		return api.Errorf(api.CodeJournalMismatch, "this node belongs to another hub")
	}
	if err := r.current(o.JournalID, o.Epoch); err != nil {
		return err
	}
	if err := r.closedFor(); err != nil {
		return err
	}
	r.begin()
	rec, rc, err := r.journal.accept(&o, r.admit(&o))
	if err != nil {
		return err
	}
	if rec == nil {
		WriteJSON(w, http.StatusOK, rc)
		return nil
	}
	if rc.State == api.StateAccepted {
		r.enqueue(rec)
	}
	WriteJSON(w, http.StatusAccepted, rc)
	return nil
}

// checkOffer reports what is wrong with an offer.
func checkOffer(o *api.Offer, id string) error {
	if err := checkTriple(o.Triple, id); err != nil {
		return err
	}
	bad := ""
	switch {
	case o.Hash == "":
		bad = "no hash"
	case o.Kind != api.TurnTask && o.Kind != api.TurnAnswer && o.Kind != api.TurnAssume && !operation(o.Kind):
		bad = fmt.Sprintf("kind %q", o.Kind)
	case o.Kind == api.TurnResume && o.Binding.Compaction == "":
		bad = "no compaction to resume from"
	case o.Binding.Compaction != "" && (o.Kind != api.TurnResume && o.Kind != api.TurnDelete || !mesh.ValidTaskID(o.Binding.Compaction)):
		bad = "a compaction that makes no sense"
	case !mesh.Mode(o.Mode).Valid():
		bad = fmt.Sprintf("mode %q", o.Mode)
	case o.Controller.ID == "":
		bad = "no controller"
	case o.DeadlineMS < 0, o.QuestionMS < 0:
		bad = "a negative duration"
	default:
		return nil
	}
	return api.Errorf(api.CodeBadRequest, "the offer of task %s has %s", o.Task, bad)
}

// checkTriple reports what is wrong with a triple; id is the one of the path.
func checkTriple(t api.Triple, id string) error {
	switch {
	case !mesh.ValidTaskID(t.Task):
		return api.Errorf(api.CodeBadRequest, "not a task id")
	case t.Task != id:
		return api.Errorf(api.CodeBadRequest, "path and body name different tasks")
	case t.Attempt < 1 || t.Turn < 1:
		return api.Errorf(api.CodeBadRequest, "attempt %d turn %d of task %s does not exist", t.Attempt, t.Turn, t.Task)
	}
	return nil
}

// current checks that the hub means this journal in its present epoch
// (semantics 5).
func (r *Runner) current(journalID string, epoch uint64) error {
	id, now := r.journal.identity()
	if journalID != id || epoch != now {
		return api.Errorf(api.CodeJournalMismatch, "the journal here is another one or in another epoch")
	}
	return nil
}

// admit is what this node's policy says to a task, which an operation on a session
// is too. What is not the first turn belongs to one that was admitted before, so that
// it is not held again.
func (r *Runner) admit(o *api.Offer) admission {
	adm := admission{state: api.StateAccepted}
	allow := r.cfg.AcceptFrom
	switch {
	case r.cfg.Policy == api.PolicyRefuse:
		adm.refuse = api.Errorf(api.CodeRefused, "this node takes no tasks (policy refuse)")
	case len(allow) > 0 && !slices.Contains(allow, o.Controller.ID) && !slices.Contains(allow, o.Controller.Name):
		adm.refuse = api.Errorf(api.CodeRefused, "this node takes no tasks from controller %s", o.Controller.Name)
	case r.cfg.Policy == api.PolicyHold && o.Turn == 1:
		adm.state = api.StateHeld
	}
	return adm
}

// deleteTask is DELETE /v1/tasks/{id}: a cancel, an expiry or a revocation.
func (r *Runner) deleteTask(w http.ResponseWriter, req *http.Request) error {
	var wd api.Withdraw
	if err := readBody(w, req, &wd); err != nil {
		return err
	}
	if err := checkTriple(wd.Triple, chi.URLParam(req, "id")); err != nil {
		return err
	}
	switch wd.Reason {
	case api.WithdrawCancel, api.WithdrawExpire, api.WithdrawRevoke:
	default:
		return api.Errorf(api.CodeBadRequest, "reason %q of a withdrawal", wd.Reason)
	}
	if err := r.current(wd.JournalID, wd.Epoch); err != nil {
		return err
	}
	d, err := r.journal.withdraw(&wd)
	if d.again != nil && d.again.stateIn(r.journal) == api.StateAccepted {
		r.enqueue(d.again)
	}
	if err != nil {
		return err
	}
	if d.abort == nil {
		WriteJSON(w, http.StatusOK, d.receipt)
		return nil
	}
	r.cancel(d.abort)
	WriteJSON(w, http.StatusAccepted, d.receipt)
	return nil
}

// stateIn is a record's state as others see it.
func (rec *record) stateIn(j *journal) api.State {
	j.mu.Lock()
	defer j.mu.Unlock()
	return rec.shown
}

// cancel aborts a running turn. One that is not running in this process was left
// to begin, which finds in the journal that it is withdrawn.
func (r *Runner) cancel(rec *record) {
	r.mu.Lock()
	t := r.running[rec.arrival]
	r.mu.Unlock()
	if t != nil {
		t.cancel(agent.ErrCanceled)
	}
}

// postReconcile is POST /v1/reconcile.
func (r *Runner) postReconcile(w http.ResponseWriter, req *http.Request) error {
	var rq api.Reconcile
	if err := readBody(w, req, &rq); err != nil {
		return err
	}
	if len(rq.Tasks) > api.MaxReconcile {
		return api.Errorf(api.CodeBadRequest, "%d tasks in one request, the most is %d", len(rq.Tasks), api.MaxReconcile)
	}
	if err := r.current(rq.JournalID, rq.Epoch); err != nil {
		return err
	}
	answer, again, err := r.journal.reconcile(rq.Tasks)
	if err != nil {
		return err
	}
	for _, rec := range again {
		r.outbox.add(rec)
	}
	WriteJSON(w, http.StatusOK, api.Reconciled{Tasks: answer})
	r.begin()
	return nil
}
