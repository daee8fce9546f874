//go:build browser

package dashboard

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"opencode-mesh/auth"
	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
	"opencode-mesh/store/bolt"
	"opencode-mesh/test/fleet"
)

// card is an expression for the card of a node.
func card(node string) string {
	return fmt.Sprintf(`document.querySelector('#nodes [data-item=%q]')`, node)
}

func TestTheFleetChangesWithoutReload(t *testing.T) {
	f := fleet.New(t)
	alpha := f.Node("alpha", f.Demo())
	ctl := f.Ctl("desk")
	ctl.Healthy("alpha")
	p := newPage(t, f)
	p.login("/")
	p.until(card("alpha") + `?.innerText.includes("healthy")`)
	p.shows("1 of 1 nodes, 1 online")
	js[bool](p, `window.same = true`) // gone after a reload

	f.Node("beta", f.Demo())
	p.until(card("beta") + `?.querySelector(".state").innerText === "online"`)
	p.shows("2 of 2 nodes, 2 online")
	alpha.Kill()
	p.until(card("alpha") + `.innerText.includes("offline")`)
	if tasks, out := ctl.Dispatch("--detach", "alpha", "--", "later"); len(tasks) != 1 {
		t.Fatalf("dispatch: %+v", out)
	}
	p.until(card("alpha") + `.innerText.includes("1 queued")`)
	if !js[bool](p, `window.same === true`) {
		t.Error("the page was loaded again")
	}
}

func TestALostHubIsShownWithTheAgeAndComesBack(t *testing.T) {
	f := fleet.New(t)
	p := newPage(t, f)
	p.expect("net::") // the browser's own words for it
	p.login("/")
	p.shows("No node has joined yet")
	js[bool](p, `window.same = true`)
	f.Hub.Kill()
	p.shows("Connection lost.")
	p.shows("What you see is")
	p.until(`/is ([3-9]|\d\d)/.test(document.getElementById("connection-age").textContent)`)
	f.Hub.Start()
	f.Node("alpha", f.Demo()) // after a start that has none of the former events
	p.until(card("alpha"))
	p.hides("Connection lost.")
	p.until(`document.getElementById("connection").hidden`)
	if !js[bool](p, `window.same === true`) {
		t.Error("the page was loaded again")
	}
}

// large makes a hub's directory with many nodes, some of them full, and starts a hub on
// it.
func large(t *testing.T, n int) *fleet.Fleet {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "hub")
	st, err := bolt.Open(bolt.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	now := time.Now().UTC()
	boss := store.Identity{ID: auth.NewID("id_"), Name: "boss", Role: api.RoleController, CreatedAt: now}
	_, hash := auth.NewSecret()
	if err := st.CreateIdentity(ctx, boss, store.Credential{ID: auth.NewID("cred_"), IdentityID: boss.ID, Name: boss.Name, Role: boss.Role, Hash: hash, CreatedAt: now}); err != nil {
		t.Fatal(err)
	}
	work := make(chan int)
	failed := make(chan error, 64)
	for range 64 { // writes that wait together are one commit
		go func() {
			var err error
			for i := range work {
				if err == nil {
					err = seed(ctx, st, boss, i, now)
				}
			}
			failed <- err
		}()
	}
	for i := range n {
		work <- i
	}
	close(work)
	for range 64 {
		if err := <-failed; err != nil {
			t.Fatal(err)
		}
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	return fleet.NewAt(t, dir)
}

func seed(ctx context.Context, st *bolt.Store, boss store.Identity, i int, now time.Time) error {
	id := store.Identity{ID: auth.NewID("id_"), Name: fmt.Sprintf("node-%04d", i), Role: api.RoleNode, CreatedAt: now}
	_, hash := auth.NewSecret()
	if err := st.CreateIdentity(ctx, id, store.Credential{ID: auth.NewID("cred_"), IdentityID: id.ID, Name: id.Name, Role: id.Role, Hash: hash, CreatedAt: now}); err != nil {
		return err
	}
	rec := store.NodeRecord{IdentityID: id.ID, Hello: api.Hello{OS: "linux", Arch: "amd64", Version: "v1"}, Agent: api.AgentStatus{Kind: "opencode", Health: api.HealthHealthy, Version: "1.18.33"}, OfflineAt: now}
	if i%100 == 7 {
		rec.LastError, rec.Superseded = `<img src=x onerror=alert(1)> & "it" went wrong`, 3
	}
	if _, err := st.PutNodeRecord(ctx, rec); err != nil {
		return err
	}
	tokens := api.Tokens{Total: int64(i % 100), Limit: 100}
	var fills []api.Fill
	for k := range 5 {
		fills = append(fills, api.Fill{At: now.Add(time.Duration(k) * time.Minute), Generation: 1, Tokens: api.Tokens{Total: int64((i + 7*k) % 100), Limit: 100}})
	}
	_, err := st.PutBinding(ctx, store.Binding{
		BindingKey: store.BindingKey{Controller: boss.ID, Target: id.ID, Workspace: "main"},
		Generation: 1, CreatedAt: now, LastUsed: now, Tokens: &tokens,
	}, fills...)
	return err
}

func TestTwoThousandNodesStayUsable(t *testing.T) {
	f := large(t, 2000)
	p := newPage(t, f)
	p.login("/")
	p.shows("2,000 of 2,000 nodes, 0 online")
	p.until(card("node-0000"))
	paint := js[float64](p, `performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? -1`)
	list := js[float64](p, `performance.getEntriesByType("navigation")[0].domContentLoadedEventEnd`)
	t.Logf("first paint after %.0f ms, the list after %.0f ms", paint, list)
	if n := js[int](p, `document.querySelectorAll("#nodes > *").length`); n < 6 || n > 100 {
		t.Errorf("%d cards exist", n)
	}

	// Scrolled to the end, the last ones are there, and the first no longer.
	js[bool](p, `(scrollTo(0, document.body.scrollHeight), true)`)
	p.until(card("node-1999"))
	p.until(`!` + card("node-0000"))
	if n := js[int](p, `Number(`+card("node-1999")+`.getAttribute("aria-posinset"))`); n != 2000 {
		t.Errorf("the last card says that it is number %d", n)
	}

	// The colours of ctx have a number and a word beside them.
	js[bool](p, `(scrollTo(0, 0), true)`)
	for node, want := range map[string]string{"node-0005": "ctx 5 % · roomy", "node-0060": "ctx 60 % · filling", "node-0080": "ctx 80 % · nearly full"} {
		p.enter("#search", node)
		p.shows("1 of 2,000 nodes")
		p.until(card(node) + `?.innerText.includes(` + quote(want) + `)`)
		p.until(card(node) + `.querySelector("svg.spark")`)
	}

	// Filters and order.
	p.enter("#search", "went wrong")
	p.shows("20 of 2,000 nodes")
	p.shows(`<img src=x onerror=alert(1)>`) // as text
	p.shows("seen twice: 3")
	p.enter("#search", "\b")
	js[bool](p, `(document.getElementById("sort").value = "ctx", document.getElementById("sort").dispatchEvent(new Event("input")), true)`)
	p.until(`document.querySelector("#nodes > *").innerText.includes("ctx 99 %")`)
	js[bool](p, `(document.getElementById("state").value = "trouble", document.getElementById("state").dispatchEvent(new Event("input")), true)`)
	p.shows("20 of 2,000 nodes")
	took := js[float64](p, `new Promise((done) => {
		const input = document.getElementById("state");
		const begin = performance.now();
		input.value = "";
		input.dispatchEvent(new Event("input"));
		requestAnimationFrame(() => setTimeout(() => done(performance.now() - begin)));
	})`)
	t.Logf("all 2,000 arranged anew in %.0f ms", took)
}

func TestTheFleetIsWorkedByKeyboardAlone(t *testing.T) {
	f := large(t, 60)
	p := newPage(t, f)
	p.login("/")
	p.shows("60 of 60 nodes")
	p.press("?")
	p.shows("Keyboard shortcuts")
	p.shows("change the colours")
	p.press("\x1b")
	p.hides("change the colours")
	// Who wants no shortcuts turns them off, for the next page too, and back on.
	p.click("#help")
	p.click("#keys-on")
	p.press("\x1b")
	p.open("/")
	p.until(started)
	p.press("/?")
	p.until(`document.activeElement.id !== "search" && !document.querySelector("dialog[open]") && localStorage.getItem("mesh-keys-off") === "yes"`)
	p.click("#help")
	p.click("#keys-on")
	p.press("\x1b")
	p.until(`!document.querySelector("dialog[open]") && localStorage.getItem("mesh-keys-off") === null`)
	js[bool](p, `(document.activeElement.blur(), true)`)
	p.press("/")
	p.until(`document.activeElement.id === "search"`)
	p.press("node-001")
	p.shows("10 of 60 nodes")
	p.press("\t\t\t") // past state and order, to the first card
	p.until(`document.activeElement.closest("[data-item]")?.dataset.item === "node-0010"`)
	outline := js[string](p, `getComputedStyle(document.activeElement).outlineStyle`)
	if outline != "solid" {
		t.Errorf("the focus is not to be seen: %s", outline)
	}
	p.press("\r")
	p.until(`document.querySelector("dialog[open]")`)
	p.shows("Sessions")
	p.shows("boss · main")
	p.press("\x1b")
	p.until(`!document.querySelector("dialog[open]") && document.activeElement.closest("[data-item]")?.dataset.item === "node-0010"`)
	p.press("\t")
	p.until(`document.activeElement.closest("[data-item]")?.dataset.item === "node-0011"`)
	js[bool](p, `(document.activeElement.blur(), true)`)
	p.press("t")
	p.until(`document.documentElement.dataset.theme === "light"`)
	p.press("t")
	p.until(`document.documentElement.dataset.theme === "dark"`)
	p.open("/")
	p.until(`document.documentElement.dataset.theme === "dark"`)
}

func TestTabWalksThroughAListThatIsLongerThanTheWindow(t *testing.T) {
	f := large(t, 200)
	p := newPage(t, f)
	p.login("/")
	p.shows("200 of 200 nodes")
	p.press("/")
	p.until(`document.activeElement.id === "search"`)
	p.press("\t\t\t")
	for i := range 60 {
		p.until(`document.activeElement.closest("[data-item]")?.dataset.item === ` + quote(fmt.Sprintf("node-%04d", i)))
		p.press("\t")
	}
}

func TestTheFleetSpeaksChineseAndFitsAPhone(t *testing.T) {
	f := large(t, 20)
	p := newPage(t, f)
	p.login("/")
	p.click(`a[hreflang="zh"]`)
	p.until(`document.documentElement.lang === "zh"`)
	p.shows("节点总览")
	p.until(card("node-0000") + `?.innerText.includes("离线")`)
	p.size(360, 740)
	p.until(`document.documentElement.scrollWidth <= 360`)
	p.until(card("node-0000") + `.getBoundingClientRect().right <= 360`)
	p.dark(true)
	p.until(`getComputedStyle(document.body).backgroundColor === "rgb(16, 19, 23)"`)
	p.dark(false)
	p.until(`getComputedStyle(document.body).backgroundColor === "rgb(245, 246, 248)"`)
}
