package storetest

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

var taskContracts = []contract{
	{"creating stamps growing numbers and a revision", func(t *testing.T, s store.Store) {
		first := create(t, s, newTask("a"), newTask("b"))
		second := createOne(t, s, "c")
		if first[0].Seq == 0 || first[1].Seq <= first[0].Seq || second.Seq <= first[1].Seq {
			t.Fatalf("numbers %d, %d, %d do not grow", first[0].Seq, first[1].Seq, second.Seq)
		}
		for _, task := range append(first, second) {
			if task.Rev == 0 {
				t.Fatalf("task %s has no revision", task.ID)
			}
			wantTask(t, s, task)
		}
	}},
	{"every field of a task comes back as it was stored", func(t *testing.T, s store.Store) {
		var full store.Task
		fill(&full)
		full.ID = "full"
		created := create(t, s, store.NewTask{Task: full, Text: []byte("x")})[0]
		full.Seq, full.Rev = created.Seq, created.Rev
		same(t, created, full)
		wantTask(t, s, full)
	}},
	{"a text comes back byte by byte", func(t *testing.T, s store.Store) {
		for name, text := range map[string]string{
			"empty": "", "binary": "\xff\x00\xfe", "largest": strings.Repeat("0123456789abcdef", api.MaxText/16),
		} {
			n := newTask(name)
			n.Text = []byte(text)
			create(t, s, n)
			wantPart(t, s, name, firstText, text)
		}
	}},
	{"creating nothing is no error", func(t *testing.T, s store.Store) {
		create(t, s)
	}},
	{"an id that exists refuses the whole call and is named", func(t *testing.T, s store.Store) {
		old := createOne(t, s, "old")
		old = update(t, s, old, in(api.StateRunning))
		_, err := s.CreateTasks(t.Context(), []store.NewTask{newTask("new"), newTask("old")})
		fails(t, err, store.ErrExists)
		var exists *store.ExistsError
		if !errors.As(err, &exists) {
			t.Fatalf("%v does not name the task", err)
		}
		same(t, exists.Task, old)
		_, err = s.Task(t.Context(), "new")
		fails(t, err, store.ErrNotFound)
		same(t, list(t, s, store.TaskQuery{}), []string{"old"})
		same(t, openIDs(t, s), []string{"old"})
		wantTask(t, s, old)
	}},
	{"an id that is named twice refuses the whole call", func(t *testing.T, s store.Store) {
		if _, err := s.CreateTasks(t.Context(), []store.NewTask{newTask("a"), newTask("b"), newTask("a")}); err == nil {
			t.Fatal("taken")
		}
		same(t, list(t, s, store.TaskQuery{}), []string(nil))
	}},
	{"a forgotten id refuses the whole call", func(t *testing.T, s store.Store) {
		createOne(t, s, "gone", ended(api.StateDone, start))
		prune(t, s, store.Retention{Before: after(time.Hour), TombstonesUntil: after(time.Hour)}, 1)
		_, err := s.CreateTasks(t.Context(), []store.NewTask{newTask("new"), newTask("gone")})
		fails(t, err, store.ErrForgotten)
		if errors.Is(err, store.ErrExists) {
			t.Fatalf("%v reads as if the task were there", err)
		}
		same(t, list(t, s, store.TaskQuery{}), []string(nil))
	}},
	{"a task without an id, a party or a state is refused", func(t *testing.T, s store.Store) {
		for what, edit := range map[string]func(*store.Task){
			"id":         func(t *store.Task) { t.ID = "" },
			"controller": func(t *store.Task) { t.Controller.ID = "" },
			"target":     func(t *store.Task) { t.Target.ID = "" },
			"state":      func(t *store.Task) { t.State = "limbo" },
		} {
			if _, err := s.CreateTasks(t.Context(), []store.NewTask{newTask("fine"), newTask("bad", edit)}); err == nil {
				t.Errorf("a task without %s was taken", what)
			}
		}
		same(t, list(t, s, store.TaskQuery{}), []string(nil))
	}},
	{"an unknown task is not found", func(t *testing.T, s store.Store) {
		createOne(t, s, "other")
		_, err := s.Task(t.Context(), "nobody")
		fails(t, err, store.ErrNotFound)
		_, err = s.Task(t.Context(), "")
		fails(t, err, store.ErrNotFound)
		_, err = s.Part(t.Context(), "nobody", firstText)
		fails(t, err, store.ErrNotFound)
		_, err = s.Tombstone(t.Context(), "nobody")
		fails(t, err, store.ErrNotFound)
		task := newTask("nobody").Task
		task.Rev, task.Seq = 1, 1
		_, err = s.UpdateTask(t.Context(), task)
		fails(t, err, store.ErrNotFound)
	}},
	{"an update is stored with its parts under a higher revision", func(t *testing.T, s store.Store) {
		created := createOne(t, s, "a")
		reply := store.PartKey{Kind: store.PartReply, Attempt: 1, Turn: 1}
		answer := store.PartKey{Kind: store.PartText, Attempt: 1, Turn: 2}
		got := update(t, s, created, func(t *store.Task) {
			t.State, t.Turn, t.Flags = api.StateRunning, 2, []api.Flag{api.FlagTruncated}
		}, store.Part{Key: reply, Data: []byte("what?")}, store.Part{Key: answer, Data: []byte("that")})
		if got.Rev <= created.Rev || got.Seq != created.Seq {
			t.Fatalf("revision %d and number %d after %d and %d", got.Rev, got.Seq, created.Rev, created.Seq)
		}
		wantTask(t, s, got)
		wantPart(t, s, "a", reply, "what?")
		wantPart(t, s, "a", answer, "that")
		wantPart(t, s, "a", firstText, "text of a")
	}},
	{"every field of an update comes back as it was stored", func(t *testing.T, s store.Store) {
		created := createOne(t, s, "a")
		full := created
		fill(&full)
		full.ID, full.Seq, full.Rev = created.ID, created.Seq, created.Rev
		full.Controller, full.Target = created.Controller, created.Target
		got := update(t, s, full, func(*store.Task) {})
		full.Rev = got.Rev
		wantTask(t, s, full)
	}},
	{"an update from an old revision conflicts and changes nothing", func(t *testing.T, s store.Store) {
		old := createOne(t, s, "a")
		now := update(t, s, old, in(api.StateRunning))
		for _, rev := range []store.Rev{old.Rev, now.Rev + 1, 0} {
			stale := old
			stale.Rev, stale.State = rev, api.StateDone
			key := store.PartKey{Kind: store.PartReply, Attempt: 1, Turn: 1}
			_, err := s.UpdateTask(t.Context(), stale, store.Part{Key: key, Data: []byte("late")})
			fails(t, err, store.ErrConflict)
			_, err = s.Part(t.Context(), "a", key)
			fails(t, err, store.ErrNotFound)
		}
		wantTask(t, s, now)
		same(t, openIDs(t, s), []string{"a"})
	}},
	{"a task's number and parties never change", func(t *testing.T, s store.Store) {
		created := createOne(t, s, "a")
		for what, edit := range map[string]func(*store.Task){
			"number": func(t *store.Task) { t.Seq++ }, "controller": by("id-other"), "target": to("id-other"),
		} {
			changed := created
			edit(&changed)
			if _, err := s.UpdateTask(t.Context(), changed); err == nil {
				t.Errorf("the %s was changed", what)
			}
		}
		wantTask(t, s, created)
	}},
	{"a part that is stored again is replaced", func(t *testing.T, s store.Store) {
		task := createOne(t, s, "a")
		key := store.PartKey{Kind: store.PartLate, Attempt: 1, Turn: 1}
		task = update(t, s, task, func(*store.Task) {}, store.Part{Key: key, Data: []byte("first, and longer")})
		update(t, s, task, func(*store.Task) {}, store.Part{Key: key, Data: nil})
		wantPart(t, s, "a", key, "")
	}},
	{"parts are told apart by kind, attempt and turn", func(t *testing.T, s store.Store) {
		task := createOne(t, s, "a")
		createOne(t, s, "b")
		var parts []store.Part
		for _, kind := range []store.PartKind{store.PartText, store.PartReply, store.PartLate} {
			for attempt := 1; attempt <= 3; attempt++ {
				for turn := 1; turn <= 3; turn++ {
					key := store.PartKey{Kind: kind, Attempt: attempt, Turn: turn}
					parts = append(parts, store.Part{Key: key, Data: []byte(strings.Join([]string{string(kind), strings.Repeat("a", attempt), strings.Repeat("t", turn)}, " "))})
				}
			}
		}
		update(t, s, task, func(*store.Task) {}, parts...)
		for _, p := range parts {
			wantPart(t, s, "a", p.Key, string(p.Data))
		}
		_, err := s.Part(t.Context(), "b", store.PartKey{Kind: store.PartReply, Attempt: 1, Turn: 1})
		fails(t, err, store.ErrNotFound)
	}},
	{"what a caller does to its values does not reach the store", func(t *testing.T, s store.Store) {
		n := newTask("a", func(t *store.Task) { t.Flags = []api.Flag{"mine"} })
		created := create(t, s, n)[0]
		want := created
		want.Flags = []api.Flag{"mine"}
		n.Text[0], created.Flags[0] = 'X', "changed"
		read, err := s.Task(t.Context(), "a")
		ok(t, err)
		same(t, read, want)
		read.Flags[0] = "changed"
		wantTask(t, s, want)
		text, err := s.Part(t.Context(), "a", firstText)
		ok(t, err)
		text[0] = 'X'
		wantPart(t, s, "a", firstText, "text of a")
	}},
	{"open tasks come in commit order without the settled ones", func(t *testing.T, s store.Store) {
		names := ids("t", 700)
		var tasks []store.NewTask
		for _, id := range reversed(names) { // so that commit order is not that of the ids
			tasks = append(tasks, newTask(id))
		}
		created := create(t, s, tasks...)
		var want []string
		for i, task := range created {
			if i%100 == 7 {
				update(t, s, task, ended(api.StateCanceled, start))
			} else {
				want = append(want, task.ID)
			}
		}
		same(t, openIDs(t, s), want)
	}},
	{"a task that is tried again is open again", func(t *testing.T, s store.Store) {
		first := createOne(t, s, "first")
		createOne(t, s, "second")
		first = update(t, s, first, ended(api.StateFailed, start))
		same(t, openIDs(t, s), []string{"second"})
		first = update(t, s, first, func(t *store.Task) { t.State, t.Attempt, t.EndedAt = api.StateQueued, 2, time.Time{} })
		same(t, openIDs(t, s), []string{"first", "second"})
		prune(t, s, store.Retention{Before: after(time.Hour)}, 0)
		wantTask(t, s, first)
	}},
	{"a task that is made settled is not open", func(t *testing.T, s store.Store) {
		for _, state := range []api.State{api.StateDone, api.StatePartial, api.StateFailed, api.StateRefused, api.StateExpired, api.StateCanceled} {
			createOne(t, s, string(state), ended(state, start))
		}
		same(t, openIDs(t, s), []string(nil))
		var want []string
		for _, state := range []api.State{api.StateQueued, api.StateOffered, api.StateAccepted, api.StateHeld, api.StateRunning, api.StateQuestion, api.StateUnknown} {
			createOne(t, s, string(state), in(state))
			want = append(want, string(state))
		}
		same(t, openIDs(t, s), want)
	}},
	{"going through the open tasks ends with the error of the function", func(t *testing.T, s store.Store) {
		create(t, s, newTask("a"), newTask("b"), newTask("c"))
		enough, seen := errors.New("enough"), 0
		err := s.OpenTasks(t.Context(), func(store.Task) error {
			if seen++; seen == 2 {
				return enough
			}
			return nil
		})
		fails(t, err, enough)
		if seen != 2 {
			t.Fatalf("went on to %d tasks", seen)
		}
	}},
	{"open tasks may be changed while going through them", func(t *testing.T, s store.Store) {
		names := ids("t", 600)
		var tasks []store.NewTask
		for _, id := range names {
			tasks = append(tasks, newTask(id))
		}
		create(t, s, tasks...)
		var seen []string
		ok(t, s.OpenTasks(t.Context(), func(task store.Task) error {
			seen = append(seen, task.ID)
			if len(seen)%50 != 0 {
				return nil
			}
			update(t, s, task, ended(api.StateExpired, start))
			return nil
		}))
		same(t, seen, names)
		want := slices.DeleteFunc(slices.Clone(names), func(id string) bool { return (slices.Index(names, id)+1)%50 == 0 })
		same(t, openIDs(t, s), want)
	}},
}
