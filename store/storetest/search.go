package storetest

import (
	"fmt"
	"strings"
	"testing"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// found is what a search finds, page by page, and how many pages that took.
func found(t *testing.T, s store.Store, q store.TaskQuery) (all []string, pages int) {
	t.Helper()
	for {
		page, err := s.Tasks(t.Context(), q)
		ok(t, err)
		pages++
		for _, task := range page.Tasks {
			all = append(all, task.ID)
		}
		if page.Stopped && page.Next == 0 || page.Next != 0 && q.Before != 0 && page.Next >= q.Before {
			t.Fatalf("stopped %v, next %d after %d", page.Stopped, page.Next, q.Before)
		}
		if page.Next == 0 {
			return all, pages
		}
		q.Before = page.Next
	}
}

var searchContracts = []contract{
	{"a search finds a text wherever a task has it, in any case", func(t *testing.T, s store.Store) {
		var tasks []store.NewTask
		for id, change := range map[string]func(*store.NewTask){
			"by-needle-id": func(*store.NewTask) {},
			"target":       func(n *store.NewTask) { n.Task.Target.Name = "needle-node" },
			"controller":   func(n *store.NewTask) { n.Task.Controller.Name = "needle-ctl" },
			"summary": func(n *store.NewTask) {
				n.Task.Outcome = &api.Outcome{State: api.StateDone, Summary: "a NEEDLE, found"}
			},
			"text":  func(n *store.NewTask) { n.Text = []byte("look for the NeeDLE\nÄrger 打针") },
			"other": func(n *store.NewTask) { n.Text = []byte("need le") },
		} {
			n := newTask(id)
			change(&n)
			tasks = append(tasks, n)
		}
		create(t, s, tasks...)
		for _, q := range []string{"needle", "NEEDLE", "eedl"} {
			all, _ := found(t, s, store.TaskQuery{Text: q})
			if len(all) != 5 {
				t.Errorf("%s: %v", q, all)
			}
		}
		for _, q := range []string{"ärger", "ÄRGER", "打针"} {
			if all, _ := found(t, s, store.TaskQuery{Text: q}); len(all) != 1 || all[0] != "text" {
				t.Errorf("%s: %v", q, all)
			}
		}
		if all, _ := found(t, s, store.TaskQuery{Text: "nowhere"}); len(all) != 0 {
			t.Errorf("nowhere: %v", all)
		}
	}},
	{"a search keeps to what the query says beside it", func(t *testing.T, s store.Store) {
		createOne(t, s, "mine", by("me"))
		createOne(t, s, "mine too", by("somebody"))
		all, _ := found(t, s, store.TaskQuery{Text: "mine", Controller: "me"})
		same(t, all, []string{"mine"})
	}},
	{"pages of a search follow one another without gap or repeat", func(t *testing.T, s store.Store) {
		var want []string
		for i := range 60 {
			id := fmt.Sprint("hay-", i)
			if i%4 == 0 {
				id = fmt.Sprint("pin-", i)
				want = append(want, id)
			}
			createOne(t, s, id)
		}
		for _, limit := range []int{1, 2, 14, 15, 16} {
			all, pages := found(t, s, store.TaskQuery{Text: "PIN-", Limit: limit})
			same(t, all, reversed(want))
			if most := (15 + limit - 1) / limit; pages != most {
				t.Errorf("%d pages of %d", pages, limit)
			}
		}
	}},
	{"a search stops at its bound of tasks and goes on from there", func(t *testing.T, s store.Store) {
		oldest := newTask("needle")
		create(t, s, oldest)
		var many []store.NewTask
		for i := range store.MaxSearch + 5 {
			many = append(many, newTask(fmt.Sprint("hay-", i)))
		}
		create(t, s, many...)
		page, err := s.Tasks(t.Context(), store.TaskQuery{Text: "needle"})
		ok(t, err)
		if !page.Stopped || page.Next == 0 || len(page.Tasks) != 0 {
			t.Fatalf("stopped %v, next %d, %d tasks", page.Stopped, page.Next, len(page.Tasks))
		}
		all, pages := found(t, s, store.TaskQuery{Text: "needle"})
		same(t, all, []string{"needle"})
		same(t, pages, 2)
	}},
	{"a search stops at its bound of bytes and goes on from there", func(t *testing.T, s store.Store) {
		large := strings.Repeat("hay ", 1<<18)
		createOne(t, s, "needle")
		for i := range store.MaxSearchBytes / len(large) {
			n := newTask(fmt.Sprint("large-", i))
			n.Text = []byte(large)
			create(t, s, n)
		}
		all, pages := found(t, s, store.TaskQuery{Text: "needle"})
		same(t, all, []string{"needle"})
		same(t, pages, 2)
	}},
}
