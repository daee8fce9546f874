// The fleet: a card for each node. Nodes change by events; how many tasks one has, and
// how full its sessions are, follows its tasks and is asked for again when they change.
import { announce, backTo, block, byId, el, facts, placeOf, replace, setText } from "./dom.js";
import { ago, bytes, exactTime, has, line, number, t } from "./text.js";
import { get } from "./api.js";
import { frameEvery, lastRetry, maxFills, maxLine, maxNamed, maxRows, refreshEvery } from "./limits.js";
import { hubNow, on } from "./live.js";
import { VirtualList, cardOf } from "./list.js";
import { ctxBar, ctxText, percents, sparkline } from "./plot.js";
import { start } from "./shell.js";

const nodes = new Map(); // name → node
const form = { search: byId("search"), state: byId("state"), sort: byId("sort") };

const list = new VirtualList({
  root: byId("nodes"), rem: 13, wide: 20, key: (n) => n.name, make: cardOf, show: card,
});

const listing = `/v1/nodes?fills=${maxFills}`;

function take(page) {
  nodes.clear();
  for (const n of page.nodes) nodes.set(n.name, n);
}

const trouble = (n) => Boolean(n.alarms?.length || n.superseded || n.last_error || (n.state === "online" && !["healthy", "starting", ""].includes(n.agent.health)));

function health(n) {
  const key = "health." + (n.agent.health || "unknown");
  return n.agent.kind ? (has(key) ? t(key) : line(n.agent.health, maxLine)) : t("node.noagent");
}

function healthClass(n) {
  if (!n.agent.kind || n.agent.health === "unknown") return "idle";
  return n.agent.health === "healthy" ? "ok" : n.agent.health === "starting" ? "warn" : "bad";
}

// card fills a card. Every text of a node is a text node, in one line that is cut.
function card(node, n) {
  const curve = sparkline((n.ctx_fills || []).slice(-maxFills));
  const notes = [];
  if (n.superseded) notes.push(el("span", { class: "warn", title: t("node.superseded.long", { count: number(n.superseded) }) }, t("node.superseded", { count: number(n.superseded) })));
  if (n.alarms?.length) notes.push(el("span", { class: "bad cut" }, `${t("node.alarms")}: ${line(n.alarms.at(-1), maxLine)}`));
  else if (n.last_error) notes.push(el("span", { class: "bad cut" }, `${t("node.error")}: ${line(n.last_error, maxLine)}`));
  const button = node.querySelector("button") || el("button", { type: "button", class: "quiet", on: { click: () => detail(node.dataset.item) } }, t("details"));
  button.setAttribute("aria-label", `${t("details")}: ${n.name}`);
  const foot = node.querySelector(".foot");
  const parts = [
    el("div", { class: "head" },
      el("h2", null, n.name),
      el("span", { class: `state ${n.state === "online" ? "ok" : "idle"}` }, t("node." + n.state))),
    el("p", { class: "line plain" }, el("span", { class: "cut", title: exactTime(n.since) }, t("node.since", { time: exactTime(n.since), ago: ago(n.since, hubNow()) }))),
    el("p", { class: "line plain" },
      el("span", { class: `state ${healthClass(n)}` }, health(n)),
      el("span", { class: "cut" }, [n.agent.kind, n.agent.version].filter(Boolean).map((v) => line(v, 60)).join(" "))),
    el("p", { class: "line plain" },
      el("span", { class: "cut" }, line(n.platform || t("unknown"), 60)),
      n.version ? el("span", { class: "cut" }, t("node.version", { version: line(n.version, 40) })) : null),
    el("p", { class: "line plain" },
      el("span", null, t("node.running", { count: number(n.running) })),
      el("span", null, t("node.queued", { count: number(n.queued) }))),
    el("div", { class: "ctx" }, ctxBar(n.ctx_percent), curve),
  ];
  if (foot) {
    // The button keeps the focus: all but it is replaced.
    while (node.firstChild !== foot) node.firstChild.remove();
    for (const p of parts) node.insertBefore(p, foot);
    for (const c of [...foot.children]) if (c !== button) c.remove();
    foot.prepend(...(notes.length ? notes : [el("span")]));
  } else {
    replace(node, parts, el("div", { class: "foot" }, notes.length ? notes : el("span"), button));
  }
  node.setAttribute("aria-label", `${n.name}, ${t("node." + n.state)}, ${ctxText(n.ctx_percent)}`);
}

function detail(name) {
  const n = nodes.get(name);
  const dialog = byId("detail");
  if (!n) return;
  const place = placeOf(document.activeElement); // the card may go meanwhile
  dialog.addEventListener("close", () => backTo(place), { once: true });
  replace(dialog,
    el("div", { class: "head" },
      el("h2", { id: "detail-title" }, n.name),
      el("button", { type: "button", on: { click: () => dialog.close() } }, t("close"))),
    el("p", { class: "row" },
      el("a", { href: "/dispatch?node=" + encodeURIComponent(name) }, t("dispatch.title")),
      el("a", { href: "/tasks?target=" + encodeURIComponent(name) }, t("tasks.title"))),
    facts([
      [t("fleet.state"), `${t("node." + n.state)}, ${t("node.since", { time: exactTime(n.since), ago: ago(n.since, hubNow()) })}`],
      [t("node.agent"), [n.agent.kind, n.agent.version, health(n), n.agent.detail].filter(Boolean).join(" · ")],
      [t("node.warnings"), n.agent.warnings],
      [t("node.memory"), n.agent.memory_bytes ? bytes(n.agent.memory_bytes) : ""],
      [t("node.platform"), n.platform],
      ["meshnode", n.version],
      [t("node.policy"), n.policy],
      [t("node.workspaces"), n.workspaces],
      [t("node.services"), n.services],
      [t("node.superseded", { count: number(n.superseded || 0) }), n.superseded ? t("node.superseded.long", { count: number(n.superseded) }) : ""],
      [t("node.alarms"), n.alarms],
      [t("node.error"), n.last_error],
    ]));
  const bound = el("div", { "aria-live": "polite" });
  dialog.append(bound);
  dialog.showModal();
  sessionsOf(name).then((all) => replace(bound, all), (e) => replace(bound, el("p", { class: "bad" }, e.shown || t("error.network"))));
}

// sessionsOf are the sessions on a node, last used first.
async function sessionsOf(name) {
  const { sessions } = await get(`/v1/bindings?target=${encodeURIComponent(name)}&fills=${maxFills}`);
  if (!sessions.length) return [];
  sessions.sort((a, b) => (a.last_used < b.last_used ? 1 : -1));
  return [
    el("h3", null, t("node.sessions")),
    el("ul", { class: "plainlist" }, sessions.slice(0, maxRows).map((s) => el("li", { class: "ctx" },
      el("span", null, `${s.controller} · ${s.workspace}`), ctxBar(s.ctx_percent), sparkline(percents(s.fills).map((p) => p.percent))))),
  ];
}

const orders = {
  name: () => 0,
  state: (a, b) => (a.state === b.state ? 0 : a.state === "online" ? -1 : 1),
  ctx: (a, b) => (b.ctx_percent ?? -1) - (a.ctx_percent ?? -1),
  work: (a, b) => b.running + b.queued - a.running - a.queued,
  since: (a, b) => (a.since < b.since ? 1 : a.since > b.since ? -1 : 0),
};

function matches(n) {
  const want = form.search.value.trim().toLowerCase();
  if (want && ![n.name, n.platform, n.agent.kind, n.version, n.last_error, ...(n.workspaces || [])].some((v) => v && v.toLowerCase().includes(want))) return false;
  switch (form.state.value) {
    case "busy": return n.running + n.queued > 0;
    case "trouble": return trouble(n);
    case "": return true;
    default: return n.state === form.state.value;
  }
}

function arrange() {
  const order = orders[form.sort.value] || orders.name;
  const shown = [...nodes.values()].filter(matches).sort((a, b) => order(a, b) || (a.name < b.name ? -1 : 1));
  list.set(shown);
  let online = 0;
  for (const n of nodes.values()) if (n.state === "online") online++;
  setText(byId("count"), t("fleet.count", { shown: number(shown.length), all: number(nodes.size), online: number(online) }));
  const none = byId("none");
  none.hidden = shown.length > 0;
  if (!shown.length) setText(none, t(nodes.size ? "fleet.nomatch" : "fleet.empty"));
}

// What waits to be arranged or asked for is collected: thousands of events a second
// cost a look every frameEvery and one question every refreshEvery.
let arranging = 0;
function soon() {
  if (!arranging) {
    arranging = setTimeout(() => {
      arranging = 0;
      arrange();
    }, frameEvery);
  }
}

const stale = new Set(); // names of nodes whose tasks changed
let asking = 0; // a timer, or that an answer is awaited
let newer = null; // what events said of nodes while an answer was awaited

function askSoon(wait = refreshEvery) {
  if (!asking && stale.size) asking = setTimeout(refresh, wait);
}

async function refresh() {
  const names = [...stale];
  const all = names.length > maxNamed;
  stale.clear();
  newer = new Map();
  let wait = refreshEvery;
  try {
    const page = await get(all ? listing : listing + names.map((n) => "&name=" + encodeURIComponent(n)).join(""));
    if (all) nodes.clear();
    for (const n of names) nodes.delete(n); // who is not in the answer is gone
    for (const n of page.nodes) nodes.set(n.name, n);
    for (const n of newer.values()) change(n);
    soon();
  } catch {
    for (const n of names) stale.add(n);
    wait = lastRetry; // or when the connection is back
  }
  newer = null;
  asking = 0;
  askSoon(wait);
}

function change(n) {
  const old = nodes.get(n.name);
  if (old && old.state !== n.state) announce(`${n.name}: ${t("node." + n.state)}`);
  nodes.set(n.name, { ...n, ctx_percent: n.ctx_percent ?? old?.ctx_percent ?? null, ctx_fills: n.ctx_fills ?? old?.ctx_fills });
  newer?.set(n.name, n);
  soon();
}

take(block("first").nodes);
for (const input of Object.values(form)) input.addEventListener("input", arrange);
byId("filters").addEventListener("submit", (e) => e.preventDefault());
arrange();

on("node", change);

const working = new Map(); // task → state, of those that are open
on("task", (task) => {
  const before = working.get(task.task);
  if (task.ended_at) working.delete(task.task);
  else if (working.size < maxRows) working.set(task.task, task.state);
  if (before !== task.state || task.ended_at) {
    stale.add(task.target);
    askSoon();
  }
});

on("resync", async () => {
  try {
    take(await get(listing));
    soon();
  } catch {
    // the next resync asks again
  }
});

on("state", (state) => {
  if (!state.lost) {
    if (asking && !newer) clearTimeout(asking);
    if (!newer) asking = 0;
    askSoon();
  }
});

// Ages are shown in words, which go out of date.
setInterval(() => {
  if (!document.hidden) list.set(list.items);
}, 60_000);

start();
