package api_test

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"opencode-mesh/protocol/api"
)

func TestAnEnvelopeTravelsWithTheOptionsOfADispatch(t *testing.T) {
	s := newShop(t)
	alice := s.enroll(login("alice", false))
	s.enroll(join("beta"))
	envelope := func(id string) string {
		return "[opencode-mesh v1]\nfrom: alice\ntask: " + id + "\nmode: one-shot\nreply: result-block\n---\nx\n"
	}
	status, _, data := s.call(http.MethodPost, "/v1/envelopes?target=beta&workspace=shop&new=true&ttl_ms=3600000", alice, envelope("e1"))
	var task api.Task
	if err := json.Unmarshal(data, &task); err != nil || status != http.StatusAccepted {
		t.Fatalf("%d %s", status, data)
	}
	if task.Workspace != "shop" || task.Mode != "one-shot" || task.ExpiresAt.Sub(task.CreatedAt) != time.Hour {
		t.Errorf("got %+v", task)
	}
	for _, query := range []string{"ttl_ms=soon", "ttl_ms=-1", "deadline_ms=9999999999999999999999", "auto_compact=most", "question_timeout_ms=1.5"} {
		if status, e, _ := s.call(http.MethodPost, "/v1/envelopes?target=beta&"+query, alice, envelope("e2")); status != http.StatusBadRequest || e.Code != api.CodeBadRequest {
			t.Errorf("%s: %d %v", query, status, e)
		}
	}
}
