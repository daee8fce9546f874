//go:build browser

package dashboard

import (
	"testing"

	"opencode-mesh/protocol/api"
	"opencode-mesh/test/fleet"
	"opencode-mesh/test/stubllm"
)

// showcase is a mesh with something on every page, and the addresses of its pages.
type showcase struct {
	*fleet.Fleet
	pages []showpage
}

// showpage is a page with what it shows once it is whole.
type showpage struct {
	name, path string
	whole      string // an expression that is true then
}

const passed = `REPLY:[opencode-mesh-result v1]\ntask: {task}\nstatus: done\nsummary: 214 tests pass, 2 skipped\nartifacts: none\n[/opencode-mesh-result]`

// newShowcase makes the mesh: nodes with and without sessions, one that is gone, tasks
// in several states, a question, digests, channels.
func newShowcase(t *testing.T) *showcase {
	t.Helper()
	llm := stubllm.Start(t)
	f := fleet.New(t)
	opencodeNode(t, f, llm, "desktop")
	laptop := f.Node("laptop", f.Demo())
	attic := f.Node("attic", f.Demo())
	ctl := f.Ctl("me")
	ctl.Healthy("desktop")
	ctl.Healthy("laptop")
	ctl.Healthy("attic")

	t.Cleanup(llm.Direct(handsOver, "USAGE:12000,10 "+acknowledged))
	dispatch := func(state api.State, args ...string) api.Task {
		t.Helper()
		tasks, out := ctl.Dispatch(args...)
		if len(tasks) != 1 || tasks[0].State != state {
			t.Fatalf("dispatch %q: %+v", args, out)
		}
		return tasks[0]
	}
	compact := func(facts string) {
		t.Helper()
		stop := llm.Direct(digests, "FACTS:"+facts)
		defer stop()
		if out := ctl.Run("session", "compact", "desktop"); out.Code != 0 {
			t.Fatalf("%+v", out)
		}
	}
	for _, usage := range []string{"31000", "78000", "126000", "168000"} {
		dispatch(api.StateDone, "desktop", "--", "Run the tests of the shop. USAGE:"+usage+",0 "+passed)
	}
	compact("build with build.sh, the program is out/shop | releases come from release/7 | never touch db/legacy")
	for _, usage := range []string{"44000", "97000", "131000"} {
		dispatch(api.StateDone, "desktop", "--", "Port the importer. USAGE:"+usage+",0 "+passed)
	}
	compact("build with make release, the program is out/shop | releases come from release/7 | the importer is ported, its tests are in import_test.go")
	task := dispatch(api.StateDone, "desktop", "--", "Write the report. USAGE:124000,0 "+passed)
	dispatch(api.StateDone, "laptop", "--", "Count the files here.")
	dispatch(api.StateFailed, "laptop", "--", "FAIL:the disk of the test machine is full")
	dispatch(api.StateQuestion, "laptop", "--", "Release the shop.\nASK:Which branch shall I release? | main | release/7")

	opencomms(t, laptop, "create review")
	opencomms(t, laptop, "join review --as opencode --role Builder --prompt 'Build the shop.'")
	opencomms(t, laptop, "join review --as claude-code --role Reviewer --prompt 'Review it.'")
	opencomms(t, laptop, "send review --as opencode --to Reviewer --type review_request -- 'Please look at prices.go.'")
	opencomms(t, laptop, "pull review --as claude-code")
	opencomms(t, laptop, "send review --as claude-code --to Builder --type review_response -- 'Two nits, fine otherwise.'")
	attic.Kill()
	ctl.AwaitNode("attic", func(n api.Node) bool { return n.State == api.NodeOffline })
	var channels api.ChannelList
	f.Ctl("boss", "--operator").Get("/v1/nodes/laptop/channels", &channels)
	if len(channels.Channels) != 1 {
		t.Fatalf("channels %+v", channels)
	}
	return &showcase{Fleet: f, pages: []showpage{
		{"fleet", "/", `document.querySelectorAll("#nodes .card").length === 3`},
		{"dispatch", "/dispatch?node=desktop", `document.querySelectorAll("#nodes .check").length === 3 && document.querySelector("#chips button")`},
		{"tasks", "/tasks", `document.querySelectorAll("#tasks .card").length > 3`},
		{"task", "/tasks/" + task.Task, `document.querySelector("#life .step") && document.body.innerText.includes("214 tests pass")`},
		{"questions", "/questions", `document.querySelector("#questions .option")`},
		{"sessions", "/sessions", `document.querySelector("#sessions .card .bar")`},
		{"session", "/sessions/me/desktop?workspace=main", `document.querySelector("#plot .plot") && document.querySelector("#digest li")`},
		{"channels", "/channels?node=laptop&channel=" + channels.Channels[0].ID, `document.querySelectorAll("#messages > li").length === 2`},
		{"peers", "/peers", `document.querySelector("#count").innerText`},
		{"context", "/context", `document.querySelectorAll("#providers > li").length > 1 && document.querySelector("#noqueries:not([hidden])")`},
		{"audit", "/audit", `document.querySelector("#entries tr")`},
		{"nothing", "/nothing", `document.querySelector("main [role=alert]")`},
	}}
}

// started is true once a page's module runs.
const started = `document.readyState === "complete" && document.querySelector("#theme:not([hidden])")`

// visit opens a page and waits until it is whole.
func (p *page) visit(s showpage) {
	p.t.Helper()
	p.open(s.path)
	p.until(started + ` && ` + s.whole)
}
