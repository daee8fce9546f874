// The inbox: every task that waits for an answer, the longest wait first. A question
// that ends elsewhere says so and stays until the reader has seen it.
import { announce, block, byId, el, replace, setText } from "./dom.js";
import { get } from "./api.js";
import { line, number, t } from "./text.js";
import { maxClosed, maxLine, maxQuestions } from "./limits.js";
import { on } from "./live.js";
import { shortcut } from "./keys.js";
import { askPermission, askable } from "./notify.js";
import { QuestionBox } from "./question.js";
import { start } from "./shell.js";
import { taskLink } from "./taskview.js";

const root = byId("questions");
const waiting = new Map(); // task → entry: {task, box, node}
const beyond = new Map(); // task → task, of those that are not shown
const closed = []; // entries that ended, oldest first
let cut = false; // there are more than the hub tells at once

const asked = (task) => Date.parse(task.question.asked_at);

function entry(task) {
  const e = { task };
  e.box = new QuestionBox(task, () => ended(e));
  e.gone = el("button", { type: "button", class: "quiet", hidden: true, "aria-label": `${t("questions.dismiss")}: ${task.task}`, on: { click: () => dismiss(e, true) } }, t("questions.dismiss"));
  e.node = el("div", { class: "card", role: "listitem", tabindex: "-1", data: { task: task.task }, "aria-label": t("questions.of", { target: task.target }) },
    el("div", { class: "head" }, el("h2", null, task.target), taskLink(task.task), e.gone),
    el("p", { class: "line plain" }, el("span", { class: "cut" }, t("task.by", { controller: line(task.controller, maxLine) }), task.workspace ? ` · ${line(task.workspace, maxLine)}` : "")),
    e.box.node);
  return e;
}

// place puts an entry among those that wait, by when they asked.
function place(e) {
  const after = [...waiting.values()].find((other) => other !== e && asked(other.task) > asked(e.task));
  root.insertBefore(e.node, after ? after.node : null);
}

function add(task) {
  if (waiting.size >= maxQuestions) {
    beyond.set(task.task, task);
    if (beyond.size > maxQuestions * 10) {
      beyond.delete(beyond.keys().next().value);
      cut = true;
    }
    return;
  }
  const e = entry(task);
  waiting.set(task.task, e);
  place(e);
}

function ended(e) {
  if (waiting.get(e.task.task) === e) waiting.delete(e.task.task);
  e.node.classList.add("closed");
  e.gone.hidden = false;
  closed.push(e);
  if (closed.length > maxClosed) dismiss(closed.find((v) => !v.box.kept) || closed[0], false);
  const next = e.next || beyond.values().next().value;
  if (next) {
    beyond.delete(next.task);
    add(next);
  }
  count();
}

function dismiss(e, step) {
  if (step) (e.node.nextElementSibling || e.node.previousElementSibling || byId("main")).focus();
  e.node.remove();
  closed.splice(closed.indexOf(e), 1);
  count();
}

function count() {
  const all = waiting.size + beyond.size;
  setText(byId("count"), all ? t("questions.count", { count: number(all) }) : "");
  byId("none").hidden = all > 0 || closed.length > 0;
  const more = byId("more");
  more.hidden = !beyond.size && !cut;
  if (!more.hidden) setText(more, t("questions.more", { count: number(waiting.size) }));
}

function take(task, quiet) {
  const e = waiting.get(task.task);
  if (e?.box.take(task)) return;
  if (e && e.box.state === "sending") {
    e.next = task.state === "question" ? task : null; // once it is known how the answer went
    return;
  }
  beyond.delete(task.task);
  if (task.state === "question" && task.question) {
    add(task);
    if (!quiet) announce(t("notify.new", { target: task.target }));
  }
  count();
}

function takeAll(page) {
  const now = new Set(page.tasks.map((v) => v.task));
  cut = Boolean(page.next);
  for (const task of page.tasks.filter((v) => v.question).sort((a, b) => asked(a) - asked(b))) take(task, true);
  for (const [id, e] of waiting) {
    if (!now.has(id) && !cut) lost(id, e);
  }
  count();
}

// lost asks what became of a task that no longer waits.
async function lost(id, e) {
  try {
    e.box.take(await get("/v1/tasks/" + encodeURIComponent(id)));
  } catch (err) {
    if (err.code === "unknown_task" || err.code === "task_forgotten") e.box.close("warn", t("question.gone"));
  }
}

const shown = () => [...root.children];
const current = () => document.activeElement?.closest?.("#questions > [data-task]");

function move(by) {
  const all = shown();
  const at = all.indexOf(current());
  all[at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.max(0, Math.min(all.length - 1, at + by))]?.focus();
}

const boxOf = () => waiting.get((current() || shown().find((n) => waiting.has(n.dataset.task)))?.dataset.task)?.box;

shortcut("j", t("questions.keys.next"), () => move(1));
shortcut("k", t("questions.keys.back"), () => move(-1));
shortcut("a", t("questions.keys.answer"), () => boxOf()?.field.focus());
for (let n = 1; n <= 9; n++) {
  // An option is taken only in the question that has the focus.
  shortcut(String(n), n === 1 ? t("questions.keys.option") : "", () => current() && boxOf()?.choose(n));
}

const button = byId("notify");
button.hidden = !askable();
button.addEventListener("click", async () => {
  const answer = await askPermission();
  button.hidden = answer !== "default";
  announce(t(answer === "granted" ? "questions.notify.on" : "questions.notify.off"));
});

replace(root);
takeAll(block("first").waiting);
on("task", (task) => take(task, false));
on("resync", async () => {
  try {
    takeAll(await get("/v1/tasks?state=question&limit=500"));
  } catch {
    // the next resync, or a reload, asks again
  }
});
start();
