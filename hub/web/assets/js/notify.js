// What waits for an answer: a number in the title and at the place of the page, and, if
// the reader allowed it, a notification of the browser.
import { block, byId, el } from "./dom.js";
import { line, t } from "./text.js";
import { maxLine, maxRows } from "./limits.js";
import { on } from "./live.js";
import { get } from "./api.js";

const title = document.title;
let waiting = new Set(); // ids of tasks

function show() {
  document.title = waiting.size ? `(${waiting.size}) ${title}` : title;
  const link = byId("nav-questions");
  if (!link) return;
  link.querySelector(".badge")?.remove();
  if (waiting.size) {
    link.append(el("span", { class: "badge", "aria-label": t("notify.waiting", { count: waiting.size }) }, waiting.size));
  }
}

function changed(task) {
  const was = waiting.has(task.task);
  if (task.state === "question") {
    if (!was && waiting.size < maxRows) waiting.add(task.task);
  } else {
    waiting.delete(task.task);
  }
  if (was !== waiting.has(task.task)) {
    show();
    if (!was) tell(task);
  }
}

function tell(task) {
  if (!("Notification" in globalThis) || Notification.permission !== "granted" || !document.hidden) return;
  const n = new Notification(t("notify.new", { target: task.target }), { body: line(task.question?.text, maxLine), tag: task.task });
  n.onclick = () => {
    window.focus();
    location.assign("/questions");
  };
}

/** Whether the browser can be asked for notifications, and was not yet. */
export const askable = () => "Notification" in globalThis && Notification.permission === "default";

/** Asks the reader; call it from a click. */
export const askPermission = () => Notification.requestPermission();

/** Begins to count. */
export function start() {
  const take = (page) => {
    waiting = new Set((page?.tasks || []).map((v) => v.task));
    show();
  };
  take(block("first").waiting);
  on("task", changed);
  on("resync", async () => {
    try {
      take(await get("/v1/tasks?state=question&limit=500"));
    } catch {
      // the next resync, or a reload, asks again
    }
  });
}
