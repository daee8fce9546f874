// The context of a dispatch: what was found for a goal, quoted below the task's text.
// Nothing is quoted that the reader has not seen: it is asked for first, and counts only
// for the goal, the budget and the nodes that it was asked for with.
import { announce, byId, el, replace, setText } from "./dom.js";
import { number, t } from "./text.js";
import { post } from "./api.js";
import { citedList, costText, legList } from "./contextview.js";
import { maxContextNodes, maxContextTokens, maxGoal, queryLimit } from "./limits.js";
import { textBox } from "./words.js";

const f = Object.fromEntries(["goal", "tokens", "asked", "look"].map((id) => [id, byId(id)]));
const size = (text) => new TextEncoder().encode(text).length;

/** What a field of it has that cannot be. */
export class Wrong extends Error {
  constructor(field, text) {
    super(text);
    this.field = field;
  }
}

let found = null; // {query, id, text, tokens, …}: what was found, and for what

// query is what the fields ask for; null without a goal.
function query() {
  const goal = f.goal.value.trim();
  if (!goal) return null;
  if (size(goal) > maxGoal) throw new Wrong(f.goal, t("quote.toolong", { count: number(maxGoal) }));
  const tokens = Number(f.tokens.value || 0);
  if (!Number.isInteger(tokens) || tokens < 0 || tokens > maxContextTokens) throw new Wrong(f.tokens, t("quote.budget", { count: number(maxContextTokens) }));
  const nodes = [...new Set(f.asked.value.split(/[\s,，、;]+/).filter(Boolean))];
  if (nodes.length > maxContextNodes) throw new Wrong(f.asked, t("quote.nodes", { count: number(maxContextNodes) }));
  return { goal, max_frames: 0, max_tokens: tokens, ...(nodes.length ? { nodes } : {}), compose: true };
}

const isOf = (q) => Boolean(found && q && JSON.stringify(found.query) === JSON.stringify(q));

/** Whether there is a goal for which nobody has asked yet. */
export function unasked() {
  const q = query();
  return q !== null && !isOf(q);
}

/** What is quoted: {id, text}; null when nothing is. */
export function quote() {
  return isOf(query()) && found.text ? { id: found.id, text: found.text } : null;
}

function show() {
  const box = byId("found");
  let current = false;
  try {
    current = isOf(query());
  } catch {
    // a field is wrong, which is said when it is used
  }
  box.hidden = !current;
  if (!current) {
    replace(box);
    return;
  }
  replace(box,
    el("h3", { id: "found-title", tabindex: "-1" }, found.text ? t("quote.found", { cost: costText(found.tokens, found.query.max_tokens) }) : t("quote.nothing")),
    el("p", { class: "plain hint" }, t(found.text ? "quote.appended" : "quote.without")),
    found.truncated ? el("p", { class: "plain warn" }, t("context.truncated")) : null,
    found.forged ? el("p", { class: "plain warn" }, t("quote.forged", { count: number(found.forged) })) : null,
    found.text ? citedList(found.frames) : null,
    legList(found.legs),
    found.text ? el("details", null, el("summary", null, t("quote.text")), el("div", { class: "untrusted" }, textBox(t("quote.text"), found.text))) : null);
}

/** Asks for what is to be quoted and shows it. What is wrong or refused is thrown. */
export async function look() {
  const q = query();
  if (!q) throw new Wrong(f.goal, t("quote.nogoal"));
  f.look.disabled = true;
  setText(f.look, t("quote.looking"));
  try {
    const r = await post("/v1/context/query", q, { limit: queryLimit });
    found = { query: q, id: r.id, text: r.text || "", tokens: r.tokens, truncated: r.truncated, legs: r.legs, frames: r.usage?.frames || [], forged: r.usage?.forged || 0 };
  } finally {
    f.look.disabled = false;
    setText(f.look, t("quote.look"));
  }
  show();
  const title = byId("found-title");
  if (!title) return; // the goal is another by now
  announce(title.textContent);
  title.focus({ preventScroll: true });
  byId("found").scrollIntoView({ block: "nearest" });
}

/** What a draft keeps: what is written and, with whole, what was found. */
export const kept = (whole) => ({ goal: f.goal.value, tokens: f.tokens.value, asked: f.asked.value, found: whole ? found : null });

/** Takes up what a draft kept. */
export function takeUp(v) {
  if (!v) return;
  [f.goal.value, f.tokens.value, f.asked.value] = [v.goal || "", v.tokens || "", v.asked || ""];
  found = v.found || null;
  byId("context").open = Boolean(f.goal.value.trim());
  show();
}

/** Forgets the goal: it was sent. */
export function clear() {
  f.goal.value = "";
  found = null;
  show();
}

for (const field of [f.goal, f.tokens, f.asked]) field.addEventListener("input", show);
