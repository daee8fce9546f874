// Peers: which agents are visible where, and what a node sent, carried and brought for
// them. Without a choice of a node, what each shows to the others; with one, whom the
// agents of its machine can write to, and its messages. What agents say of themselves
// and to each other is framed and shown as text.
import { announce, block, byId, el, replace, setText } from "./dom.js";
import { exactTime, line, number, t, wordOf } from "./text.js";
import { get } from "./api.js";
import { maxAgents, maxLine } from "./limits.js";
import { on } from "./live.js";
import { repeat, sync } from "./repeat.js";
import { start } from "./shell.js";
import { passage } from "./words.js";

const nodes = new Map(block("first").nodes.nodes.map((n) => [n.name, n]));
const select = byId("node");
let node = ""; // whose board is shown; "": what all show

const address = (of) => (of ? "/peers?" + new URLSearchParams({ node: of }) : "/peers");
const option = (n) => t("channels.option", { name: n.name, state: t("node." + n.state) });
const nodeLink = (name) => (nodes.has(name) ? el("a", { href: address(name), on: { click: (e) => {
  if (e.ctrlKey || e.metaKey || e.shiftKey || e.button) return; // elsewhere
  e.preventDefault();
  choose(name, true);
} } }, name) : line(name, maxLine));

function options() {
  const names = [...nodes.keys()].sort();
  replace(select, el("option", { value: "" }, t("peers.everywhere")), names.map((name) => el("option", { value: name }, option(nodes.get(name)))));
  select.value = node;
}

// --- what all show ---

const title = (a) => (a.title ? el("span", { class: "hint" }, " ", el("bdi", null, line(a.title, maxLine))) : null);

function tile(n) {
  const shown = n.agents.slice(0, maxAgents);
  return el("li", { class: "card" },
    el("div", { class: "head" }, el("h3", null, nodeLink(n.node))),
    el("p", { class: "plain hint" }, t("peers.shows", { count: number(n.agents.length) })),
    shown.length ? el("ul", { class: "plainlist untrusted" }, shown.map((a) => el("li", null, el("bdi", null, line(a.name || a.id, maxLine)), title(a), a.status ? el("span", { class: "hint" }, " · ", wordOf("peer.status.", a.status)) : null))) : null,
    n.agents.length > shown.length ? el("p", { class: "plain hint" }, t("peers.further", { count: number(n.agents.length - shown.length) })) : null);
}

function showFleet(fleet) {
  const all = fleet.nodes;
  sync(byId("fleet"), all, (n) => n.node_id, tile);
  byId("fleet").hidden = false;
  const agents = all.reduce((sum, n) => sum + n.agents.length, 0);
  setText(byId("count"), agents ? t("peers.count", { count: number(agents), nodes: number(all.filter((n) => n.agents.length).length) }) : t("peers.noneshown"));
}

// --- one node ---

function agentRow(a) {
  const state = a.offline ? el("span", { class: "state bad" }, line(a.offline, maxLine)) : el("span", { class: "state ok" }, a.status ? wordOf("peer.status.", a.status) : t("peer.there"));
  return el("tr", null,
    el("th", { scope: "row" }, el("bdi", null, line(a.name || a.id, maxLine)), title(a), el("br"), el("code", { class: "hint" }, line(a.id, maxLine))),
    el("td", null, a.node ? nodeLink(a.node) : t("peer.here")),
    el("td", null, a.node ? "" : t(a.visible ? "peer.visible" : "peer.unseen")),
    el("td", null, state),
    el("td", null, a.policy ? wordOf("peer.policy.", a.policy) : ""),
    el("td", { class: "mono" }, el("bdi", null, line(a.directory, maxLine))),
    el("td", null, a.started_at ? exactTime(a.started_at) : ""));
}

const good = new Set(["delivered", "duplicate"]);
const goesOn = new Set(["", "delivered", "queued", "held"]); // receipts after which a final acknowledgement is due

function fate(m) {
  if (m.final) return el("span", { class: `state ${good.has(m.final) ? "ok done" : "bad"}` }, t("message.final", { status: wordOf("peer.receipt.", m.final) }));
  if (m.error || !goesOn.has(m.receipt || "")) return null;
  return el("span", { class: "state warn" }, t("message.final.awaited"));
}

function message(m) {
  const name = (named, id) => line(named || id, maxLine);
  return el("li", { class: "untrusted" },
    el("p", { class: "line plain" },
      el("span", null, wordOf("message.way.", m.way)),
      el("strong", { dir: "auto" }, t("message.between", { from: name(m.from_name, m.from), to: name(m.to_name, m.to) })),
      m.node ? el("span", null, t(m.way === "brought" ? "message.from" : "message.to", { node: line(m.node, maxLine) })) : null,
      el("span", null, exactTime(m.created_at))),
    el("p", { class: "line plain" },
      el("span", { class: goesOn.has(m.receipt || "") ? null : "bad" }, m.receipt ? t("message.receipt", { status: wordOf("peer.receipt.", m.receipt) }) : t("message.noreceipt")),
      fate(m),
      m.final && m.updated_at ? el("span", null, exactTime(m.updated_at)) : null),
    m.error ? el("p", { class: "plain bad", dir: "auto" }, line(m.error, maxLine)) : null,
    el("p", { class: "line plain mono" }, el("span", { class: "cut" }, line(m.id, maxLine))),
    passage(m.text),
    m.truncated ? el("p", { class: "hint plain" }, t("channels.truncated")) : null);
}

function showBoard(board) {
  byId("board").hidden = !board;
  if (!board) return;
  setText(byId("board-title"), t("peers.of", { node }));
  const here = board.agents.filter((a) => !a.node).length;
  setText(byId("count"), t("peers.board", { node, here: number(here), seen: number(board.agents.filter((a) => a.visible).length), others: number(board.agents.length - here) }));
  sync(byId("agents"), board.agents, (a) => `${a.node || ""}/${a.id}`, agentRow);
  byId("table").hidden = !board.agents.length;
  byId("noagents").hidden = board.agents.length > 0;
  sync(byId("messages"), board.messages, (m) => `${m.way}/${m.from}/${m.to}/${m.id}`, message);
  byId("nomessages").hidden = board.messages.length > 0;
  byId("more").hidden = !board.more;
}

function say(e) {
  const box = byId("problem");
  box.hidden = !e;
  if (e) setText(box, e.code === "node_offline" ? t("peers.offline", { node }) : e.shown || String(e));
}

// clear takes away what is shown of another choice, or of a node that does not answer.
function clear() {
  setText(byId("count"), "");
  byId("fleet").hidden = true;
  showBoard(null);
}

const load = repeat(async (current) => {
  try {
    const answer = await get(node ? `/v1/nodes/${encodeURIComponent(node)}/peers` : "/v1/peers");
    if (!current()) return;
    if (node) showBoard(answer);
    else showFleet(answer);
    say(null);
  } catch (e) {
    if (!current()) return;
    if (e.code !== "network") clear();
    say(e);
  }
});

function choose(of, byReader) {
  if (of !== node) {
    clear();
    replace(byId("agents"));
    replace(byId("messages"));
  }
  node = of;
  select.value = node;
  say(null);
  if (byReader) history.pushState(null, "", address(node));
  load();
}

const fromAddress = () => choose(new URLSearchParams(location.search).get("node") || "", false);

select.addEventListener("change", () => choose(select.value, true));
byId("again").addEventListener("click", load);
byId("filters").addEventListener("submit", (e) => e.preventDefault());
addEventListener("popstate", fromAddress);
on("node", (n) => {
  const was = nodes.get(n.name);
  nodes.set(n.name, n);
  if (was?.state === n.state) return;
  if (!was) options();
  else setText(select.querySelector(`option[value="${CSS.escape(n.name)}"]`), option(n));
  if (node && node !== n.name) return;
  announce(`${n.name}: ${t("node." + n.state)}`);
  load();
});
on("resync", load);

options();
fromAddress();
start();
