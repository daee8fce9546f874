// The list of tasks, newest first. The hub filters and searches; what changes after
// that is put in its place as the events tell it. Pages are asked for as the reader
// comes near the end.
import { block, byId, el, replace, setText } from "./dom.js";
import { get } from "./api.js";
import { ago, exactTime, line, number, t } from "./text.js";
import { maxPage, maxPending, maxTasks, taskPage } from "./limits.js";
import { hubNow, on } from "./live.js";
import { VirtualList, cardOf } from "./list.js";
import { ctxText, level } from "./plot.js";
import { start } from "./shell.js";
import { activityText, isSettled, lateMark, stateBadge, stateText, states, taskURL } from "./taskview.js";

const form = { q: byId("search"), state: byId("state"), target: byId("target"), controller: byId("controller"), open: byId("open") };
let rows = []; // newest first
const byID = new Map();
let next = ""; // cursor of the older ones; "": there are none
let stopped = false; // the search ended before it found a page full
let asking = null; // what is under way

const shownSummary = 300;

// slim keeps what a row shows: there may be thousands.
function slim(v) {
  return {
    task: v.task, controller: v.controller, target: v.target, workspace: v.workspace, state: v.state, op: v.op,
    text: line(v.question?.text || v.summary || v.error?.message || "", shownSummary), doing: activityText(v.activity),
    ctx: v.ctx_percent, created: Date.parse(v.created_at), attempt: v.attempt, late: Boolean(v.late_result), error: v.error?.code || "", canceling: Boolean(v.cancel_requested_at),
  };
}

function row(node, v) {
  const link = node.querySelector("a") || el("a", { class: "mono" });
  link.href = taskURL(v.task);
  setText(link, v.task);
  link.setAttribute("aria-label", `${v.task}, ${v.target}, ${stateText(v.state)}`);
  const h2 = link.parentElement || el("h2", null, link);
  const headOf = node.querySelector(".head") || el("div", { class: "head" }, h2);
  while (headOf.lastChild !== h2) headOf.lastChild.remove();
  if (v.late) headOf.append(lateMark());
  headOf.append(stateBadge(v.state));
  const rest = [
    el("p", { class: "line plain one" },
      el("span", { class: "cut" }, `${line(v.controller, 40)} → ${line(v.target, 40)}${v.workspace ? ` · ${line(v.workspace, 40)}` : ""}`),
      el("span", { class: "cut", title: exactTime(v.created) }, ago(v.created, hubNow())),
      v.attempt > 1 ? el("span", null, t("task.attempt.short", { count: number(v.attempt) })) : null,
      v.ctx === null || v.ctx === undefined ? null : el("span", { class: level(v.ctx) === "ok" ? null : level(v.ctx) }, ctxText(v.ctx)),
      v.canceling && !isSettled(v.state) ? el("span", { class: "warn" }, t("task.cancel.asked")) : null),
    el("p", { class: "plain cut", dir: "auto" }, v.op ? `${t("task.op." + v.op)} · ` : "", v.error ? el("code", null, line(v.error, 60), " ") : null, v.doing || v.text),
  ];
  // The link keeps the focus: all but the head is made anew.
  if (!headOf.isConnected) replace(node, headOf);
  while (node.lastChild !== headOf) node.lastChild.remove();
  node.append(...rest);
}

const list = new VirtualList({ root: byId("tasks"), rem: 6.25, gap: 0.5, key: (v) => v.task, make: cardOf, show: row });

function fits(v) {
  if (form.open.checked && isSettled(v.state)) return false;
  if (form.state.value && v.state !== form.state.value) return false;
  const [target, controller] = [form.target.value.trim(), form.controller.value.trim()];
  return (!target || v.target === target) && (!controller || v.controller === controller);
}

// found is what an event lets the page search in; the hub searches the texts too.
function found(v) {
  const want = form.q.value.trim().toLowerCase();
  return !want || [v.task, v.target, v.summary, v.question?.text].some((s) => s && s.toLowerCase().includes(want));
}

// put brings a task to its place, by when it was dispatched.
function put(v) {
  const s = slim(v);
  if (byID.has(v.task)) {
    Object.assign(byID.get(v.task), s);
    list.touch(v.task);
    return false;
  }
  const last = rows.at(-1);
  if (next && last && s.created <= last.created) return false; // it comes with its page
  let at = rows.findIndex((r) => r.created < s.created);
  if (at < 0) at = rows.length;
  rows.splice(at, 0, s);
  byID.set(v.task, s);
  if (rows.length > maxTasks) byID.delete(rows.pop().task);
  return true;
}


function add(page, fresh) {
  if (fresh) {
    rows = [];
    byID.clear();
  }
  for (const v of page.tasks) {
    if (byID.has(v.task) || rows.length >= maxTasks) continue;
    const s = slim(v);
    byID.set(v.task, s);
    rows.push(s);
  }
  next = rows.length < maxTasks ? page.next || "" : "";
  stopped = Boolean(page.stopped);
  known();
  show();
}

function show() {
  rows = rows.filter((r) => byID.has(r.task));
  list.set(rows);
  const full = rows.length >= maxTasks;
  setText(byId("count"), t(full ? "tasks.count.full" : next ? "tasks.count.more" : "tasks.count", { count: number(rows.length) }) + (stopped && next ? " " + t("tasks.stopped") : ""));
  const none = byId("none");
  none.hidden = rows.length > 0;
  if (!rows.length) setText(none, t(stopped && next ? "tasks.none.yet" : filtered() ? "tasks.nomatch" : "tasks.empty"));
  byId("older").hidden = !next;
}

const filtered = () => Boolean(form.q.value.trim() || form.state.value || form.target.value || form.controller.value || form.open.checked);

// known offers the names that have been seen.
function known() {
  for (const [id, field] of [["targets", "target"], ["controllers", "controller"]]) {
    const names = [...new Set(rows.slice(0, 1000).map((r) => r[field]))].sort().slice(0, 100);
    replace(byId(id), names.map((n) => el("option", { value: n })));
  }
}

function query() {
  const q = new URLSearchParams();
  for (const [name, input] of Object.entries(form)) {
    const v = input.type === "checkbox" ? (input.checked ? "true" : "") : input.value.trim();
    if (v) q.set(name, v);
  }
  return q;
}

// ask loads the newest tasks, or those before a cursor, and at least so many of them as
// there are; it shows them once it has them all.
async function ask(before, least = taskPage) {
  asking?.abort();
  const mine = new AbortController();
  asking = mine;
  const q = query();
  const here = q.size ? "/tasks?" + q : "/tasks";
  changedMeanwhile.clear();
  try {
    const all = { tasks: [], next: before };
    do {
      q.set("limit", Math.max(taskPage, Math.min(maxPage, least - all.tasks.length)));
      if (all.next) q.set("before", all.next);
      const page = await get("/v1/tasks?" + q, { signal: mine.signal });
      all.tasks.push(...page.tasks);
      all.next = page.next || "";
      all.stopped = page.stopped;
    } while (all.next && !all.stopped && all.tasks.length < least);
    history.replaceState(null, "", here);
    add(all, !before);
    for (const v of changedMeanwhile.values()) change(v);
    byId("problem").hidden = true;
    show();
  } catch (e) {
    if (e.name !== "AbortError") {
      replace(byId("problem"), e.shown || e.message);
      byId("problem").hidden = false;
    }
  } finally {
    if (asking === mine) asking = null;
  }
}

const changedMeanwhile = new Map(); // by events, while a page is under way

// change takes an event and reports whether a row came or is to go.
function change(v) {
  if (!fits(v)) return byID.delete(v.task);
  if (byID.has(v.task) || found(v)) return put(v);
  return false;
}

// Events are taken a frame at a time: thousands cost one look.
const pending = new Map();
let frame = 0;
on("task", (v) => {
  if (asking && changedMeanwhile.size < maxPending) changedMeanwhile.set(v.task, v);
  pending.set(v.task, v);
  if (pending.size > maxPending) { // a page in the background has no frames
    flush();
  } else if (!frame) frame = requestAnimationFrame(flush);
});

function flush() {
  cancelAnimationFrame(frame);
  frame = 0;
  let moved = false;
  for (const v of pending.values()) moved = change(v) || moved;
  pending.clear();
  if (moved) show();
}

// What was loaded is loaded again, so that the reader keeps the place.
on("resync", () => ask("", rows.length));

let typing = 0;
function filter() {
  clearTimeout(typing);
  typing = setTimeout(() => ask(""), 200);
}

const older = () => {
  if (next && !asking) ask(next);
};

replace(form.state, el("option", { value: "" }, t("all")), states.map((s) => el("option", { value: s }, stateText(s))));
const asked = new URLSearchParams(location.search);
for (const [name, input] of Object.entries(form)) {
  if (input.type === "checkbox") input.checked = asked.get(name) === "true";
  else input.value = asked.get(name) || "";
  input.addEventListener(input === form.target || input === form.controller ? "change" : "input", filter); // a name counts when it is whole
}
byId("filters").addEventListener("submit", (e) => {
  e.preventDefault();
  filter();
});
byId("older").addEventListener("click", older);
new IntersectionObserver((seen) => {
  if (seen.some((s) => s.isIntersecting) && !stopped) older();
}, { rootMargin: "800px" }).observe(byId("older"));

add(block("first").tasks, true);
setInterval(() => {
  if (!document.hidden) list.set(rows); // ages in words go out of date
}, 60_000);
start();
