//go:build browser

package dashboard

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	cdppage "github.com/chromedp/cdproto/page"

	"opencode-mesh/protocol/api"
	"opencode-mesh/test/fleet"
)

// answers has GETs of some paths answered by the test, in what the browser loads from
// then on: even the hub would not let such texts through.
func (p *page) answers(all map[string]any) {
	p.t.Helper()
	b, err := json.Marshal(all)
	if err != nil {
		p.t.Fatal(err)
	}
	source := `(() => {
  window.answers = ` + string(b) + `;
  const real = window.fetch;
  window.fetch = (url, options) => (window.answers[url] === undefined ? real(url, options) : Promise.resolve(new Response(JSON.stringify(window.answers[url]))));
})()`
	call(p, cdppage.AddScriptToEvaluateOnNewDocument, cdppage.AddScriptToEvaluateOnNewDocumentParams{Source: source})
}

// hostileBoard is what a node shows whose agents, and itself, are hostile.
func hostileBoard() api.PeerBoard {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	x := hostileMarkup
	board := api.PeerBoard{More: true, Agents: []api.PeerSeen{
		{PeerAgent: api.PeerAgent{ID: "e1", Name: "builder " + x, Title: "title " + x, Directory: "/home/" + x, Status: "idle", Policy: "auto", StartedAt: at.UnixMilli()}, Visible: true},
		{PeerAgent: api.PeerAgent{ID: "e2 " + x, Status: "odd " + x, Policy: "odd " + x}},
		{PeerAgent: api.PeerAgent{ID: "e3", Name: "beta/reviewer", Directory: "beta:/srv"}, Node: "beta", Offline: "the node is away " + x},
	}}
	message := func(way, receipt, final, problem string) {
		n := len(board.Messages)
		board.Messages = append(board.Messages, api.PeerMessage{
			ID: fmt.Sprintf("m%d %s", n, x), Way: way, From: "e1", FromName: "builder " + x, To: "e3 " + x, Node: "beta", Text: fmt.Sprintf("text %d </pre></li>%s", n, x),
			Receipt: receipt, Final: final, Error: problem, CreatedAt: at, UpdatedAt: at.Add(time.Minute),
		})
	}
	message(api.PeerSent, "queued", "", "")
	message(api.PeerCarried, "queued", "delivered", "")
	message(api.PeerBrought, "held", "expired", "nobody looked "+x)
	message(api.PeerSent, "", "", "the socket is dead "+x)
	message(api.PeerSent, "full", "", "")
	message("odd "+x, "odd "+x, "odd "+x, "")
	board.Messages[0].Text, board.Messages[0].Truncated = "long "+x+strings.Repeat("é", 3000)+"the end", true
	return board
}

func TestPeersShowWhoSeesWhomAndWhatBecameOfMessages(t *testing.T) {
	f := fleet.New(t)
	f.Node("alpha", f.Demo())
	f.Node("beta", f.Demo())
	ctl := f.Ctl("desk")
	ctl.Online("alpha")
	ctl.Online("beta")
	p := newPage(t, f)
	p.login("/peers")
	p.shows("No node shows agents to the others")
	many := api.PeerNode{Node: "beta", NodeID: "id2"}
	for i := range 20 {
		many.Agents = append(many.Agents, api.PeerAgent{ID: fmt.Sprint("b", i), Name: fmt.Sprint("agent-", i)})
	}
	board := hostileBoard()
	p.answers(map[string]any{
		"/v1/peers":             api.PeerFleet{Nodes: []api.PeerNode{{Node: "alpha", NodeID: "id1", Agents: []api.PeerAgent{board.Agents[0].PeerAgent}}, many}},
		"/v1/nodes/alpha/peers": board,
	})
	p.open("/peers")
	p.shows("21 agents of 2 nodes are visible to the others")
	p.shows("builder " + hostileMarkup)
	p.shows("agent-11")
	p.shows("and 8 more")
	p.noMarkup()
	source := axe(t)
	p.accessible(source, "what all show")

	// By keyboard to a node.
	p.tab(`#fleet a`)
	p.press("\r")
	p.until(`location.search === "?node=alpha" && document.querySelector("#node").value === "alpha" && document.querySelectorAll("#agents > tr").length === 3`)
	p.shows("2 agents of its machine, 1 of them visible to other nodes, and 1 of other nodes")
	p.shows("It is data: follow nothing that it asks for")
	for i, want := range [][]string{
		{"builder " + hostileMarkup, "title " + hostileMarkup, "this machine", "see it", "idle", "of its own directory", "/home/" + hostileMarkup},
		{"e2 " + hostileMarkup, "this machine", "do not see it", "odd <img"},
		{"beta/reviewer", "beta", "the node is away " + hostileMarkup},
	} {
		for _, text := range want {
			p.until(fmt.Sprintf(`document.querySelectorAll("#agents > tr")[%d].innerText.includes(%s)`, i, quote(text)))
		}
	}
	for i, want := range [][]string{
		{"sent", "builder " + hostileMarkup + " → e3 " + hostileMarkup, "to beta", "receipt: queued", "final acknowledgement awaited"},
		{"carried to another node", "final: delivered"},
		{"brought from another node", "from beta", "receipt: held for a person", "final: expired", "nobody looked " + hostileMarkup},
		{"no receipt", "the socket is dead " + hostileMarkup, "text 3 </pre></li>" + hostileMarkup},
		{"receipt: no room there"},
		{"odd <img"},
	} {
		for _, text := range want {
			p.until(fmt.Sprintf(`document.querySelectorAll("#messages > li.untrusted")[%d].innerText.includes(%s)`, i, quote(text)))
		}
	}
	if n := js[int](p, `[...document.querySelectorAll("#messages > li")].filter((v) => v.innerText.includes("awaited")).length`); n != 1 {
		t.Errorf("%d messages await their final acknowledgement, want the one that has neither that nor an error", n)
	}
	p.noMarkup()

	// A text is bounded; what was opened stays open when the list is asked for again, and
	// what changed is shown.
	whole := board.Messages[0].Text
	if got := js[string](p, `document.querySelector("#messages .words").textContent`); len([]rune(got)) != 2001 || !strings.HasPrefix(whole, strings.TrimSuffix(got, "…")) {
		t.Errorf("the message is shown as %q", got)
	}
	p.follow("#messages li:first-child button")
	p.until(`document.querySelector("#messages .words").textContent === ` + quote(whole))
	js[bool](p, `(window.answers["/v1/nodes/alpha/peers"].messages[4].final = "dropped", true)`)
	p.follow("#again")
	p.until(`document.querySelectorAll("#messages > li")[4].innerText.includes("final: dropped")`)
	p.until(`document.querySelector("#messages .words").textContent === ` + quote(whole) + ` && document.querySelectorAll("#messages > li").length === 6`)

	p.accessible(source, "a node's board")
	p.follow(`a[hreflang="zh"]`)
	p.until(`document.documentElement.lang === "zh" && document.querySelectorAll("#messages > li").length === 6`)
	p.shows("等待最终确认")
	p.accessible(source, "a node's board in Chinese")
	p.choose("#node", "")
	p.until(`location.pathname + location.search === "/peers" && !document.querySelector("#fleet").hidden && document.querySelector("#board").hidden`)
}

func TestABoardIsReadFromItsNode(t *testing.T) {
	f := fleet.New(t)
	newFakeNode(t, f, "alpha", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var answer any = struct{}{}
		if r.Method+" "+r.URL.Path == "GET /v1/peers/board" {
			answer = hostileBoard()
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	beta := f.Node("beta", f.Demo())
	ctl := f.Ctl("desk")
	ctl.Online("alpha")
	ctl.Online("beta")
	p := newPage(t, f)
	p.expect("/v1/nodes/beta/peers") // while the node is away
	p.login("/peers?node=alpha")
	p.until(`document.querySelectorAll("#agents > tr").length === 3 && document.querySelectorAll("#messages > li").length === 6`)
	p.shows("builder " + hostileMarkup)
	p.shows("There is more than is listed here.")
	p.noMarkup()
	p.choose("#node", "beta")
	p.shows("No agent of this machine has the peers plugin")
	p.shows("No message was sent, carried or brought.")
	beta.Kill()
	p.shows("beta is offline")
	p.until(`document.querySelector("#board").hidden`)
	beta.Start()
	p.until(`!document.querySelector("#board").hidden && document.querySelector("#problem").hidden`)
}
