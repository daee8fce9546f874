package storetest

import (
	"fmt"
	"slices"
	"testing"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

var listContracts = []contract{
	{"tasks are listed newest first", func(t *testing.T, s store.Store) {
		create(t, s, newTask("c"), newTask("a"))
		createOne(t, s, "b")
		same(t, list(t, s, store.TaskQuery{}), []string{"b", "a", "c"})
	}},
	{"an empty store lists nothing", func(t *testing.T, s store.Store) {
		for _, q := range []store.TaskQuery{{}, {Open: true}, {Controller: "id-ctl"}, {Target: "id-node", Before: 7}} {
			same(t, list(t, s, q), []string(nil))
		}
	}},
	{"pages follow one another without gap or repeat", func(t *testing.T, s store.Store) {
		names := ids("t", 30)
		for _, id := range names {
			createOne(t, s, id)
		}
		for _, limit := range []int{1, 7, 10, 29, 30, 31} {
			same(t, list(t, s, store.TaskQuery{Limit: limit}), reversed(names))
			same(t, list(t, s, store.TaskQuery{Limit: limit, Controller: "id-ctl", Open: true}), reversed(names))
		}
	}},
	{"the last page says that it is the last, also when it is full", func(t *testing.T, s store.Store) {
		for _, id := range ids("t", 6) {
			createOne(t, s, id, by("me"))
			createOne(t, s, "other "+id, by("somebody"))
		}
		page, err := s.Tasks(t.Context(), store.TaskQuery{Controller: "me", Limit: 3})
		ok(t, err)
		if len(page.Tasks) != 3 || page.Next == 0 {
			t.Fatalf("first page: %d tasks, next %d", len(page.Tasks), page.Next)
		}
		page, err = s.Tasks(t.Context(), store.TaskQuery{Controller: "me", Limit: 3, Before: page.Next})
		ok(t, err)
		if len(page.Tasks) != 3 || page.Next != 0 {
			t.Fatalf("last page: %d tasks, next %d", len(page.Tasks), page.Next)
		}
	}},
	{"a page is never larger than the largest", func(t *testing.T, s store.Store) {
		var tasks []store.NewTask
		for _, id := range ids("t", api.MaxPage+5) {
			tasks = append(tasks, newTask(id))
		}
		create(t, s, tasks...)
		for _, limit := range []int{api.MaxPage, api.MaxPage + 1} {
			page, err := s.Tasks(t.Context(), store.TaskQuery{Limit: limit})
			ok(t, err)
			if len(page.Tasks) != api.MaxPage || page.Next == 0 {
				t.Fatalf("limit %d: %d tasks, next %d", limit, len(page.Tasks), page.Next)
			}
		}
	}},
	{"tasks that are made meanwhile do not disturb the pages", func(t *testing.T, s store.Store) {
		names := ids("t", 9)
		for _, id := range names {
			createOne(t, s, id)
		}
		var got []string
		q := store.TaskQuery{Limit: 2}
		for {
			page, err := s.Tasks(t.Context(), q)
			ok(t, err)
			for _, task := range page.Tasks {
				got = append(got, task.ID)
			}
			if q.Before = page.Next; q.Before == 0 {
				break
			}
			createOne(t, s, fmt.Sprint("new ", q.Before))
		}
		same(t, got, reversed(names))
	}},
	{"identities that begin alike are told apart", func(t *testing.T, s store.Store) {
		createOne(t, s, "short", by("id-a"), to("id-x"))
		createOne(t, s, "long", by("id-ab"), to("id-xy"))
		same(t, list(t, s, store.TaskQuery{Controller: "id-a"}), []string{"short"})
		same(t, list(t, s, store.TaskQuery{Controller: "id-ab"}), []string{"long"})
		same(t, list(t, s, store.TaskQuery{Target: "id-x"}), []string{"short"})
		same(t, list(t, s, store.TaskQuery{Target: "id"}), []string(nil))
	}},
	{"filters select by controller, target, state and openness alike", func(t *testing.T, s store.Store) {
		states := []api.State{api.StateQueued, api.StateRunning, api.StateQuestion, api.StateDone, api.StateFailed}
		controllers, targets := []string{"c1", "c2", "c3"}, []string{"n1", "n2"}
		var all []store.Task
		for i, id := range ids("t", 90) {
			all = append(all, createOne(t, s, id, by(controllers[i%3]), to(targets[i/3%2])))
		}
		for i := range all { // so that states came by updates, as they do
			all[i] = update(t, s, all[i], func(t *store.Task) {
				t.State = states[i*7%5]
				if t.State.Settled() {
					t.EndedAt = start
				}
			})
		}
		for _, controller := range []string{"", "c1", "c3", "nobody"} {
			for _, target := range []string{"", "n2", "nobody"} {
				for _, set := range [][]api.State{nil, {api.StateRunning}, {api.StateDone}, {api.StateQueued, api.StateFailed}, {"limbo"}} {
					for _, onlyOpen := range []bool{false, true} {
						q := store.TaskQuery{Controller: controller, Target: target, States: set, Open: onlyOpen, Limit: 4}
						var want []string
						for _, task := range reversed(all) {
							if (controller == "" || task.Controller.ID == controller) && (target == "" || task.Target.ID == target) &&
								(set == nil || slices.Contains(set, task.State)) && (!onlyOpen || !task.State.Settled()) {
								want = append(want, task.ID)
							}
						}
						if got := list(t, s, q); !slices.Equal(got, want) {
							t.Errorf("%+v: got %v, want %v", q, got, want)
						}
					}
				}
			}
		}
	}},
	{"listed tasks are whole", func(t *testing.T, s store.Store) {
		want := createOne(t, s, "a", func(t *store.Task) { t.Flags, t.Via = []api.Flag{"f"}, []string{"x", "y"} })
		page, err := s.Tasks(t.Context(), store.TaskQuery{Target: "id-node"})
		ok(t, err)
		same(t, page, store.TaskPage{Tasks: []store.Task{want}})
	}},
}
