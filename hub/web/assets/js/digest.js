// Digests by generation: one as it is, or what changed between two. Their text is an
// agent's: it is shown as text, and cut where it is very long.
import { byId, el, replace } from "./dom.js";
import { exactTime, line, number, t } from "./text.js";
import { compareLines } from "./diff.js";
import { maxDigestLines, maxPassage } from "./limits.js";

let digests = [];
const from = byId("from");
const to = byId("to");

/** Shows digests, oldest first; what was chosen stays chosen if it is there. */
export function showDigests(list) {
  const newest = (all) => all.at(-1)?.generation;
  const followed = !to.value || to.value === String(newest(digests));
  const chosen = { from: from.value, to: followed ? "" : to.value };
  digests = list;
  byId("compare").hidden = !list.length;
  byId("digest-none").hidden = list.length > 0;
  byId("digest").hidden = !list.length;
  if (!list.length) return;
  const option = (d) => el("option", { value: d.generation }, t("digest.option", { n: number(d.generation), time: exactTime(d.at) }));
  const latest = [...list].reverse();
  replace(from, el("option", { value: "" }, t("digest.alone")), latest.map(option));
  replace(to, latest.map(option));
  const there = (v) => list.some((d) => String(d.generation) === v);
  to.value = there(chosen.to) ? chosen.to : String(newest(list));
  if (followed) from.value = list.length > 1 ? String(list.at(-2).generation) : "";
  else from.value = there(chosen.from) ? chosen.from : "";
  draw();
}

const linesOf = (text) => {
  const all = String(text || "").split("\n").filter((v) => v.trim() && v.trim() !== "none");
  return all.map((v) => line(v, maxPassage));
};

const parts = [
  ["digest.facts", (d) => (d.facts || []).map((v) => line(v, maxPassage))],
  ["digest.pending", (d) => linesOf(d.pending)],
  ["digest.refs", (d) => linesOf(d.refs)],
];

function draw() {
  const find = (v) => digests.find((d) => String(d.generation) === v);
  const b = find(to.value);
  const a = find(from.value) || null;
  if (!b) return;
  replace(byId("digest"),
    el("p", { class: "hint" }, t("digest.untrusted")),
    el("p", null, t("digest.by", { n: number(b.generation), time: exactTime(b.at) }), " ",
      el("a", { href: `/tasks/${encodeURIComponent(b.task)}` }, t("session.task"))),
    parts.map(([key, of]) => [el("h3", null, t(key)), lines(a ? compareLines(of(a), of(b)) : of(b).map((value) => ({ kind: "same", value })), Boolean(a))]));
}

const signs = { same: " ", removed: "−", added: "+", changed: "±" };

// lines lists steps. Each has its sign and, for those who hear the page, its word.
function lines(steps, compared) {
  if (!steps.length) return el("p", { class: "hint" }, t("none"));
  const list = el("ul", { class: compared ? "diff" : "plainlist" });
  const add = (some) => list.append(...some.map((s) => el("li", { class: compared ? s.kind : null },
    compared ? [el("span", { class: "sign", "aria-hidden": "true" }, signs[s.kind]), s.kind === "same" ? null : el("span", { class: "unseen" }, t("diff." + s.kind) + ": ")] : null,
    el("span", null, s.kind === "changed" ? s.steps.map(word) : s.value))));
  add(steps.slice(0, maxDigestLines));
  if (steps.length <= maxDigestLines) return list;
  const more = el("button", { type: "button", class: "quiet", on: { click: () => {
    add(steps.slice(maxDigestLines));
    more.remove();
  } } }, t("showall", { count: number(steps.length) }));
  return [list, more];
}

function word(step) {
  if (step.kind === "same") return step.value;
  return el(step.kind === "added" ? "ins" : "del", null, step.value);
}

from.addEventListener("change", draw);
to.addEventListener("change", draw);
byId("compare").addEventListener("submit", (e) => e.preventDefault());
