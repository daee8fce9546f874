// A question of an agent with all that answers it. It says how the answer went as the
// hub says it: the first answer counts, and it may be somebody else's.
import { announce, el, holding, placeOf, replace, setText } from "./dom.js";
import { post } from "./api.js";
import { draftOf, keepDraft } from "./drafts.js";
import { ago, exactTime, has, line, t, visible } from "./text.js";
import { maxAnswer, maxLine, maxOptions } from "./limits.js";
import { hubNow } from "./live.js";
import { isSettled } from "./taskview.js";

let made = 0;

/** Shows a box, alone but for those whose words the reader has not put away. */
export function showBox(root, node) {
  holding(root, () => {
    for (const old of [...root.children]) if (!old.matches(".kept") && !old.querySelector(".kept")) old.remove();
    root.prepend(node);
  });
}

export class QuestionBox {
  /** task waits; closed is told when nothing is to be answered here any more. */
  constructor(task, closed = () => {}) {
    this.task = task.task;
    this.question = task.question;
    this.closed = closed;
    this.state = "open"; // open | sending | closed
    this.unsure = false; // an answer may have arrived
    this.buttons = [];
    this.kept = false; // what the reader wrote is shown still, though it is not sent
    this.status = el("p", { class: "plain", role: "status", tabindex: "-1" });
    this.body = el("div", { class: "stack" });
    this.node = el("div", { class: "question stack" }, this.words(), this.body, this.status);
    this.fill();
  }

  words() {
    const q = this.question;
    const permission = q.kind === "permission";
    this.limit = el("span", null, q.expires_at ? t(permission ? "question.rejected.at" : "question.assumed.at", { time: exactTime(q.expires_at), ago: ago(q.expires_at, hubNow()) }) : "");
    return [
      el("p", { class: "plain" },
        el("strong", null, t(permission ? "question.permission" : "question.asks")), " ",
        el("span", { class: "hint" }, t("question.asked", { time: exactTime(q.asked_at) }), " ",
          this.limit)),
      el("pre", { class: "said", dir: "auto", tabindex: q.text.length > maxLine ? "0" : null }, visible(q.text)),
    ];
  }

  fill() {
    const q = this.question;
    const permission = q.kind === "permission";
    const options = q.options || [];
    const label = (o) => (permission && has("permit." + o) ? t("permit." + o) : line(o, 2000));
    this.buttons = options.slice(0, maxOptions).map((o, i) => el("button", { type: "button", class: "option", dir: "auto", on: { click: () => this.send(permission ? o : String(i + 1), label(o)) } },
      i < 9 ? el("kbd", { "aria-hidden": "true" }, i + 1) : null, " ", label(o)));
    const id = `answer-${++made}`;
    this.field = el("textarea", { id, rows: 2, maxlength: maxAnswer, dir: "auto" });
    const send = el("button", { type: "submit" }, t(permission ? "question.reject" : "question.send"));
    this.draft = `answer-${this.task}-${q.id}`;
    this.field.value = draftOf(this.draft) || "";
    this.field.addEventListener("input", () => keepDraft(this.draft, this.field.value));
    this.label = el("label", { for: id }, t(permission ? "question.why" : "question.own"));
    this.controls = el("div", { class: "row" }, send);
    const form = el("form", { class: "stack" }, this.label, this.field, this.controls);
    const submit = (e) => {
      e.preventDefault();
      const text = this.field.value.trim();
      if (permission) this.send(text ? `reject ${text}` : "reject", text || t("permit.reject"));
      else if (text) this.send(text, text);
      else this.field.focus();
    };
    form.addEventListener("submit", submit);
    this.field.addEventListener("keydown", (e) => {
      if (e.key === "Enter" && (e.ctrlKey || e.metaKey) && !e.isComposing) submit(e);
    });
    this.buttons.push(send);
    this.options = options.length ? el("div", { class: "options", role: "group", "aria-label": t("question.options") }, this.buttons.slice(0, -1)) : null;
    replace(this.body, this.options, form);
  }

  /** Takes the option of that number, from 1, if there is one. */
  choose(n) {
    if (this.state === "open" && n < this.buttons.length) this.buttons[n - 1].click();
  }

  focus() {
    (this.buttons[0] || this.field).focus();
  }

  async send(text, shown) {
    if (this.state !== "open") return;
    this.state = "sending";
    const place = this.body.contains(document.activeElement) ? placeOf(document.activeElement) : null;
    if (place) this.status.focus(); // what is disabled would lose the focus
    for (const b of [...this.buttons, this.field]) b.disabled = true;
    this.say("hint", t("question.sending", { answer: line(shown, 200) }));
    try {
      const task = await post(`/v1/tasks/${encodeURIComponent(this.task)}/answer`, { question: this.question.id, text });
      this.close("ok", t("question.sent", { answer: line(shown, 200) }), task);
    } catch (e) {
      if (e.code === "already_answered") this.close("warn", t(this.unsure ? "question.already.maybe" : "question.already"));
      else if (e.code === "question_gone" || e.code === "unknown_task" || e.code === "task_forgotten") this.close("warn", t("question.gone"));
      else {
        this.unsure ||= e.status === 0 || e.status >= 500;
        this.state = "open";
        for (const b of [...this.buttons, this.field]) b.disabled = false;
        if (place && document.activeElement === this.status) place.node.focus();
        this.say("bad", `${e.shown || e.message}${this.unsure ? " " + t("question.unsure") : ""}`);
        if (this.last) this.closeBy(this.last);
      }
    }
  }

  /** Takes the task as it is now; another question is for another box. */
  take(task) {
    const waits = task.state === "question" && task.question?.id === this.question.id;
    this.last = waits ? null : task;
    if (this.state === "open" && !waits) this.closeBy(task);
    return waits;
  }

  closeBy(task) {
    const why = isSettled(task.state) ? t("question.ended", { state: t("state." + task.state) }) : t(task.flags?.includes("assumed") ? "question.timeout" : "question.elsewhere");
    this.close("warn", why);
  }

  close(kind, text, task) {
    const focused = this.body.contains(document.activeElement);
    this.state = "closed";
    keepDraft(this.draft, null);
    if (kind !== "ok" && this.field.value.trim()) this.keepWords();
    else replace(this.body);
    replace(this.limit);
    this.say(kind, text);
    if (focused && document.activeElement !== this.field) this.status.focus();
    else announce(text);
    this.closed(this, task);
  }

  // keepWords leaves what the reader wrote, to be read and copied until it is put away.
  keepWords() {
    this.kept = true;
    this.node.classList.add("kept");
    this.options?.remove();
    setText(this.label, t("question.kept"));
    this.field.disabled = false;
    this.field.readOnly = true;
    replace(this.controls, el("button", { type: "button", class: "quiet", on: { click: () => {
      this.kept = false;
      this.node.classList.remove("kept");
      replace(this.body);
      this.status.focus();
    } } }, t("question.kept.away")));
  }

  say(kind, text) {
    this.status.className = `plain ${kind}`;
    setText(this.status, text);
  }
}
