// The bound sessions of everybody: how full they are and what is done with them. No
// event tells of a binding; those whose tasks changed are asked for again.
import { block, byId, el, replace, setText } from "./dom.js";
import { ago, exactTime, line, number, t } from "./text.js";
import { get } from "./api.js";
import { maxFills, maxLine, maxNamed, refreshEvery } from "./limits.js";
import { hubNow, on } from "./live.js";
import { VirtualList, cardOf } from "./list.js";
import { ctxBar, ctxText, level, percents, sparkline } from "./plot.js";
import { opText, sessionPath } from "./operation.js";
import { start } from "./shell.js";

const sessions = new Map(); // key → session
const form = { search: byId("search"), which: byId("which"), sort: byId("sort") };
const keyOf = (s) => `${s.controller}/${s.target}/${s.workspace}`;

const list = new VirtualList({ root: byId("sessions"), rem: 9.25, wide: 20, key: keyOf, make: cardOf, show: card });

// take keeps sessions. A listing of all has no curves, which are more than all else in
// it: one is asked for when its card is drawn, unless it is known and still holds.
function take(list, curves, known = sessions) {
  for (const { fills, ...s } of list) {
    const old = known.get(keyOf(s));
    s.curve = curves ? percents(fills).map((f) => f.percent) : old?.last_used === s.last_used ? old.curve : undefined;
    sessions.set(keyOf(s), s);
  }
}

// card fills a card. Its link keeps the focus when it is filled again.
function card(node, s) {
  const link = node.querySelector("h2 a") || el("a");
  const title = `${s.controller} → ${s.target}`;
  link.setAttribute("href", sessionPath(s));
  link.setAttribute("aria-label", `${title}, ${s.workspace}, ${ctxText(s.ctx_percent)}`);
  setText(link, title);
  const op = s.operation;
  if (!s.curve) askSoon(missing, s.target, 0);
  const parts = [
    el("p", { class: "line plain" },
      el("span", { class: "cut" }, line(s.workspace, maxLine)),
      el("span", null, t("sessions.generation", { n: number(s.generation) })),
      el("span", null, s.digest ? t("sessions.digest", { n: number(s.digest) }) : t("sessions.nodigest"))),
    el("p", { class: "line plain" }, el("span", { class: "cut mono", title: s.session || null }, s.session ? line(s.session, maxLine) : t("sessions.unbound"))),
    el("div", { class: "ctx" }, ctxBar(s.ctx_percent), sparkline(s.curve || [])),
    el("p", { class: "line plain" },
      el("span", { title: exactTime(s.last_used) }, t("sessions.used", { ago: ago(s.last_used, hubNow()) })),
      op ? el("span", { class: "state warn" }, opText(op)) : null),
  ];
  if (link.isConnected) {
    while (node.lastChild !== node.firstChild) node.lastChild.remove();
    node.append(...parts);
  } else {
    replace(node, el("div", { class: "head" }, el("h2", null, link)), parts);
  }
}

const orders = {
  used: (a, b) => (a.last_used < b.last_used ? 1 : a.last_used > b.last_used ? -1 : 0),
  ctx: (a, b) => (b.ctx_percent ?? -1) - (a.ctx_percent ?? -1),
  target: (a, b) => (a.target < b.target ? -1 : a.target > b.target ? 1 : 0),
  controller: (a, b) => (a.controller < b.controller ? -1 : a.controller > b.controller ? 1 : 0),
};

function matches(s) {
  const want = form.search.value.trim().toLowerCase();
  if (want && ![s.controller, s.target, s.workspace, s.session, s.title].some((v) => v && v.toLowerCase().includes(want))) return false;
  switch (form.which.value) {
    case "warn": return s.ctx_percent !== null && level(s.ctx_percent) !== "ok";
    case "bad": return s.ctx_percent !== null && level(s.ctx_percent) === "bad";
    case "operation": return Boolean(s.operation);
    case "unbound": return !s.session;
    default: return true;
  }
}

function arrange() {
  const order = orders[form.sort.value] || orders.used;
  const shown = [...sessions.values()].filter(matches).sort((a, b) => order(a, b) || (keyOf(a) < keyOf(b) ? -1 : 1));
  list.set(shown);
  setText(byId("count"), t("sessions.count", { shown: number(shown.length), all: number(sessions.size) }));
  byId("none").hidden = shown.length > 0;
  if (!shown.length) setText(byId("none"), t(sessions.size ? "sessions.nomatch" : "sessions.empty"));
}

let arranging = 0;
function soon() {
  if (!arranging) {
    arranging = requestAnimationFrame(() => {
      arranging = 0;
      arrange();
    });
  }
}

async function reload() {
  const page = await get("/v1/bindings");
  const known = new Map(sessions);
  sessions.clear();
  take(page.sessions, false, known);
  soon();
}

// Nodes whose sessions changed, or whose curves are missing, wait here. If many changed,
// all are asked for, and as much time goes to the page itself as to asking.
const changed = new Set();
const missing = new Set();
let asking = 0;
function askSoon(those, target, wait) {
  those.add(target);
  if (!asking) asking = setTimeout(refresh, wait);
}

async function refresh() {
  const many = changed.size > maxNamed;
  const targets = [...(many ? [] : changed), ...missing].slice(0, maxNamed);
  const began = performance.now();
  changed.clear();
  for (const v of targets) missing.delete(v);
  try {
    if (many) await reload();
    if (targets.length) take((await get("/v1/bindings?" + new URLSearchParams([["fills", maxFills], ...targets.map((v) => ["target", v])]))).sessions, true);
    soon();
  } catch {
    // the connection is lost, which the page says; a resync or the next event asks again
  }
  asking = changed.size + missing.size ? setTimeout(refresh, Math.max(refreshEvery, performance.now() - began)) : 0;
}

take(block("first").sessions.sessions, false);
form.search.value = new URLSearchParams(location.search).get("search") || "";
for (const input of Object.values(form)) input.addEventListener("input", arrange);
byId("filters").addEventListener("submit", (e) => e.preventDefault());
arrange();

on("task", (task) => {
  const s = task.op && sessions.get(`${task.controller}/${task.target}/${task.workspace || ""}`);
  if (s && !task.ended_at) {
    s.operation = task;
    list.touch(keyOf(s));
  }
  if (task.ended_at) askSoon(changed, task.target, refreshEvery);
});
on("resync", () => reload().catch(() => {}));

// Ages are shown in words, which go out of date.
setInterval(() => {
  if (!document.hidden) list.set(list.items);
}, 60_000);

start();
