package hub_test

import (
	"encoding/json"
	"net/http"
	"testing"

	"opencode-mesh/protocol/api"
)

// wait polls for a task that asks or is settled.
func (b *box) wait(secret, id string) (task api.Task) {
	b.t.Helper()
	status, e, data := b.call(http.MethodGet, "/v1/tasks/"+id+"?wait=30s", secret, nil)
	if err := json.Unmarshal(data, &task); err != nil || status != http.StatusOK {
		b.t.Fatalf("%d %v %v", status, e, err)
	}
	return task
}

func TestAQuestionInATurnIsAnsweredThroughTheTunnel(t *testing.T) {
	b := start(t, config(t.TempDir()))
	beta, alice, bob := b.enroll("join", "beta"), b.enroll("login", "alice"), b.enroll("login", "bob")
	p := b.greeted(beta, "j1", 1)
	b.call(http.MethodPost, "/v1/tasks", alice, dispatch("beta", "t1", "do it"))
	o := p.offer()
	ask := api.Ask{Triple: o.Triple, JournalID: "j1", Epoch: 1, Question: "per_1", Asked: &api.Asked{Kind: api.QuestionPermission, Text: "bash: make"}}
	if status, e := p.call(http.MethodPut, "/v1/tasks/t1/question", ask, nil); status != http.StatusNoContent {
		t.Fatalf("%d %v", status, e)
	}
	task := b.wait(alice, "t1")
	if task.State != api.StateQuestion || task.Question == nil || len(task.Question.Options) != 3 {
		t.Fatalf("task %+v", task)
	}
	status, e, _ := b.call(http.MethodPost, "/v1/tasks/t1/answer", bob, api.Answer{Text: "once"})
	want(t, status, e, http.StatusNotFound, api.CodeUnknownTask)
	status, e, _ = b.call(http.MethodPost, "/v1/tasks/t1/answer", alice, api.Answer{Text: "perhaps"})
	want(t, status, e, http.StatusBadRequest, api.CodeBadRequest)
	answer := api.Answer{Question: task.Question.ID, Text: "2"}
	if status, e, _ := b.call(http.MethodPost, "/v1/tasks/t1/answer", alice, answer); status != http.StatusOK {
		t.Fatalf("%d %v", status, e)
	}
	status, e, _ = b.call(http.MethodPost, "/v1/tasks/t1/answer", alice, answer)
	want(t, status, e, http.StatusConflict, api.CodeAlreadyAnswered)
	reply := p.reply()
	if reply.Triple != o.Triple || reply.Question != "per_1" || reply.Text != api.PermitAlways || reply.JournalID != "j1" || reply.Epoch != 1 {
		t.Errorf("reply %+v", reply)
	}

	ask.Question = "per_2"
	if status, e := p.call(http.MethodPut, "/v1/tasks/t1/question", ask, nil); status != http.StatusNoContent {
		t.Fatalf("%d %v", status, e)
	}
	q := b.wait(alice, "t1").Question.ID
	ask.Asked = nil
	if status, e := p.call(http.MethodPut, "/v1/tasks/t1/question", ask, nil); status != http.StatusNoContent {
		t.Fatalf("%d %v", status, e)
	}
	status, e, _ = b.call(http.MethodPost, "/v1/tasks/t1/answer", alice, api.Answer{Question: q, Text: "1"})
	want(t, status, e, http.StatusConflict, api.CodeQuestionGone)
}

func TestWhatIsAskedThroughTheTunnelIsRefusedFromAnybodyElse(t *testing.T) {
	b := start(t, config(t.TempDir()))
	beta, gamma, alice := b.enroll("join", "beta"), b.enroll("join", "gamma"), b.enroll("login", "alice")
	p, other := b.greeted(beta, "j1", 1), b.greeted(gamma, "j1", 1)
	b.call(http.MethodPost, "/v1/tasks", alice, dispatch("beta", "t1", "do it"))
	o := p.offer()
	ask := api.Ask{Triple: o.Triple, JournalID: "j1", Epoch: 1, Question: "per_1", Asked: &api.Asked{Kind: api.QuestionPermission, Text: "bash: make"}}
	status, e := other.call(http.MethodPut, "/v1/tasks/t1/question", ask, nil)
	want(t, status, e, http.StatusForbidden, api.CodeForbidden)
	status, e, _ = b.call(http.MethodPut, "/v1/tasks/t1/question", alice, ask)
	want(t, status, e, http.StatusNotFound, api.CodeNotFound) // it is not on the public interface
	status, e = p.call(http.MethodPut, "/v1/tasks/t2/question", ask, nil)
	want(t, status, e, http.StatusNotFound, api.CodeUnknownTask) // the path names the task
	status, e = p.call(http.MethodPut, "/v1/tasks/t1/question", "rubbish", nil)
	want(t, status, e, http.StatusBadRequest, api.CodeBadRequest)
	drain, err := b.dial(beta, "Mesh-Tunnel", "drain")
	if err != nil {
		t.Fatal(err)
	}
	status, e = drain.call(http.MethodPut, "/v1/tasks/t1/question", ask, nil) // where no answer could come
	want(t, status, e, http.StatusConflict, api.CodeSuperseded)
}

func TestABadPolicyIsRefusedWithTheParsersWords(t *testing.T) {
	b := start(t, config(t.TempDir()))
	b.enroll("join", "beta")
	alice := b.enroll("login", "alice")
	d := dispatch("beta", "t1", "do it")
	d.AutoAnswer = "prod("
	status, e, _ := b.call(http.MethodPost, "/v1/tasks", alice, d)
	want(t, status, e, http.StatusBadRequest, api.CodeBadRequest)
	if e != nil && e.Message != "the auto-answer is first, none or a regular expression: error parsing regexp: missing closing ): `prod(`" {
		t.Errorf("message %q", e.Message)
	}
}

func TestWhatAnAgentDoesIsInListingsStreamsAndNowhereElse(t *testing.T) {
	b := start(t, config(t.TempDir()))
	beta, alice := b.enroll("join", "beta"), b.enroll("login", "alice")
	p := b.greeted(beta, "j1", 1)
	b.call(http.MethodPost, "/v1/tasks", alice, dispatch("beta", "t1", "do it"))
	o := p.offer()
	stream, end := b.events(alice, "")
	defer end()
	for _, line := range []string{"first", "second"} {
		pr := api.Progress{Triple: o.Triple, JournalID: "j1", Epoch: 1, State: api.StateRunning, Activity: api.Activity{Tool: "bash: make", Line: line}}
		if status, e := p.call(http.MethodPut, "/v1/tasks/t1/progress", pr, nil); status != http.StatusNoContent {
			t.Fatalf("%d %v", status, e)
		}
	}
	for id := ""; ; {
		e := <-stream
		var task api.Task
		if e.Type != api.EventTask || json.Unmarshal(e.Data, &task) != nil || task.Activity == nil {
			continue
		}
		if task.Activity.Line == "first" {
			id = e.ID
			continue
		}
		if id == "" || e.ID != "" || task.Activity.Tool != "bash: make" {
			t.Errorf("event %q after %q: %s", e.ID, id, e.Data)
		}
		break
	}
	b.call(http.MethodPost, "/v1/tasks", alice, dispatch("beta", "t2", "what was not awaited is on disk before this is"))
	for _, path := range []string{"/v1/tasks/t1", "/v1/tasks"} {
		var page api.TaskPage
		var one api.Task
		_, _, data := b.call(http.MethodGet, path, alice, nil)
		if err := json.Unmarshal(data, &page); err != nil {
			t.Fatal(err)
		}
		_ = json.Unmarshal(data, &one)
		for _, task := range append(page.Tasks, one) {
			if task.Task == "t1" && (task.Activity == nil || task.Activity.Line != "second") {
				t.Errorf("%s: %+v", path, task)
			}
		}
	}
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}
	again := start(t, config(b.dir))
	_, _, data := again.call(http.MethodGet, "/v1/tasks/t1", alice, nil)
	var task api.Task
	if err := json.Unmarshal(data, &task); err != nil || task.Activity != nil || task.State != api.StateRunning {
		t.Errorf("after a restart: %s", data)
	}
}
