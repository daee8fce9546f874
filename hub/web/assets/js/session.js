// One bound session: its course, what it handed over, and what can be done with it.
import { announce, block, byId, el, facts, replace, setText } from "./dom.js";
import { ago, exactTime, has, line, number, t, time } from "./text.js";
import { get, post } from "./api.js";
import { maxLine, refreshEvery } from "./limits.js";
import { hubNow, on } from "./live.js";
import { ctxBar, occupancy, percents } from "./plot.js";
import { opName, opText, stateText } from "./operation.js";
import { mint } from "./ids.js";
import { showDigests } from "./digest.js";
import { start } from "./shell.js";

const first = block("first");
let session = first.session;
let node = first.nodes.nodes.find((n) => n.name === session.target) || null;
let operation = session.operation || null; // the one that is shown, also when it has ended
let asked = ""; // the operation that this page began
let sending = false;

const place = `${encodeURIComponent(session.controller)}/${encodeURIComponent(session.target)}`;
const workspace = `workspace=${encodeURIComponent(session.workspace)}`;
const buttons = { compact: byId("compact"), reset: byId("reset"), clear: byId("clear") };

function tokensText(tokens) {
  if (!tokens) return "";
  return tokens.limit ? t("ctx.tokens", { total: number(tokens.total), limit: number(tokens.limit) }) : t("session.tokens", { total: number(tokens.total) });
}

function show() {
  setText(byId("what"), t("session.of", { controller: session.controller, target: session.target, workspace: line(session.workspace, maxLine) }));
  replace(byId("facts"), facts([
    [t("session.session"), session.session ? el("code", null, line(session.session, maxLine)) : t("sessions.unbound")],
    [t("session.title.of"), line(session.title, maxLine)],
    [t("session.generation"), number(session.generation)],
    [t("session.ctx"), el("span", null, ctxBar(session.ctx_percent), " ", tokensText(session.tokens))],
    [t("session.created"), exactTime(session.created_at)],
    [t("session.used"), `${exactTime(session.last_used)} (${ago(session.last_used, hubNow())})`],
  ]));
  const points = percents(session.fills);
  replace(byId("plot"), points.length ? occupancy(points) : el("p", { class: "hint" }, t("session.nofill")));
  byId("fill-values").hidden = !points.length;
  replace(byId("fill-values").querySelector(".scroll"), table(
    [t("session.at"), t("session.generation"), t("session.ctx"), t("session.tokens.name")],
    [...(session.fills || [])].reverse().map((f) => [exactTime(f.at), number(f.generation), f.limit ? `${number(Math.round((100 * f.total) / f.limit))} %` : t("unknown"), tokensText(f)])));
  showFormer();
  showOperation();
}

function table(heads, rows) {
  return el("table", null,
    el("thead", null, el("tr", null, heads.map((h) => el("th", { scope: "col" }, h)))),
    el("tbody", null, rows.map((cells) => el("tr", null, cells.map((c) => el("td", null, c))))));
}

function showFormer() {
  const former = session.former || [];
  if (!former.length) {
    replace(byId("former"), el("p", { class: "hint" }, t("session.noformer")));
    return;
  }
  replace(byId("former"), el("ul", { class: "rows" }, former.map((f) => el("li", { class: "card" },
    el("h3", null, t("sessions.generation", { n: number(f.generation) })),
    el("p", { class: "plain mono" }, line(f.session, maxLine)),
    el("p", { class: "plain" }, has("why." + f.why) ? t("why." + f.why) : line(f.why, maxLine)),
    el("p", { class: "line plain" },
      el("span", null, t("session.lived", { from: time(f.created_at), to: time(f.ended_at) })),
      f.tokens?.limit ? ctxBar(Math.round((100 * f.tokens.total) / f.tokens.limit)) : el("span", null, tokensText(f.tokens)))))));
}

function showOperation() {
  const open = Boolean(operation && !operation.ended_at);
  byId("offline").hidden = !node || node.state === "online";
  buttons.compact.disabled = open || sending || !session.session;
  buttons.clear.disabled = open || sending || !session.session;
  buttons.reset.disabled = open || sending;
  const box = byId("outcome");
  if (!operation) return;
  const bad = !open && operation.state !== "done";
  box.hidden = false;
  box.className = `notice ${open ? "warn" : bad ? "bad" : "ok"}`;
  const inside = box.contains(document.activeElement);
  const detail = operation.error ? line(operation.error.message, maxLine) : !open ? line(operation.summary, maxLine) : "";
  replace(box,
    el("strong", null, opText(operation)), detail ? ` · ${detail} ` : " ",
    el("a", { href: `/tasks/${encodeURIComponent(operation.task)}` }, t("session.task")), " ",
    open ? el("button", { type: "button", class: "quiet", disabled: Boolean(operation.cancel_requested_at), on: { click: cancel } }, operation.cancel_requested_at ? t("session.canceling") : t("cancel")) : null);
  // The keyboard goes on from here when the button that was used rests.
  const at = document.activeElement;
  if (inside || at === document.body || (open && at instanceof HTMLButtonElement && at.disabled)) box.focus();
}

function failed(e) {
  const box = byId("outcome");
  box.hidden = false;
  box.className = "notice bad";
  replace(box, e.shown || String(e));
}

async function cancel() {
  try {
    operation = await post(`/v1/tasks/${encodeURIComponent(operation.task)}/cancel`);
    showOperation();
  } catch (e) {
    failed(e);
  }
}

// operate begins an operation. Its id is minted first, and kept while nobody knows
// whether it arrived, so that asking again is no second one.
const unsure = new Map(); // operation → id
async function operate(op) {
  const body = { id: unsure.get(op) || mint(document.querySelector(".user").textContent), workspace: session.workspace };
  sending = true;
  showOperation();
  try {
    const send = () => post(`/v1/bindings/${place}/${op}`, body);
    const task = await send().catch((e) => (e.code === "network" ? send() : Promise.reject(e)));
    unsure.delete(op);
    asked = task.task;
    // An event may have been faster than the answer.
    if (operation?.task !== task.task) operation = task;
    sending = false;
    showOperation();
    if (operation.ended_at) reload();
  } catch (e) {
    if (e.status === 0 || e.status >= 500) unsure.set(op, body.id);
    else unsure.delete(op);
    sending = false;
    showOperation();
    failed(e);
  }
}

let asking = 0;
function reload() {
  if (asking) return;
  asking = setTimeout(async () => {
    asking = 0;
    try {
      const [s, d] = await Promise.all([
        get(`/v1/bindings/${place}?${workspace}`),
        get(`/v1/digests?controller=${encodeURIComponent(session.controller)}&target=${encodeURIComponent(session.target)}&${workspace}`),
      ]);
      session = s;
      if (s.operation) operation = s.operation;
      show();
      showDigests(d.digests);
    } catch {
      // the connection is lost, which the page says; a resync or the next event asks again
    }
  }, refreshEvery / 4);
}

function ofThis(task) {
  return task.controller === session.controller && task.target === session.target && (task.workspace || session.workspace) === session.workspace;
}

on("task", (task) => {
  if (!ofThis(task)) return;
  if (task.op && (!task.ended_at || task.task === operation?.task || task.task === asked)) {
    const before = operation?.task === task.task ? operation.state : "";
    operation = task;
    showOperation();
    if (before !== task.state) announce(`${opName(task.op)}: ${stateText(task.state)}`);
  }
  if (task.ended_at) reload();
});
on("node", (n) => {
  if (n.name !== session.target) return;
  node = n;
  showOperation();
});
on("resync", reload);

buttons.compact.addEventListener("click", () => operate("compact"));

const askReset = byId("ask-reset");
buttons.reset.addEventListener("click", () => {
  askReset.returnValue = "no";
  askReset.showModal();
});
askReset.addEventListener("close", () => askReset.returnValue === "yes" && operate("reset"));

const askClear = byId("ask-clear");
const typed = byId("clear-name");
setText(byId("clear-label"), t("clear.name", { name: session.target }));
buttons.clear.addEventListener("click", () => {
  typed.value = "";
  byId("clear-yes").disabled = true;
  askClear.returnValue = "no";
  askClear.showModal();
});
typed.addEventListener("input", () => {
  byId("clear-yes").disabled = typed.value.trim() !== session.target;
});
byId("clear-no").addEventListener("click", () => askClear.close("no"));
askClear.addEventListener("close", () => askClear.returnValue === "yes" && typed.value.trim() === session.target && operate("clear"));

show();
showDigests(first.digests.digests);
start();
