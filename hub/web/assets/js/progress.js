// What becomes of a dispatch, target by target, on the page that sent it.
import { announce, byId, el, replace, setText } from "./dom.js";
import { get } from "./api.js";
import { line, number, t } from "./text.js";
import { maxLine, maxNamed, maxProgress } from "./limits.js";
import { on } from "./live.js";
import { artifactList } from "./artifacts.js";
import { QuestionBox, showBox } from "./question.js";
import { activityText, buttonsKey, errorBox, fill, flagList, isSettled, lateMark, stateBadge, stateText, states, taskButtons, taskLink } from "./taskview.js";

class Card {
  constructor(task, change) {
    this.change = change;
    this.parts = new Map(["state", "doing", "ask", "result", "files", "buttons"].map((name) => [name, el("div", { class: name === "state" ? "" : "stack" })]));
    this.keys = new Map();
    this.node = el("div", { class: "card", role: "listitem", "aria-label": task.target, data: { task: task.task } },
      el("div", { class: "head" }, el("h3", null, task.target), this.parts.get("state")),
      el("p", { class: "line plain" }, taskLink(task.task)),
      [...this.parts.values()].slice(1));
    this.take(task);
  }

  part(name, key, make) {
    const now = JSON.stringify(key);
    if (this.keys.get(name) === now) return;
    this.keys.set(name, now);
    replace(this.parts.get(name), make());
  }

  take(task) {
    this.task = task;
    this.part("state", [task.state, task.late_result], () => [task.late_result ? lateMark() : null, " ", stateBadge(task.state)]);
    this.part("doing", task.activity, () => (task.activity ? el("p", { class: "plain hint", dir: "auto" }, activityText(task.activity)) : ""));
    this.ask(task);
    this.part("result", [isSettled(task.state), task.summary, task.error, task.flags, task.tokens], () => (isSettled(task.state) ? [
      task.summary ? el("p", { class: "plain said", dir: "auto" }, line(task.summary, 4 * maxLine)) : null, errorBox(task.error), flagList(task.flags), fill(task),
    ] : ""));
    this.part("files", [isSettled(task.state), task.attempt, task.artifacts], () => (isSettled(task.state) ? artifactList(task) : ""));
    this.part("buttons", buttonsKey(task), () => taskButtons(task, this.change));
  }

  ask(task) {
    const q = task.state === "question" ? task.question : null;
    if (this.box && !this.box.take(task) && this.box.state === "sending") return;
    if (!q || this.box?.question.id === q.id) return;
    this.box = new QuestionBox(task, (_, answered) => {
      if (answered) this.change(answered);
      else if (this.task.question?.id !== q.id) this.ask(this.task);
    });
    showBox(this.parts.get("ask"), this.box.node);
  }
}

// slim is what is kept of a task that has no card.
const slim = (v) => ({ task: v.task, state: v.state, slim: true });

/** The targets of what this page sent last. Of many, the first are shown one by one. */
export class Progress {
  constructor() {
    this.tasks = new Map(); // id → task, null while it is not known
    this.cards = new Map();
    on("task", (v) => {
      if (this.tasks.has(v.task)) this.change(v);
    });
    on("resync", () => this.reload());
  }

  /** Ids that are about to be sent: an event may be faster than the answer. */
  expect(ids) {
    for (const id of ids) if (!this.tasks.has(id)) this.tasks.set(id, null);
  }

  /** They were not. */
  forget(ids) {
    for (const id of ids) if (!this.tasks.get(id)) this.tasks.delete(id);
  }

  /** Tasks as the hub answered; what events said of them is newer. */
  show(made) {
    const known = this.tasks;
    const now = made.map((v) => known.get(v.task) || v);
    this.tasks = new Map(now.map((v, i) => [v.task, i < maxProgress ? v : slim(v)]));
    this.cards = new Map(now.slice(0, maxProgress).map((v) => [v.task, new Card(v, (x) => this.change(x))]));
    replace(byId("targets"), [...this.cards.values()].map((c) => c.node));
    byId("progress").hidden = false;
    const beyond = byId("beyond");
    const more = this.tasks.size - this.cards.size;
    beyond.hidden = more <= 0;
    replace(beyond, t("dispatch.beyond", { count: number(Math.max(0, more)) }), " ", el("a", { href: "/tasks" }, t("tasks.title")));
    this.tally();
  }

  change(v) {
    const before = this.tasks.get(v.task);
    const card = this.cards.get(v.task);
    this.tasks.set(v.task, before?.slim ? slim(v) : v);
    card?.take(v);
    if (before?.state === v.state) return;
    if (card && (isSettled(v.state) || v.state === "question")) announce(`${v.target}: ${stateText(v.state)}`);
    this.tally();
  }

  tally() {
    const counts = {};
    for (const v of this.tasks.values()) if (v) counts[v.state] = (counts[v.state] || 0) + 1;
    setText(byId("tally"), states.filter((s) => counts[s]).map((s) => `${number(counts[s])} ${stateText(s)}`).join(" · "));
  }

  // reload asks for what may have changed unseen: the newest tasks at once, and those
  // that are not among them one by one, up to a bound.
  async reload() {
    const open = [...this.tasks.values()].filter((v) => v && !isSettled(v.state)).map((v) => v.task);
    if (!open.length) return;
    try {
      const page = await get("/v1/tasks?limit=1000");
      const found = new Set();
      for (const v of page.tasks) {
        found.add(v.task);
        if (this.tasks.has(v.task)) this.change(v);
      }
      for (const id of open.filter((v) => !found.has(v)).slice(0, maxNamed)) this.change(await get("/v1/tasks/" + encodeURIComponent(id)));
    } catch {
      // the next resync asks again
    }
  }
}
