// Dispatch: which nodes, what and how, and then what becomes of it, target by target.
//
// Ids are made before the first send. While it is not known whether a send arrived, the
// same content goes out under the same ids again, so that nothing runs twice; other
// content gets ids of its own. The draft outlives a failed send and, in this tab only,
// the page, be it for the login that comes between.
import { announce, block, byId, el, replace, setText } from "./dom.js";
import { get, post } from "./api.js";
import { draftOf, keepDraft, onLeave } from "./drafts.js";
import { line, number, t } from "./text.js";
import { maxLine, maxOffered, maxTargets, maxText } from "./limits.js";
import { on } from "./live.js";
import { shortcut } from "./keys.js";
import { millis } from "./millis.js";
import { mint } from "./ids.js";
import { Progress } from "./progress.js";
import * as context from "./quote.js";
import { Wrong } from "./quote.js";
import { start } from "./shell.js";

const me = block("first").me.name;
const nodes = new Map(); // name → node
const chosen = new Set(); // names
const f = Object.fromEntries(["search", "text", "new", "workspace", "ttl", "deadline", "wait", "answer", "match", "compact", "send"].map((id) => [id, byId(id)]));
const progress = new Progress();

function takeNodes(page) {
  nodes.clear();
  for (const n of page.nodes) nodes.set(n.name, n);
}

// --- nodes ---

const chips = 50; // chosen nodes that are named one by one
let offered = []; // names, as they are shown

function matching() {
  const want = f.search.value.trim().toLowerCase();
  const fit = (n) => !want || [n.name, n.platform, ...(n.workspaces || [])].some((v) => v && v.toLowerCase().includes(want));
  const rank = (n) => (n.name === want ? 0 : n.state === "online" ? 1 : 2);
  return [...nodes.values()].filter(fit).sort((a, b) => rank(a) - rank(b) || (a.name < b.name ? -1 : 1));
}

function nodeLabel(n) {
  const input = el("input", { type: "checkbox", value: n.name, tabindex: "-1" });
  input.checked = chosen.has(n.name);
  input.addEventListener("change", () => choose(n.name, input.checked));
  return el("label", { class: "check", data: { node: n.name } }, input, " ",
    el("span", { class: "name" }, n.name), " ",
    el("span", { class: `state ${n.state === "online" ? "ok" : "idle"}` }, t("node." + n.state)),
    n.running + n.queued ? el("span", { class: "hint" }, ` ${number(n.running + n.queued)}`, el("span", { class: "unseen" }, ` ${t("fleet.busy")}`)) : null);
}

function offer() {
  const root = byId("nodes");
  const focused = root.contains(document.activeElement) ? document.activeElement.value : "";
  const all = matching();
  const shown = all.slice(0, maxOffered);
  offered = shown.map((n) => n.name);
  replace(root, shown.map(nodeLabel));
  // One of them is reached by Tab, the others by the arrows.
  const at = Math.max(0, offered.indexOf(focused));
  const box = root.querySelectorAll("input")[at];
  if (box) box.tabIndex = 0;
  if (focused && box?.value === focused) box.focus();
  const others = byId("others");
  others.hidden = all.length === shown.length && all.length > 0;
  if (!all.length) setText(others, t(nodes.size ? "fleet.nomatch" : "fleet.empty"));
  else if (!others.hidden) setText(others, t("dispatch.others", { count: number(all.length - shown.length) }));
}

function choose(name, yes) {
  if (yes && chosen.size >= maxTargets) {
    say(t("dispatch.toomany", { count: number(maxTargets) }));
    offer();
    return;
  }
  if (yes) chosen.add(name);
  else chosen.delete(name);
  const box = [...byId("nodes").querySelectorAll("input")].find((b) => b.value === name);
  if (box) box.checked = yes;
  showChosen();
}

function showChosen() {
  setText(byId("chosen"), t("dispatch.count", { count: number(chosen.size) }));
  replace(byId("chips"), [...chosen].slice(0, chips).map((name) => el("li", null,
    el("button", { type: "button", "aria-label": t("dispatch.remove", { node: name }), on: { click: (e) => {
      const beside = e.currentTarget.parentElement.nextElementSibling || e.currentTarget.parentElement.previousElementSibling;
      const at = beside?.querySelector("button")?.dataset.node;
      choose(name, false);
      ([...byId("chips").querySelectorAll("button")].find((b) => b.dataset.node === at) || f.search).focus();
    } }, data: { node: name } }, name, " ×"))),
    chosen.size > chips ? el("li", { class: "hint" }, t("dispatch.andmore", { count: number(chosen.size - chips) })) : null);
  workspaces();
}

// workspaces offers what every chosen node has; without a choice each takes its first.
function workspaces() {
  let common = null;
  for (const name of chosen) {
    const own = new Set(nodes.get(name)?.workspaces || []);
    common = common === null ? [...own] : common.filter((w) => own.has(w));
  }
  const before = f.workspace.value;
  replace(f.workspace, el("option", { value: "" }, t("task.workspace.first")), (common || []).map((w) => el("option", { value: w }, line(w, maxLine))));
  f.workspace.value = common?.includes(before) ? before : "";
}

byId("nodes").addEventListener("keydown", (e) => {
  const by = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[e.key];
  if (!by || e.target.type !== "checkbox") return;
  e.preventDefault();
  const boxes = [...byId("nodes").querySelectorAll("input")];
  const to = boxes[Math.max(0, Math.min(boxes.length - 1, boxes.indexOf(e.target) + by))];
  e.target.tabIndex = -1;
  to.tabIndex = 0;
  to.focus();
});
f.search.addEventListener("input", offer);
f.search.addEventListener("keydown", (e) => {
  if (e.key === "Enter" && !e.isComposing) { // the first that fits is taken, or taken back
    e.preventDefault();
    const name = offered[0];
    if (!name || !f.search.value.trim()) return;
    choose(name, !chosen.has(name));
    announce(t(chosen.has(name) ? "dispatch.added" : "dispatch.removed", { node: name }));
    f.search.value = "";
    offer();
  } else if (e.key === "ArrowDown") {
    e.preventDefault();
    byId("nodes").querySelector("input[tabindex='0']")?.focus();
  }
});
byId("online").addEventListener("click", () => {
  for (const n of nodes.values()) if (n.state === "online" && chosen.size < maxTargets) chosen.add(n.name);
  offer();
  showChosen();
});
byId("clear").addEventListener("click", () => {
  chosen.clear();
  offer();
  showChosen();
});

// --- sending ---

function say(text) {
  const problem = byId("problem");
  problem.hidden = !text;
  setText(problem, text);
}

function period(field, name) {
  const ms = millis(field.value);
  if (ms === null) throw new Wrong(field, t("dispatch.period", { name, value: line(field.value, 40) }));
  return ms;
}

// content is what is dispatched, but for the ids.
function content() {
  const quote = context.quote();
  const text = f.text.value + (quote ? `\n\n${quote.text}` : "");
  if (!chosen.size) throw new Wrong(f.search, t("dispatch.nobody"));
  if (!f.text.value.trim()) throw new Wrong(f.text, t("dispatch.notext"));
  if (new TextEncoder().encode(text).length > maxText) throw new Wrong(f.text, t("dispatch.toolong"));
  const answer = f.answer.value === "match" ? f.match.value : f.answer.value;
  if (f.answer.value === "match" && !answer) throw new Wrong(f.match, t("dispatch.nomatch.pattern"));
  const compact = Number(f.compact.value || 0);
  if (!Number.isInteger(compact) || compact < 0 || compact > 100) throw new Wrong(f.compact, t("dispatch.percent"));
  return {
    names: [...chosen].sort(), text, mode: document.querySelector("input[name=mode]:checked").value, new: f.new.checked, workspace: f.workspace.value,
    ttl_ms: period(f.ttl, t("dispatch.ttl")), deadline_ms: period(f.deadline, t("dispatch.deadline")), question_timeout_ms: period(f.wait, t("dispatch.wait")),
    auto_answer: answer, auto_compact: compact, ...(quote ? { context_query: quote.id } : {}),
  };
}

// What was sent and is not known to have arrived: its content and the ids, in the order
// of the names.
let unsure = null; // {content, ids}

function body(c, ids) {
  const { names, ...rest } = c;
  return { targets: names.map((name, i) => ({ name, id: ids[i] })), ...rest };
}

// wrong says what a field has that cannot be.
function wrong(err) {
  if (!(err instanceof Wrong)) throw err;
  say(err.message);
  const details = err.field.closest("details");
  if (details) details.open = true;
  err.field.focus();
}

// look asks for the context that the fields are about.
async function look() {
  say("");
  f.send.disabled = true;
  try {
    await context.look();
  } catch (err) {
    if (err instanceof Wrong) wrong(err);
    else say(err.shown || err.message);
  }
  f.send.disabled = false;
  showUnsure();
}

async function send(e) {
  e?.preventDefault();
  if (f.send.disabled) return;
  say("");
  let c;
  try {
    c = content();
    if (context.unasked()) { // what is quoted is seen before it is sent
      await look();
      return;
    }
  } catch (err) {
    wrong(err);
    return;
  }
  const same = unsure && JSON.stringify(unsure.content) === JSON.stringify(c);
  const ids = same ? unsure.ids : c.names.map(() => mint(me));
  f.send.disabled = true;
  setText(f.send, t("dispatch.sending"));
  const draft = { content: c, ids, words: f.text.value, context: context.kept(true) };
  keep(draft); // before the way to the login page, if it comes to that
  progress.expect(ids);
  try {
    const made = await post("/v1/tasks", body(c, ids));
    unsure = null;
    keep(null);
    progress.show(made.tasks);
    f.text.value = "";
    context.clear();
    announce(t("dispatch.sent", { count: number(made.tasks.length) }));
    byId("progress-title").focus({ preventScroll: true });
    byId("progress").scrollIntoView();
  } catch (err) {
    progress.forget(ids);
    say(err.shown || err.message);
    // Whoever is refused knows that nothing was made. No answer, or one of a hub in
    // trouble, says nothing; nor does a refusal of a repeat about the first send.
    if (err.status === 0 || err.status >= 500 || err.status === 401) unsure = draft;
    keep(unsure);
    f.send.focus();
  }
  f.send.disabled = false;
  showUnsure();
}

function showUnsure() {
  let now = null;
  try {
    now = content();
  } catch {
    // not whole yet
  }
  const note = byId("unsure");
  const same = unsure && JSON.stringify(unsure.content) === JSON.stringify(now);
  note.hidden = !unsure;
  setText(note, unsure ? t(same ? "dispatch.unsure" : "dispatch.unsure.changed") : "");
  setText(f.send, t(same ? "dispatch.again" : "dispatch.send"));
}

// --- the draft, in this tab ---

const keep = (draft) => keepDraft("dispatch", draft);

function takeUp() {
  const draft = draftOf("dispatch");
  if (!draft?.content) return;
  const c = draft.content;
  if (draft.ids) unsure = draft;
  else keep(null); // it is on the page again
  for (const name of c.names) if (nodes.has(name)) chosen.add(name);
  showChosen();
  f.text.value = draft.words ?? c.text ?? ""; // one without words has them in what was composed
  context.takeUp(draft.context);
  if (!draft.ids) return; // no more than that is kept of what was not sent
  for (const radio of document.querySelectorAll("input[name=mode]")) radio.checked = radio.value === c.mode;
  f.new.checked = c.new;
  f.workspace.value = c.workspace;
  const written = (ms) => (ms ? `${ms / 1000}s` : "");
  f.ttl.value = written(c.ttl_ms);
  f.deadline.value = written(c.deadline_ms);
  f.wait.value = written(c.question_timeout_ms);
  f.answer.value = ["", "first"].includes(c.auto_answer) ? c.auto_answer : "match";
  if (f.answer.value === "match") f.match.value = c.auto_answer;
  f.compact.value = c.auto_compact || "";
}

// What is written is there again after a login that came between, or another page; not
// after the reader has logged out.
onLeave(() => {
  const written = context.kept(false);
  if (!unsure && !f.send.disabled && (f.text.value + written.goal).trim()) keep({ content: { names: [...chosen] }, ids: null, words: f.text.value, context: written });
});

// --- the rest ---

const form = byId("form");
form.noValidate = true; // the page says itself what is missing
form.addEventListener("submit", send);
byId("look").addEventListener("click", look);
form.addEventListener("input", () => {
  byId("match-label").hidden = f.answer.value !== "match";
  if (unsure) showUnsure();
});
f.text.addEventListener("keydown", (e) => {
  if (e.key === "Enter" && (e.ctrlKey || e.metaKey) && !e.isComposing) send(e);
});
shortcut("n", t("dispatch.keys.text"), () => f.text.focus());

takeNodes(block("first").nodes);
takeUp();
const wanted = new URLSearchParams(location.search).getAll("node"); // a link may name nodes
for (const name of wanted) if (nodes.has(name)) chosen.add(name);
offer();
showChosen();
byId("match-label").hidden = f.answer.value !== "match";
showUnsure();

let arranging = 0;
on("node", (n) => {
  const old = nodes.get(n.name);
  nodes.set(n.name, n);
  if (old?.state === n.state && String(old?.workspaces) === String(n.workspaces)) return;
  if (!arranging) {
    arranging = setTimeout(() => {
      arranging = 0;
      offer();
      workspaces();
    }, 250);
  }
});
on("resync", async () => {
  try {
    takeNodes(await get("/v1/nodes"));
    offer();
    workspaces();
  } catch {
    // the next resync asks again
  }
});
start();
