package statefile

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"opencode-mesh/protocol/opencomms"
)

const schema1 = `{
  "schema_version": 1,
  "channels": {
    "old": {
      "id": "chn_11111111111111111111111111111111", "name": "old", "project_id": "p", "worktree": "/w", "created_at": 1,
      "paused": false, "paused_at": null,
      "members": [
        {"session_id": "ses_b", "role": "Builder", "role_prompt": "build", "joined_at": 2, "stale": true, "stale_at": 3},
        {"session_id": "ses_r", "role": "Reviewer", "role_prompt": "review", "joined_at": 2, "stale": false, "stale_at": null}
      ],
      "rate": {"window_start": 1, "count": 0}, "cooldown_until": {}, "seen_content": {}, "processed_correlations": [],
      "max_hops": 4, "rate_limit": 20, "delivery_cooldown_ms": 1000, "stale_event_ms": 300000,
      "timer": {"active_role": null, "segment_started_at": null, "elapsed_ms": {"Builder": 0, "Reviewer": 0}, "limit_ms": null, "limit_role": null}
    }
  },
  "messages": {
    "ocm_old": {
      "message_id": "ocm_old", "channel_id": "chn_11111111111111111111111111111111", "sender_session_id": "ses_b", "sender_role": "Builder",
      "recipient_session_id": "ses_r", "recipient_role": "Reviewer", "timestamp": 5, "message_type": "manual", "content": "of old",
      "reply_to": null, "hop_count": 0, "delivery_status": "pending", "correlation_id": "cor_1", "delivered_at": null, "attempts": 0
    }
  },
  "queues": {"ses_r": ["ocm_old"]},
  "delivered_to": {},
  "errors": [{"at": 6, "message": "an old error"}]
}`

// inert2 is a file of schema 2 in which nothing happened.
const inert2 = `{"schema_version":2,"channels":{"empty":{"id":"chn_22222222222222222222222222222222","name":"empty","project_id":"p","worktree":"/w","created_at":1,"paused":false,"paused_at":null,"members":[],"max_members":8,"lifecycle":"active"},"old":{"id":"chn_33333333333333333333333333333333","name":"old","project_id":"p","worktree":"/w","created_at":1,"paused":false,"paused_at":null,"members":[],"max_members":8,"lifecycle":"active"}},"messages":{},"queues":{"ses_x":[]},"delivered_to":{},"errors":[{"at":7,"message":"a new error"}]}`

// withSchema1 is a project with a state file of schema 1, and one of schema 2 if
// that is not "".
func withSchema1(t *testing.T, two string) *Store {
	t.Helper()
	s := Open(t.TempDir(), Options{})
	write(t, s.legacyPath(), schema1)
	if two != "" {
		write(t, s.path, two)
	}
	return s
}

func (s *Store) legacyPath() string { return filepath.Join(s.project, LegacyDir, stateName) }

func TestSchema1IsShownBeforeItIsTakenOver(t *testing.T) {
	s := withSchema1(t, "")
	want(t, ids(t, s), []string{"ocm_old"})
	want(t, names(t, s.project), []string{LegacyDir})
}

func TestTheFirstUpdateTakesSchema1Over(t *testing.T) {
	for _, two := range []string{"", inert2} {
		s := withSchema1(t, two)
		mustAdd(t, s, "ocm_new")
		want(t, ids(t, s), []string{"ocm_old", "ocm_new"})
		if read(t, s.legacyPath()) != schema1 || read(t, filepath.Join(s.dir, legacyCopy)) != schema1 {
			t.Error("schema 1 is not as it was")
		}
		st, err := s.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		old, _ := st.Channels.Get("old")
		if m := old.Members[0]; old.ID != "chn_11111111111111111111111111111111" || m.Host != "opencode-comms" || m.Stale || m.JoinedAt != 2 {
			t.Errorf("%+v %+v", old, m)
		}
		errs := []string{}
		for _, e := range st.Errors {
			errs = append(errs, e.Message)
		}
		var marker struct {
			MigratedAt int64 `json:"migrated_at"`
			From       string
			Schema     int
		}
		if err := json.Unmarshal([]byte(read(t, filepath.Join(s.dir, markerName))), &marker); err != nil || marker.From != ".opencode-comms" || marker.Schema != 1 ||
			time.Since(time.UnixMilli(marker.MigratedAt)).Abs() > time.Minute {
			t.Error(marker, err)
		}
		if two == "" {
			want(t, errs, []string{"an old error", takenNotice})
			want(t, names(t, s.dir), []string{markerName, stateName, legacyCopy})
			continue
		}
		want(t, errs, []string{"an old error", "a new error", takenNotice})
		want(t, names(t, s.dir), []string{markerName, stateName, legacyCopy, inertCopy})
		if _, ok := st.Channels.Get("empty"); !ok || read(t, filepath.Join(s.dir, inertCopy)) != inert2 {
			t.Error("what schema 2 had is gone")
		}
		// Once is enough, even when nothing is left.
		if err := os.Remove(s.path); err != nil {
			t.Fatal(err)
		}
		want(t, ids(t, s), []string{})
	}
}

func TestARefusalTakesNothingOver(t *testing.T) {
	s := withSchema1(t, inert2)
	refused := errors.New("refused")
	if err := s.Update(t.Context(), func(*opencomms.State) error { return refused }); !errors.Is(err, refused) {
		t.Fatal(err)
	}
	if read(t, s.path) != inert2 {
		t.Error("the file was written")
	}
	want(t, names(t, s.dir), []string{stateName})
}

func TestSchema1IsLeftAloneOnceSomethingHappenedInSchema2(t *testing.T) {
	s := Open(t.TempDir(), Options{})
	mustAdd(t, s, "ocm_1")
	write(t, s.legacyPath(), schema1)
	mustAdd(t, s, "ocm_2")
	want(t, ids(t, s), []string{"ocm_1", "ocm_2"})
	want(t, names(t, s.dir), []string{stateName})
}

func TestSchema1ThatIsNotValidIsRefusedBeforeItIsHiddenForGood(t *testing.T) {
	for name, text := range map[string]string{
		"cut off": schema1[:len(schema1)/2], "empty": "", "schema 2": strings.Replace(schema1, `"schema_version": 1`, `"schema_version": 2`, 1),
	} {
		s := Open(t.TempDir(), Options{})
		write(t, s.legacyPath(), text)
		_, readErr := s.Read(t.Context())
		for _, err := range []error{readErr, s.Update(t.Context(), func(st *opencomms.State) error { add(st, "ocm_1"); return nil })} {
			var legacy *LegacyError
			if !errors.As(err, &legacy) || legacy.Path != s.legacyPath() || !strings.Contains(err.Error(), "move its directory away") {
				t.Error(name, err)
			}
		}
		if read(t, s.legacyPath()) != text || len(names(t, s.dir)) != 0 {
			t.Error(name, "something was written")
		}
		if err := os.Rename(filepath.Dir(s.legacyPath()), s.project+"/away"); err != nil {
			t.Fatal(err)
		}
		mustAdd(t, s, "ocm_1")
	}
}

func TestATakeOverThatDiesOrFailsAtAnyStepIsFinishedByTheNext(t *testing.T) {
	for _, dies := range []bool{true, false} {
		for _, two := range []string{"", inert2} {
			for at := 1; ; at++ {
				s := withSchema1(t, two)
				d := &faulty{disk: osDisk{}, at: at, dies: dies, err: os.ErrPermission, half: true}
				s.disk = d
				_ = s.Update(t.Context(), func(st *opencomms.State) error { add(st, "ocm_1"); return nil })
				if d.step < at {
					if at < 15 {
						t.Fatal("only these steps were failed:", d.log)
					}
					break
				}
				step := d.log[at-1]
				next := Open(s.project, Options{})
				if got := ids(t, next); !slices.Contains(got, "ocm_old") {
					t.Error(step, "lost schema 1:", got)
				}
				if entries, _ := os.ReadDir(s.dir); slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() == lockName }) {
					age(t, filepath.Join(s.dir, lockName), time.Minute)
				}
				mustAdd(t, next, "ocm_2")
				got := ids(t, next)
				slices.Sort(got)
				if got = slices.DeleteFunc(got, func(id string) bool { return id == "ocm_1" }); !slices.Equal(got, []string{"ocm_2", "ocm_old"}) {
					t.Error(step, "and then", got)
				}
				if _, err := os.Stat(filepath.Join(s.dir, markerName)); err != nil {
					t.Error(step, err)
				}
				st, err := next.Read(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				seen := map[string]int{}
				for _, e := range st.Errors {
					if seen[e.Message]++; seen[e.Message] > 1 {
						t.Error(step, "has twice:", e.Message)
					}
				}
			}
		}
	}
}
