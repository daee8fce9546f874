// How tasks are shown, wherever they are: states, flags and errors in words, what a
// running agent does, and the buttons that change a task.
import { backTo, el, placeOf, replace } from "./dom.js";
import { post } from "./api.js";
import { exactTime, has, line, number, t } from "./text.js";
import { maxLine } from "./limits.js";
import { ctxBar } from "./plot.js";

const kinds = {
  queued: "idle", offered: "idle", accepted: "idle", held: "warn", running: "ok run", question: "warn ask", unknown: "warn",
  done: "ok done", partial: "warn done", failed: "bad", refused: "bad", expired: "bad", canceled: "idle",
};

/** Every state, in the order of a task's life. */
export const states = Object.keys(kinds);

const ends = new Set(["done", "partial", "failed", "refused", "expired", "canceled"]);

export const isSettled = (state) => ends.has(state);

/** A state in words. */
export const stateText = (state) => (has("state." + state) ? t("state." + state) : line(state, 40));

/** The same with its colour and shape. */
export function stateBadge(state) {
  return el("span", { class: `state ${kinds[state] || "idle"}`, title: has(`state.${state}.long`) ? t(`state.${state}.long`) : null }, stateText(state));
}

/** Where a task is. */
export const taskURL = (id) => "/tasks/" + encodeURIComponent(id);

/** A link to it. */
export const taskLink = (id) => el("a", { href: taskURL(id), class: "mono" }, id);

/** What a running agent does, in one line; "" when it is not known. */
export function activityText(a) {
  if (!a) return "";
  const parts = [a.note, a.tool && t("task.tool", { tool: line(a.tool, maxLine) }), a.line];
  if (a.tokens) parts.push(a.tokens.limit ? t("ctx.tokens", { total: number(a.tokens.total), limit: number(a.tokens.limit) }) : t("task.tokens.only", { total: number(a.tokens.total) }));
  return parts.filter(Boolean).map((v) => line(v, maxLine)).join(" · ");
}

/** Flags with what they mean. */
export function flagList(flags) {
  if (!flags?.length) return null;
  return el("ul", { class: "flags" }, flags.map((f) => el("li", null, el("code", null, line(f, 60)), has("flag." + f) ? " " + t("flag." + f) : null)));
}

/** Why the mesh ended a task, with what the code means. */
export function errorBox(e) {
  if (!e) return null;
  return el("div", { class: "notice bad" },
    el("p", { class: "plain" }, el("code", null, line(e.code, 60)), has("taskerror." + e.code) ? " " + t("taskerror." + e.code) : null),
    e.message ? el("p", { class: "plain", dir: "auto" }, line(e.message, 4 * maxLine)) : null);
}

/** How full the session is, with the tokens; null when nothing is known of it. */
export function fill(task) {
  if (!task.tokens) return null;
  const { total, limit } = task.tokens;
  return el("span", { class: "ctx" }, limit ? ctxBar(task.ctx_percent) : null,
    el("span", null, limit ? t("ctx.tokens", { total: number(total), limit: number(limit) }) : t("task.tokens.only", { total: number(total) })));
}

/** That a result came after the end. */
export const lateMark = () => el("span", { class: "state warn", title: t("task.late.long") }, t("task.late"));

let dialogs = 0;

/** Asks the reader whether that is meant. */
export function confirmed(text, yes) {
  return new Promise((resolve) => {
    const id = `confirm-${++dialogs}`;
    const dialog = el("dialog", { class: "confirm", "aria-labelledby": id },
      el("p", { id }, text),
      el("form", { method: "dialog", class: "row" },
        el("button", { value: "yes", class: "danger" }, yes),
        el("button", { value: "no", autofocus: true }, t("no"))));
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

/**
 * The buttons that change a task; acted gets the task as the hub answers, and where
 * says what went wrong. They are made anew when what can be done changes.
 */
export function taskButtons(task, acted) {
  const problem = el("span", { class: "bad", role: "alert" });
  const button = (label, cls, path, question) => {
    const b = el("button", { type: "button", class: cls, "aria-label": `${label}: ${task.task}`, data: { control: path } }, label);
    b.addEventListener("click", async () => {
      // The button may be made anew, or another instead, until this is over.
      const place = placeOf(b);
      if (question && !(await confirmed(question, label))) {
        backTo(place);
        return;
      }
      b.disabled = true;
      replace(problem);
      try {
        acted(await post(`/v1/tasks/${encodeURIComponent(task.task)}/${path}`));
      } catch (e) {
        replace(problem, e.shown || e.message);
        b.disabled = false;
      }
      backTo(place);
    });
    return b;
  };
  const list = [];
  if (isSettled(task.state)) {
    if (!task.op) list.push(button(t("task.retry"), "", "retry", task.flags.includes("may_have_run") || task.state === "done" ? t("task.retry.sure") : ""));
  } else {
    if (task.cancel_requested_at) list.push(el("span", { class: "hint" }, t("task.canceling", { time: exactTime(task.cancel_requested_at) })));
    else list.push(button(t("task.cancel"), "danger", "cancel", t("task.cancel.sure", { target: task.target })));
    if (task.state === "unknown") list.push(button(t("task.abandon"), "danger", "abandon", t("task.abandon.sure")));
  }
  return el("div", { class: "row" }, list, problem);
}

/** What taskButtons depends on. */
export const buttonsKey = (task) => [task.state, task.attempt, task.cancel_requested_at, task.flags.join()].join();
