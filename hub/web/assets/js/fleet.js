// The fleet: a card for each node. Nodes change by events; how many tasks one has, and
// how full its sessions are, follows its tasks and is asked for again when they change.
import { announce, block, byId, el, facts, replace, setText } from "./dom.js";
import { ago, bytes, exactTime, has, line, number, t } from "./text.js";
import { get } from "./api.js";
import { maxFills, maxLine, maxNamed, refreshEvery } from "./limits.js";
import { hubNow, on } from "./live.js";
import { VirtualList, cardOf } from "./list.js";
import { ctxBar, ctxText, percents, sparkline } from "./plot.js";
import { start } from "./shell.js";

const nodes = new Map(); // name → node
const sessions = new Map(); // name → its sessions, last used first
const form = { search: byId("search"), state: byId("state"), sort: byId("sort") };

const list = new VirtualList({
  root: byId("nodes"), rem: 13, wide: 20, key: (n) => n.name, make: cardOf, show: card,
});

function takeNodes(page) {
  nodes.clear();
  for (const n of page.nodes) nodes.set(n.name, n);
}

function takeSessions(page) {
  sessions.clear();
  for (const s of page.sessions) {
    if (!sessions.has(s.target)) sessions.set(s.target, []);
    sessions.get(s.target).push(s);
  }
  for (const all of sessions.values()) all.sort((a, b) => (a.last_used < b.last_used ? 1 : -1));
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
  const own = sessions.get(n.name) || [];
  const points = percents(own[0]?.fills).slice(-maxFills);
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
      el("span", null, t("node.queued", { count: number(n.queued) })),
      own.length > 1 ? el("span", null, t("node.more", { count: number(own.length - 1) })) : null),
    el("div", { class: "ctx" }, ctxBar(n.ctx_percent), sparkline(points)),
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
  replace(dialog,
    el("div", { class: "head" },
      el("h2", { id: "detail-title" }, n.name),
      el("button", { type: "button", on: { click: () => dialog.close() } }, t("close"))),
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
  const own = sessions.get(name) || [];
  if (own.length) {
    dialog.append(el("h3", null, t("node.sessions")), el("ul", null, own.slice(0, maxFills).map((s) => el("li", null,
      `${s.controller} ${s.workspace} `, ctxBar(s.ctx_percent), sparkline(percents(s.fills).slice(-maxFills))))));
  }
  dialog.showModal();
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
// cost one look a frame and one question a second.
let arranging = 0;
function soon() {
  if (!arranging) {
    arranging = requestAnimationFrame(() => {
      arranging = 0;
      arrange();
    });
  }
}

const stale = new Set(); // names of nodes whose tasks changed
let asking = 0;
function askSoon(name) {
  stale.add(name);
  if (!asking) asking = setTimeout(refresh, refreshEvery);
}

async function refresh() {
  const names = [...stale];
  stale.clear();
  try {
    if (names.length > maxNamed) {
      const [all, bound] = await Promise.all([get("/v1/nodes"), get(`/v1/bindings?fills=${maxFills}`)]);
      takeNodes(all);
      takeSessions(bound);
    } else {
      const query = names.map((n) => "name=" + encodeURIComponent(n)).join("&");
      for (const n of (await get("/v1/nodes?" + query)).nodes) nodes.set(n.name, n);
      for (const n of names) list.touch(n);
    }
    soon();
  } catch {
    // the connection is lost, which the page says; a resync or the next event asks again
  }
  asking = stale.size ? setTimeout(refresh, refreshEvery) : 0;
}

async function reload() {
  const [all, bound] = await Promise.all([get("/v1/nodes"), get(`/v1/bindings?fills=${maxFills}`)]);
  takeNodes(all);
  takeSessions(bound);
  soon();
}

const first = block("first");
takeNodes(first.nodes);
takeSessions(first.sessions);
for (const input of Object.values(form)) input.addEventListener("input", arrange);
byId("filters").addEventListener("submit", (e) => e.preventDefault());
arrange();

on("node", (n) => {
  const old = nodes.get(n.name);
  if (old && old.state !== n.state) announce(`${n.name}: ${t("node." + n.state)}`);
  nodes.set(n.name, { ...n, ctx_percent: n.ctx_percent ?? old?.ctx_percent ?? null });
  list.touch(n.name);
  soon();
});

const working = new Map(); // task → state, of those that are open
on("task", (task) => {
  const before = working.get(task.task);
  if (task.ended_at) working.delete(task.task);
  else if (working.size < 4 * maxNamed * maxFills) working.set(task.task, task.state);
  if (task.tokens && task.ended_at) addFill(task);
  if (before !== task.state || task.ended_at) askSoon(task.target);
});

// addFill lets the curve of the session that a task used go on.
function addFill(task) {
  const all = sessions.get(task.target) || [];
  let s = all.find((v) => v.controller === task.controller && v.workspace === (task.workspace || v.workspace));
  if (!s) {
    s = { controller: task.controller, target: task.target, workspace: task.workspace || "", fills: [] };
    all.push(s);
    sessions.set(task.target, all);
  }
  s.last_used = task.ended_at;
  s.ctx_percent = task.ctx_percent;
  s.fills = [...(s.fills || []), { at: task.ended_at, ...task.tokens }].slice(-maxFills);
  all.sort((a, b) => (a.last_used < b.last_used ? 1 : -1));
  list.touch(task.target);
}

on("resync", () => reload().catch(() => {}));

// Ages are shown in words, which go out of date.
setInterval(() => {
  if (!document.hidden) list.set(list.items);
}, 60_000);

start();
