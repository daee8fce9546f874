// One task: where it is, what it asks, its result and files, and its whole life. The
// events tell its state at once; what they leave out is asked for again after them.
import { announce, block, byId, el, facts, holding, replace } from "./dom.js";
import { get } from "./api.js";
import { duration, exactTime, has, line, number, t, visible } from "./text.js";
import { maxLife, maxLine, refreshEvery } from "./limits.js";
import { on } from "./live.js";
import { artifactList } from "./artifacts.js";
import { QuestionBox, showBox } from "./question.js";
import { start } from "./shell.js";
import { activityText, buttonsKey, errorBox, fill, flagList, isSettled, lateMark, stateBadge, stateText, taskButtons } from "./taskview.js";
import { textBox } from "./words.js";

let task = block("first").task;
const url = "/v1/tasks/" + encodeURIComponent(task.task);

// Each part is made again only when what it shows has changed, so that a reader keeps
// the place, the focus and what is open.
const parts = new Map(); // id → key
function part(id, key, make) {
  const now = JSON.stringify(key);
  if (parts.get(id) === now) return;
  parts.set(id, now);
  replace(byId(id), make());
}

function head() {
  const t1 = task;
  return [
    el("div", { class: "row" }, stateBadge(t1.state), t1.late_result ? lateMark() : null, t1.op ? el("span", { class: "hint" }, t("task.op." + t1.op)) : null),
    el("p", { class: "plain" }, el("code", { id: "id" }, t1.task), " · ", line(t1.controller, maxLine), " → ", line(t1.target, maxLine)),
    isSettled(t1.state) ? null : el("p", { class: "plain hint" }, has(`state.${t1.state}.long`) ? t(`state.${t1.state}.long`) : ""),
    t1.activity ? el("p", { class: "plain", id: "activity", dir: "auto" }, activityText(t1.activity)) : null,
  ];
}

let box = null;
let next = null; // a question that came while an answer was under way
function ask() {
  const q = task.state === "question" ? task.question : null;
  if (box && !box.take(task) && box.state === "sending") {
    next = q;
    return;
  }
  if (q && (!box || box.question.id !== q.id)) {
    box = new QuestionBox(task, (_, answered) => {
      if (answered) change(answered);
      else if (next) ask();
      next = null;
    });
    showBox(byId("ask"), el("section", { class: "card" }, el("h2", { class: "unseen" }, t("task.question")), box.node));
  }
}

function outcome() {
  const nothing = !isSettled(task.state) && !task.summary;
  return [
    nothing ? el("p", { class: "hint" }, t("task.result.none")) : null,
    task.late_result ? el("p", { class: "notice warn" }, t("task.late.long")) : null,
    task.summary ? el("p", { class: "said", dir: "auto", id: "summary" }, task.summary.length > 8 * maxLine ? line(task.summary, 8 * maxLine) : visible(task.summary)) : null,
    errorBox(task.error), flagList(task.flags), fill(task),
  ];
}

// A step of a task's life: its state in words, what came of it, and how long after the
// one before it.
function step(s, before) {
  const again = before && (s.attempt !== before.attempt || s.turn !== before.turn);
  const key = "note." + String(s.note || "").replaceAll(" ", "_");
  const note = !s.note ? "" : has(key) ? t(key) : has("taskerror." + s.note) ? t("taskerror." + s.note) : line(s.note, maxLine);
  return el("li", { class: "step" },
    again || (!before && (s.attempt > 1 || s.turn > 1)) ? el("p", { class: "plain hint" }, t("task.turn", { attempt: number(s.attempt), turn: number(s.turn) })) : null,
    el("div", { class: "row" }, stateBadge(s.state), el("time", { datetime: s.at }, exactTime(s.at)),
      before ? el("span", { class: "hint" }, `+${length(new Date(s.at) - new Date(before.at))}`) : null),
    el("p", { class: "plain hint" }, has(`step.${s.state}`) ? t(`step.${s.state}`) : "", note ? ` — ${note}` : ""));
}

const length = (ms) => (ms < 1000 ? t("task.ms", { count: number(Math.max(0, Math.round(ms))) }) : duration(ms));

function life() {
  const steps = task.life || [];
  const list = [];
  // To a node that is there a task is offered in the commit that makes it.
  if (steps[0]?.state !== "queued") list.push(el("li", { class: "step" }, el("div", { class: "row" }, el("span", { class: "state idle" }, t("task.created")), el("time", { datetime: task.created_at }, exactTime(task.created_at))), el("p", { class: "plain hint" }, t("step.queued"))));
  steps.forEach((s, i) => {
    list.push(step(s, steps[i - 1]));
    if (i === 0 && steps.length >= maxLife) list.push(el("li", { class: "hint" }, t("task.life.cut")));
  });
  const aside = (at, text, cls) => el("li", { class: "step" }, el("div", { class: "row" }, el("span", { class: `state ${cls}` }, text), at ? el("time", { datetime: at }, exactTime(at)) : null));
  if (task.cancel_requested_at && !isSettled(task.state)) list.push(aside(task.cancel_requested_at, t("task.cancel.asked"), "warn"));
  if (task.late_result) list.push(aside("", t("task.late.long"), "warn"));
  return list;
}

function about() {
  return facts([
    [t("task.controller"), line(task.controller, maxLine)],
    [t("task.target"), line(task.target, maxLine)],
    [t("task.workspace"), line(task.workspace || t("task.workspace.first"), maxLine)],
    [t("task.mode"), has("mode." + task.mode) ? t("mode." + task.mode) : ""],
    [t("task.session"), task.session ? `${line(task.session, maxLine)}${task.new_session ? ` (${t("task.session.new")})` : ""}` : ""],
    [t("task.attempt"), t("task.turn", { attempt: number(task.attempt), turn: number(task.turn) })],
    [t("task.created"), exactTime(task.created_at)],
    [t("task.started"), exactTime(task.started_at)],
    [t("task.ended"), exactTime(task.ended_at)],
    [t("task.ran"), task.duration_ms === null ? "" : length(task.duration_ms)],
    [t("task.expires"), task.started_at || isSettled(task.state) ? "" : exactTime(task.expires_at)],
  ]);
}

function show() {
  part("head", [task.state, task.late_result, task.activity, task.op], head);
  ask();
  part("buttons", buttonsKey(task), () => taskButtons(task, change));
  part("outcome", [task.state, task.summary, task.error, task.flags, task.tokens, task.late_result], outcome);
  showFiles();
  part("life", [task.life, task.cancel_requested_at, task.late_result], life);
  part("text", [task.header, task.text], () => (task.text ? textBox(t("task.text"), (task.header || "") + task.text) : ""));
  part("reply", [task.reply, task.late_result], () => (task.reply ? textBox(t(task.late_result && isSettled(task.state) ? "task.reply.maybe" : "task.reply"), task.reply) : ""));
  part("facts", { ...task, life: 0, header: 0, text: 0, reply: 0, activity: 0 }, about);
}

let files = "";
let list = null;
let whole = true; // the details belong to the state
// showFiles waits for the details, which say what each file is.
function showFiles() {
  if (!whole) return;
  const now = JSON.stringify([task.attempt, task.artifacts, task.files]);
  if (now === files) return;
  files = now;
  const made = artifactList(task);
  holding(byId("main"), () => {
    list?.remove();
    list = made && el("section", { "aria-labelledby": "files-title" }, el("h2", { id: "files-title" }, t("task.artifacts")), made);
    if (list) byId("result").after(list);
  });
}

// change takes what a listing or an event says of the task; its details follow.
function change(v) {
  const before = task.state;
  task = { ...task, activity: undefined, late_result: false, cancel_requested_at: undefined, ...v };
  whole = false;
  if (before !== task.state) announce(stateText(task.state));
  show();
  reload();
}

let timer = 0;
let loading = false;
let again = false;
// reload asks for the details, for all changes of a moment at once.
function reload() {
  if (loading) again = true;
  else if (!timer) timer = setTimeout(load, refreshEvery / 4);
}

async function load() {
  timer = 0;
  loading = true;
  again = false;
  try {
    const got = await get(url);
    if (!again) { // else something has changed meanwhile
      task = got;
      whole = true;
      show();
    }
    byId("problem").hidden = true;
  } catch (e) {
    if (e.status >= 400 && e.status < 500) {
      replace(byId("problem"), e.shown);
      byId("problem").hidden = false;
    } // else the connection is lost, which the page says
  }
  loading = false;
  if (again) timer = setTimeout(load, refreshEvery);
}

show();
const details = (v) => JSON.stringify([v.state, v.attempt, v.turn, v.flags, v.late_result, v.cancel_requested_at, v.question?.id, v.summary]);
on("task", (v) => {
  if (v.task !== task.task) return;
  if (details(v) === details(task)) { // only what the agent does
    task = { ...task, activity: v.activity };
    show();
  } else change(v);
});
on("resync", reload);
start();
